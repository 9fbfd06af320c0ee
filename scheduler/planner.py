"""The planner: what runs next and where. No I/O, no clock, no randomness; the same calls give the same plans.

It follows the shape of vLLM's own scheduler: `plan` decides, and the other methods tell it what happened.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from scheduler.budgets import WorkerBudget
from scheduler.queues import DeadlineQueue
from scheduler.work import State, Work
from schemas.frames import TOKEN_BYTES
from schemas.settings import ClassSettings


@dataclass(slots=True)
class Plan:
    """What to do now.

    Args:
        dispatches: work and the worker it goes to, most urgent first; its budget is already taken.
        expired: work that is past its toxic age; it is done for the planner.
        aborts: worker and request id of expired work that a worker still holds.
    """

    dispatches: list[tuple[Work, str]] = field(default_factory=list)
    expired: list[Work] = field(default_factory=list)
    aborts: list[tuple[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Worker:
    worker_id: str
    budget: WorkerBudget
    takes: frozenset[int]
    in_flight: dict[int, Work] = field(default_factory=dict)


class Planner:
    """Class queues, workers' budgets and the rule that connects them.

    Strict order between classes and earliest deadline first inside one. When the most urgent waiting work does not
    fit a worker that may take it, nothing less urgent goes there either: it would only delay what waits.

    Args:
        classes: service classes, most urgent first.
        first_request_id: request ids count up from here; the caller makes it unique over restarts.
    """

    def __init__(self, classes: Iterable[ClassSettings], *, first_request_id: int = 1) -> None:
        self.classes = tuple(classes)
        self._queues = tuple(DeadlineQueue() for _ in self.classes)
        self._in_flight = [0] * len(self.classes)
        self._workers: dict[str, _Worker] = {}
        self._toxic: list[tuple[int, int, Work]] = []
        self._sequence = 0
        self._next_request_id = first_request_id

    # What waits and runs

    def queued(self, class_index: int) -> int:
        """Return how much of a class waits."""
        return len(self._queues[class_index])

    def in_flight(self, class_index: int) -> int:
        """Return how much of a class is at workers."""
        return self._in_flight[class_index]

    @property
    def total_queued(self) -> int:
        """How much waits, over all classes."""
        return sum(map(len, self._queues))

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

    # What happened

    def add(self, work: Work) -> None:
        """Queue new work, or work that comes back with its original deadline."""
        self._sequence += 1
        work.sequence = self._sequence
        work.state = State.QUEUED
        self._queues[work.class_index].push(work)
        if work.toxic_ns and not work.runs:  # requeued work still has its entry
            heapq.heappush(self._toxic, (work.toxic_ns, work.sequence, work))

    def add_worker(self, worker_id: str, budget: WorkerBudget, classes: Iterable[str] = ()) -> None:
        """Let a worker take work of these classes; none given means all."""
        names = set(classes)
        takes = frozenset(i for i, c in enumerate(self.classes) if not names or c.name in names)
        self._workers[worker_id] = _Worker(worker_id, budget, takes)

    def remove_worker(self, worker_id: str) -> list[Work]:
        """Forget a worker and return what it had in flight, for the caller to requeue or to end."""
        worker = self._workers.pop(worker_id, None)
        if worker is None:
            return []
        for work in worker.in_flight.values():
            self._in_flight[work.class_index] -= 1
            work.state = State.DONE  # unless it is added again: what is ended instead must not expire as well
        return list(worker.in_flight.values())

    def prefilled(self, worker_id: str, request_id: int) -> Work | None:
        """Note that a request produced its first token; returns its work, or None when it is not known."""
        worker = self._workers.get(worker_id)
        work = worker.in_flight.get(request_id) if worker else None
        if worker and work:
            worker.budget.prefilled(request_id)
        return work

    def finish(self, worker_id: str, request_id: int) -> Work | None:
        """Take a request that ended out of flight and release its budget; None when it is not known."""
        worker = self._workers.get(worker_id)
        work = worker.in_flight.pop(request_id, None) if worker else None
        if worker is None or work is None:
            return None
        worker.budget.release(request_id)
        self._in_flight[work.class_index] -= 1
        work.state = State.DONE
        return work

    def drop_queued(self, gone: Callable[[Work], bool]) -> list[Work]:
        """Drop waiting work that ``gone`` says belongs elsewhere now, and return it."""
        dropped: list[Work] = []
        for queue in self._queues:
            for work in [w for w in queue if gone(w)]:
                queue.discard(work, State.DROPPED)
                dropped.append(work)
        return dropped

    def in_flight_work(self) -> list[Work]:
        """Return all work at workers."""
        return [work for worker in self._workers.values() for work in worker.in_flight.values()]

    # What to do

    def plan(self, now_ns: int) -> Plan:
        """Decide what to dispatch, expire and abort at this time.

        Budgets of dispatched work are taken and expired work is released before this returns.
        """
        plan = Plan()
        self._expire(now_ns, plan)
        closed: set[str] = set()
        for class_index, queue in enumerate(self._queues):
            if queue:
                self._plan_class(class_index, queue, closed, plan)
        return plan

    def _plan_class(self, class_index: int, queue: DeadlineQueue, closed: set[str], plan: Plan) -> None:
        extractor = self.classes[class_index].extractor
        candidates = [w for w in self._workers.values() if class_index in w.takes and extractor in w.budget.extractors]
        if not candidates:
            return
        longest = max(w.budget.text_limit(extractor) for w in candidates)
        while (work := queue.peek()) is not None:
            if work.token_count > longest:
                _shorten(work, longest)
            best: _Worker | None = None
            best_use = None
            for worker in candidates:
                if worker.worker_id in closed or work.token_count > worker.budget.text_limit(extractor):
                    continue
                use = worker.budget.use_of(extractor, work.token_count, urgent=class_index == 0)
                if worker.budget.fits(use) and (best is None or _load(worker) < _load(best)):
                    best, best_use = worker, use
            if best is None or best_use is None:
                closed.update(w.worker_id for w in candidates)
                return
            queue.pop()
            self._next_request_id += 1
            work.request_id = self._next_request_id
            work.worker_id = best.worker_id
            work.state = State.IN_FLIGHT
            work.runs += 1
            best.budget.take(work.request_id, best_use)
            best.in_flight[work.request_id] = work
            self._in_flight[class_index] += 1
            plan.dispatches.append((work, best.worker_id))

    def _expire(self, now_ns: int, plan: Plan) -> None:
        heap = self._toxic
        while heap and heap[0][0] <= now_ns:
            _, _, work = heapq.heappop(heap)
            if work.state is State.QUEUED:
                self._queues[work.class_index].discard(work, State.DONE)
            elif work.state is State.IN_FLIGHT:
                plan.aborts.append((work.worker_id, work.request_id))
                self.finish(work.worker_id, work.request_id)
            else:
                continue
            plan.expired.append(work)


def _load(worker: _Worker) -> float:
    """Return how full the next step of a worker is; ties go to the worker that said hello first."""
    return worker.budget.step_tokens / worker.budget.limits.max_num_batched_tokens


def _shorten(work: Work, longest: int) -> None:
    """Cut a text that no worker can hold any more: the one with the longer context has left since it was queued."""
    work.tokens = work.tokens[: longest * TOKEN_BYTES]
    work.token_count = longest
    work.truncated = True
