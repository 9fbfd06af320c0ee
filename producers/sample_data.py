"""Finds the sample events that come with the package, in a checkout and in an installed wheel alike."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from producers.events import decode_event
from schemas.errors import ConfigError
from schemas.records import Event

SAMPLES = ("news", "filings")
"""Names of the sample files, written for this project: invented stories about invented companies."""


def sample_path(name: str) -> Path:
    """Return the path of one sample file.

    Args:
        name: ``news`` or ``filings``.

    Raises:
        ConfigError: there is no such sample, or the installation lacks it.
    """
    if name not in SAMPLES:
        raise ConfigError("sample", f"{name!r} is none of {', '.join(SAMPLES)}")
    path = Path(str(files("producers"))) / "samples" / f"{name}.jsonl"
    if not path.is_file():
        raise ConfigError("sample", f"{path} is missing: the installation is incomplete")
    return path


def sample_events(*names: str) -> list[Event]:
    """Return the events of the named samples, of all when none is named.

    Raises:
        ConfigError: as `sample_path`.
    """
    lines = [line for name in names or SAMPLES for line in sample_path(name).read_bytes().splitlines()]
    return [decode_event(line) for line in lines]
