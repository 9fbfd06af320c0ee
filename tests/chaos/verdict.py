"""Brings ledger, attribution and recovery together into the figures of a run and the bars they must meet. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.chaos.attribution import Cause, count, explain
from tests.chaos.groups import Committed
from tests.chaos.incidents import Incident
from tests.chaos.ledger import Ledger, Repeat
from tests.chaos.plan import SESSION_SECONDS, FaultKind
from tests.chaos.recovery import IN_FLIGHT_MS, Recovery, percentiles, recoveries

WORKER_KILL_SECONDS = 3.0
SCHEDULER_KILL_SECONDS = SESSION_SECONDS + 3.0
BROKER_STOP_SECONDS = 10.0
"""The bars of recovery."""

Covers = Callable[[Committed, int], bool]
"""Whether a commit covers an offset: below it, or finished in its map."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KillBound:
    """Duplicates of one scheduler kill against what was in flight.

    Args:
        in_flight: outcomes that it had written above what its commit covers, and events that it had taken without an
            outcome; none where the broker could not be asked.
        duplicates: repeats that this kill explains, conflicts included.
        redone: of these, repeats of what the commit covered: work that must never be done again.
    """

    number: int
    target: str
    in_flight: int | None
    duplicates: int
    redone: int

    @property
    def within(self) -> bool:
        """Whether the bar holds."""
        return self.in_flight is None or (self.duplicates <= self.in_flight and not self.redone)


@dataclass(kw_only=True)
class Verdict:
    """Everything that a run has shown."""

    ledger: Ledger
    incidents: list[Incident]
    recoveries: list[Recovery]
    duplicates: dict[str, int]
    conflicts: dict[str, int]
    kills: list[KillBound]
    bars: dict[str, bool] = field(default_factory=dict)

    @property
    def faults(self) -> dict[str, int]:
        """Faults that were carried out, per kind."""
        return dict(sorted(Counter(i.kind for i in self.incidents if i.number and not i.skipped).items()))

    def recovery_seconds(self, *, disturbed: bool = False) -> dict[str, dict[str, float]]:
        """Return median and largest time to recover per kind, of the faults that were alone on their path."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for one in self.recoveries:
            if one.seconds is not None and one.disturbed is disturbed:
                found[one.kind].append(one.seconds)
        return {kind: {**percentiles(values), "n": len(values)} for kind, values in sorted(found.items())}

    def longest_stops(self) -> dict[str, float]:
        """Return the longest time without any new completion per kind of fault, in seconds."""
        found: defaultdict[str, float] = defaultdict(float)
        for one in self.recoveries:
            found[one.kind] = max(found[one.kind], one.longest_stop)
        return {kind: round(value, 2) for kind, value in sorted(found.items())}


def judge(ledger: Ledger, incidents: Sequence[Incident], covers: Covers, *, nodes: int) -> Verdict:
    """Return the verdict on a run.

    Args:
        ledger: settled.
        incidents: in the order of their times.
        covers: reads a commit's map.
        nodes: brokers.
    """
    verdict = Verdict(
        ledger=ledger,
        incidents=list(incidents),
        recoveries=recoveries(incidents, ledger.completions),
        duplicates=count(ledger.duplicates, incidents),
        conflicts=count(ledger.conflicts, incidents),
        kills=_kills(ledger, incidents, covers),
    )
    verdict.bars = _bars(verdict, nodes)
    return verdict


def _kills(ledger: Ledger, incidents: Sequence[Incident], covers: Covers) -> list[KillBound]:
    repeats: defaultdict[int, list[Repeat]] = defaultdict(list)
    for repeat in (*ledger.duplicates, *ledger.conflicts):
        cause, incident = explain(repeat, incidents)
        if cause is Cause.SCHEDULER_KILL and incident is not None:
            repeats[incident.number].append(repeat)
    bounds: list[KillBound] = []
    for incident in incidents:
        if incident.kind != FaultKind.SCHEDULER_KILL.value or incident.skipped:
            continue
        mine = repeats[incident.number]
        bounds.append(
            KillBound(
                number=incident.number,
                target=incident.target,
                in_flight=_in_flight(ledger, incident, covers),
                duplicates=len(mine),
                redone=sum(_covered(incident, r, covers) for r in mine),
            )
        )
    return bounds


def _in_flight(ledger: Ledger, incident: Incident, covers: Covers) -> int | None:
    if incident.groups is None or not incident.owned or incident.unfinished is None:
        return None
    committed = incident.groups.committed
    written = 0
    for outcome in ledger.completions:
        if outcome.at_ms > incident.began_ms + IN_FLIGHT_MS:
            break  # they are in the order of append
        partition = outcome.source[:2]
        if partition not in incident.owned:
            continue
        commit = committed.get(partition)
        written += commit is None or not covers(commit, outcome.source.offset)
    return written + incident.unfinished


def _covered(incident: Incident, repeat: Repeat, covers: Covers) -> bool:
    if incident.groups is None:
        return False
    commit = incident.groups.committed.get(repeat.first.source[:2])
    return commit is not None and covers(commit, repeat.first.source.offset)


def _bars(verdict: Verdict, nodes: int) -> dict[str, bool]:
    recovery = verdict.recovery_seconds()
    repeats = Counter(verdict.duplicates) + Counter(verdict.conflicts)

    def within(kind: FaultKind, seconds: float) -> bool:
        return kind.value not in recovery or recovery[kind.value]["max"] <= seconds

    bars = {
        "lost 0": not verdict.ledger.lost,
        "phantoms 0": not verdict.ledger.phantoms,
        "duplicates unexplained 0": not repeats.get(Cause.UNEXPLAINED.value),
        "duplicates of a clean stop 0": not repeats.get(Cause.CLEAN_STOP.value),
        "duplicates of a rebalance 0": not repeats.get(Cause.REBALANCE.value),
        "duplicates of a scheduler kill within what was in flight": all(kill.within for kill in verdict.kills),
        f"worker kill healed within {WORKER_KILL_SECONDS:g} s": within(FaultKind.WORKER_KILL, WORKER_KILL_SECONDS),
        f"scheduler kill healed within {SCHEDULER_KILL_SECONDS:g} s": within(
            FaultKind.SCHEDULER_KILL, SCHEDULER_KILL_SECONDS
        ),
    }
    if nodes > 1:
        stop = verdict.longest_stops().get(FaultKind.BROKER_KILL.value, 0.0)
        bars[f"no stop above {BROKER_STOP_SECONDS:g} s with one of {nodes} brokers dead"] = stop <= BROKER_STOP_SECONDS
    return bars
