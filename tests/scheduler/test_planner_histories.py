"""Any history of the planner: nothing is lost, nothing runs twice, counts and budgets never leak, plans repeat."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from scheduler.budgets import WorkerBudget
from scheduler.planner import Plan, Planner
from scheduler.queues import GRAIN_NS
from scheduler.work import State, Work
from schemas.frames import StepReport
from schemas.settings import ReserveSettings
from tests.scheduler import make

T0 = make.EVENT_TIME_NS
HORIZON = 1000
"""The longest deadline or toxic age, in milliseconds: engine steps take about twenty of them."""
MILLISECOND = make.MILLISECOND
RESERVE = ReserveSettings(step_tokens=128, kv_fraction=0.1, seqs=1)


class _Twin:
    """Two planners that get the same calls; the second one exists to prove that plans repeat."""

    def __init__(self) -> None:
        self.planner, self.mirror = Planner(make.CLASSES), Planner(make.CLASSES)
        self.works: dict[int, Work] = {}
        self.productive: Counter[int] = Counter()
        self.mirrored: dict[int, Work] = {}
        self.budgets: dict[str, WorkerBudget] = {}
        self.mirrored_budgets: dict[str, WorkerBudget] = {}

    def add(self, **kwargs: Any) -> int:
        number = len(self.works)
        self.works[number], self.mirrored[number] = make.work(**kwargs), make.work(**kwargs)
        for works, planner in ((self.works, self.planner), (self.mirrored, self.mirror)):
            works[number].event_id = str(number)
            planner.add(works[number])
        return number

    def add_worker(self, worker_id: str, classes: list[str], *, gated: bool = False, **limits: int) -> None:
        for planner, budgets in ((self.planner, self.budgets), (self.mirror, self.mirrored_budgets)):
            extractors = {e.name: e for e in make.extractors()}
            budgets[worker_id] = WorkerBudget(make.limits(**limits), extractors, RESERVE, gated=gated)
            planner.add_worker(worker_id, budgets[worker_id], classes, gated=gated, steps_ahead=int(gated))


def _shown(plan: Plan) -> Any:
    return (
        [(w.event_id, worker, w.request_id) for w, worker in plan.dispatches],
        [w.event_id for w in plan.expired],
        plan.aborts,
        [w.event_id for w in plan.revoked],
        plan.policies,
    )


class PlannerMachine(RuleBasedStateMachine):
    """Adds, plans, finishes, fails, kills, drops and lets time pass, against a plain account of who is where."""

    @initialize()
    def start(self) -> None:
        """Begin empty, at a fixed time."""
        self.twin = _Twin()
        self.now = T0
        self.workers = 0
        self.queued: set[int] = set()
        self.flying: dict[int, str] = {}
        self.ended: Counter[int] = Counter()
        self.dispatched: Counter[int] = Counter()
        self.requeued: Counter[int] = Counter()
        for gated in (False, True):
            self.worker_joins(classes=[], max_num_seqs=3, max_model_len=2048, kv_blocks=512, gated=gated)

    @rule(
        class_index=st.integers(0, 2),
        tokens=st.sampled_from([1, 20, 150, 300, 1900]),
        deadline=st.integers(0, HORIZON),
        toxic=st.one_of(st.just(0), st.integers(1, HORIZON)),
        count=st.integers(1, 4),
    )
    def add(self, class_index: int, tokens: int, deadline: int, toxic: int, count: int) -> None:
        """Events arrive together, and a plan is made as the service does."""
        toxic_ns = self.now + toxic * MILLISECOND if toxic else 0
        for _ in range(count):
            self.queued.add(
                self.twin.add(
                    class_index=class_index,
                    tokens=tokens,
                    deadline_ns=self.now + deadline * MILLISECOND,
                    toxic_ns=toxic_ns,
                )
            )
        self.plan(0)

    @rule(
        classes=st.sampled_from([[], ["flash"], ["standard", "bulk"]]),
        max_num_seqs=st.integers(1, 4),
        max_model_len=st.sampled_from([256, 2048]),
        kv_blocks=st.sampled_from([24, 512]),
        gated=st.booleans(),
    )
    def worker_joins(
        self, classes: list[str], max_num_seqs: int, max_model_len: int, kv_blocks: int, gated: bool
    ) -> None:
        """A worker of some size says hello."""
        self.workers += 1
        self.twin.add_worker(
            f"w{self.workers}",
            classes,
            gated=gated,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            kv_blocks=kv_blocks,
        )

    @rule(passed=st.integers(0, HORIZON // 4))
    def plan(self, passed: int) -> None:
        """Time passes and a plan is made."""
        self.now += passed * MILLISECOND
        plan, mirrored = self.twin.planner.plan(self.now), self.twin.mirror.plan(self.now)
        assert _shown(plan) == _shown(mirrored)
        late = [(self.flying[int(w.event_id)], w.request_id) for w in plan.expired if int(w.event_id) in self.flying]
        assert plan.aborts[: len(late)] == late
        waited = set(self.queued)  # a floor comes first in a plan: what it was owed for may expire in the same one
        for work in plan.expired:
            # Urgent work may be given up before its toxic age, when no engine can be done with it by then.
            assert work.toxic_ns
            assert work.class_index == 0 or work.toxic_ns <= self.now
            self._ends(int(work.event_id))
        assert [worker for worker, _ in plan.aborts[len(late) :]] == [
            self.flying[int(w.event_id)] for w in plan.revoked
        ]
        for work in plan.revoked:
            assert work.class_index != 0
            assert not self.twin.productive[int(work.event_id)], "took back what had produced"
            self._waits_again(int(work.event_id))
        for work, worker_id in plan.dispatches:
            number = int(work.event_id)
            assert number in self.queued, "dispatched what was not waiting"
            assert not work.toxic_ns or work.toxic_ns > self.now
            if work.floor:
                assert any(self.twin.works[n].class_index < work.class_index for n in waited - {number})
            self.twin.productive[number] = False
            self.queued.remove(number)
            self.flying[number] = worker_id
            self.dispatched[number] += 1
        for index in range(3):
            # A text that was cut on its way out stood in the queue by its whole length.
            firsts = [w for w, _ in plan.dispatches if w.class_index == index and not w.truncated]
            assert firsts == sorted(
                firsts, key=lambda w: (w.late, w.deadline_ns // GRAIN_NS, w.token_count, w.sequence)
            )

    def _ends(self, number: int) -> None:
        self.queued.discard(number)
        self.flying.pop(number, None)
        self.ended[number] += 1

    def _some_flying(self, choice: int) -> int | None:
        return sorted(self.flying)[choice % len(self.flying)] if self.flying else None

    @rule(choice=st.integers(0, 50))
    def first_token(self, choice: int) -> None:
        """A worker reports a first token."""
        if (number := self._some_flying(choice)) is not None:
            request_id = self.twin.works[number].request_id
            assert self.twin.planner.prefilled(self.flying[number], request_id) is self.twin.works[number]
            self.twin.mirror.prefilled(self.flying[number], request_id)
            self.twin.productive[number] = True

    @rule(choice=st.integers(0, 50), again=st.booleans())
    def result(self, choice: int, again: bool) -> None:
        """A worker reports an end; with ``again`` a retryable failure that is queued once more."""
        if (number := self._some_flying(choice)) is None:
            return
        worker_id, work = self.flying[number], self.twin.works[number]
        assert self.twin.planner.finish(worker_id, work.request_id) is work
        self.twin.mirror.finish(worker_id, work.request_id)
        if again:
            self._requeue(number)
        else:
            self._ends(number)
        assert self.twin.planner.finish(worker_id, work.request_id) is None

    @rule(
        choice=st.integers(0, 50),
        count=st.sampled_from([1, 40]),
        steps=st.integers(0, 8),
        seconds=st.one_of(st.sampled_from([0.0, 0.001, 0.02, 0.5, 100.0]), st.floats()),
        prefill=st.integers(-1, 4000),
        decodes=st.integers(-1, 64),
        kv_usage=st.one_of(st.floats(0, 1), st.floats()),
    )
    def steps_reported(
        self, choice: int, count: int, steps: int, seconds: float, prefill: int, decodes: int, kv_usage: float
    ) -> None:
        """A worker tells what its steps took, sense or nonsense, once or for a while."""
        if not self.twin.budgets:
            return
        worker_id = sorted(self.twin.budgets)[choice % len(self.twin.budgets)]
        report = StepReport(
            session="",
            steps=steps,
            seconds=seconds,
            prefill_tokens=prefill,
            decode_tokens=decodes,
            running=1,
            waiting=0,
            kv_usage=kv_usage,
        )
        for _ in range(count):
            taken = self.twin.planner.observe_steps(worker_id, report)
            assert taken == self.twin.mirror.observe_steps(worker_id, report)
        costs = self.twin.planner.step_costs(worker_id)
        assert costs is not None
        assert 0 < costs.seconds(1000, 10, 1000) < 60

    def _requeue(self, number: int) -> None:
        deadline = self.twin.works[number].deadline_ns
        self.twin.planner.add(self.twin.works[number])
        self.twin.mirror.add(self.twin.mirrored[number])
        assert self.twin.works[number].deadline_ns == deadline
        self._waits_again(number)

    def _waits_again(self, number: int) -> None:
        self.flying.pop(number)
        self.queued.add(number)
        self.requeued[number] += 1

    @rule(choice=st.integers(0, 50), quarantine=st.booleans())
    def worker_dies(self, choice: int, quarantine: bool) -> None:
        """A worker dies; what it had is queued again, or ends."""
        if not self.twin.budgets:
            return
        worker_id = sorted(self.twin.budgets)[choice % len(self.twin.budgets)]
        del self.twin.budgets[worker_id]
        lost = self.twin.planner.remove_worker(worker_id)
        self.twin.mirror.remove_worker(worker_id)
        assert sorted(int(w.event_id) for w in lost) == sorted(n for n, w in self.flying.items() if w == worker_id)
        for work in lost:
            if quarantine:
                self._ends(int(work.event_id))
            else:
                self._requeue(int(work.event_id))

    @rule(remainder=st.integers(0, 2))
    def partition_leaves(self, remainder: int) -> None:
        """Waiting work of one partition is dropped."""
        gone = sorted(n for n in self.queued if n % 3 == remainder)
        dropped = self.twin.planner.drop_queued(lambda w: int(w.event_id) % 3 == remainder)
        self.twin.mirror.drop_queued(lambda w: int(w.event_id) % 3 == remainder)
        assert sorted(int(w.event_id) for w in dropped) == gone
        for number in gone:
            self._ends(number)

    @invariant()
    def accounts_agree(self) -> None:
        """Every event is in one place, ended at most once, and ran no more often than it was queued."""
        planner, works = self.twin.planner, self.twin.works
        assert planner.total_queued == len(self.queued)
        assert planner.total_in_flight == len(self.flying)
        for index in range(3):
            assert planner.queued(index) == sum(works[n].class_index == index for n in self.queued)
            assert planner.in_flight(index) == sum(works[n].class_index == index for n in self.flying)
        assert sorted(int(w.event_id) for w in planner.in_flight_work()) == sorted(self.flying)
        assert set(works) == self.queued | set(self.flying) | set(self.ended)
        assert all(count == 1 for count in self.ended.values())
        assert all(self.dispatched[n] <= 1 + self.requeued[n] for n in works)
        assert all(works[n].state is State.IN_FLIGHT for n in self.flying)

    @invariant()
    def budgets_agree(self) -> None:
        """A worker's budget holds what it has in flight and nothing else, within its limits unless alone."""
        for worker_id, budget in self.twin.budgets.items():
            here = [n for n, w in self.flying.items() if w == worker_id]
            assert budget.seqs == len(here) <= budget.limits.max_num_seqs
            taken = {n: self._blocks(budget, n) for n in here}
            assert budget.kv_blocks == sum(taken.values())
            space = budget.limits.kv_blocks - 4  # two shared prefixes of two blocks
            assert budget.kv_blocks <= space or len(here) == 1
            lower = [n for n in here if self.twin.works[n].class_index]
            assert len(lower) <= budget.limits.max_num_seqs - min(RESERVE.seqs, budget.limits.max_num_seqs // 2)
            assert sum(taken[n] for n in lower) <= space - int(space * RESERVE.kv_fraction) or len(lower) == 1
            if not here:
                assert (budget.step_tokens, budget.urgent_tokens, budget.late_tokens) == (0, 0, 0)
                assert (budget.lower_prefill, budget.lower_decodes) == (0, 0)

    def _blocks(self, budget: WorkerBudget, number: int) -> int:
        work = self.twin.works[number]
        extractor = make.CLASSES[work.class_index].extractor
        return budget.use_of(extractor, work.token_count, urgent=False).kv_blocks

    @invariant()
    def expiry_is_armed(self) -> None:
        """The next expiry is that of the first waiting or running event that can get toxic."""
        works = self.twin.works
        times = [works[n].toxic_ns for n in (*self.queued, *self.flying) if works[n].toxic_ns]
        assert self.twin.planner.next_expiry_ns() == (min(times) if times else None)

    def teardown(self) -> None:
        """With an able worker and no more deaths, everything that waits gets its turn."""
        self.twin.add_worker("last", [], gated=True)
        for _ in range(4 * len(self.twin.works) + 1):
            self.plan(0)
            for number in list(self.flying):
                work = self.twin.works[number]
                self.twin.planner.finish(self.flying[number], work.request_id)
                self.twin.mirror.finish(self.flying[number], work.request_id)
                self._ends(number)
        assert not self.queued
        assert set(self.ended) == set(self.twin.works)
        assert all(b.seqs == b.step_tokens == b.kv_blocks == 0 for b in self.twin.budgets.values())


def test_no_history_loses_repeats_or_leaks() -> None:
    """No history loses an event, runs one twice, leaks a count or a budget, or plans differently when repeated."""
    run_state_machine_as_test(PlannerMachine, settings=settings(max_examples=80, stateful_step_count=50))
