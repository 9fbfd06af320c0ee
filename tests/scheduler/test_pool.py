"""One worker as the planner sees it: what it promises, when it would be done, what has to make way, what it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.pool import NANOSECONDS, NEVER_NS, PoolWorker
from scheduler.step_model import StepCosts, StepModel
from scheduler.valve import Valve
from scheduler.work import Work
from schemas.frames import StepReport
from schemas.settings import ReserveSettings, ValveSettings
from tests.scheduler import make

T0 = make.EVENT_TIME_NS
MS = make.MILLISECOND
FLASH, STANDARD, BULK = range(3)
SETTINGS = ValveSettings(step_ms=10, prefill_token_us=100, decode_us=1000, overhead_ms=0, margin=0)


def _worker(
    *, gated: bool = False, steps_ahead: int = 0, reserve: ReserveSettings | None = None, **limits: int
) -> PoolWorker:
    budget = make.budget(reserve=reserve, **limits)
    return PoolWorker(
        "w1",
        budget,
        StepModel(StepCosts.prior(SETTINGS)),
        Valve(0.15, SETTINGS, budget.limits.max_num_batched_tokens, gated=gated, steps_ahead=steps_ahead),
        frozenset({0, 1, 2}),
        frozenset(),
        gated,
        steps_ahead,
    )


def _hold(worker: PoolWorker, request_id: int, class_index: int, tokens: int) -> Work:
    """Put a request into a worker as the planner does."""
    work = make.work(class_index, tokens=tokens)
    work.request_id = request_id
    extractor = "filing" if class_index == BULK else "headline"
    worker.budget.take(request_id, worker.budget.use_of(extractor, tokens, urgent=class_index == FLASH))
    worker.in_flight[request_id] = work
    return work


def _finish_ms(worker: PoolWorker, tokens: int, *, late: bool = False) -> float:
    use = worker.budget.use_of("headline", tokens, urgent=True, late=late)
    return (worker.urgent_finish_ns(T0, use) - T0) / MS


def test_an_idle_worker_is_done_after_one_step() -> None:
    """Alone, a headline of a hundred tokens takes the fixed cost and its own prefill: no step is in the way."""
    worker = _worker()
    worker.begin_plan(T0, 0)
    assert _finish_ms(worker, 92) == pytest.approx(10 + 10)


@pytest.mark.parametrize(("gated", "steps_ahead", "expected"), [(False, 0, 54), (False, 1, 76), (True, 1, 20)])
def test_what_is_in_the_way_is_waited_for(gated: bool, steps_ahead: int, expected: float) -> None:
    """Without a gate the step that runs and those decided ahead come first, and the filing shares the headline's own.

    With a gate the engine keeps the filing out, and the plan counts on that.
    """
    worker = _worker(gated=gated, steps_ahead=steps_ahead)
    _hold(worker, 1, BULK, 112)
    worker.begin_plan(T0, 0)
    # A step with the filing takes 10 ms and 12 for its 120 tokens: twice or thrice, and 10 for the headline's tokens.
    assert _finish_ms(worker, 92) == pytest.approx(expected)


def test_late_urgent_work_is_in_the_way_only_without_a_gate() -> None:
    """A gate lets on-time work pass what is late in the engine; late work waits for both in any case."""
    for gated in (False, True):
        worker = _worker(gated=gated)
        worker.budget.take(1, worker.budget.use_of("headline", 192, urgent=True, late=True))
        worker.begin_plan(T0, 0)
        on_time, late = _finish_ms(worker, 92), _finish_ms(worker, 92, late=True)
        assert late == pytest.approx(10 + 20 + 10)
        assert on_time == pytest.approx(20 if gated else late)


def test_more_urgent_tokens_than_a_step_takes_need_more_steps() -> None:
    """A burst that fills steps is finished step by step, each with its fixed cost."""
    worker = _worker(gated=True)
    worker.begin_plan(T0, 0)
    for request_id in range(15):
        _hold(worker, request_id, FLASH, 92)
    assert _finish_ms(worker, 92) == pytest.approx(2 * 10 + 16 * 10)


def test_a_promise_keeps_others_out_until_it_is_kept() -> None:
    """A headline with 5 ms of slack keeps one of 10 ms out, lets one of 4 ms in, and nothing once it is done."""
    worker = _worker()
    use = worker.budget.use_of("headline", 92, urgent=True)
    short = replace(use, prompt_tokens=40)
    _hold(worker, 1, FLASH, 92)
    worker.promise(1, use, 5 * MS)
    assert worker.delays(use)
    assert not worker.delays(short)
    _hold(worker, 2, FLASH, 32)
    worker.promise(2, short, 500 * MS)
    assert worker.delays(short)  # one more of these is too much: 1 ms is left
    del worker.in_flight[1]
    assert not worker.delays(use)


@pytest.mark.parametrize("slack_ns", [-1, NEVER_NS])
def test_a_lost_cause_and_endless_time_keep_nobody_out(slack_ns: int) -> None:
    """What is late in any case cannot be made late, and neither can what has no limit."""
    worker = _worker()
    use = worker.budget.use_of("headline", 92, urgent=True)
    _hold(worker, 1, FLASH, 92)
    worker.promise(1, use, slack_ns)
    assert not worker.delays(replace(use, prompt_tokens=10**6))


def test_the_newest_that_produced_nothing_makes_way() -> None:
    """What has produced, is a floor or is urgent stays; of the rest the newest go, no more than are needed."""
    worker = _worker(max_num_seqs=6)
    works = [_hold(worker, n, BULK, 20) for n in range(5)]
    works.append(_hold(worker, 5, FLASH, 20))
    works[4].productive = True
    works[3].floor = True
    use = worker.budget.use_of("headline", 20, urgent=True)
    assert worker.in_the_way(use) == [works[2]]
    big = replace(use, kv_blocks=486)  # of 508 without the shared prefixes, of which 5 * 5 + 2 are taken
    assert worker.in_the_way(big) == [works[2]]
    assert worker.in_the_way(replace(use, kv_blocks=487)) == [works[2], works[1]]
    assert worker.in_the_way(replace(use, kv_blocks=497)) is None
    worker.budget.release(0)
    del worker.in_flight[0]
    assert worker.in_the_way(use) == []


def test_the_flash_reserve_is_not_lent_to_anybody() -> None:
    """With nothing urgent in sight for any time, less urgent work still stops at the reserve of each budget."""
    worker = _worker(reserve=ReserveSettings(step_tokens=256, kv_fraction=0.25, seqs=3))
    worker.begin_plan(T0, 0)
    request_id = 0
    while worker.budget.fits(worker.budget.use_of("filing", 20, urgent=False)):
        request_id += 1
        _hold(worker, request_id, BULK, 20)
        worker.budget.prefilled(request_id)
        worker.begin_plan(T0 + request_id * 3600 * NANOSECONDS, 0)
    assert worker.budget.seqs == 8 - 3
    urgent = worker.budget.use_of("headline", 192, urgent=True)
    for _ in range(3):
        request_id += 1
        assert worker.budget.fits(urgent)
        _hold(worker, request_id, FLASH, 192)


@pytest.mark.parametrize("gated", [False, True])
def test_the_gate_is_told_what_has_changed_and_nothing_twice(gated: bool) -> None:
    """A worker with a gate gets the model and the valve once, then only when they differ by more than a twentieth."""
    worker = _worker(gated=gated)
    worker.begin_plan(T0, 0)
    first = worker.next_policy()
    assert worker.next_policy() is None
    if not gated:
        assert first is None
        return
    assert first is not None
    assert (first.step_seconds, first.prefill_token_seconds, first.decode_seconds) == (0.01, 1e-4, 1e-3)
    assert first.lower_step_tokens == worker.budget.lower_step_tokens
    report = StepReport(
        session="", steps=1, seconds=0.1, prefill_tokens=500, decode_tokens=0, running=1, waiting=0, kv_usage=0.0
    )
    for _ in range(20):
        assert worker.observe(report)
    worker.begin_plan(T0, 0)
    second = worker.next_policy()
    assert second is not None
    assert second.step_seconds + 500 * second.prefill_token_seconds == pytest.approx(0.1, rel=0.1)


def test_a_worker_without_urgent_work_is_not_bound_by_the_slo() -> None:
    """Told that it takes no urgent work, it has the whole step for the rest whatever the model says."""
    worker = _worker(gated=True)
    worker.begin_plan(T0, 10_000)
    assert worker.budget.lower_step_tokens < worker.budget.limits.max_num_batched_tokens
    worker.begin_plan(T0, None)
    assert worker.budget.lower_step_tokens == worker.budget.limits.max_num_batched_tokens


def test_each_answer_token_takes_a_step() -> None:
    """A headline whose answer has three tokens is done two steps later, also where it could not be faster."""
    worker = _worker()
    worker.begin_plan(T0, 0)
    use = worker.budget.use_of("headline", 92, urgent=True)
    longer = replace(use, answer_tokens=use.answer_tokens + 2)
    later_ms = (worker.urgent_finish_ns(T0, longer) - worker.urgent_finish_ns(T0, use)) / MS
    assert later_ms == pytest.approx(2 * 10)
    assert worker.least_seconds(longer) - worker.least_seconds(use) == pytest.approx(2 * 0.011)
