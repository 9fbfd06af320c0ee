"""Made-up records and incidents for the tests of the bench's own arithmetic."""

from __future__ import annotations

from typing import Any

from tests.chaos.incidents import Incident
from tests.chaos.ledger import Outcome, Source

NEWS = "chaos.news"
BASE_MS = 1_800_000_000_000


def source(offset: int, partition: int = 0, topic: str = NEWS) -> Source:
    """Return an input record."""
    return Source(topic, partition, offset)


def signal(offset: int, at: float, writer: str = "scheduler-1/a", **changes: Any) -> Outcome:
    """Return a signal, appended ``at`` seconds into the run."""
    partition = changes.pop("partition", 0)
    values: dict[str, Any] = {"kind": "signal", "id": f"id-{partition}-{offset}", **changes}
    return Outcome(source=source(offset, partition), writer=writer, at_ms=ms(at), **values)


def expired(offset: int, at: float, writer: str = "scheduler-1/a") -> Outcome:
    """Return an expired record."""
    return signal(offset, at, writer, kind="expired", id="")


def incident(kind: str, target: str, at: float, until: float | None = None, **changes: Any) -> Incident:
    """Return a fault, in seconds into the run."""
    values: dict[str, Any] = {"number": 1, "owned": frozenset({(NEWS, 0)}), **changes}
    ended = at if until is None else until
    return Incident(kind=kind, target=target, began_ms=ms(at), began_monotonic=at, ended_ms=ms(ended), **values)


def ms(seconds: float) -> int:
    """Return milliseconds since the epoch of a time in the run."""
    return BASE_MS + round(seconds * 1000)


def ns(seconds: float) -> int:
    """Return nanoseconds since the epoch of a time in the run."""
    return ms(seconds) * 1_000_000
