"""The planner: order between and inside classes, expiry, workers, and what survives a requeue."""

from __future__ import annotations

from scheduler.planner import Plan, Planner
from scheduler.queues import GRAIN_NS
from scheduler.work import State, Work
from schemas.frames import unpack_tokens
from schemas.settings import ReserveSettings
from tests.scheduler import make

FLASH, STANDARD, BULK = range(3)
T0 = make.EVENT_TIME_NS
SOON = (T0 // GRAIN_NS + 1000) * GRAIN_NS
"""A deadline that any plan at T0 can meet."""
TOXIC = T0 + 20_000_000_000


def _planner(*workers: str, **limits: int) -> Planner:
    planner = Planner(make.CLASSES)
    for worker_id in workers:
        planner.add_worker(worker_id, make.budget(reserve=None, **limits))
    return planner


def _add(planner: Planner, *works: Work) -> None:
    for work in works:
        planner.add(work)


def _order(plan: Plan) -> list[Work]:
    return [work for work, _ in plan.dispatches]


def test_classes_go_in_strict_order() -> None:
    """However late its deadline, more urgent work goes before anything less urgent."""
    planner = _planner("w1")
    bulk, standard = (
        make.work(BULK, deadline_ns=SOON + 1 * GRAIN_NS),
        make.work(STANDARD, deadline_ns=SOON + 2 * GRAIN_NS),
    )
    flash = make.work(FLASH, deadline_ns=SOON + 3 * GRAIN_NS)
    _add(planner, bulk, standard, flash)
    assert _order(planner.plan(T0)) == [flash, standard, bulk]


def test_the_earliest_deadline_goes_first_inside_a_class() -> None:
    """Order of arrival decides between equal deadlines only."""
    planner = _planner("w1", max_num_seqs=8)
    late, early, early_too = (make.work(deadline_ns=SOON + d * GRAIN_NS) for d in (9, 5, 5))
    _add(planner, late, early, early_too)
    assert _order(planner.plan(T0)) == [early, early_too, late]


def test_nothing_less_urgent_passes_urgent_work_that_does_not_fit() -> None:
    """A worker that cannot take the most urgent waiting work gets nothing less urgent either."""
    planner = _planner("w1", max_num_seqs=1)
    first, second, bulk = (
        make.work(deadline_ns=SOON + 1 * GRAIN_NS),
        make.work(deadline_ns=SOON + 2 * GRAIN_NS),
        make.work(BULK),
    )
    _add(planner, first, second, bulk)
    assert _order(planner.plan(T0)) == [first]
    assert _order(planner.plan(T0)) == []
    planner.finish("w1", first.request_id)
    assert _order(planner.plan(T0)) == [second]
    planner.finish("w1", second.request_id)
    assert _order(planner.plan(T0)) == [bulk]


def test_less_urgent_work_leaves_the_reserve_free() -> None:
    """Bulk stops at the limit less the reserve, and a headline that comes then starts at once."""
    planner = Planner(make.CLASSES)
    reserve = ReserveSettings(step_tokens=0, kv_fraction=0, seqs=2)
    planner.add_worker("w1", make.budget(reserve=reserve, max_num_seqs=4))
    _add(planner, *(make.work(BULK) for _ in range(5)))
    assert len(planner.plan(T0).dispatches) == 2
    flash = make.work(FLASH)
    planner.add(flash)
    assert _order(planner.plan(T0)) == [flash]


def test_work_spreads_to_the_less_loaded_worker() -> None:
    """Of two workers that both have room, the one whose next step is emptier gets the work."""
    planner = _planner("w1", "w2")
    _add(planner, *(make.work(deadline_ns=SOON + i * GRAIN_NS, tokens=100) for i in range(4)))
    assert [worker for _, worker in planner.plan(T0).dispatches] == ["w1", "w2", "w1", "w2"]


def test_a_dedicated_worker_gets_its_classes_only() -> None:
    """A worker that takes flash alone is never given bulk, and bulk waits rather than go there."""
    planner = Planner(make.CLASSES)
    planner.add_worker("urgent", make.budget(), ["flash"])
    bulk, flash = make.work(BULK), make.work(FLASH)
    _add(planner, bulk, flash)
    assert planner.plan(T0).dispatches == [(flash, "urgent")]
    planner.add_worker("any", make.budget())
    assert planner.plan(T0).dispatches == [(bulk, "any")]


def test_a_full_dedicated_worker_does_not_hold_up_the_others() -> None:
    """Urgent work that waits for the only worker it may go to leaves the other workers open to the rest."""
    planner = Planner(make.CLASSES)
    planner.add_worker("urgent", make.budget(max_num_seqs=1), ["flash"])
    planner.add_worker("rest", make.budget(), ["standard", "bulk"])
    bulk = make.work(BULK)
    _add(planner, make.work(FLASH), make.work(FLASH), bulk)
    plan = planner.plan(T0)
    assert plan.dispatches[-1] == (bulk, "rest")
    assert planner.queued(FLASH) == 1


def test_a_worker_without_the_extractor_gets_none_of_its_classes() -> None:
    """Work goes only where the prompt for its class exists."""
    planner = Planner(make.CLASSES)
    budget = make.budget()
    del budget.extractors["filing"]
    planner.add_worker("w1", budget)
    flash = make.work(FLASH)
    _add(planner, make.work(BULK), flash)
    assert _order(planner.plan(T0)) == [flash]


def test_without_workers_work_waits() -> None:
    """No worker means no dispatch, and what waits is dispatched when one comes."""
    planner = _planner()
    work = make.work()
    planner.add(work)
    assert planner.plan(T0) == Plan()
    planner.add_worker("w1", make.budget())
    assert _order(planner.plan(T0)) == [work]


def test_a_text_no_worker_can_hold_any_more_is_cut_and_marked() -> None:
    """When the worker with the longer context has left, waiting text shrinks to what is left instead of hanging."""
    planner = _planner("w1", max_model_len=100)
    work = make.work(tokens=500)
    planner.add(work)
    assert _order(planner.plan(T0)) == [work]
    assert (work.token_count, work.truncated) == (100 - 40 - 1, True)
    assert unpack_tokens(work.tokens) == list(range(59))


def test_a_long_text_goes_to_the_worker_that_can_hold_it() -> None:
    """A text too long for one worker waits for the other, uncut."""
    planner = Planner(make.CLASSES)
    planner.add_worker("short", make.budget(max_model_len=100))
    planner.add_worker("long", make.budget(max_model_len=1000))
    work = make.work(tokens=500)
    planner.add(work)
    assert planner.plan(T0).dispatches == [(work, "long")]
    assert not work.truncated


def test_queued_work_expires_at_its_toxic_age() -> None:
    """Waiting work is kept up to the last nanosecond before its toxic time and expires in it, never to run."""
    planner = _planner()
    work = make.work(toxic_ns=TOXIC)
    planner.add(work)
    assert planner.next_expiry_ns() == TOXIC
    assert planner.plan(TOXIC - 1) == Plan()
    assert planner.plan(TOXIC).expired == [work]
    planner.add_worker("w1", make.budget())
    assert planner.plan(TOXIC + 1) == Plan()
    assert (planner.total_queued, planner.next_expiry_ns()) == (0, None)


def test_running_work_expires_with_an_abort_and_frees_its_budget() -> None:
    """At its toxic age running work is aborted at its worker, and its place is free in the same plan."""
    planner = _planner("w1", max_num_seqs=1)
    work, waiting = (
        make.work(toxic_ns=TOXIC, deadline_ns=SOON + 1 * GRAIN_NS),
        make.work(deadline_ns=SOON + 2 * GRAIN_NS),
    )
    _add(planner, work, waiting)
    planner.plan(T0)
    plan = planner.plan(TOXIC)
    assert plan.aborts == [("w1", work.request_id)]
    assert plan.expired == [work]
    assert _order(plan) == [waiting]
    assert planner.finish("w1", work.request_id) is None  # its late answer is not wanted


def test_finished_work_does_not_expire() -> None:
    """An answer in time ends the matter: nothing expires afterwards."""
    planner = _planner("w1")
    work = make.work(toxic_ns=TOXIC)
    planner.add(work)
    planner.plan(T0)
    assert planner.finish("w1", work.request_id) is work
    assert planner.next_expiry_ns() is None
    assert planner.plan(TOXIC + 50) == Plan()


def test_requeued_work_keeps_deadline_and_expiry() -> None:
    """Work whose worker died goes back to its place by deadline, under a new request id, and still expires in time."""
    planner = _planner("w1", max_num_seqs=1)
    work, later = make.work(deadline_ns=SOON + 1 * GRAIN_NS, toxic_ns=TOXIC), make.work(deadline_ns=SOON + 2 * GRAIN_NS)
    _add(planner, work, later)
    planner.plan(T0)
    first_id = work.request_id
    (lost,) = planner.remove_worker("w1")
    assert lost is work
    planner.add(lost)
    planner.add_worker("w2", make.budget(max_num_seqs=1))
    assert planner.plan(T0 + 1).dispatches == [(work, "w2")]
    assert (work.deadline_ns, work.runs) == (SOON + 1 * GRAIN_NS, 2)
    assert work.request_id != first_id
    assert planner.plan(TOXIC).expired == [work]


def test_work_of_a_dead_worker_that_is_not_requeued_is_done() -> None:
    """What the caller ends instead of requeueing (a quarantine) does not expire a second time later."""
    planner = _planner("w1")
    work = make.work(toxic_ns=TOXIC)
    planner.add(work)
    planner.plan(T0)
    assert planner.remove_worker("w1") == [work]
    assert planner.next_expiry_ns() is None
    assert planner.plan(TOXIC) == Plan()


def test_a_worker_that_left_takes_its_in_flight_count_along() -> None:
    """In-flight counts drop with the worker, and an unknown worker leaves nothing."""
    planner = _planner("w1")
    _add(planner, make.work(FLASH), make.work(BULK))
    planner.plan(T0)
    assert (planner.in_flight(FLASH), planner.in_flight(BULK), planner.total_in_flight) == (1, 1, 2)
    planner.remove_worker("w1")
    assert planner.total_in_flight == 0
    assert planner.remove_worker("w1") == []


def test_frames_about_unknown_requests_change_nothing() -> None:
    """Results and progress of other workers, or of requests that ended, are answered with None."""
    planner = _planner("w1", "w2")
    work = make.work()
    planner.add(work)
    ((_, owner),) = planner.plan(T0).dispatches
    other = "w2" if owner == "w1" else "w1"
    for worker_id, request_id in ((other, work.request_id), (owner, work.request_id + 1), ("nobody", work.request_id)):
        assert planner.finish(worker_id, request_id) is None
        assert planner.prefilled(worker_id, request_id) is None
    assert planner.prefilled(owner, work.request_id) is work
    assert planner.finish(owner, work.request_id) is work
    assert planner.finish(owner, work.request_id) is None
    assert planner.total_in_flight == 0


def test_the_end_of_a_prefill_makes_room() -> None:
    """Step tokens of a finished prefill let the next prompt in before the first one is done."""
    planner = _planner("w1", max_num_batched_tokens=256)
    first, second = (
        make.work(BULK, tokens=1000, deadline_ns=SOON + 1 * GRAIN_NS),
        make.work(BULK, tokens=200, deadline_ns=SOON + 2 * GRAIN_NS),
    )
    _add(planner, first, second)
    assert _order(planner.plan(T0)) == [first]
    planner.prefilled("w1", first.request_id)
    assert _order(planner.plan(T0)) == [second]


def test_dropped_work_never_runs() -> None:
    """Work of a partition that went elsewhere leaves the queues; what runs is left alone."""
    planner = _planner("w1", max_num_seqs=1)
    running, gone, stays = (make.work(deadline_ns=SOON + i * GRAIN_NS, toxic_ns=TOXIC) for i in range(3))
    _add(planner, running, gone, stays)
    planner.plan(T0)
    assert planner.drop_queued(lambda w: w is not stays) == [gone]
    assert gone.state is State.DROPPED
    assert planner.in_flight_work() == [running]
    planner.finish("w1", running.request_id)
    assert _order(planner.plan(T0)) == [stays]
    assert planner.plan(TOXIC).expired == [stays]


def test_request_ids_start_where_they_are_told() -> None:
    """Ids rise from the given start, so that those of two lives of a scheduler never meet."""
    planner = Planner(make.CLASSES, first_request_id=1000)
    planner.add_worker("w1", make.budget())
    works = [make.work(deadline_ns=SOON + i * GRAIN_NS) for i in range(3)]
    _add(planner, *works)
    planner.plan(T0)
    ids = [w.request_id for w in works]
    assert ids == sorted(set(ids))
    assert ids[0] >= 1000
