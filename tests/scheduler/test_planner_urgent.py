"""Urgent work: what is shed, what waits behind what, what is taken back for it, and what clocks and models do to it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from scheduler.budgets import WorkerBudget
from scheduler.planner import MOST_PUT_ASIDE, Plan, Planner
from scheduler.work import State, Work
from schemas.frames import StepReport
from schemas.settings import ValveSettings
from tests.scheduler import make

FLASH, STANDARD, BULK = range(3)
T0 = make.EVENT_TIME_NS
MS = make.MILLISECOND
VALVE = ValveSettings(step_ms=1, prefill_token_us=100, decode_us=0, overhead_ms=0, margin=0)
"""One millisecond per step and ten tokens per millisecond; a headline of 92 tokens takes 100 of them to compute."""
HEADLINE = 92
HEADLINE_MS = 11
YEAR = 365 * 86_400 * 1000 * MS


def planner_with(**workers: dict[str, Any]) -> tuple[Planner, dict[str, WorkerBudget]]:
    """Return a planner, its model exact, with these workers; ``gated`` and ``classes`` beside the engine's limits."""
    planner = Planner(make.CLASSES, VALVE)
    budgets: dict[str, WorkerBudget] = {}
    for worker_id, options in workers.items():
        gated, classes = options.pop("gated", False), options.pop("classes", [])
        budgets[worker_id] = make.budget(reserve=options.pop("reserve", None), **options)
        planner.add_worker(worker_id, budgets[worker_id], classes, gated=gated)
    return planner, budgets


def flash(deadline_ms: float = 1000, *, tokens: int = HEADLINE, toxic_ms: float = 0) -> Work:
    """Return a headline due so long after T0."""
    toxic_ns = T0 + int(toxic_ms * MS) if toxic_ms else 0
    return make.work(FLASH, tokens=tokens, deadline_ns=T0 + int(deadline_ms * MS), toxic_ns=toxic_ns)


def bulk(tokens: int = 200, deadline_ms: float = 5000) -> Work:
    """Return a filing."""
    return make.work(BULK, tokens=tokens, deadline_ns=T0 + int(deadline_ms * MS))


def add(planner: Planner, *works: Work) -> None:
    """Queue all."""
    for work in works:
        planner.add(work)


def sent(plan: Plan) -> list[Work]:
    """Return what a plan dispatched."""
    return [work for work, _ in plan.dispatches]


# Shedding


def test_what_cannot_be_done_before_its_toxic_age_is_shed_at_once() -> None:
    """Behind a busy engine, a headline that no step could finish in time expires in the plan, one that fits goes."""
    planner, _ = planner_with(w1={})
    add(planner, flash())
    planner.plan(T0)
    hopeless, possible = flash(5, toxic_ms=HEADLINE_MS - 1), flash(6, toxic_ms=500)
    add(planner, hopeless, possible)
    plan = planner.plan(T0)
    assert plan.expired == [hopeless]
    assert hopeless.state is State.DONE
    assert sent(plan) == [possible]
    assert planner.queued(FLASH) == 0


def test_an_idle_engine_tries_what_looks_hopeless() -> None:
    """With nothing in the engine a try costs nobody anything, and only its steps can correct a wrong model."""
    planner, _ = planner_with(w1={})
    work = flash(5, toxic_ms=HEADLINE_MS - 1)
    planner.add(work)
    plan = planner.plan(T0)
    assert (sent(plan), plan.expired) == ([work], [])


def test_a_model_spoilt_by_a_stall_recovers_without_other_traffic() -> None:
    """After a stall has taught that each step takes longer than the toxic age, headlines alone bring the truth back."""
    planner, _ = planner_with(w1={})
    for _ in range(100):
        planner.observe_steps("w1", _report(seconds=0.6))
    results = 0
    for number in range(300):
        now = T0 + number * 300 * MS
        work = make.work(FLASH, tokens=HEADLINE, deadline_ns=now + 15 * MS, toxic_ns=now + 15 * MS)
        planner.add(work)
        for one in sent(planner.plan(now)):
            planner.observe_steps("w1", _report(seconds=0.011))
            results += planner.finish("w1", one.request_id) is not None
        planner.plan(now + 16 * MS)
    assert results == 300
    costs = planner.step_costs("w1")
    assert costs is not None
    assert costs.seconds(100) < 0.015


def _report(seconds: float) -> StepReport:
    return StepReport(
        session="", steps=1, seconds=seconds, prefill_tokens=100, decode_tokens=0, running=1, waiting=0, kv_usage=0.0
    )


def test_a_burst_is_packed_and_the_rest_is_shed_instead_of_delaying_it() -> None:
    """Of five hundred simultaneous alerts those that fit the SLO go, deadline first; none is sent to be late."""
    planner, _ = planner_with(w1={"max_num_seqs": 600, "kv_blocks": 8000, "max_num_batched_tokens": 8192})
    burst = [flash(150, toxic_ms=250) for _ in range(500)]
    add(planner, *burst)
    first = sent(planner.plan(T0))
    assert first == burst[: len(first)]
    assert 12 <= len(first) <= 15  # of ten milliseconds each, within 150
    assert all(w.state is not State.DONE for w in burst)  # nobody is given up while there is time
    expired = planner.plan(T0 + 245 * MS).expired
    assert set(map(id, expired)) == set(map(id, burst[len(first) :]))


# Late work


def test_late_work_waits_behind_work_that_can_be_on_time() -> None:
    """Work that has missed its deadline stands first by deadline and still goes last."""
    planner, _ = planner_with(w1={})
    late, on_time = flash(-100), flash(1000)
    add(planner, late, on_time)
    assert sent(planner.plan(T0)) == [on_time, late]
    assert (late.late, on_time.late) == (True, False)


def test_late_work_is_not_sent_where_it_would_make_others_late() -> None:
    """Without a step gate a late headline stays out of an engine whose headline has no time to share."""
    planner, _ = planner_with(w1={})
    tight, late = flash(HEADLINE_MS + 2), flash(-1)
    add(planner, tight, late)
    assert sent(planner.plan(T0)) == [tight]
    assert planner.queued(FLASH) == 1
    planner.finish("w1", tight.request_id)
    assert sent(planner.plan(T0)) == [late]


def test_on_time_work_is_not_sent_where_it_would_make_others_late() -> None:
    """Without a step gate even a headline with time to spare waits rather than make the one before it late."""
    planner, _ = planner_with(w1={})
    tight, relaxed = flash(HEADLINE_MS + 2), flash(1000)
    add(planner, tight, relaxed)
    assert sent(planner.plan(T0)) == [tight]
    planner.finish("w1", tight.request_id)
    assert sent(planner.plan(T0)) == [relaxed]


def test_a_backlog_of_late_work_does_not_pass_fresh_work_behind_it() -> None:
    """However much late work stands before a fresh headline, an engine that is busy gets none of it first."""
    planner, _ = planner_with(w1={"gated": True})
    add(planner, flash(2000))
    planner.plan(T0)
    add(planner, *(flash(-100 - n * 10) for n in range(3 * MOST_PUT_ASIDE)))
    fresh = flash(1000)
    planner.add(fresh)
    order: list[Work] = []
    for _ in range(6):
        order += sent(planner.plan(T0))
    assert order[0] is fresh


def test_an_idle_engine_gets_late_work_however_much_there_is() -> None:
    """A backlog that one plan cannot sort does not leave an idle engine waiting for an event that never comes."""
    planner, _ = planner_with(w1={})
    add(planner, *(flash(-100 - n * 10) for n in range(3 * MOST_PUT_ASIDE)))
    assert sent(planner.plan(T0))


# Revocation


def _full(**options: Any) -> tuple[Planner, dict[str, WorkerBudget], list[Work]]:
    """Return a planner whose only worker has its four slots taken by filings, the last of them the newest."""
    planner, budgets = planner_with(w1={"max_num_seqs": 4, "max_num_batched_tokens": 2048} | options)
    filings = [bulk(tokens=100, deadline_ms=5000 + n * 100) for n in range(4)]
    for filing in filings:
        planner.add(filing)
        assert sent(planner.plan(T0)) == [filing]
    return planner, budgets, filings


def test_the_newest_unproductive_filing_makes_way() -> None:
    """With every slot taken a headline gets that of the newest filing without a token; its deadline stays."""
    planner, budgets, filings = _full()
    planner.prefilled("w1", filings[3].request_id)  # the newest has produced
    revoked_id, deadline = filings[2].request_id, filings[2].deadline_ns
    urgent = flash()
    planner.add(urgent)
    plan = planner.plan(T0)
    assert sent(plan) == [urgent]
    assert (plan.revoked, plan.aborts) == ([filings[2]], [("w1", revoked_id)])
    assert (filings[2].deadline_ns, filings[2].state, filings[2].runs) == (deadline, State.QUEUED, 1)
    assert budgets["w1"].seqs == 4
    assert planner.finish("w1", revoked_id) is None  # its answer, should it come, is not wanted


def test_what_has_produced_is_never_taken_back() -> None:
    """When every filing has its first token, the headline waits for the first that ends."""
    planner, _, filings = _full()
    for filing in filings:
        planner.prefilled("w1", filing.request_id)
    urgent = flash()
    planner.add(urgent)
    assert planner.plan(T0) == Plan()
    planner.finish("w1", filings[0].request_id)
    assert sent(planner.plan(T0)) == [urgent]


def test_nothing_is_taken_back_when_it_would_not_be_enough() -> None:
    """A filing keeps its place when its KV blocks together with the free ones could not hold the headline."""
    planner, _ = planner_with(w1={"kv_blocks": 64, "max_num_batched_tokens": 2048})  # 60 without the shared prefixes
    productive, young = bulk(tokens=600), bulk(tokens=80)
    for filing in (productive, young):
        planner.add(filing)
        assert sent(planner.plan(T0)) == [filing]
    planner.prefilled("w1", productive.request_id)
    planner.add(flash(tokens=500))
    plan = planner.plan(T0)
    assert (plan.dispatches, plan.revoked, plan.aborts) == ([], [], [])
    assert young.state is State.IN_FLIGHT


def test_several_filings_make_way_where_one_is_not_enough() -> None:
    """As many of the newest as the headline's KV blocks need go back, and not one more."""
    planner, _ = planner_with(w1={"kv_blocks": 64, "max_num_batched_tokens": 2048})
    filings = [bulk(tokens=150, deadline_ms=5000 + n) for n in range(4)]  # 13 blocks each
    for filing in filings:
        planner.add(filing)
        assert sent(planner.plan(T0)) == [filing]
    urgent = flash(tokens=400)  # 26 blocks; 8 are free
    planner.add(urgent)
    plan = planner.plan(T0)
    assert plan.revoked == [filings[3], filings[2]]
    assert sent(plan) == [urgent]


def test_revoked_filings_come_back_in_their_order() -> None:
    """What was taken back runs again before filings with later deadlines that came meanwhile."""
    planner, _, filings = _full()
    urgent = [flash() for _ in range(2)]
    add(planner, *urgent)
    assert planner.plan(T0).revoked == [filings[3], filings[2]]
    later = bulk(deadline_ms=9000)
    planner.add(later)
    for work in urgent:
        planner.finish("w1", work.request_id)
    assert sent(planner.plan(T0)) == [filings[2], filings[3]]
    planner.finish("w1", filings[0].request_id)
    assert sent(planner.plan(T0)) == [later]


# Budgets come back


def _taken(budget: WorkerBudget) -> tuple[int, ...]:
    return (
        budget.seqs,
        budget.step_tokens,
        budget.kv_blocks,
        budget.lower_prefill,
        budget.lower_decodes,
        budget.urgent_tokens,
        budget.late_tokens,
    )


@pytest.mark.parametrize("started", [False, True], ids=["before its first token", "after its first token"])
@pytest.mark.parametrize("class_index", [FLASH, BULK], ids=["flash", "bulk"])
@pytest.mark.parametrize("deadline_ms", [1000, -50], ids=["on time", "late"])
@pytest.mark.parametrize("path", ["result", "expiry", "worker death"])
def test_every_way_out_gives_back_what_was_taken(path: str, class_index: int, started: bool, deadline_ms: int) -> None:
    """After a result or an error, an expiry with its abort, or a worker's death nothing of the budget is taken."""
    planner, budgets = planner_with(w1={"max_num_seqs": 1})
    work = make.work(class_index, tokens=100, deadline_ns=T0 + deadline_ms * MS, toxic_ns=T0 + 2000 * MS)
    planner.add(work)
    assert sent(planner.plan(T0)) == [work]
    assert _taken(budgets["w1"])[0] == 1
    if started:
        planner.prefilled("w1", work.request_id)
    if path == "result":
        assert planner.finish("w1", work.request_id, T0 + 50 * MS) is work
    elif path == "expiry":
        assert planner.plan(T0 + 2000 * MS).aborts == [("w1", work.request_id)]
    else:
        assert planner.remove_worker("w1") == [work]
    assert (planner.in_flight(class_index), planner.total_in_flight) == (0, 0)
    if path != "worker death":  # its budget went with it
        assert _taken(budgets["w1"]) == (0,) * 7


def test_a_revocation_gives_back_what_was_taken() -> None:
    """After filings made way and the headline is done, only what still runs is counted, and in the end nothing."""
    planner, budgets, filings = _full()
    urgent = flash()
    planner.add(urgent)
    assert planner.plan(T0).revoked == [filings[3]]
    planner.finish("w1", urgent.request_id)
    for filing in filings[:3]:
        planner.finish("w1", filing.request_id)
    assert _taken(budgets["w1"]) == (0,) * 7
    assert (planner.in_flight(BULK), planner.queued(BULK)) == (0, 1)


# Several workers


def test_a_headline_goes_where_it_is_done_first() -> None:
    """Of a fast and a slow engine, both empty, the fast one gets headlines until its queue makes it the later one."""
    planner, _ = planner_with(fast={}, slow={})
    for _ in range(200):
        planner.observe_steps("slow", _report(seconds=0.030))
        planner.observe_steps("fast", _report(seconds=0.011))
    works = [flash(2000 + n * 10) for n in range(4)]
    add(planner, *works)
    owners = [worker for _, worker in planner.plan(T0).dispatches]
    assert owners[:2] == ["fast", "fast"]
    assert "slow" in owners


def test_a_dedicated_worker_is_lent_while_it_is_idle() -> None:
    """Bulk uses the flash pool when its own has no room, and never while a headline is there."""
    planner, _ = planner_with(urgent={"classes": ["flash"]}, rest={"classes": ["standard", "bulk"], "max_num_seqs": 1})
    first, second, third = bulk(deadline_ms=5000), bulk(deadline_ms=5100), bulk(deadline_ms=5200)
    add(planner, first, second)
    assert planner.plan(T0).dispatches == [(first, "rest"), (second, "urgent")]
    headline = flash()
    planner.add(headline)
    assert planner.plan(T0).dispatches == [(headline, "urgent")]
    planner.add(third)
    assert planner.plan(T0) == Plan()
    planner.finish("urgent", headline.request_id)
    assert planner.plan(T0).dispatches == [(third, "urgent")]


def test_a_dedicated_worker_is_not_lent_when_the_settings_say_so() -> None:
    """Without lending bulk waits for its own worker."""
    planner = Planner(make.CLASSES, VALVE.model_copy(update={"lend": False}))
    planner.add_worker("urgent", make.budget(), ["flash"])
    planner.add(bulk())
    assert planner.plan(T0) == Plan()


def test_a_lent_worker_gives_the_slot_back_to_a_headline() -> None:
    """Lent capacity is taken back by revocation when a headline finds the dedicated worker full."""
    planner, _ = planner_with(urgent={"classes": ["flash"], "max_num_seqs": 1})
    lent, headline = bulk(), flash()
    planner.add(lent)
    assert sent(planner.plan(T0)) == [lent]
    planner.add(headline)
    plan = planner.plan(T0)
    assert (plan.revoked, plan.dispatches) == ([lent], [(headline, "urgent")])


def test_a_worker_without_urgent_work_has_its_whole_step_for_the_rest() -> None:
    """Headlines that wait for another worker, or the SLO, bind no worker that may not take them."""
    planner, budgets = planner_with(rest={"classes": ["standard", "bulk"], "max_num_batched_tokens": 8192})
    add(planner, *(flash() for _ in range(200)))
    planner.plan(T0)
    assert budgets["rest"].lower_step_tokens == 8192


def test_a_class_without_a_worker_waits_and_loses_nothing() -> None:
    """Work of a class that no worker takes waits, however often a plan is made, and all of it runs once one comes."""
    planner = Planner(make.CLASSES, VALVE.model_copy(update={"lend": False}))
    planner.add_worker("urgent", make.budget(), ["flash"])
    filings = [bulk(tokens=50, deadline_ms=5000 + 10 * n) for n in range(5)]
    add(planner, *filings)
    for turn in range(50):
        assert planner.plan(T0 + turn * MS) == Plan()
    assert planner.queued(BULK) == 5
    planner.add_worker("rest", make.budget(max_num_batched_tokens=8192))
    assert sent(planner.plan(T0 + 50 * MS)) == filings


def test_urgent_work_without_a_worker_for_it_waits_too() -> None:
    """Headlines wait for a worker that takes them, the others work on, and the headlines go first when it comes."""
    planner, _ = planner_with(rest={"classes": ["standard", "bulk"]})
    headline, filing = flash(), bulk()
    add(planner, headline, filing)
    assert planner.plan(T0).dispatches == [(filing, "rest")]
    planner.add_worker("urgent", make.budget(), ["flash"])
    assert planner.plan(T0).dispatches == [(headline, "urgent")]


# Clocks and deadlines


@pytest.mark.parametrize("deadline_ns", [1, T0 - 10 * YEAR, T0, T0 + 50 * YEAR, 2**62])
@pytest.mark.parametrize("class_index", [FLASH, BULK])
@pytest.mark.parametrize("gated", [False, True])
def test_any_deadline_is_run(deadline_ns: int, class_index: int, gated: bool) -> None:
    """Deadlines long past and years ahead are ordinary work: late or early, and dispatched either way."""
    planner, budgets = planner_with(w1={"gated": gated})
    work = make.work(class_index, deadline_ns=deadline_ns)
    planner.add(work)
    assert sent(planner.plan(T0)) == [work]
    assert planner.finish("w1", work.request_id, T0 + 20 * MS) is work
    assert _taken(budgets["w1"]) == (0,) * 7


@pytest.mark.parametrize("jump", [-10 * YEAR, -1000 * MS, 1000 * MS, 10 * YEAR])
@pytest.mark.parametrize("gated", [False, True])
def test_a_clock_that_jumps_loses_and_blocks_nothing(jump: int, gated: bool) -> None:
    """Whatever the wall clock does between plans, work goes on and is still there; only what is toxic by it expires."""
    planner, _ = planner_with(w1={"gated": gated})
    before, toxic = flash(), flash(toxic_ms=2000)
    add(planner, before, toxic)
    dispatched = sent(planner.plan(T0))
    after = flash()
    planner.add(after)
    plan = planner.plan(T0 + jump)
    dispatched += sent(plan)
    for work in list(planner.in_flight_work()):
        planner.finish(work.worker_id, work.request_id)
    dispatched += sent(planner.plan(T0))
    assert {id(w) for w in (*dispatched, *plan.expired)} == {id(w) for w in (before, toxic, after)}
    assert plan.expired in ([], [toxic])
    assert bool(plan.expired) == (jump == 10 * YEAR)


# Memory


class _Watched(Work, kw_only=True, gc=False):
    """Work that counts how many of its kind somebody still holds."""

    def __del__(self) -> None:
        _alive.discard(id(self))


_alive: set[int] = set()


def _watched(deadline_ns: int, toxic_ns: int) -> Work:
    like = make.work(FLASH, tokens=HEADLINE, deadline_ns=deadline_ns, toxic_ns=toxic_ns)

    work = _Watched(**{name: getattr(like, name) for name in Work.__struct_fields__})
    _alive.add(id(work))
    return work


def test_expired_work_is_let_go_though_no_worker_takes_its_class() -> None:
    """A stream of headlines that nobody may run leaves no more behind than the ones that wait."""
    planner, _ = planner_with(rest={"classes": ["standard", "bulk"]})
    _alive.clear()
    for number in range(5_000):
        now = T0 + number * 10 * MS
        planner.add(_watched(now + 150 * MS, now + 250 * MS))
        planner.plan(now)
    assert planner.queued(FLASH) == 25
    assert len(_alive) < 200


def test_finished_work_is_let_go_though_its_toxic_age_is_years_away() -> None:
    """What is done does not stay in memory until it would have got toxic, not even behind something that runs on."""
    planner, _ = planner_with(w1={"gated": True})
    _alive.clear()
    planner.add(make.work(BULK, toxic_ns=T0 + YEAR))  # runs all the time, and is the first that can get toxic
    for number in range(5_000):
        now = T0 + number * 50 * MS
        planner.add(_watched(now + 150 * MS, now + 10 * YEAR))
        planner.plan(now)
        for work in planner.in_flight_work():
            if work.class_index == FLASH:
                planner.finish("w1", work.request_id)
    del work
    assert len(_alive) < 2_500


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("deadline_ms", [1000, -1], ids=["on time", "late"])
def test_nothing_is_kept_of_requests_that_are_done(gated: bool, deadline_ms: int) -> None:
    """Thousands of headlines beside one that never ends leave no trace in the planner."""
    planner, _ = planner_with(w1={"gated": gated})
    planner.add(flash(10))  # never ends, and nothing is ever due before it
    planner.plan(T0)
    tracemalloc.start()
    try:
        for number in range(5_000):
            now = T0 + number * 20 * MS
            work = make.work(FLASH, tokens=5, deadline_ns=now + deadline_ms * MS)
            planner.add(work)
            planner.plan(now)
            planner.finish("w1", work.request_id)
            if number == 2_000:
                before = tracemalloc.get_traced_memory()[0]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert planner.total_queued == 0
    assert grown < 30_000  # ten bytes a headline
