"""The policies that the simulator compares: who decides what an engine gets and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ops.sim.profiles import Profile
from ops.sim.traffic import CLASSES, Arrival
from scheduler.budgets import WorkerBudget
from scheduler.planner import Planner
from scheduler.work import Origin, Work
from schemas.errors import ConfigError
from schemas.frames import Limits, StepPolicy, StepReport
from schemas.settings import ClassSettings, ReserveSettings, ValveSettings

EPOCH_NS = 1_800_000_000_000_000_000
"""Simulated time zero; planners expect nanoseconds since the epoch."""


@dataclass(slots=True, eq=False)
class Job:
    """One arrival and what became of it (nanoseconds since the simulation's start; 0 is not yet).

    Args:
        number: its position among the arrivals.
        runs: how often it was given to a worker.
        waited_steps: engine steps that began after it reached the worker and before the one that admitted it.
    """

    number: int
    arrival: Arrival
    first_ns: int = 0
    done_ns: int = 0
    expired_ns: int = 0
    runs: int = 0
    waited_steps: int = 0

    @property
    def latency_ns(self) -> int:
        """Arrival to result."""
        return self.done_ns - self.arrival.at_ns


@dataclass(slots=True)
class Dispatch:
    """A job that goes to a worker."""

    job: Job
    worker: str
    request_id: int
    priority: int = 0
    floor: bool = False


@dataclass(slots=True)
class Orders:
    """What a policy wants done now."""

    dispatches: list[Dispatch] = field(default_factory=list)
    aborts: dict[str, list[int]] = field(default_factory=dict)
    policies: dict[str, StepPolicy] = field(default_factory=dict)
    expired: list[Job] = field(default_factory=list)


class Policy(Protocol):
    """What the driver asks; all times are nanoseconds since the simulation's start."""

    gated: bool
    """Whether the engines run the step gate."""

    def limits(self, profile: Profile) -> Limits:
        """Return what the engines are started with."""

    def add_worker(self, name: str, profile: Profile, classes: Iterable[str]) -> None:
        """A worker is there."""

    def arrive(self, job: Job, now: int) -> None:
        """A job has arrived."""

    def started(self, worker: str, request_id: int) -> None:
        """A request has its first token."""

    def finished(self, worker: str, request_id: int, completed: int) -> Job | None:
        """A request was completed; returns its job, or None when it is not wanted any more."""

    def report(self, worker: str, report: StepReport) -> None:
        """A worker has told what it did."""

    def orders(self, now: int) -> Orders:
        """Return what to do now."""

    def wakes_at(self) -> int | None:
        """Return when to ask again though nothing has happened."""

    def queued(self) -> int:
        """Return how many jobs the policy itself holds."""


class SubmitAll:
    """Everything goes to an engine at once: ``fcfs``, or ``engine-priority`` when priorities are passed on.

    The engine is vLLM as it comes: its largest step and no bound on one request's share of it.
    """

    gated = False

    def __init__(self, *, priorities: bool) -> None:
        self._priorities = priorities
        self._new: list[Job] = []
        self._at: dict[str, dict[int, Job]] = {}
        self._next = 0

    def limits(self, profile: Profile) -> Limits:
        """Return the engine's own defaults."""
        return profile.engine_limits(tapewire=False)

    def add_worker(self, name: str, profile: Profile, classes: Iterable[str]) -> None:
        """Use a worker for everything, whatever it was meant for."""
        self._at[name] = {}

    def arrive(self, job: Job, now: int) -> None:
        """Note a job for the next orders."""
        self._new.append(job)

    def started(self, worker: str, request_id: int) -> None:
        """Nothing depends on it."""

    def finished(self, worker: str, request_id: int, completed: int) -> Job | None:
        """Forget a request."""
        return self._at[worker].pop(request_id, None)

    def report(self, worker: str, report: StepReport) -> None:
        """Nothing depends on it."""

    def orders(self, now: int) -> Orders:
        """Send what is new to the workers with the fewest requests."""
        orders = Orders()
        for job in self._new:
            self._next += 1
            worker = min(self._at, key=lambda name: len(self._at[name]))
            self._at[worker][self._next] = job
            priority = job.arrival.class_index if self._priorities else 0
            orders.dispatches.append(Dispatch(job, worker, self._next, priority))
        self._new.clear()
        return orders

    def wakes_at(self) -> int | None:
        """Return None: it acts only on arrivals."""
        return None

    def queued(self) -> int:
        """Return 0: the engine holds everything."""
        return 0


class ArticleBatcher:
    """The founding article's batcher in front of a continuous-batching engine: one batch at a time per worker.

    Sorted by urgent or not, then by arrival; urgent batches take at most two lower requests; a batch is over when
    its last request is.
    """

    gated = False

    def __init__(self, *, max_batch: int = 8, token_budget: int = 4096) -> None:
        self._max_batch = max_batch
        self._token_budget = token_budget
        self._queues: tuple[list[Job], list[Job]] = ([], [])
        self._at: dict[str, dict[int, Job]] = {}
        self._next = 0

    def limits(self, profile: Profile) -> Limits:
        """Return the engine's own defaults."""
        return profile.engine_limits(tapewire=False)

    def add_worker(self, name: str, profile: Profile, classes: Iterable[str]) -> None:
        """Use a worker for everything."""
        self._at[name] = {}

    def arrive(self, job: Job, now: int) -> None:
        """Queue a job behind those of its urgency."""
        self._queues[job.arrival.class_index > 0].append(job)

    def started(self, worker: str, request_id: int) -> None:
        """Nothing depends on it."""

    def finished(self, worker: str, request_id: int, completed: int) -> Job | None:
        """Forget a request."""
        return self._at[worker].pop(request_id, None)

    def report(self, worker: str, report: StepReport) -> None:
        """Nothing depends on it."""

    def orders(self, now: int) -> Orders:
        """Give each idle worker the next batch."""
        orders = Orders()
        for worker, running in self._at.items():
            if running:
                continue
            for job in self.next_batch():
                self._next += 1
                running[self._next] = job
                orders.dispatches.append(Dispatch(job, worker, self._next))
        return orders

    def next_batch(self) -> list[Job]:
        """Take the next batch off the queue, by the article's rules."""
        batch: list[Job] = []
        tokens = 0
        urgent_first = bool(self._queues[0])
        for lower, queue in enumerate(self._queues):
            left: list[Job] = []
            for position, job in enumerate(queue):
                if len(batch) >= self._max_batch or (urgent_first and lower and len(batch) >= 2):
                    left += queue[position:]
                    break
                needed = job.arrival.text_tokens + job.arrival.output_tokens
                if tokens + needed <= self._token_budget:
                    batch.append(job)
                    tokens += needed
                else:
                    left.append(job)
                    if tokens + MIN_JOB_TOKENS > self._token_budget:
                        # Nothing that may stand further back fits any more; the article reads on all the same.
                        left += queue[position + 1 :]
                        break
            queue[:] = left
        return batch

    def wakes_at(self) -> int | None:
        """Return None: it acts when a batch ends or a job arrives."""
        return None

    def queued(self) -> int:
        """Return how many jobs wait."""
        return sum(map(len, self._queues))


MIN_JOB_TOKENS = 65
"""The smallest job of the article's traffic: a headline of 64 tokens and one token of an answer."""


class Tapewire:
    """The scheduler's own planner.

    Args:
        gated: whether the engines run the step gate.
        classes: service classes, most urgent first.
    """

    def __init__(self, *, gated: bool, classes: tuple[ClassSettings, ...] = CLASSES) -> None:
        self.gated = gated
        self._classes = classes
        self._jobs: dict[int, Job] = {}
        self._made: Planner | None = None

    @property
    def planner(self) -> Planner:
        """The planner, for a look at its model and valve; there is one as soon as there is a worker."""
        return self._planner

    @property
    def _planner(self) -> Planner:
        assert self._made is not None  # noqa: S101 - the driver adds its workers first
        return self._made

    def limits(self, profile: Profile) -> Limits:
        """Return what a worker of Tapewire is started with."""
        return profile.engine_limits(tapewire=True)

    def add_worker(self, name: str, profile: Profile, classes: Iterable[str]) -> None:
        """Give the planner a worker."""
        if self._made is None:
            self._made = Planner(self._classes, valve_settings(profile))
        budget = WorkerBudget(self.limits(profile), profile.wraps(), ReserveSettings(), gated=self.gated)
        self._planner.add_worker(name, budget, classes, gated=self.gated, steps_ahead=profile.run_ahead)

    def arrive(self, job: Job, now: int) -> None:
        """Queue a job as the scheduler queues an event."""
        arrival = job.arrival
        service_class = self._classes[arrival.class_index]
        event = EPOCH_NS + arrival.at_ns
        self._jobs[job.number] = job
        self._planner.add(
            Work(
                origin=Origin("sim", 0, job.number, 1),
                event_id="",
                class_index=arrival.class_index,
                tokens=b"",
                token_count=arrival.text_tokens,
                truncated=False,
                event_time_ns=event,
                deadline_ns=event + int(service_class.slo_ms * 1e6),
                toxic_ns=event + int(service_class.toxic_ms * 1e6) if service_class.toxic_ms else 0,
                record=b"",
                appended_ns=event,
                consumed_ns=event,
                queued_ns=EPOCH_NS + now,
            )
        )

    def started(self, worker: str, request_id: int) -> None:
        """Pass it on."""
        self._planner.prefilled(worker, request_id)

    def finished(self, worker: str, request_id: int, completed: int) -> Job | None:
        """Pass it on."""
        work = self._planner.finish(worker, request_id, EPOCH_NS + completed)
        return None if work is None else self._jobs.pop(work.origin.offset)

    def report(self, worker: str, report: StepReport) -> None:
        """Pass it on."""
        self._planner.observe_steps(worker, report)

    def orders(self, now: int) -> Orders:
        """Ask the planner."""
        plan = self._planner.plan(EPOCH_NS + now)
        aborts: defaultdict[str, list[int]] = defaultdict(list)
        for worker, request_id in plan.aborts:
            aborts[worker].append(request_id)
        for work, _ in plan.dispatches:
            work.dispatched_ns = EPOCH_NS + now
        return Orders(
            dispatches=[
                Dispatch(self._jobs[w.origin.offset], worker, w.request_id, w.class_index, w.floor)
                for w, worker in plan.dispatches
            ],
            aborts=dict(aborts),
            policies=plan.policies,
            expired=[self._jobs.pop(work.origin.offset) for work in plan.expired],
        )

    def wakes_at(self) -> int | None:
        """Return when the next work gets toxic."""
        expiry = self._planner.next_expiry_ns()
        return None if expiry is None else expiry - EPOCH_NS

    def queued(self) -> int:
        """Return how much waits in the planner."""
        return self._planner.total_queued


def valve_settings(profile: Profile) -> ValveSettings:
    """Return the valve's settings with the profile's costs as what is believed before the first report."""
    costs = profile.costs
    return ValveSettings(
        step_ms=max(costs.step * 1e3, 0.01),
        prefill_token_us=max(costs.prefill_token * 1e6, 0.01),
        decode_us=costs.decode * 1e6,
        kv_token_ns=costs.kv_token * 1e9,
        decode_step_ms=costs.floor * 1e3,
    )


Classes = tuple[ClassSettings, ...]
POLICIES: dict[str, Callable[[Classes], Policy]] = {
    "fcfs": lambda _: SubmitAll(priorities=False),
    "engine-priority": lambda _: SubmitAll(priorities=True),
    "article": lambda _: ArticleBatcher(),
    "tapewire": lambda classes: Tapewire(gated=True, classes=classes),
    "tapewire-no-gate": lambda classes: Tapewire(gated=False, classes=classes),
}


def make_policy(name: str, classes: Classes = CLASSES) -> Policy:
    """Return a fresh policy for these service classes.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in POLICIES:
        raise ConfigError("policies", f"no policy is named {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name](classes)
