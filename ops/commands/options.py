"""Flags that several commands share, and the settings they make."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.config import Settings, load
from ops.logs import configure
from schemas.errors import ConfigError

DEBUG_FLAG = "--debug"

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", envvar="TAPEWIRE_CONFIG", help="Configuration file; ./tapewire.toml is read when it exists."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for programs.")]
EngineName = Annotated[str | None, typer.Option("--engine", help="worker.engine: vllm or sim.")]
Model = Annotated[
    str | None, typer.Option("--model", help="worker.model: a directory, a hub name, or smollm2 (the one in a wheel).")
]


def debugging() -> bool:
    """Return whether ``tapewire --debug`` was given; read from the command line, since errors come before parsing."""
    return DEBUG_FLAG in sys.argv[1:]


def settings_of(
    config: Path | None, overrides: Mapping[str, Any] | None = None, *, profile: str | None = None
) -> Settings:
    """Load the settings for a command and set up its logs.

    Raises:
        ConfigError: names the setting.
    """
    settings = load(config, profile=profile, overrides=overrides)
    configure(settings.log, debug=debugging())
    return settings


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Say which extra to install where an import inside the block fails.

    Raises:
        ConfigError: a library of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"tapewire[{extra}]", f"needs the library {error.name}: install this extra") from None
