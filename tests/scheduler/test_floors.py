"""Guaranteed shares: earned only while work waits, paid in full, kept under any urgent load, and within the budgets."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.budgets import WorkerBudget
from scheduler.floors import MOST_CREDIT, Floors
from scheduler.planner import Planner
from scheduler.work import Work
from schemas.frames import Limits
from schemas.settings import ClassSettings, ReserveSettings, ValveSettings
from tests.scheduler import make

FLASH, STANDARD, BULK = range(3)
T0 = make.EVENT_TIME_NS
MS = make.MILLISECOND
ALL_WAIT = [True, True, True]


def _classes(*floors: float) -> tuple[ClassSettings, ...]:
    """Return the usual classes with other floors for the two less urgent ones."""
    urgent, *rest = make.CLASSES
    return (urgent, *(c.model_copy(update={"floor": f}) for c, f in zip(rest, floors, strict=True)))


# The counter


def test_a_class_earns_its_share_of_what_others_get() -> None:
    """A tenth of everything: for each nine tokens of others one of its own."""
    floors = Floors(_classes(0.0, 0.1))
    floors.dispatched(FLASH, 899, ALL_WAIT)
    assert not floors.earned(BULK, 100)
    floors.dispatched(FLASH, 2, ALL_WAIT)
    assert floors.earned(BULK, 100)
    floors.dispatched(BULK, 100, ALL_WAIT, floor=True)
    assert not floors.earned(BULK, 1)


def test_nothing_is_earned_while_nothing_waits() -> None:
    """A class with nothing to run gets no credit, and loses what it had saved: old credit would hold up urgent work."""
    floors = Floors(_classes(0.0, 0.1))
    floors.dispatched(FLASH, 900_000, [True, False, False])
    assert not floors.earned(BULK, 1)
    floors.dispatched(FLASH, 90_000, ALL_WAIT)
    assert floors.earned(BULK, 10_000)
    floors.dispatched(FLASH, 1, [True, True, False])
    assert not floors.earned(BULK, 1)


def test_the_most_urgent_class_and_a_floor_of_nothing_earn_nothing() -> None:
    """No credit where none is due, however much others get."""
    floors = Floors(_classes(0.0, 0.1))
    floors.dispatched(BULK, 10**9, ALL_WAIT)
    floors.dispatched(FLASH, 10**9, ALL_WAIT)
    assert not floors.earned(FLASH, 1)
    assert not floors.earned(STANDARD, 1)


def test_credit_is_bounded_and_still_enough_for_any_document() -> None:
    """A class cannot save up an engine for itself, and a text longer than the bound gets its turn all the same."""
    floors = Floors(_classes(0.0, 0.1))
    floors.dispatched(FLASH, 10**9, ALL_WAIT)
    assert floors.earned(BULK, 2 * MOST_CREDIT)
    floors.dispatched(BULK, 2 * MOST_CREDIT, ALL_WAIT, floor=True)
    floors.dispatched(FLASH, 9 * MOST_CREDIT, ALL_WAIT)
    assert not floors.earned(BULK, 1)  # it has paid for all of it
    floors.dispatched(FLASH, 20, ALL_WAIT)
    assert floors.earned(BULK, 1)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5_000)), min_size=1, max_size=200),
    st.floats(0.01, 0.5),
    st.floats(0.01, 0.4),
)
def test_whoever_takes_what_is_earned_gets_the_share(
    pieces: list[tuple[int, int]], standard: float, bulk: float
) -> None:
    """In any history where a class takes its floor as soon as it is earned, it has its share of all tokens so far."""
    floors = Floors(_classes(standard, bulk))
    size = 1_000
    got: dict[int, int] = defaultdict(int)
    for _, tokens in pieces:
        floors.dispatched(FLASH, tokens, ALL_WAIT)
        got[FLASH] += tokens
        # What one class takes earns the other something, so this goes on until neither has anything to take.
        while ready := [index for index in (STANDARD, BULK) if floors.earned(index, size)]:
            for index in ready:
                floors.dispatched(index, size, ALL_WAIT, floor=True)
                got[index] += size
    total = sum(got.values())
    for index, share in ((STANDARD, standard), (BULK, bulk)):
        # What is missing is less than the next piece of work, whose credit is being saved.
        assert got[index] + 2 * size > share * total


def test_what_a_class_gets_without_its_floor_is_no_debt() -> None:
    """Work that ran because there was room is not held against the class when an overload begins."""
    floors = Floors(_classes(0.0, 0.1))
    floors.dispatched(BULK, 10**6, ALL_WAIT)
    floors.dispatched(FLASH, 901, ALL_WAIT)
    assert floors.earned(BULK, 100)


# In the planner


class Overload:
    """Headlines for ever, more than the engine can do, and two lower classes that always wait.

    Every turn is a step: what the engine holds in order of dispatch gives up to a step's tokens of prefill, headlines
    end with it, filings decode for some steps after it.

    Args:
        floors: of the two lower classes.
        gated: whether the worker has a step gate.
        each: the planner plans after each single result, not once for all of a step.
        decodes: steps that a filing decodes.
        limits: of the engine.
    """

    def __init__(
        self, *, floors: tuple[float, float], gated: bool, each: bool = False, decodes: int = 4, **limits: int
    ) -> None:
        reserve = ReserveSettings(step_tokens=128, kv_fraction=0.1, seqs=2)
        self.budget: WorkerBudget = make.budget(reserve=reserve, **limits)
        self.limits: Limits = self.budget.limits
        valve = ValveSettings(step_ms=1, prefill_token_us=10, decode_us=0, overhead_ms=0)
        self.planner = Planner(_classes(*floors), valve)
        self.planner.add_worker("w1", self.budget, gated=gated)
        self.tokens: dict[int, int] = defaultdict(int)
        self._left: dict[int, list[int]] = {}
        self._works: dict[int, Work] = {}
        self._decodes = decodes
        self._each = each
        self._sent: list[Work] = []
        self.now = T0

    def turn(self) -> list[Work]:
        """Let events arrive, plan, and run one step; returns what was dispatched."""
        self._sent = []
        self.now += 10 * MS
        for _ in range(30):
            self.planner.add(self._event(FLASH, 60))
        while self.planner.queued(STANDARD) < 20:
            self.planner.add(self._event(STANDARD, 60))
        while self.planner.queued(BULK) < 20:
            self.planner.add(self._event(BULK, 300))
        self._plan()
        self._step()
        return self._sent

    def _plan(self) -> None:
        for work, _ in self.planner.plan(self.now).dispatches:
            self._works[work.request_id] = work
            wrap = self.budget.extractors["filing" if work.class_index == BULK else "headline"]
            tokens = work.token_count + wrap.prompt_tokens - wrap.shared_prefix_tokens
            self._left[work.request_id] = [tokens, self._decodes if work.class_index == BULK else 0]
            self.tokens[work.class_index] += tokens + wrap.max_new_tokens
            self._sent.append(work)

    def _event(self, class_index: int, tokens: int) -> Work:
        slo = int(make.CLASSES[class_index].slo_ms)
        toxic = self.now + 250 * MS if class_index == FLASH else 0
        return make.work(class_index, tokens=tokens, deadline_ns=self.now + slo * MS, toxic_ns=toxic)

    def _step(self) -> None:
        room = self.limits.max_num_batched_tokens
        for request_id, left in list(self._left.items()):
            if self._works[request_id].request_id != request_id:
                del self._left[request_id]  # revoked or expired
                continue
            if left[0]:
                chunk = min(left[0], self.limits.long_prefill_token_threshold, room)
                left[0] -= chunk
                room -= chunk
                if left[0]:
                    continue
                self.planner.prefilled("w1", request_id)
            else:
                left[1] -= 1
            if left[1] <= 0:
                del self._left[request_id]
                self.planner.finish("w1", request_id)
                if self._each:
                    self._plan()


@pytest.mark.parametrize("each", [False, True], ids=["results together", "each result alone"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("floors", [(0.1, 0.1), (0.0, 0.1), (0.3, 0.2)])
@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"max_num_seqs": 64, "kv_blocks": 4096}, id="steps bind"),
        pytest.param({"max_num_seqs": 8, "kv_blocks": 4096}, id="slots bind"),
        pytest.param({"max_num_seqs": 64, "kv_blocks": 90}, id="KV blocks bind"),
    ],
)
def test_floors_are_kept_under_a_flash_overload_that_does_not_end(
    limits: dict[str, Any], floors: tuple[float, float], gated: bool, each: bool
) -> None:
    """Whatever the engine runs short of, each class that waits has its share of the tokens, and flash has the rest."""
    load = Overload(floors=floors, gated=gated, each=each, **limits)
    for _ in range(300):
        load.turn()
    total = sum(load.tokens.values())
    for index, floor in zip((STANDARD, BULK), floors, strict=True):
        assert load.tokens[index] >= 0.95 * floor * total, (index, dict(load.tokens))
    assert load.tokens[FLASH] >= 0.9 * (1 - sum(floors)) * total, dict(load.tokens)


def test_without_a_floor_nothing_less_urgent_runs_in_an_overload() -> None:
    """Strict priority means what it says where no floor is set."""
    load = Overload(floors=(0.0, 0.0), gated=True, max_num_seqs=64, kv_blocks=4096)
    load.turn()  # the engine was empty
    later = [work.class_index for _ in range(50) for work in load.turn()]
    assert set(later) == {FLASH}


@pytest.mark.parametrize("limits", [{"max_num_seqs": 6, "kv_blocks": 4096}, {"max_num_seqs": 64, "kv_blocks": 90}])
def test_a_floor_never_takes_what_is_reserved(limits: dict[str, Any]) -> None:
    """Dispatched as a floor or not, less urgent work leaves the slots and KV blocks of the reserve to urgent work."""
    load = Overload(floors=(0.1, 0.8), gated=True, decodes=60, **limits)
    as_floor = most = slots = 0
    for _ in range(200):
        for work in load.turn():
            as_floor += work.floor
        lower = [w for w in load.planner.in_flight_work() if w.class_index != FLASH]
        assert len(lower) <= limits["max_num_seqs"] - 2
        blocks = sum(
            load.budget.use_of("filing" if w.class_index == BULK else "headline", w.token_count, urgent=False).kv_blocks
            for w in lower
        )
        total = limits["kv_blocks"] - 4  # less two shared prefixes of two blocks
        assert blocks <= total - int(0.1 * total) or len(lower) == 1
        most, slots = max(most, blocks), max(slots, len(lower))
    assert as_floor
    assert most > 0.7 * total or slots == limits["max_num_seqs"] - 2  # it did come close


def test_a_short_text_with_a_long_answer_pays_for_its_answer() -> None:
    """A class gets no more than its share by hiding its tokens in the answers, whose length a floor counts as well."""
    planner = Planner(_classes(0.0, 0.1), ValveSettings(overhead_ms=0))
    planner.add_worker("w1", make.budget(max_num_seqs=1000, kv_blocks=100_000, max_num_batched_tokens=8192), gated=True)
    tokens: dict[int, int] = defaultdict(int)
    for turn in range(2000):
        now = T0 + turn * 10 * MS
        for _ in range(200 if turn == 0 else 1):
            planner.add(make.work(FLASH, tokens=92, deadline_ns=now + 150 * MS))
        while planner.queued(BULK) < 300:
            planner.add(make.work(BULK, tokens=1, deadline_ns=now))
        for work, _ in planner.plan(now).dispatches:
            tokens[work.class_index] += 100 + 1 if work.class_index == FLASH else 9 + 48
        urgent = [work for work in planner.in_flight_work() if work.class_index == FLASH]
        for work in (urgent[0], *(w for w in planner.in_flight_work() if w.class_index == BULK)):
            planner.finish("w1", work.request_id)
    assert tokens[BULK] == pytest.approx(0.1 * sum(tokens.values()), rel=0.2)


def test_a_document_longer_than_any_credit_still_gets_its_turn() -> None:
    """Under an overload without end even a text beyond the credit's bound is run, and those behind it are."""
    limits: dict[str, Any] = {"max_model_len": 131_072, "kv_blocks": 16_384, "max_num_seqs": 64}
    load = Overload(floors=(0.0, 0.1), gated=True, **limits)
    document = make.work(BULK, tokens=2 * MOST_CREDIT - 1_000, deadline_ns=T0)
    for _ in range(5):
        load.turn()
    load.planner.add(document)
    ran = [work for _ in range(1500) for work in load.turn() if work.class_index == BULK]
    assert document in ran
    assert len(ran) > 1


def test_no_worker_is_kept_free_for_a_text_that_it_cannot_hold() -> None:
    """A document that only a full long-context worker can hold does not keep headlines out of the short one."""
    planner = Planner(_classes(0.0, 0.5), ValveSettings(step_ms=1, prefill_token_us=10, decode_us=0, overhead_ms=0))
    planner.add_worker("long", make.budget(max_num_seqs=1), ["standard", "bulk"])
    planner.add_worker("short", make.budget(max_num_seqs=2, max_model_len=256))
    planner.add(make.work(BULK, tokens=500))
    planner.plan(T0)  # fills the long one
    document = make.work(BULK, tokens=500)
    planner.add(document)
    headlines = [make.work(FLASH, deadline_ns=T0 + (2000 + n * 10) * MS) for n in range(200)]
    for headline in headlines:
        planner.add(headline)
    for _ in range(150):
        planner.plan(T0)
        at_short = [work for work in planner.in_flight_work() if work.worker_id == "short"]
        assert len(at_short) == 2
        planner.finish("short", at_short[0].request_id)
    assert planner.queued(BULK) == 1
