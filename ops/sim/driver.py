"""Runs traffic through a policy and simulated workers in virtual time: a heap of events, no clock and no waiting."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ops.sim.engine import IDLE_NS, REPORT_NS, VirtualWorker, progress
from ops.sim.policies import Dispatch, Job, Policy
from ops.sim.profiles import Profile
from ops.sim.traffic import CLASSES, FLASH, NS, Arrival
from schemas.frames import StepPolicy, StepReport
from schemas.settings import ClassSettings
from workers.sim_core import Sequence as EngineSequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The part of a run that counts, in seconds since its start.

    Args:
        begin: arrivals and tokens before it are warm-up.
        end: likewise after it; arrivals end here.
        cap: the run ends here at the latest, though urgent work may still be waiting.
        until_done: the run goes on until all work is done, and all of it counts.
    """

    begin: float
    end: float
    cap: float
    until_done: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of a trace, for plots and for the comparison with a real engine (seconds since the start)."""

    worker: str
    starts: float
    seconds: float
    prefill_tokens: int
    decode_tokens: int
    kv_tokens: int


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What a run gave.

    Args:
        jobs: all arrivals with what became of them.
        lower_tokens: tokens of lower classes computed within the window, none of them twice.
        all_tokens: likewise of every class, recomputation included.
        committed_ns: per urgent arrival, when the steps ended that no policy could change any more.
        max_queued: most jobs that the policy itself held.
        max_urgent: most urgent jobs that had arrived and not ended.
        ended_ns: when the run ended.
    """

    jobs: list[Job]
    window: Window
    lower_tokens: int = 0
    all_tokens: int = 0
    committed_ns: dict[int, int] = field(default_factory=dict)
    max_queued: int = 0
    max_urgent: int = 0
    ended_ns: int = 0
    steps: int = 0
    preempted: int = 0
    trace: list[Step] = field(default_factory=list)
    policies: list[tuple[float, StepPolicy]] = field(default_factory=list)


Handler = Callable[[], None]


class Simulation:
    """One run.

    Args:
        profile: of every worker.
        policy: fresh, without workers.
        arrivals: in order of time.
        window: what counts.
        seed: of the engines' noise.
        workers: the service classes of each worker; empty means all.
        traced: whether to keep every step and every step policy.
        classes: the service classes of the traffic.
    """

    def __init__(
        self,
        profile: Profile,
        policy: Policy,
        arrivals: Sequence[Arrival],
        window: Window,
        seed: int,
        *,
        workers: Sequence[Iterable[str]] = ((),),
        traced: bool = False,
        classes: tuple[ClassSettings, ...] = CLASSES,
    ) -> None:
        self._policy = policy
        self._wraps = profile.wraps()
        self._classes = classes
        self._link_ns = int(profile.link_us * 1000)
        self._traced = traced
        self._heap: list[tuple[int, int, Handler]] = []
        self._count = 0
        self.now = 0
        self._plan_due = False
        self._wake_ns: int | None = None
        self._window = window
        self._outcome = Outcome(jobs=[Job(n, a) for n, a in enumerate(arrivals)], window=window)
        self._urgent_left = sum(1 for a in arrivals if a.class_index == FLASH)
        self._urgent_here = 0
        self._left = len(arrivals)
        self._next_job = 0
        self._finished_tokens = 0
        self._reports_due: set[str] = set()
        self._reported_ns: dict[str, int] = {}
        self._requests: dict[tuple[str, int], tuple[Job, int]] = {}
        limits = policy.limits(profile)
        shared = sum(e.shared_prefix_tokens // limits.block_size for e in self._wraps.values())
        self._workers: dict[str, VirtualWorker] = {}
        for index, takes in enumerate(workers):
            name = f"w{index + 1}"
            self._workers[name] = VirtualWorker(
                name=name,
                limits=limits,
                costs=profile.step_costs(),
                run_ahead=profile.run_ahead,
                noise=profile.noise,
                rng=random.Random(f"{seed}-{name}"),  # noqa: S311 - a simulation, fixed by its seed
                shared_blocks=shared,
                gated=policy.gated,
            )
            policy.add_worker(name, profile, takes)

    def run(self) -> Outcome:
        """Run to the end: arrivals are over and no urgent work is left, or the cap is reached."""
        outcome = self._outcome
        window = self._window
        begin, end, cap = (int(s * NS) for s in (window.begin, window.end, window.cap))
        lower_before = all_before = 0
        marks = [(begin, False), (cap if window.until_done else end, True)]
        self._arrive_next()
        while self._heap:
            at = self._heap[0][0]
            while marks and at >= marks[0][0]:
                if marks.pop(0)[1]:
                    outcome.lower_tokens = max(0, self._lower_tokens() - lower_before)
                    outcome.all_tokens = self._all_tokens() - all_before
                else:
                    lower_before, all_before = self._lower_tokens(), self._all_tokens()
            if at > cap or (at > end and not (self._left if window.until_done else self._urgent_left)):
                break
            self.now = at
            heapq.heappop(self._heap)[2]()
        if len(marks) == 1:  # the run was over before the window
            outcome.lower_tokens = max(0, self._lower_tokens() - lower_before)
            outcome.all_tokens = self._all_tokens() - all_before
        outcome.ended_ns = self.now
        outcome.steps = sum(w.totals.steps for w in self._workers.values())
        outcome.preempted = sum(w.totals.preempted for w in self._workers.values())
        return outcome

    def _at(self, at_ns: int, handler: Handler) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_ns, self._count, handler))

    # The scheduler's side

    def _arrive_next(self) -> None:
        """Schedule the next arrival; one at a time keeps the heap small."""
        jobs = self._outcome.jobs
        if self._next_job < len(jobs):
            self._at(jobs[self._next_job].arrival.at_ns, self._arrive)

    def _arrive(self) -> None:
        jobs = self._outcome.jobs
        while self._next_job < len(jobs) and jobs[self._next_job].arrival.at_ns <= self.now:
            job = jobs[self._next_job]
            self._next_job += 1
            if job.arrival.class_index == FLASH:
                self._urgent_here += 1
                self._outcome.committed_ns[job.number] = self._committed_ns()
            self._policy.arrive(job, self.now)
        self._outcome.max_urgent = max(self._outcome.max_urgent, self._urgent_here)
        self._arrive_next()
        self._plan_soon()

    def _committed_ns(self) -> int:
        """Return when an engine can first begin a step that is not decided yet."""
        return min((w.committed_ns(self.now + self._link_ns) for w in self._workers.values()), default=self.now)

    def _plan_soon(self) -> None:
        """Plan once, after everything else that happens at this moment."""
        if not self._plan_due:
            self._plan_due = True
            self._at(self.now, self._plan)

    def _plan(self) -> None:
        self._plan_due = False
        orders = self._policy.orders(self.now)
        for job in orders.expired:
            job.expired_ns = self.now
            self._over(job)
        batches: dict[str, list[Dispatch]] = {}
        for dispatch in orders.dispatches:
            dispatch.job.runs += 1
            batches.setdefault(dispatch.worker, []).append(dispatch)
        for worker in {*batches, *orders.aborts, *orders.policies}:
            self._send(worker, batches.get(worker, []), orders.aborts.get(worker, []), orders.policies.get(worker))
        self._outcome.max_queued = max(self._outcome.max_queued, self._policy.queued())
        wake = self._policy.wakes_at()
        if wake is not None and (self._wake_ns is None or wake < self._wake_ns or self._wake_ns <= self.now):
            self._wake_ns = max(wake, self.now + 1)
            self._at(self._wake_ns, self._plan_soon)

    def _send(self, worker: str, batch: list[Dispatch], aborts: list[int], policy: StepPolicy | None) -> None:
        if policy is not None and self._traced:
            self._outcome.policies.append((self.now / NS, policy))
        sequences = [self._sequence(dispatch) for dispatch in batch]
        self._at(self.now + self._link_ns, lambda: self._received(worker, batch, sequences, aborts, policy))

    def _sequence(self, dispatch: Dispatch) -> EngineSequence:
        arrival = dispatch.job.arrival
        service_class = self._classes[arrival.class_index]
        wrap = self._wraps[service_class.extractor]
        return EngineSequence(
            request_id=dispatch.request_id,
            priority=dispatch.priority,
            prompt_tokens=wrap.prompt_tokens + arrival.text_tokens,
            output_tokens=arrival.output_tokens,
            shared_tokens=wrap.shared_prefix_tokens,
            deadline_ns=arrival.at_ns + int(service_class.slo_ms * 1e6),
            floor=dispatch.floor,
            content=dispatch.job.number,
        )

    def _heard(
        self, worker: str, first: list[int], finished: list[int], report: StepReport | None, completed: int = 0
    ) -> None:
        """Take what a worker said: first tokens, results and a step report."""
        for request_id in first:
            self._policy.started(worker, request_id)
        for request_id in finished:
            job = self._policy.finished(worker, request_id, completed)
            if job is not None:
                job.done_ns = self.now
                self._over(job)
        if report is not None:
            self._policy.report(worker, report)
        self._plan_soon()

    def _over(self, job: Job) -> None:
        self._left -= 1
        if job.arrival.class_index == FLASH:
            self._urgent_left -= 1
            self._urgent_here -= 1

    # The workers' side

    def _received(
        self,
        name: str,
        batch: list[Dispatch],
        sequences: list[EngineSequence],
        aborts: list[int],
        policy: StepPolicy | None,
    ) -> None:
        worker = self._workers[name]
        for dispatch in batch:
            self._requests[name, dispatch.request_id] = (dispatch.job, worker.started_steps)
        worker.receive(sequences, aborts, policy)
        if not worker.busy:
            self._begin(worker)

    def _begin(self, worker: VirtualWorker) -> None:
        begun = worker.begin(self.now)
        if begun is None:
            if worker.has_work:
                self._at(self.now + IDLE_NS, lambda: None if worker.busy else self._begin(worker))
            return
        step, end = begun
        for sequence in step.admitted:
            job, seen = self._requests[worker.name, sequence.request_id]
            job.waited_steps = max(job.waited_steps, worker.started_steps - seen - 1)
        if self._traced:
            self._outcome.trace.append(
                Step(
                    worker=worker.name,
                    starts=self.now / NS,
                    seconds=(end - self.now) / NS,
                    prefill_tokens=step.prefill_tokens,
                    decode_tokens=step.decode_tokens,
                    kv_tokens=step.kv_tokens,
                )
            )
        self._at(end, lambda: self._ended(worker))

    def _ended(self, worker: VirtualWorker) -> None:
        produced = worker.end()
        for request_id in produced.first:
            self._requests[worker.name, request_id][0].first_ns = self.now
        for request_id in produced.finished:
            job = self._requests.pop((worker.name, request_id))[0]
            if job.arrival.class_index != FLASH:
                wrap = self._wraps[self._classes[job.arrival.class_index].extractor]
                own = wrap.prompt_tokens - wrap.shared_prefix_tokens + job.arrival.text_tokens
                self._finished_tokens += own + job.arrival.output_tokens
        report = self._report(worker)
        # A first token of a request that is done as well needs no message of its own.
        done = set(produced.finished)
        first = [i for i in produced.first if i not in done]
        if first or done or report is not None:
            completed = self.now
            self._at(
                self.now + self._link_ns,
                lambda: self._heard(worker.name, first, produced.finished, report, completed),
            )
        self._begin(worker)

    def _report(self, worker: VirtualWorker) -> StepReport | None:
        """Return a report if the last is long enough ago; otherwise see to it that one follows."""
        due = self._reported_ns.get(worker.name, -REPORT_NS) + REPORT_NS
        if self.now >= due:
            self._reported_ns[worker.name] = self.now
            return worker.report()
        if worker.name not in self._reports_due:
            self._reports_due.add(worker.name)
            self._at(due, lambda: self._late_report(worker))
        return None

    def _late_report(self, worker: VirtualWorker) -> None:
        self._reports_due.discard(worker.name)
        report = worker.report()
        if report is not None:
            self._reported_ns[worker.name] = self.now
            self._at(self.now + self._link_ns, lambda: self._heard(worker.name, [], [], report))

    # What counts

    def _all_tokens(self) -> int:
        return sum(w.totals.prefill_tokens + w.totals.decode_tokens for w in self._workers.values())

    def _lower_tokens(self) -> int:
        """Count the tokens of lower classes that are done, none of them twice."""
        tokens = self._finished_tokens
        jobs = self._outcome.jobs
        for worker in self._workers.values():
            lost = dict(worker.lost)
            for sequence in worker.core.sequences:
                number = sequence.content
                if isinstance(number, int) and jobs[number].arrival.class_index != FLASH:
                    tokens += max(progress(sequence), lost.pop(number, 0))
            tokens += sum(t for n, t in lost.items() if isinstance(n, int) and _unfinished_lower(jobs[n]))
        return tokens


def _unfinished_lower(job: Job) -> bool:
    return job.arrival.class_index != FLASH and not job.done_ns
