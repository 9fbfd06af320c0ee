"""One validated `Settings` value: defaults, then a profile, ``tapewire.toml``, the environment and flags over them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from schemas.errors import ConfigError
from schemas.news_settings import NewsSettings
from schemas.settings import (
    EdgarSettings,
    KafkaSettings,
    LinkSettings,
    LogSettings,
    RedisSettings,
    SchedulerSettings,
    WorkerSettings,
)

DEFAULT_FILE = Path("tapewire.toml")
ENV_PREFIX = "TAPEWIRE_"
ENV_NESTED = "__"
MASK = "********"
PROFILES = Path(__file__).parent / "profiles"

Values = Mapping[str, Any]


class Settings(BaseSettings):
    """Everything that can be configured; each group is documented in `schemas.settings`."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_NESTED, extra="forbid", frozen=True, case_sensitive=False
    )

    kafka: KafkaSettings = KafkaSettings()
    redis: RedisSettings = RedisSettings()
    link: LinkSettings = LinkSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    worker: WorkerSettings = WorkerSettings()
    edgar: EdgarSettings = EdgarSettings()
    news: NewsSettings = NewsSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values only from what `load` merged: it knows which file each came from."""
        return (init_settings,)


def load(
    path: Path | None = None,
    *,
    profile: str | None = None,
    overrides: Values | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read and validate the configuration.

    Args:
        path: ``--config``; without it ``./tapewire.toml`` is read if it exists, unless a profile is given.
        profile: name of a file in ``ops/profiles`` that everything else is laid over.
        overrides: nested values from command-line flags, over everything; ``None`` values are flags not given.
        environ: for the tests; the process's environment otherwise.

    Raises:
        ConfigError: names the first wrong setting and lists every other problem.
    """
    if path is None and profile is None and DEFAULT_FILE.exists():
        path = DEFAULT_FILE
    merged: dict[str, Any] = {}
    if profile is not None:
        _merge(merged, _read_toml(PROFILES / f"{profile}.toml"))
    if path is not None:
        _merge(merged, _read_toml(path))
    _merge(merged, _from_environment(os.environ if environ is None else environ))
    _merge(merged, _given(overrides or {}))
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise _problems(error, path) from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("--config", f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError("--config", f"{path}: byte {error.start} is not UTF-8") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("--config", f"{path} is not TOML: {error}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Nested values of ``TAPEWIRE_GROUP__SETTING`` variables; a misspelt group is an error, not silence."""
    known = set(Settings.model_fields)
    for variable in environ:
        upper = variable.upper()
        if not upper.startswith(ENV_PREFIX) or ENV_NESTED not in upper:
            continue
        group = upper.removeprefix(ENV_PREFIX).split(ENV_NESTED, 1)[0].lower()
        if group not in known:
            raise ConfigError(group, f"environment variable {variable}: no such group ({', '.join(sorted(known))})")
    source = EnvSettingsSource(Settings)
    # pydantic-settings lets the variables be replaced this way only; the tests need it, and so do odd-case names.
    source.env_vars = {key.lower(): value for key, value in environ.items()}
    try:
        return source()
    except SettingsError as error:
        group = str(error).split('"')[1] if '"' in str(error) else "environment"
        cause = error.__cause__ or error
        raise ConfigError(group, f"environment variable of {ENV_PREFIX}{group.upper()}: not JSON: {cause}") from None


def _given(overrides: Values) -> dict[str, Any]:
    """Drop flags that were not given."""
    given: dict[str, Any] = {}
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            if inner := _given(value):
                given[key] = inner
        elif value is not None:
            given[key] = value
    return given


def _merge(into: dict[str, Any], values: Values) -> None:
    for key, value in values.items():
        old = into.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict):
            _merge(old, value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _problems(error: ValidationError, path: Path | None) -> ConfigError:
    """Turn pydantic's report into one error; the values themselves stay out of it, one may be a secret."""
    found = [(_dotted(item["loc"]), _reason(item)) for item in error.errors(include_url=False, include_input=False)]
    setting, reason = found[0]
    if path is not None:
        reason = f"{reason} (configuration file {path})"
    for other, why in found[1:]:
        reason = f"{reason}\n  {other}: {why}"
    return ConfigError(setting, reason)


def _dotted(loc: tuple[int | str, ...]) -> str:
    name = ""
    for part in loc:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def _reason(item: Mapping[str, Any]) -> str:
    if item["type"] == "extra_forbidden":
        return f"there is no such setting{_known(item['loc'])}"
    return str(item["msg"]).removeprefix("Value error, ")


def _known(loc: tuple[int | str, ...]) -> str:
    """Name the settings that the unknown one may have meant."""
    if len(loc) == 1:
        return f"; groups are {', '.join(Settings.model_fields)}"
    field = Settings.model_fields.get(str(loc[0]))
    model = field.annotation if field else None
    if len(loc) != 2 or model is None:
        return ""
    return f"; {loc[0]} has {', '.join(getattr(model, 'model_fields', {}))}"


def as_values(settings: Settings, *, secrets: bool) -> dict[str, dict[str, Any]]:
    """Return the effective configuration as plain values; secrets are masked unless a child process needs them."""
    values: dict[str, dict[str, Any]] = {}
    for group in Settings.model_fields:
        dumped = getattr(settings, group).model_dump(mode="python", exclude_none=True)
        values[group] = {key: _plain(value, secrets=secrets) for key, value in dumped.items()}
    if not secrets:
        values["redis"]["url"] = masked_url(settings.redis.url)
    return values


def _plain(value: Any, *, secrets: bool) -> Any:
    if isinstance(value, SecretStr):
        shown = value.get_secret_value()
        return shown if secrets or not shown else MASK
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        # Empty conditions of a rule are its defaults, and would hide the ones that it has.
        return {key: _plain(inner, secrets=secrets) for key, inner in value.items() if inner not in (None, ())}
    if isinstance(value, list | tuple):
        return [_plain(inner, secrets=secrets) for inner in value]
    return value


def masked_url(url: str) -> str:
    """Hide the password of a URL, for messages and for ``config show``."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:{MASK}@{host}"))
