"""The planner: what runs next and where. No I/O, no clock, no randomness; the same calls give the same plans.

It follows the shape of vLLM's own scheduler: `plan` decides, and the other methods tell it what happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice

from scheduler.budgets import Use, WorkerBudget
from scheduler.floors import Floors
from scheduler.pool import NANOSECONDS, NEVER_NS, URGENT, PoolWorker
from scheduler.queues import DeadlineQueue
from scheduler.retries import Retries
from scheduler.step_model import StepCosts, StepModel
from scheduler.valve import Valve
from scheduler.work import State, Work
from schemas.frames import TOKEN_BYTES, StepPolicy, StepReport
from schemas.settings import ClassSettings, ValveSettings

FEW_TOXIC = 1024
"""Pieces of work whose toxic age is kept in mind though they may be done."""
MOST_PUT_ASIDE = 256
"""Pieces of late work that one plan puts aside: a backlog of a hundred thousand must not stop the event loop."""


class _Fate(Enum):
    """What became of the first urgent work of a queue."""

    DISPATCHED = auto()
    EXPIRED = auto()
    PUT_ASIDE = auto()
    WAITS = auto()


@dataclass(slots=True)
class Plan:
    """What to do now.

    Args:
        dispatches: work and the worker it goes to, most urgent first; its budget is already taken.
        expired: work that is past its toxic age, or cannot be done before it; it is done for the planner.
        aborts: worker and request id of expired or revoked work that a worker still holds.
        revoked: work that was taken back from a worker and queued again.
        policies: how workers should split their steps from now on, where that has changed.
    """

    dispatches: list[tuple[Work, str]] = field(default_factory=list)
    expired: list[Work] = field(default_factory=list)
    aborts: list[tuple[str, int]] = field(default_factory=list)
    revoked: list[Work] = field(default_factory=list)
    policies: dict[str, StepPolicy] = field(default_factory=dict)


class Planner:
    """Class queues, workers' budgets and the rules that connect them.

    Strict order between classes and earliest deadline first inside one. When the most urgent waiting work does not
    fit a worker that may take it, nothing less urgent goes there either: it would only delay what waits. The one
    exception is a class's guaranteed floor.

    Urgent work that cannot meet its deadline any more waits behind what still can; what cannot even be done before
    its toxic age is expired at once instead of delaying the rest.

    Work that failed waits out a pause (`scheduler.retries`) and then behind all other work of its class. What a dead
    worker left keeps its place.

    Args:
        classes: service classes, most urgent first.
        valve: margins, and the step-time model before the first reports.
        retries: how long failed work waits.
        first_request_id: request ids count up from here; the caller makes it unique over restarts.
    """

    def __init__(
        self,
        classes: Iterable[ClassSettings],
        valve: ValveSettings | None = None,
        *,
        retries: Retries | None = None,
        first_request_id: int = 1,
    ) -> None:
        self.classes = tuple(classes)
        self._valve = valve or ValveSettings()
        self._queues = tuple(DeadlineQueue() for _ in self.classes)
        self._late = tuple(DeadlineQueue() for _ in self.classes)
        self._retries = Retries(0, 0) if retries is None else retries
        self._urgent_waiting = 0
        self._floors = Floors(self.classes)
        self._in_flight = [0] * len(self.classes)
        self._workers: dict[str, PoolWorker] = {}
        self._toxic: list[tuple[int, int, Work]] = []
        self._toxic_swept = FEW_TOXIC
        self._sequence = 0
        self._next_request_id = first_request_id

    # What waits and runs

    def queued(self, class_index: int) -> int:
        """Return how much of a class waits."""
        return len(self._queues[class_index]) + len(self._late[class_index])

    def in_flight(self, class_index: int) -> int:
        """Return how much of a class is at workers."""
        return self._in_flight[class_index]

    @property
    def total_queued(self) -> int:
        """How much waits, over all classes."""
        return sum(map(len, self._queues)) + sum(map(len, self._late))

    @property
    def retrying(self) -> int:
        """How much has failed and waits for its next attempt, over all classes."""
        return len(self._retries)

    @property
    def total_in_flight(self) -> int:
        """How much is at workers, over all classes."""
        return sum(self._in_flight)

    def next_expiry_ns(self) -> int | None:
        """Return when the next piece of work gets toxic, or None when none can."""
        heap = self._toxic
        while heap and heap[0][2].state in (State.DONE, State.DROPPED):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def next_due_ns(self) -> int | None:
        """Return when the next failed work has waited long enough (see `due`), or None when none waits."""
        return self._retries.next_due_ns()

    def in_flight_work(self) -> list[Work]:
        """Return all work at workers."""
        return [work for worker in self._workers.values() for work in worker.in_flight.values()]

    def in_flight_at(self, worker_id: str) -> list[Work]:
        """Return the work at one worker, in order of dispatch."""
        worker = self._workers.get(worker_id)
        return list(worker.in_flight.values()) if worker else []

    def step_costs(self, worker_id: str) -> StepCosts | None:
        """Return the fitted step-time model of a worker."""
        worker = self._workers.get(worker_id)
        return worker.model.costs if worker else None

    # What happened

    def add(self, work: Work) -> None:
        """Queue new work, or work that comes back with its original deadline."""
        if not work.sequence:  # what comes back keeps its place in its burst
            self._sequence += 1
            work.sequence = self._sequence
        work.state = State.QUEUED
        work.floor = False
        # Urgent work that failed waits where late work does: there it can only take time that nobody else needs.
        work.late = work.behind and work.class_index == URGENT
        (self._late if work.late else self._queues)[work.class_index].push(work)
        if work.class_index == URGENT:
            self._urgent_waiting += work.token_count
        if work.toxic_ns and not work.runs:  # requeued work still has its entry
            heapq.heappush(self._toxic, (work.toxic_ns, work.sequence, work))

    def retry(self, work: Work, now_ns: int) -> None:
        """Let work that failed wait for its next attempt; it may expire meanwhile like any other."""
        work.late = work.floor = False
        self._retries.add(work, now_ns)

    def due(self, now_ns: int) -> list[Work]:
        """Take the failed work that has waited long enough, for the caller to `add` again or to end."""
        return self._retries.due(now_ns)

    def add_worker(
        self,
        worker_id: str,
        budget: WorkerBudget,
        classes: Iterable[str] = (),
        *,
        gated: bool = False,
        steps_ahead: int = 0,
    ) -> None:
        """Let a worker take work of these classes; none given means all.

        Args:
            worker_id: its name.
            budget: its limits, with nothing taken.
            classes: names of the classes that it takes.
            gated: its engine has a step gate.
            steps_ahead: steps that are already decided when a request arrives.
        """
        names = set(classes)
        takes = frozenset(i for i, c in enumerate(self.classes) if not names or c.name in names)
        lends = frozenset(range(len(self.classes))) - takes if self._valve.lend and URGENT in takes else frozenset()
        slo = self.classes[URGENT].slo_ms / 1000
        most = budget.limits.max_num_batched_tokens
        urgent = budget.extractors.get(self.classes[URGENT].extractor)
        answer = 1 if urgent is None else urgent.max_new_tokens
        self._workers[worker_id] = PoolWorker(
            worker_id,
            budget,
            StepModel(StepCosts.prior(self._valve)),
            Valve(slo, self._valve, most, gated=gated, steps_ahead=steps_ahead, answer_tokens=answer),
            takes,
            lends,
            gated,
            steps_ahead,
            overhead_seconds=self._valve.overhead_ms / 2000,
        )

    def remove_worker(self, worker_id: str) -> list[Work]:
        """Forget a worker and return what it had in flight, for the caller to requeue or to end."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return []
        for work in worker.in_flight.values():
            self._in_flight[work.class_index] -= 1
            work.state = State.DONE  # unless it is added again: what is ended instead must not expire as well
        return list(worker.in_flight.values())

    def set_away(self, worker_id: str, *, away: bool) -> None:
        """Give a worker nothing new while it has no connection; what it has stays there."""
        if (worker := self._workers.get(worker_id)) is not None:
            worker.away = away
            worker.policy = None  # told again when it is back: it may not have heard the last one

    def observe_steps(self, worker_id: str, report: StepReport) -> bool:
        """Learn from a worker's step report; False when it is nonsense and was left out."""
        worker = self._workers.get(worker_id)
        return worker is None or worker.observe(report)

    def prefilled(self, worker_id: str, request_id: int) -> Work | None:
        """Note that a request produced its first token; returns its work, or None when it is not known."""
        worker = self._workers.get(worker_id)
        work = worker.in_flight.get(request_id) if worker else None
        if worker and work:
            worker.budget.prefilled(request_id)
            work.productive = True
        return work

    def finish(self, worker_id: str, request_id: int, completed_ns: int = 0) -> Work | None:
        """Take a request that ended out of flight and release its budget; None when it is not known.

        Args:
            worker_id: who had it.
            request_id: of the dispatch.
            completed_ns: when the engine was done, for a request that has an answer.
        """
        worker = self._workers.get(worker_id)
        work = worker.in_flight.pop(request_id, None) if worker else None
        if worker is None or work is None:
            return None
        worker.budget.release(request_id)
        self._in_flight[work.class_index] -= 1
        work.state = State.DONE
        if work.alone and completed_ns:
            worker.valve.observe((completed_ns - work.dispatched_ns) / NANOSECONDS)
        return work

    def drop_queued(self, gone: Callable[[Work], bool]) -> list[Work]:
        """Drop waiting work that ``gone`` says belongs elsewhere now, and return it."""
        dropped: list[Work] = []
        for queue in (*self._queues, *self._late):
            for work in [w for w in queue if gone(w)]:
                self._discard(work, State.DROPPED)
                dropped.append(work)
        return dropped + self._retries.drop(gone)

    # What to do

    def plan(self, now_ns: int) -> Plan:
        """Decide what to dispatch, expire, revoke and abort at this time.

        Budgets of dispatched work are taken and those of expired and revoked work released before this returns.
        """
        plan = Plan()
        self._expire(now_ns, plan)
        for worker in self._workers.values():
            worker.begin_plan(now_ns, self._urgent_waiting if URGENT in worker.takes else None)
        saved: set[str] = set()
        for class_index in range(URGENT + 1, len(self.classes)):
            self._plan_floor(class_index, saved, plan)
        closed: set[str] = set()
        self._plan_urgent(now_ns, saved, closed, plan)
        for class_index in range(URGENT + 1, len(self.classes)):
            self._plan_class(class_index, closed, plan)
        for worker in self._workers.values():
            if not worker.away and (policy := worker.next_policy()) is not None:
                plan.policies[worker.worker_id] = policy
        return plan

    def _candidates(self, class_index: int) -> tuple[list[PoolWorker], list[PoolWorker]]:
        """Return the workers that take a class, and those that lend themselves to it."""
        extractor = self.classes[class_index].extractor
        able = [w for w in self._workers.values() if extractor in w.budget.extractors and not w.away]
        takers = [w for w in able if class_index in w.takes]
        lenders = [
            w for w in able if class_index in w.lends and not w.budget.urgent_tokens and not w.budget.late_tokens
        ]
        return takers, lenders

    def _plan_urgent(self, now_ns: int, saved: set[str], closed: set[str], plan: Plan) -> None:
        queue, late = self._queues[URGENT], self._late[URGENT]
        takers, _ = self._candidates(URGENT)
        candidates = [w for w in takers if w.worker_id not in saved]
        if candidates:
            put_aside = 0
            while put_aside < MOST_PUT_ASIDE and (work := queue.peek()) is not None:
                fate = self._place_urgent(work, queue, candidates, now_ns, plan)
                if fate is _Fate.WAITS:
                    break
                put_aside += fate is _Fate.PUT_ASIDE
            else:
                # What is left to sort may still be on time. Only an idle engine does not wait for that: with nothing
                # in it, nothing would tell us to go on.
                sorted_out = not queue or not any(w.in_flight for w in candidates)
                while sorted_out and (work := late.peek()) is not None:
                    if self._place_urgent(work, late, candidates, now_ns, plan) is _Fate.WAITS:
                        break
        if queue or late:
            closed.update(w.worker_id for w in takers)

    def _place_urgent(
        self, work: Work, queue: DeadlineQueue, candidates: list[PoolWorker], now_ns: int, plan: Plan
    ) -> _Fate:
        """Dispatch, put aside or expire the first urgent work of a queue, or leave it there to wait."""
        self._shorten(work, candidates)
        soonest = self._soonest(work, candidates, now_ns)
        if soonest is None:
            return _Fate.WAITS
        worker, use, finish_ns = soonest
        least_ns = int(worker.least_seconds(use) * NANOSECONDS)
        # An idle engine tries it all the same: that delays nobody, and a model that is wrong learns from nothing else.
        if work.toxic_ns and now_ns + least_ns > work.toxic_ns and worker.in_flight:
            self._discard(work, State.DONE)
            plan.expired.append(work)
            return _Fate.EXPIRED
        if not work.late and finish_ns > work.deadline_ns:
            queue.pop()
            work.late = True
            self._late[URGENT].push(work)
            return _Fate.PUT_ASIDE
        limit_ns = (work.toxic_ns or NEVER_NS) if work.late else work.deadline_ns
        occupied = worker.budget.urgent_tokens + worker.budget.late_tokens
        if worker.delays(use) or (occupied and finish_ns > limit_ns):
            return _Fate.WAITS  # it would make others late, or itself be late behind them
        if not worker.budget.holds(use):
            victims = worker.in_the_way(use)
            if victims is None:
                return _Fate.WAITS
            for victim in victims:
                self._revoke(victim, worker, plan)
        if not worker.budget.fits(use):
            return _Fate.WAITS
        queue.pop()
        self._urgent_waiting -= work.token_count
        work.alone = not occupied
        self._dispatch(work, worker, use, plan)
        worker.promise(work.request_id, use, limit_ns - finish_ns)
        return _Fate.DISPATCHED

    def _soonest(self, work: Work, candidates: list[PoolWorker], now_ns: int) -> tuple[PoolWorker, Use, int] | None:
        """Return the worker that would be done with urgent work first, what it takes there, and when.

        None only for a suspect: the workers that could hold it have one already.
        """
        extractor = self.classes[URGENT].extractor
        best: tuple[PoolWorker, Use, int] | None = None
        for worker in candidates:
            if work.token_count > worker.budget.text_limit(extractor) or not worker.trusts(work):
                continue
            use = worker.budget.use_of(extractor, work.token_count, urgent=True, late=work.late)
            finish_ns = worker.urgent_finish_ns(now_ns, use)
            if best is None or finish_ns < best[2]:
                best = (worker, use, finish_ns)
        return best

    def _plan_floor(self, class_index: int, saved: set[str], plan: Plan) -> None:
        """Dispatch what a class has earned while more urgent work was served.

        Where urgent requests leave no slot or no KV blocks for it, the worker gets no more of them until there is
        room: they would take each place that comes free, and the floor would never fit.
        """
        queue = self._queues[class_index]
        if not queue or not self._urgent_before(class_index):
            return
        first = queue.peek()
        if first is None or not self._floors.earned(class_index, first.token_count):
            return  # the answer comes on top, so it is not enough in any case
        takers = [w for w in self._candidates(class_index)[0] if w.worker_id not in saved]
        while takers and (work := queue.peek()) is not None and not work.suspect:
            extractor = self.classes[class_index].extractor
            use = takers[0].budget.use_of(extractor, work.token_count, urgent=False)
            if not self._floors.earned(class_index, self._tokens(work, takers[0], use)):
                return
            placed = self._roomiest(work, class_index, takers, floor=True)
            if placed is None:
                drains = (w for w in takers if w.would_hold_but_for_urgent(extractor, work.token_count))
                saved.update(w.worker_id for w in islice(drains, 1))
                return
            queue.pop()
            work.floor = True
            self._dispatch(work, *placed, plan)

    def _urgent_before(self, class_index: int) -> bool:
        return any(self._queues[i] or self._late[i] for i in range(class_index))

    def _plan_class(self, class_index: int, closed: set[str], plan: Plan) -> None:
        queue = self._queues[class_index]
        if not queue:
            return
        takers, lenders = self._candidates(class_index)
        if not takers and not lenders:
            return
        while (work := queue.peek()) is not None:
            self._shorten(work, takers or lenders)
            placed = self._roomiest(work, class_index, [w for w in takers if w.worker_id not in closed])
            if placed is None:
                placed = self._roomiest(work, class_index, [w for w in lenders if w.worker_id not in closed])
            if placed is None:
                closed.update(w.worker_id for w in takers)
                return
            queue.pop()
            self._dispatch(work, *placed, plan)

    def _roomiest(
        self, work: Work, class_index: int, candidates: list[PoolWorker], *, floor: bool = False
    ) -> tuple[PoolWorker, Use] | None:
        """Return the least loaded worker that has room for less urgent work, and what it takes there.

        A floor needs a slot and KV blocks; what it takes of the steps, its credit has paid for.
        """
        extractor = self.classes[class_index].extractor
        best: PoolWorker | None = None
        best_use: Use | None = None
        for worker in candidates:
            if work.token_count > worker.budget.text_limit(extractor) or not worker.trusts(work):
                continue
            use = worker.budget.use_of(extractor, work.token_count, urgent=False)
            fits = worker.budget.holds(use) if floor else worker.budget.fits(use)
            if fits and (best is None or worker.load() < best.load()):
                best, best_use = worker, use
        return None if best is None or best_use is None else (best, best_use)

    def _dispatch(self, work: Work, worker: PoolWorker, use: Use, plan: Plan) -> None:
        self._next_request_id += 1
        work.request_id = self._next_request_id
        work.worker_id = worker.worker_id
        work.state = State.IN_FLIGHT
        work.productive = False
        work.runs += 1
        worker.budget.take(work.request_id, use)
        worker.in_flight[work.request_id] = work
        self._in_flight[work.class_index] += 1
        waiting = [bool(q) for q in self._queues]
        self._floors.dispatched(work.class_index, self._tokens(work, worker, use), waiting, floor=work.floor)
        plan.dispatches.append((work, worker.worker_id))

    def _tokens(self, work: Work, worker: PoolWorker, use: Use) -> int:
        """Return what a worker computes for work: the prompt without its cached prefix, and the longest answer."""
        extractor = self.classes[work.class_index].extractor
        return use.prompt_tokens + worker.budget.extractors[extractor].max_new_tokens

    def _revoke(self, work: Work, worker: PoolWorker, plan: Plan) -> None:
        """Take back less urgent work that has produced nothing; its deadline stays as it was.

        Its prefill is not lost: the engine's prefix cache gives it back when it returns.
        """
        plan.aborts.append((worker.worker_id, work.request_id))
        self.finish(worker.worker_id, work.request_id)
        work.forget_run()
        self.add(work)
        plan.revoked.append(work)

    def _expire(self, now_ns: int, plan: Plan) -> None:
        if len(self._toxic) > self._toxic_swept:
            # What is done would stay in memory until its toxic age, which may be hours away.
            gone = (State.DONE, State.DROPPED)
            self._toxic = [entry for entry in self._toxic if entry[2].state not in gone]
            heapq.heapify(self._toxic)
            self._toxic_swept = 2 * len(self._toxic) + FEW_TOXIC
        heap = self._toxic
        while heap and heap[0][0] <= now_ns:
            _, _, work = heapq.heappop(heap)
            if work.state is State.QUEUED:
                self._discard(work, State.DONE)
            elif work.state is State.IN_FLIGHT:
                plan.aborts.append((work.worker_id, work.request_id))
                self.finish(work.worker_id, work.request_id)
            elif work.state is State.RETRYING:
                self._retries.discard(work, State.DONE)
            else:
                continue
            plan.expired.append(work)

    def _discard(self, work: Work, state: State) -> None:
        """Take waiting work out of its queue."""
        if work.class_index == URGENT:
            self._urgent_waiting -= work.token_count
        queue = self._late if work.late else self._queues
        queue[work.class_index].discard(work, state)

    def _shorten(self, work: Work, candidates: list[PoolWorker]) -> None:
        """Cut a text that no worker can hold any more: the one with the longer context has left since it was queued."""
        extractor = self.classes[work.class_index].extractor
        longest = max(w.budget.text_limit(extractor) for w in candidates)
        if work.token_count > longest:
            if work.class_index == URGENT:
                self._urgent_waiting -= work.token_count - longest
            work.tokens = work.tokens[: longest * TOKEN_BYTES]
            work.token_count = longest
            work.truncated = True
