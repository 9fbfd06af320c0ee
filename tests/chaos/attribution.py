"""Says which fault explains a duplicate. Pure: an outcome, its repeat and the incidents of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from tests.chaos.incidents import CRASH, PRODUCER_REBUILT, UNDRAINED, Incident
from tests.chaos.ledger import Outcome, Repeat
from tests.chaos.plan import SESSION_SECONDS, FaultKind
from tests.chaos.told import STOPS

SLACK_MS = 1000
"""A record that was on its way at the fault is appended a little later."""
SETTLE_MS = int((SESSION_SECONDS + 15) * 1000)
"""How long after an incident a group may still move: session timeout, the drain of the others, joining."""


class Cause(StrEnum):
    """Why an event was answered twice."""

    SCHEDULER_KILL = "scheduler_kill"
    SCHEDULER_CRASH = "scheduler_crash"
    SCHEDULER_PAUSE = "scheduler_pause"
    CLEAN_STOP = "clean_stop"
    CLEAN_STOP_UNDRAINED = "clean_stop_undrained"
    PRODUCER_REBUILT = "producer_rebuilt"
    BROKER_KILL = "broker_kill"
    BROKER_SLOW = "broker_slow"
    REBALANCE_UNDRAINED = "rebalance_undrained"
    REBALANCE = "rebalance"
    UNEXPLAINED = "unexplained"


_Test = Callable[[Incident, Outcome, Outcome], bool]


def _hit_first_writer(incident: Incident, first: Outcome, again: Outcome) -> bool:
    """The scheduler that wrote the first outcome was hit after it, before its commit can have covered it."""
    began = incident.began_ms
    return _wrote(incident, first) and first.at_ms - SLACK_MS <= began <= again.at_ms


def _stopped_first_writer(incident: Incident, first: Outcome, again: Outcome) -> bool:
    """The scheduler that wrote the first outcome was told to stop after it, and had time to drain."""
    return not incident.notes.get("undrained") and _left(incident, first, again)


def _cut_first_writer(incident: Incident, first: Outcome, again: Outcome) -> bool:
    """The same, and it had not: a worker of its own was away or stuck."""
    return bool(incident.notes.get("undrained")) and _left(incident, first, again)


def _left(incident: Incident, first: Outcome, again: Outcome) -> bool:
    return _wrote(incident, first) and first.at_ms - SLACK_MS <= incident.leaves_ms <= again.at_ms


def _hit_either_writer(incident: Incident, first: Outcome, again: Outcome) -> bool:
    """A paused scheduler repeats what the new owner did, or the new owner what the paused one did."""
    either = _wrote(incident, first) or _wrote(incident, again)
    return either and incident.overlaps(first.at_ms - SLACK_MS, again.at_ms + SLACK_MS)


def _same_writer(incident: Incident, first: Outcome, again: Outcome) -> bool:
    return _wrote(incident, first) and _wrote(incident, again) and _between(incident, first, again)


def _gave_away(incident: Incident, first: Outcome, again: Outcome) -> bool:
    """The partition was given away between the two, before its work was done."""
    return first.source[:2] in incident.owned and _between(incident, first, again)


def _between(incident: Incident, first: Outcome, again: Outcome) -> bool:
    return incident.overlaps(first.at_ms - SLACK_MS, again.at_ms)


def _moved_partitions(incident: Incident, first: Outcome, again: Outcome) -> bool:
    return incident.overlaps(first.at_ms - SETTLE_MS, again.at_ms)


_TESTS: tuple[tuple[frozenset[str], _Test, Cause], ...] = (
    (frozenset({FaultKind.SCHEDULER_KILL.value}), _hit_first_writer, Cause.SCHEDULER_KILL),
    (frozenset({CRASH}), _hit_first_writer, Cause.SCHEDULER_CRASH),
    (frozenset({FaultKind.SCHEDULER_PAUSE.value}), _hit_either_writer, Cause.SCHEDULER_PAUSE),
    (STOPS, _cut_first_writer, Cause.CLEAN_STOP_UNDRAINED),
    (STOPS, _stopped_first_writer, Cause.CLEAN_STOP),
    (frozenset({PRODUCER_REBUILT}), _same_writer, Cause.PRODUCER_REBUILT),
    (frozenset({UNDRAINED}), _gave_away, Cause.REBALANCE_UNDRAINED),
    (frozenset({FaultKind.BROKER_KILL.value}), _between, Cause.BROKER_KILL),
    (frozenset({FaultKind.BROKER_SLOW.value}), _between, Cause.BROKER_SLOW),
    (
        frozenset(
            {
                FaultKind.MEMBER_JOIN_LEAVE.value,
                FaultKind.SCHEDULER_KILL.value,
                FaultKind.SCHEDULER_PAUSE.value,
                FaultKind.SCHEDULER_STOP.value,
                FaultKind.BROKER_KILL.value,
                CRASH,
            }
        ),
        _moved_partitions,
        Cause.REBALANCE,
    ),
)
"""From the most specific to the least: the first that holds is the cause."""


def explain(repeat: Repeat, incidents: Sequence[Incident]) -> tuple[Cause, Incident | None]:
    """Return the cause of a repeat and the incident behind it; none when nothing explains it."""
    for kinds, holds, cause in _TESTS:
        for incident in incidents:
            if incident.kind in kinds and not incident.skipped and holds(incident, repeat.first, repeat.again):
                return cause, incident
    return Cause.UNEXPLAINED, None


def count(repeats: Iterable[Repeat], incidents: Sequence[Incident]) -> dict[str, int]:
    """Return how many repeats each cause explains."""
    return dict(sorted(Counter(explain(repeat, incidents)[0].value for repeat in repeats).items()))


def _wrote(incident: Incident, outcome: Outcome) -> bool:
    """Return whether the incident's scheduler wrote a record; who owned the partition where the record does not say."""
    if outcome.writer:
        return outcome.writer.partition("/")[0] in incident.schedulers
    return outcome.source[:2] in incident.owned
