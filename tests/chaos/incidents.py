"""What really happened in a run: each fault as it was carried out, with times and what was known at that moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from tests.chaos.groups import Groups, Partition
from tests.chaos.plan import WORKERS, Fault, FaultKind

CRASH = "scheduler_crash"
"""Stands for the kind of a fault where a scheduler ended that nobody had touched."""
UNDRAINED = "undrained_revoke"
"""The same where a scheduler says that it gave partitions away before their work was done."""
UNDRAINED_STOP = "undrained_stop"
"""The same of a scheduler that was told to stop."""
PRODUCER_REBUILT = "producer_rebuilt"
"""The same where a scheduler says that it replaced its producer, not knowing what had arrived."""


@dataclass(kw_only=True)
class Incident:
    """One fault, or what followed from one.

    Args:
        number: of the fault in the plan; 0 for what was not planned.
        kind: a `FaultKind` value, `CRASH`, `UNDRAINED`, `UNDRAINED_STOP` or
            `PRODUCER_REBUILT`.
        target: process or broker.
        began_ms, ended_ms: wall clock, milliseconds since the epoch; the end is when the bench had undone it.
        began_monotonic: seconds.
        skipped: why it was not carried out; empty when it was.
        owned: partitions that the scheduler owned when it was hit.
        groups: the broker's word on both groups right after a kill; none where it could not be had.
        unfinished: events that the scheduler had taken and not finished, by its last status; none where unknown.
        ready_ms: when a broker answered again; 0 otherwise.
    """

    number: int
    kind: str
    target: str
    began_ms: int
    began_monotonic: float
    ended_ms: int = 0
    skipped: str = ""
    owned: frozenset[Partition] = frozenset()
    groups: Groups | None = None
    unfinished: int | None = None
    ready_ms: int = 0
    notes: dict[str, object] = field(default_factory=dict)

    @property
    def schedulers(self) -> frozenset[str]:
        """Schedulers that it acts on directly; empty when it acts on all of them, by way of the broker."""
        if self.target in WORKERS:
            return frozenset({WORKERS[self.target]})
        return frozenset({self.target}) if self.target.startswith("scheduler-") else frozenset()

    @property
    def leaves_ms(self) -> int:
        """When its scheduler is told to stop: a visitor does some time after it was started."""
        return int(str(self.notes.get("leaves_ms", self.began_ms)))

    def overlaps(self, begin_ms: float, end_ms: float) -> bool:
        """Return whether it was going on at any moment of a time."""
        return self.began_ms <= end_ms and (self.ended_ms or self.began_ms) >= begin_ms

    def as_dict(self) -> dict[str, object]:
        """Return plain values for the fault log."""
        values = {k: v for k, v in asdict(self).items() if k not in {"owned", "groups"}}
        values["owned"] = sorted(f"{topic}/{number}" for topic, number in self.owned)
        if self.groups is not None:
            values["committed"] = {f"{t}/{n}": c.offset for (t, n), c in sorted(self.groups.committed.items())}
        return values


def begin(fault: Fault, now_ns: int, monotonic: float) -> Incident:
    """Return the record of a fault that begins now."""
    return Incident(
        number=fault.number,
        kind=fault.kind.value,
        target=fault.target,
        began_ms=now_ns // 1_000_000,
        began_monotonic=monotonic,
        notes={"planned_at": fault.at, "seconds": fault.seconds, "amount": fault.amount},
    )


SLOW_PATH = frozenset({FaultKind.BROKER_KILL.value, FaultKind.BROKER_SLOW.value})
"""Faults that hold everything up."""
