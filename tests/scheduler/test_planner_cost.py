"""What a decision costs, counted instead of timed: the same with a thousand and with tens of thousands queued."""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import log2
from types import FrameType
from typing import Any

import pytest

from scheduler.planner import Planner
from scheduler.work import Work
from schemas.settings import ValveSettings
from tests.scheduler import make

FLASH, STANDARD, BULK = range(3)
T0 = make.EVENT_TIME_NS
MS = make.MILLISECOND
FEW, MANY = 1_000, 32_000
TURNS = 50


class Key(int):
    """A deadline that counts how often it is compared, and so does what a queue makes of it."""

    compared = 0

    def __floordiv__(self, other: int) -> Key:
        return Key(int(self) // other)

    def __lt__(self, other: int) -> bool:
        Key.compared += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        Key.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def _operations(act: Callable[[], Any]) -> int:
    """Return how many of the interpreter's operations ``act`` takes."""
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "opcode"
        frame.f_trace_opcodes = True
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


def _work(class_index: int, number: int) -> Work:
    # Deadlines in no order, all of them far enough away to be met.
    due = T0 + (60_000 + number * 7_919 % 60_000) * MS
    return make.work(class_index, tokens=60, deadline_ns=Key(due), toxic_ns=due + 600_000 * MS)


def _planner(queued: int, *, gated: bool, workers: int) -> Planner:
    """Return a planner with full workers and so much of each class in its queue."""
    planner = Planner(make.CLASSES, ValveSettings(step_ms=1, prefill_token_us=10, overhead_ms=0))
    for number in range(workers):
        planner.add_worker(f"w{number}", make.budget(max_num_seqs=16), gated=gated)
    for number in range(queued):
        for class_index in (FLASH, STANDARD, BULK):
            planner.add(_work(class_index, number))
    planner.plan(T0)
    return planner


def _turn(planner: Planner, now_ns: int) -> int:
    """End one request and plan; returns how many decisions that was."""
    work = planner.in_flight_work()[0]
    planner.finish(work.worker_id, work.request_id, now_ns)
    plan = planner.plan(now_ns)
    return len(plan.dispatches) + len(plan.expired) + len(plan.revoked)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_decision_costs_the_same_however_much_waits(gated: bool, workers: int) -> None:
    """With 32 times as much queued a decision takes about as many operations and comparisons."""
    operations: dict[int, float] = {}
    compared: dict[int, float] = {}
    for queued in (FEW, MANY):
        planner = _planner(queued, gated=gated, workers=workers)
        decisions = 0
        Key.compared = 0

        def turns(planner: Planner = planner) -> None:
            nonlocal decisions
            for number in range(TURNS):
                decisions += _turn(planner, T0 + number * MS)

        counted = _operations(turns)
        assert decisions >= TURNS / 2
        operations[queued], compared[queued] = counted / decisions, Key.compared / decisions
    # Each of Key's comparisons takes operations as well, so both are bounded by the depth of a heap.
    assert operations[MANY] <= 1.5 * operations[FEW], (operations, compared)
    assert compared[MANY] <= 2 * compared[FEW] * log2(MANY) / log2(FEW), (operations, compared)


def test_queueing_costs_the_depth_of_a_heap() -> None:
    """Adding to a queue of tens of thousands compares at most a few times per level of its heap."""
    planner = Planner(make.CLASSES)
    for number in range(MANY):
        planner.add(_work(FLASH, number))
    most = 0
    for number in range(200):
        work = _work(FLASH, 0)
        work.deadline_ns = Key(T0 - number * 100 * MS)  # before all others: it rises to the top
        Key.compared = 0
        planner.add(work)
        most = max(most, Key.compared)
    assert 0 < most <= 3 * log2(MANY + 200) + 3


def test_expiry_looks_only_at_what_expires() -> None:
    """A plan in which nothing gets toxic reads one entry of the expiry heap, not each piece of work that waits."""
    counted = {}
    for queued in (FEW, MANY):
        planner = Planner(make.CLASSES)  # no worker: nothing else to do
        for number in range(queued):
            planner.add(_work(FLASH, number))
        planner.plan(T0)  # sweeps, which it does once per doubling
        counted[queued] = _operations(lambda planner=planner: planner.plan(T0))  # type: ignore[misc] # bound at once
    assert counted[MANY] == counted[FEW]


def test_a_backlog_of_late_work_is_sorted_a_part_at_a_time() -> None:
    """One plan with tens of thousands of late headlines does no more than one with a thousand: the loop goes on."""
    counted = {}
    for queued in (FEW, MANY):
        planner = Planner(make.CLASSES)
        planner.add_worker("w1", make.budget())
        for number in range(queued):
            planner.add(make.work(FLASH, deadline_ns=T0 - 1000 * MS - number))
        counted[queued] = _operations(lambda planner=planner: planner.plan(T0))  # type: ignore[misc] # bound at once
    assert counted[MANY] <= 1.5 * counted[FEW]
