"""Public reports about urgent work behind other work, each as a scenario with the outcome it should have had.

They are about what the planner decides; where a report is about an engine's steps, the simulated engine, which
schedules as vLLM does, runs behind it. `tests.sim.test_public_reports` shows the same with vLLM's own policies beside.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ops.sim.policies import make_policy
from ops.sim.traffic import CLASSES as SIM_CLASSES
from scheduler.budgets import WorkerBudget
from scheduler.planner import Plan, Planner
from scheduler.work import Work
from schemas.settings import ReserveSettings, ValveSettings
from tests.scheduler import make
from tests.sim.small import MS, bulk, flash, profile, simulate

FLASH, STANDARD, BULK = range(3)
T0 = make.EVENT_TIME_NS
VALVE = ValveSettings(step_ms=1, prefill_token_us=10, decode_us=0, overhead_ms=0)
NO_RESERVE = ReserveSettings(step_tokens=0, kv_fraction=0, seqs=0)


def _planner(reserve: ReserveSettings, *, gated: bool = True, **limits: int) -> tuple[Planner, WorkerBudget]:
    planner = Planner(make.CLASSES, VALVE)
    budget = make.budget(reserve=reserve, **({"max_num_batched_tokens": 8192, "kv_blocks": 4096} | limits))
    planner.add_worker("w1", budget, gated=gated)
    return planner, budget


def _work(class_index: int, due_ms: float, *, tokens: int = 60, toxic_ms: float = 0) -> Work:
    toxic_ns = T0 + int(toxic_ms * MS) if toxic_ms else 0
    return make.work(class_index, tokens=tokens, deadline_ns=T0 + int(due_ms * MS), toxic_ns=toxic_ns)


def _add(planner: Planner, *works: Work) -> None:
    for work in works:
        planner.add(work)


def _sent(plan: Plan) -> list[Work]:
    return [work for work, _ in plan.dispatches]


@pytest.mark.parametrize("gated", [False, True])
def test_slots_full_of_decodes(gated: bool) -> None:
    """vllm#40004: with every slot decoding, urgent requests wait until one ends; the reserve has a slot for them."""
    planner, budget = _planner(ReserveSettings(step_tokens=0, kv_fraction=0, seqs=2), gated=gated, max_num_seqs=8)
    _add(planner, *(_work(BULK, 5000 + n) for n in range(20)))
    while running := _sent(planner.plan(T0)):
        for work in running:
            planner.prefilled("w1", work.request_id)  # it decodes, and cannot be taken back
    assert budget.seqs == 6
    urgent = [_work(FLASH, 150 + 10 * n) for n in range(2)]
    _add(planner, *urgent)
    plan = planner.plan(T0)
    assert _sent(plan) == urgent
    assert not plan.aborts


@pytest.mark.parametrize("policy", ["tapewire", "tapewire-no-gate"])
def test_one_very_long_prefill(policy: str) -> None:
    """vllm#57413: a very long prompt takes each step whole; here a headline waits for one step at most."""
    arrivals = [bulk(0, tokens=8_000), *(flash(5 + 10 * n, tokens=100) for n in range(12))]
    outcome = simulate(profile(), make_policy(policy), arrivals)
    headlines = [job for job in outcome.jobs if job.arrival.class_index == FLASH]
    assert all(job.waited_steps <= 1 for job in headlines)
    assert all(job.latency_ns <= SIM_CLASSES[FLASH].slo_ms * MS for job in headlines)
    document = outcome.jobs[0]
    assert document.done_ns > headlines[-1].arrival.at_ns  # it was running all the time


@pytest.mark.parametrize("gated", [False, True])
def test_work_taken_back_returns_in_its_order(gated: bool) -> None:
    """vllm#41951: preempted requests lose their place; here what was taken back or lost comes back in its order."""
    planner, _ = _planner(NO_RESERVE, gated=gated, max_num_seqs=4)
    filings = [_work(BULK, 5000 + 20 * n, tokens=20) for n in range(8)]
    _add(planner, *reversed(filings))
    assert _sent(planner.plan(T0)) == filings[:4]
    urgent = [_work(FLASH, 150 + 20 * n, tokens=20) for n in range(3)]
    _add(planner, *urgent)
    assert planner.plan(T0).revoked == [filings[3], filings[2], filings[1]]
    for work in urgent:
        planner.finish("w1", work.request_id)
    order = _sent(planner.plan(T0))
    assert order == filings[1:4]
    # And so it does after its worker died.
    for lost in reversed(planner.remove_worker("w1")):
        planner.add(lost)
    planner.add_worker("w2", make.budget(max_num_batched_tokens=8192, max_num_seqs=4))
    assert _sent(planner.plan(T0)) == filings[:4]


@pytest.mark.parametrize("class_index", [FLASH, BULK])
@pytest.mark.parametrize("way", ["failure", "death", "revocation"])
def test_a_retry_keeps_its_deadline(class_index: int, way: str) -> None:
    """llm-d-async#391: a retry with a new deadline overtakes fresh work; here it keeps its own, and its turn by it."""
    if (class_index, way) == (FLASH, "revocation"):
        class_index = STANDARD  # the most urgent class is not revoked
    planner, _ = _planner(NO_RESERVE, max_num_seqs=1)
    retried = _work(class_index, 900)
    deadline = retried.deadline_ns
    planner.add(retried)
    assert _sent(planner.plan(T0)) == [retried]
    sooner, later = _work(class_index, 800), _work(class_index, 1000)
    _add(planner, later, sooner)
    later_still = T0 + 100 * MS
    if way == "failure":
        planner.finish("w1", retried.request_id)
        planner.add(retried)
    elif way == "death":
        (lost,) = planner.remove_worker("w1")
        planner.add(lost)
        planner.add_worker("w1", make.budget(max_num_seqs=1))
    else:
        urgent = _work(FLASH, 150)
        planner.add(urgent)
        assert planner.plan(later_still).revoked == [retried]
        planner.finish("w1", urgent.request_id)
    order = []
    while sent := _sent(planner.plan(later_still)):
        order += sent
        planner.finish("w1", sent[0].request_id)
    assert order == [sooner, retried, later]
    assert retried.deadline_ns == deadline


def test_a_retry_that_is_late_does_not_hold_up_fresh_work() -> None:
    """llm-d-async#391, the other way round: a retry whose deadline has passed goes behind what can be on time."""
    planner, _ = _planner(NO_RESERVE, max_num_seqs=1)
    retried = _work(FLASH, 100, toxic_ms=5000)
    planner.add(retried)
    planner.plan(T0)
    fresh = _work(FLASH, 600, toxic_ms=5000)
    planner.add(fresh)
    planner.finish("w1", retried.request_id)
    planner.add(retried)
    assert _sent(planner.plan(T0 + 200 * MS)) == [fresh]


def test_in_flight_counts_never_leak() -> None:
    """llm-d-router#2295: counts of requests that ended in error leak until nothing is routed; here all come back."""
    planner, budget = _planner(ReserveSettings(step_tokens=256, kv_fraction=0.1, seqs=2), max_num_seqs=8)
    ends = itertools.cycle(["result", "error", "retry", "expiry", "unknown", "late answer"])
    now = T0
    for number in range(600):
        now += 20 * MS
        for class_index in (FLASH, BULK):
            due = (now - T0) / MS
            planner.add(_work(class_index, due + 150, toxic_ms=due + (250 if class_index == FLASH else 900)))
        planner.plan(now)
        for work in planner.in_flight_work()[: 1 + number % 3]:
            request_id, end = work.request_id, next(ends)
            if end in {"result", "error"}:
                planner.finish("w1", request_id, now if end == "result" else 0)
            elif end == "retry":
                planner.finish("w1", request_id)
                planner.add(work)
            elif end == "unknown":
                assert planner.finish("w1", request_id + 10**6) is None
            elif end == "late answer":
                planner.finish("w1", request_id)
                assert planner.finish("w1", request_id) is None
                assert planner.prefilled("w1", request_id) is None
        assert planner.total_in_flight == len(planner.in_flight_work()) == budget.seqs
    planner.plan(now + 10_000 * MS)  # everything left is toxic by now
    assert (planner.total_in_flight, planner.total_queued) == (0, 0)
    left: tuple[Any, ...] = (budget.seqs, budget.step_tokens, budget.kv_blocks, budget.lower_prefill)
    assert left == (0, 0, 0, 0)
    assert (budget.lower_decodes, budget.urgent_tokens, budget.late_tokens) == (0, 0, 0)


@pytest.mark.parametrize("gated", [False, True])
def test_kv_cache_full_of_less_urgent_work(gated: bool) -> None:
    """sglang#14872: with the KV cache full nothing is preempted and urgent work waits; here lower work makes way."""
    planner, budget = _planner(NO_RESERVE, gated=gated, max_num_seqs=64, kv_blocks=104)
    filings = [_work(BULK, 5000 + 20 * n, tokens=300) for n in range(8)]  # 23 blocks each, of 100
    _add(planner, *filings)
    running = _sent(planner.plan(T0))
    assert len(running) == 4
    planner.prefilled("w1", running[3].request_id)  # the newest has produced: it stays
    urgent = _work(FLASH, 150, tokens=300)
    planner.add(urgent)
    plan = planner.plan(T0)
    assert _sent(plan) == [urgent]
    assert plan.revoked == [running[2]]
    assert budget.kv_blocks <= 100
