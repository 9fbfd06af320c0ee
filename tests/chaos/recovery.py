"""From a fault to the first new completion that proves the system healed. Pure: completions and incidents in."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.incidents import SLOW_PATH, Incident
from tests.chaos.ledger import Outcome
from tests.chaos.plan import SESSION_SECONDS, WORKERS, FaultKind

IN_FLIGHT_MS = 300
"""What a killed scheduler had handed to the kernel is appended within this time, and proves nothing."""
LOOK_AHEAD_MS = 60_000
"""Where nothing new completes for this long after a fault, recovery counts as this long."""
STOP_AHEAD_MS = 15_000
"""Longest stops are looked for from a fault to this long after its end."""

AFTERMATH_MS = 1_000
"""How long a fault that is over still disturbs: clients back off, queues empty."""
SETTLED_MS = 4_000
"""How long after partitions have moved their backlog is still worked off."""

SOLE = "_sole"
"""Added to the kind of a fault on the only worker of a scheduler: nobody can take over, it has to come back."""
MOVES = frozenset({FaultKind.SCHEDULER_KILL.value, FaultKind.SCHEDULER_PAUSE.value, FaultKind.SCHEDULER_STOP.value})
LEAVES = frozenset({FaultKind.SCHEDULER_STOP.value, FaultKind.MEMBER_JOIN_LEAVE.value})
"""The group hears of these at once."""
HITS_WORKER = frozenset({FaultKind.WORKER_KILL.value, FaultKind.WORKER_PAUSE.value, FaultKind.ENGINE_STUCK.value})


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovery:
    """How one incident healed.

    Args:
        kind: as in the report; the fault's kind, but for workers without a colleague.
        seconds: none where there was nothing to heal.
        longest_stop: longest time without any new completion from the fault to a while after its end, in seconds.
        disturbed: another fault was on the same path at the same time, so the time says little about this one.
    """

    number: int
    kind: str
    seconds: float | None
    longest_stop: float
    disturbed: bool


def recoveries(incidents: Sequence[Incident], completions: Sequence[Outcome]) -> list[Recovery]:
    """Measure every incident that was carried out.

    Args:
        incidents: of the run.
        completions: first outcomes, by time of append.
    """
    times = [outcome.at_ms for outcome in completions]
    by_partition: defaultdict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for outcome in completions:
        by_partition[outcome.source[:2]].append(outcome)
    found: list[Recovery] = []
    for incident in incidents:
        if incident.skipped or not incident.number:
            continue
        if incident.kind in MOVES:
            seconds = _moved(incident, by_partition)
        elif incident.kind in HITS_WORKER:
            seconds = _rerun(incident, completions, times)
        else:
            # A killed broker that is back is due for progress from then on; before, nothing can be appended at all.
            since = incident.ready_ms or incident.began_ms
            seconds = _first_after(incident.began_ms, times, since)
        kind = incident.kind
        if incident.kind in HITS_WORKER and list(WORKERS.values()).count(WORKERS[incident.target]) == 1:
            kind += SOLE
        healed_ms = incident.began_ms + int((seconds or 0) * 1000)
        found.append(
            Recovery(
                number=incident.number,
                kind=kind,
                seconds=seconds,
                longest_stop=_longest_stop(incident, times),
                disturbed=any(_disturbs(other, incident, healed_ms) for other in incidents),
            )
        )
    return found


def _moved(incident: Incident, by_partition: dict[tuple[str, int], list[Outcome]]) -> float | None:
    """Seconds until every partition of a scheduler that is gone has had a new completion by another life."""
    slowest: float | None = None
    for partition in incident.owned:
        later = (
            outcome
            for outcome in by_partition.get(partition, ())
            if outcome.at_ms > incident.began_ms + IN_FLIGHT_MS and not _by_the_dead(incident, outcome)
        )
        first = next(later, None)
        if first is not None:  # none: nothing more was fed to it
            slowest = max(slowest or 0.0, (first.at_ms - incident.began_ms) / 1000)
    return slowest


def _by_the_dead(incident: Incident, outcome: Outcome) -> bool:
    """What a scheduler finishes while it is being stopped is no take-over; after its end, its name is another life."""
    return outcome.writer.partition("/")[0] in incident.schedulers and outcome.at_ms < (incident.ended_ms or 0)


def _rerun(incident: Incident, completions: Sequence[Outcome], times: list[int]) -> float | None:
    """Seconds until the last answer to a request that was consumed before and dispatched after the fault.

    These are the requests that the worker had, and the few that waited for a worker at that moment: all of them, so it
    is an upper bound of the time to the first.
    """
    began_ns = incident.began_ms * 1_000_000
    start = bisect_right(times, incident.began_ms)
    end = bisect_right(times, incident.began_ms + LOOK_AHEAD_MS)
    again = [
        outcome.at_ms
        for outcome in completions[start:end]
        if outcome.kind == "signal"
        and 0 < outcome.consumed_ns <= began_ns < outcome.dispatched_ns
        and (not outcome.writer or outcome.writer.partition("/")[0] in incident.schedulers)
    ]
    return (again[-1] - incident.began_ms) / 1000 if again else None


def _first_after(began_ms: int, times: list[int], since_ms: int) -> float | None:
    """Seconds from ``since`` to the first completion after ``began``; 0 when that was earlier."""
    index = bisect_right(times, began_ms)
    return max(0, times[index] - since_ms) / 1000 if index < len(times) else None


def _longest_stop(incident: Incident, times: list[int]) -> float:
    end_ms = (incident.ended_ms or incident.began_ms) + STOP_AHEAD_MS
    window = times[bisect_right(times, incident.began_ms) : bisect_right(times, end_ms)]
    marks = [incident.began_ms, *window]
    return max((b - a for a, b in itertools.pairwise(marks)), default=0) / 1000


def _disturbs(other: Incident, incident: Incident, healed_ms: int) -> bool:
    """Return whether another fault was on the same path while this one healed."""
    if other is incident or other.skipped or not other.number:
        return False
    if incident.kind in HITS_WORKER and _brings_work(other, incident.began_ms, healed_ms):
        return True
    end = max(other.ended_ms, other.ready_ms, other.began_ms) + AFTERMATH_MS
    if other.began_ms > healed_ms or end < incident.began_ms:
        return False
    if other.kind in SLOW_PATH:
        return True
    if incident.kind in MOVES:
        # Who takes over drains first, and cannot while a worker of its own is gone.
        return other.kind in MOVES or other.kind in HITS_WORKER or other.kind == FaultKind.MEMBER_JOIN_LEAVE.value
    return bool(other.schedulers & incident.schedulers)


def _brings_work(other: Incident, from_ms: int, until_ms: int) -> bool:
    """Return whether partitions move because of a fault in this time, to whoever is left: with all that has waited."""
    if other.kind not in MOVES and other.kind != FaultKind.MEMBER_JOIN_LEAVE.value:
        return False
    notices_ms = 0 if other.kind in LEAVES else int(SESSION_SECONDS * 1000)
    moved_ms = other.began_ms + notices_ms
    return moved_ms - AFTERMATH_MS <= until_ms and from_ms <= max(moved_ms, other.ended_ms) + SETTLED_MS


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return median and largest."""
    ordered = sorted(values)
    return {"p50": round(ordered[(len(ordered) - 1) // 2], 2), "max": round(ordered[-1], 2)}
