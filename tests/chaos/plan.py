"""The fault plan of a run: which fault, when, on whom and for how long, as a pure function of the options."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Literal

SESSION_SECONDS = 6.0
"""Kafka session timeout of the schedulers under test; the lowest that a broker accepts by default."""
DEAD_AFTER_SECONDS = 3.0
"""Silence after which a worker is declared dead, in the configuration under test."""
STUCK_AFTER_SECONDS = 4.0
"""The same for an engine that makes no step."""
WARM_UP_SECONDS = 4.0
"""No fault before this: a JVM and two schedulers have just started."""
REST_SECONDS = 6.0
"""No fault begins in this last part of a run, so that each can be seen to heal under load."""
FLOOD_WINDOW_SECONDS = 60.0
"""The window of ``scheduler.dead_letters``."""
MOST_MALFORMED = 800
"""Malformed records in one such window; the limit under test is 1,000."""

Delivery = Literal["at_least_once", "transactional"]


class FaultKind(StrEnum):
    """What is done to the system."""

    SCHEDULER_KILL = "scheduler_kill"
    SCHEDULER_PAUSE = "scheduler_pause"
    SCHEDULER_STOP = "scheduler_stop"
    MEMBER_JOIN_LEAVE = "member_join_leave"
    BROKER_KILL = "broker_kill"
    BROKER_SLOW = "broker_slow"
    WORKER_KILL = "worker_kill"
    WORKER_PAUSE = "worker_pause"
    ENGINE_STUCK = "engine_stuck"
    ENGINE_FAILURES = "engine_failures"
    REDIS_KILL = "redis_kill"
    MALFORMED_FLOOD = "malformed_flood"
    CLOCK_STEP = "clock_step"


GROUP_FAULTS = (
    FaultKind.SCHEDULER_KILL,
    FaultKind.SCHEDULER_KILL,  # twice: its duplicates have a bar of their own
    FaultKind.SCHEDULER_PAUSE,
    FaultKind.SCHEDULER_STOP,
    FaultKind.MEMBER_JOIN_LEAVE,
    FaultKind.BROKER_KILL,
    FaultKind.BROKER_SLOW,
)
"""Faults that move partitions or stop the brokers: one at a time, or nothing could be told from anything."""
LOCAL_FAULTS = (
    FaultKind.WORKER_KILL,
    FaultKind.WORKER_KILL,
    FaultKind.WORKER_PAUSE,
    FaultKind.ENGINE_STUCK,
    FaultKind.ENGINE_FAILURES,
    FaultKind.REDIS_KILL,
    FaultKind.MALFORMED_FLOOD,
    FaultKind.CLOCK_STEP,
)
"""Faults that stay inside one scheduler or worker: one at a time too, but beside the others."""

SCHEDULERS = ("scheduler-1", "scheduler-2")
VISITOR = "scheduler-3"
"""Comes and goes cleanly in `FaultKind.MEMBER_JOIN_LEAVE`."""
WORKERS = {"worker-1": "scheduler-1", "worker-2": "scheduler-1", "worker-3": "scheduler-2"}
"""Worker to the scheduler that it works for. The second scheduler's only one has to come back when it dies."""
VISITING_WORKER = "worker-4"
HOOKED_SCHEDULER = "scheduler-2"
"""Its clock can be stepped (`tests.chaos.hooked`)."""
HOOKED_WORKER = "worker-2"
"""Its engine can get stuck or fail."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What fixes a run, apart from the machine.

    Args:
        seed: of plan and events.
        seconds: of load; quiet and ledger come on top.
        rate: events/s; 0 for as many as the schedulers take.
        nodes: brokers.
        faults: kinds to take; a soak has none.
        delivery: as in `schemas.settings.SchedulerSettings`.
        events: end the load after so many events instead; 0 for no such end.
    """

    seed: int
    seconds: float
    rate: float = 400.0
    nodes: int = 1
    faults: tuple[FaultKind, ...] = tuple(FaultKind)
    delivery: Delivery = "at_least_once"
    events: int = 0

    def command(self) -> str:
        """Return the command line that repeats the run."""
        length = f"--soak {self.events}" if self.events else f"--minutes {self.seconds / 60:g}"
        parts = [f"python -m tests.chaos --seed {self.seed} {length} --rate {self.rate:g}"]
        parts.append(f"--nodes {self.nodes} --delivery {self.delivery}")
        if not self.events and set(self.faults) != set(FaultKind):
            parts.append(f"--faults {','.join(self.faults)}")
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One planned fault.

    Args:
        number: position in the plan, from 1.
        at: seconds after the load began; later when the fault before it in its lane took longer than planned.
        target: process or broker.
        seconds: how long the target stays away, or the condition lasts.
        amount: records of a flood, seconds of a clock step, share of failures; 0 where it has no meaning.
    """

    number: int
    kind: FaultKind
    at: float
    target: str
    seconds: float
    amount: float = 0.0

    def as_dict(self) -> dict[str, object]:
        """Return plain values for the fault log."""
        return asdict(self)


def make_plan(options: Options) -> list[Fault]:
    """Return the faults of a run in the order of their times."""
    drawn: list[Fault] = []
    for lane in (GROUP_FAULTS, LOCAL_FAULTS):
        kinds = [kind for kind in lane if kind in options.faults]
        # A generator of its own for each lane: leaving kinds out of one does not change the other.
        drawn += _lane(random.Random(f"{options.seed}/{lane[0]}"), kinds, options)
    drawn.sort(key=lambda fault: fault.at)
    return [_numbered(fault, number) for number, fault in enumerate(drawn, 1)]


def _numbered(fault: Fault, number: int) -> Fault:
    return Fault(**{**asdict(fault), "number": number})


def _lane(rng: random.Random, kinds: list[FaultKind], options: Options) -> Iterator[Fault]:
    if not kinds:
        return
    at = WARM_UP_SECONDS + rng.uniform(0, 2)
    floods: list[tuple[float, int]] = []
    while True:
        for kind in rng.sample(kinds, len(kinds)):  # a shuffled bag: every kind comes before any comes again
            fault = _draw(rng, kind, at, options)
            if fault.at + fault.seconds > options.seconds - REST_SECONDS:
                return
            if kind is FaultKind.MALFORMED_FLOOD:
                floods = [(when, n) for when, n in floods if when > at - FLOOD_WINDOW_SECONDS]
                if sum(n for _, n in floods) + fault.amount > MOST_MALFORMED:
                    if len(set(kinds)) > 1:
                        continue
                    at += FLOOD_WINDOW_SECONDS  # nothing but floods: wait until the window has room
                    fault = _draw(rng, kind, at, options)
                floods.append((at, int(fault.amount)))
            yield fault
            at += _slot(fault) + rng.uniform(0, 1.5)


def _draw(rng: random.Random, kind: FaultKind, at: float, options: Options) -> Fault:
    target, seconds, amount = _DRAWN[kind](rng, options)
    at, seconds, amount = (round(value, 3) for value in (at, seconds, amount))
    return Fault(number=0, kind=kind, at=at, target=target, seconds=seconds, amount=amount)


def _node(rng: random.Random, options: Options) -> str:
    return f"broker-{rng.randint(1, options.nodes)}"


_Drawn = tuple[str, float, float]
"""Target, seconds, amount."""

_DRAWN: dict[FaultKind, Callable[[random.Random, Options], _Drawn]] = {
    # Back before the group has noticed, or after: both happen.
    FaultKind.SCHEDULER_KILL: lambda r, _: (r.choice(SCHEDULERS), r.uniform(0.3, 1.4 * SESSION_SECONDS), 0),
    FaultKind.SCHEDULER_PAUSE: lambda r, _: (r.choice(SCHEDULERS), SESSION_SECONDS * r.uniform(1.2, 2), 0),
    FaultKind.SCHEDULER_STOP: lambda r, _: (r.choice(SCHEDULERS), r.uniform(0.5, 5), 0),
    FaultKind.MEMBER_JOIN_LEAVE: lambda r, _: (VISITOR, r.uniform(2, 6), 0),
    FaultKind.BROKER_KILL: lambda r, options: (_node(r, options), r.uniform(0.5, 6), 0),
    # The amount is the share of the time that it stands still.
    FaultKind.BROKER_SLOW: lambda r, options: (_node(r, options), r.uniform(3, 8), r.uniform(0.5, 0.9)),
    FaultKind.WORKER_KILL: lambda r, _: (r.choice(list(WORKERS)), r.uniform(0.2, 3), 0),
    FaultKind.WORKER_PAUSE: lambda r, _: (r.choice(list(WORKERS)), DEAD_AFTER_SECONDS * r.uniform(1.3, 2.5), 0),
    FaultKind.ENGINE_STUCK: lambda r, _: (HOOKED_WORKER, STUCK_AFTER_SECONDS * r.uniform(1.5, 2.5), 0),
    FaultKind.ENGINE_FAILURES: lambda r, _: (HOOKED_WORKER, r.uniform(1, 3), r.uniform(0.05, 0.3)),
    FaultKind.REDIS_KILL: lambda r, _: ("redis", r.uniform(0.2, 4), 0),
    FaultKind.MALFORMED_FLOOD: lambda r, _: ("news", 0, r.randint(50, 200)),
    FaultKind.CLOCK_STEP: lambda r, _: (
        HOOKED_SCHEDULER,
        r.uniform(1, 5),
        r.choice((-1, 1)) * r.choice((1.0, 30.0, 3600.0)),
    ),
}


def _slot(fault: Fault) -> float:
    """Return how long a fault has its lane for itself: its own time, the detection, and some of the recovery."""
    match fault.kind:
        case FaultKind.SCHEDULER_KILL:
            return max(fault.seconds, SESSION_SECONDS) + 4
        case FaultKind.SCHEDULER_PAUSE | FaultKind.SCHEDULER_STOP:
            return fault.seconds + 4
        case FaultKind.MEMBER_JOIN_LEAVE:
            return fault.seconds + 7
        case FaultKind.BROKER_KILL:
            return fault.seconds + 10
        case FaultKind.WORKER_KILL:
            return max(fault.seconds, DEAD_AFTER_SECONDS) + 2
        case FaultKind.MALFORMED_FLOOD:
            return 2.0
        case _:
            return fault.seconds + 2
