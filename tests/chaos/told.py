"""What the schedulers' own logs say about causes: drains that ran out of time, producers that were replaced."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from tests.chaos.incidents import PRODUCER_REBUILT, UNDRAINED, UNDRAINED_STOP, Incident
from tests.chaos.plan import FaultKind

REVOKED = "partitions_revoked"
STOPPED = "scheduler_drained"
REBUILT = frozenset({"producer_made_anew"})
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
        elif name == STOPPED and not event.get("complete", True):
            yield _incident(UNDRAINED_STOP, scheduler, event, frozenset())
        elif name in REBUILT:
            yield _incident(PRODUCER_REBUILT, scheduler, event, frozenset())


def mark_undrained(incidents: Sequence[Incident]) -> None:
    """Note on the stops of a run which of them had no time to drain: their repeats have that as their cause."""
    for told in incidents:
        if told.kind != UNDRAINED_STOP:
            continue
        for stop in incidents:
            if stop.kind in STOPS and stop.target == told.target and stop.began_ms <= told.began_ms <= stop.ended_ms:
                stop.notes["undrained"] = True


STOPS = frozenset({FaultKind.SCHEDULER_STOP.value, FaultKind.MEMBER_JOIN_LEAVE.value})


def _incident(kind: str, scheduler: str, event: dict[str, object], owned: frozenset[tuple[str, int]]) -> Incident:
    at_ms = int(datetime.fromisoformat(str(event["timestamp"])).timestamp() * 1000)
    return Incident(number=0, kind=kind, target=scheduler, began_ms=at_ms, began_monotonic=0.0, owned=owned)
