"""What the schedulers' own logs say about causes: revocations that ran out of time, producers that were replaced."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime

from tests.chaos.incidents import PRODUCER_REBUILT, UNDRAINED, Incident

REVOKED = "partitions_revoked"
REBUILT = frozenset({"producer_rebuilt"})
"""Names of log events."""


def incidents_in(scheduler: str, lines: Iterable[str]) -> Iterator[Incident]:
    """Yield what a scheduler's log says; lines that are no JSON events are passed over.

    Args:
        scheduler: its id.
        lines: of its log.
    """
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line of a killed process
        name = event.get("event")
        if name == REVOKED and not event.get("drained", True):
            owned = frozenset((str(event["topic"]), int(number)) for number in event["partitions"])
            yield _incident(UNDRAINED, scheduler, event, owned)
        elif name in REBUILT:
            yield _incident(PRODUCER_REBUILT, scheduler, event, frozenset())


def _incident(kind: str, scheduler: str, event: dict[str, object], owned: frozenset[tuple[str, int]]) -> Incident:
    at_ms = int(datetime.fromisoformat(str(event["timestamp"])).timestamp() * 1000)
    return Incident(number=0, kind=kind, target=scheduler, began_ms=at_ms, began_monotonic=0.0, owned=owned)
