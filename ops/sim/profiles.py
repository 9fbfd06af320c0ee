"""Engine profiles: what an engine costs and can hold, as data files with their derivation beside this module."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from schemas.errors import ConfigError
from schemas.frames import Extractor, Limits
from workers.sim_core import Costs

FOLDER = Path(__file__).with_name("profiles")
Seconds = Annotated[float, Meta(ge=0, lt=3600)]
Count = Annotated[int, Meta(ge=1)]


class CostFigures(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """See `workers.sim_core.Costs`; seconds."""

    step: Seconds
    prefill_token: Seconds
    decode: Seconds
    kv_token: Seconds = 0.0
    attended_pair: Seconds = 0.0
    floor: Seconds = 0.0


class LimitFigures(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """See `schemas.frames.Limits`."""

    max_model_len: Count
    max_num_batched_tokens: Count
    long_prefill_token_threshold: Count
    max_num_seqs: Count
    kv_blocks: Count
    block_size: Count


class Overrides(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a worker of Tapewire is started with where it differs from the engine's own defaults."""

    max_num_batched_tokens: Count | None = None
    long_prefill_token_threshold: Count | None = None
    max_num_seqs: Count | None = None


class ExtractorFigures(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """See `schemas.frames.Extractor`."""

    prompt_tokens: Annotated[int, Meta(ge=0)]
    shared_prefix_tokens: Annotated[int, Meta(ge=0)]
    max_new_tokens: Count


class Profile(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One engine on one device.

    Args:
        run_ahead: steps that are scheduled before the running one has ended.
        noise: standard deviation of a step's time around the model, relative.
        link_us: scheduler to worker, and back, each in microseconds.
    """

    name: str
    run_ahead: Annotated[int, Meta(ge=0, le=4)]
    noise: Annotated[float, Meta(ge=0, le=1)]
    link_us: Annotated[float, Meta(ge=0)]
    costs: CostFigures
    limits: LimitFigures
    extractors: dict[str, ExtractorFigures]
    tapewire: Overrides = Overrides()

    def step_costs(self) -> Costs:
        """Return the costs for a simulated engine."""
        return Costs(**msgspec.structs.asdict(self.costs))

    def engine_limits(self, *, tapewire: bool) -> Limits:
        """Return what the engine is started with, by default or as a worker of Tapewire."""
        values = msgspec.structs.asdict(self.limits)
        if tapewire:
            values |= {k: v for k, v in msgspec.structs.asdict(self.tapewire).items() if v is not None}
        return Limits(**values)

    def wraps(self) -> dict[str, Extractor]:
        """Return the extractors by name."""
        return {
            name: Extractor(name=name, prompt_version="sim", **msgspec.structs.asdict(figures))
            for name, figures in self.extractors.items()
        }


def profile_names() -> list[str]:
    """Return the profiles that come with Tapewire."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_profile(name: str) -> Profile:
    """Load a profile by its name, or from a file when it ends in ``.toml``.

    Raises:
        ConfigError: there is none, or a value in it is wrong; names the field.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not name.endswith(".toml") and name not in profile_names():
        raise ConfigError("profile", f"no profile is named {name!r}; there are {', '.join(profile_names())}")
    try:
        return msgspec.convert(tomllib.loads(path.read_text("utf-8")), Profile)
    except OSError as error:
        raise ConfigError("profile", f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError("profile", f"{path}: {error}") from None
