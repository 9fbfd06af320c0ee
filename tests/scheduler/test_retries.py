"""Failed work between two attempts: pauses, due times, toxic ages, places in the queue, and every way out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.planner import Planner
from scheduler.retries import MILLISECOND, Retries
from scheduler.work import State, Work
from tests.scheduler import make

T0 = make.EVENT_TIME_NS
FIRST_MS, MOST_MS = 200.0, 5_000.0


def _failed(refusals: int = 1, **changed: object) -> Work:
    work = make.work(**changed)  # type: ignore[arg-type]  # the fields of `make.work`, passed through
    work.refusals = refusals
    return work


def _planner(seqs: int = 1) -> Planner:
    planner = Planner(make.CLASSES, retries=Retries(FIRST_MS, MOST_MS))
    planner.add_worker("w1", make.budget(max_num_seqs=seqs))
    return planner


def _run(planner: Planner, now_ns: int) -> list[Work]:
    """Plan, and finish what was dispatched."""
    dispatched = [work for work, _ in planner.plan(now_ns).dispatches]
    for work in dispatched:
        planner.finish("w1", work.request_id)
    return dispatched


@pytest.mark.parametrize(
    ("refusals", "pause_ms"), [(1, 200), (2, 400), (3, 800), (5, 3200), (6, 5000), (7, 5000), (5000, 5000)]
)
def test_the_pause_doubles_up_to_its_limit(refusals: int, pause_ms: int) -> None:
    """Each further failure waits twice as long, and no number of failures makes it endless or overflow."""
    assert Retries(FIRST_MS, MOST_MS).pause_ns(_failed(refusals), T0) == pause_ms * MILLISECOND


def test_a_toxic_age_shortens_the_pause() -> None:
    """A headline gets its next attempt within half of what is left of its toxic age, never behind it."""
    retries = Retries(FIRST_MS, MOST_MS)
    assert retries.pause_ns(_failed(toxic_ns=T0 + 100 * MILLISECOND), T0) == 50 * MILLISECOND
    assert retries.pause_ns(_failed(toxic_ns=T0 - 1), T0) == 0
    assert retries.pause_ns(_failed(toxic_ns=T0 + 3_600_000 * MILLISECOND), T0) == 200 * MILLISECOND


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2000))), st.lists(st.integers(-3000, 3000)))
def test_work_is_due_after_its_pause_and_once(added: list[tuple[int, int]], passed: list[int]) -> None:
    """However the clock is set back, nothing that failed is due twice, is forgotten, or waits past its pause."""
    retries = Retries(FIRST_MS, MOST_MS)
    now, waiting = T0, 0
    out: list[Work] = []
    for refusals, later in added:
        now += later * MILLISECOND
        retries.add(_failed(refusals), now)
        waiting += 1
    for step in passed:
        now += step * MILLISECOND
        out += retries.due(now)
        assert len(retries) == waiting - len(out)
        due = retries.next_due_ns()
        assert (due is None) == (len(out) == waiting)
        assert due is None or now < due <= now + MOST_MS * MILLISECOND
    out += retries.due(now + int(MOST_MS) * MILLISECOND)
    assert len({id(work) for work in out}) == len(out) == waiting
    assert len(retries) == 0


def test_a_failure_keeps_deadline_and_toxic_age() -> None:
    """No number of attempts moves a deadline (llm-d-async#391)."""
    planner = _planner()
    work = make.work(deadline_ns=T0 + 7, toxic_ns=T0 + 3_600_000 * MILLISECOND)
    planner.add(work)
    now = T0
    for attempt in range(5):
        assert _run(planner, now) == [work]
        work.refusals += 1
        planner.retry(work, now)
        now = planner.next_due_ns() or 0
        assert now > T0
        assert planner.due(now) == [work]
        planner.add(work)
        assert (work.deadline_ns, work.toxic_ns, work.runs) == (T0 + 7, T0 + 3_600_000 * MILLISECOND, attempt + 1)


def test_waiting_for_an_attempt_takes_no_slot() -> None:
    """The only slot of a worker is free while failed work waits (llm-d-async#311)."""
    planner = _planner(seqs=1)
    failed = make.work(2, deadline_ns=T0)
    planner.add(failed)
    ((work, worker),) = planner.plan(T0).dispatches
    assert planner.finish(worker, work.request_id) is failed
    failed.refusals = 1
    planner.retry(failed, T0)
    fresh = make.work(2, deadline_ns=T0 + 1)
    planner.add(fresh)
    assert [w for w, _ in planner.plan(T0).dispatches] == [fresh]
    assert (planner.total_queued, planner.total_in_flight, planner.retrying) == (0, 1, 1)


def test_toxic_age_ends_the_wait_at_its_time() -> None:
    """Work that gets too old while it waits expires then, not when its pause is over, and leaves nothing behind."""
    planner = _planner()
    toxic_ns = T0 + 100 * MILLISECOND
    work = _failed(1, class_index=1, toxic_ns=toxic_ns)
    planner.add(work)
    _run(planner, T0)
    planner._retries = Retries(60_000, 60_000)
    planner._retries.pause_ns = lambda work, now_ns: 60_000 * MILLISECOND  # type: ignore[method-assign]  # a long one
    planner.retry(work, T0)
    assert planner.next_expiry_ns() == toxic_ns
    assert planner.plan(toxic_ns - 1).expired == []
    plan = planner.plan(toxic_ns)
    assert (plan.expired, plan.aborts, planner.retrying) == ([work], [], 0)
    assert (planner.next_due_ns(), planner.due(T0 + 120_000 * MILLISECOND)) == (None, [])


def test_toxic_age_survives_the_sweep_of_what_is_done() -> None:
    """However many other events came and went, waiting work still expires."""
    planner = _planner(seqs=8)
    toxic_ns = T0 + 3_600_000 * MILLISECOND
    work = make.work(1, toxic_ns=toxic_ns)
    planner.add(work)
    _run(planner, T0)
    work.refusals = 1
    planner.retry(work, T0)
    for _ in range(3000):
        planner.add(make.work(1, toxic_ns=toxic_ns))
        _run(planner, T0)
    assert planner.plan(toxic_ns).expired == [work]


@given(
    class_index=st.integers(0, 2),
    kinds=st.lists(st.tuples(st.booleans(), st.integers(-500, 500)), min_size=1, max_size=12),
)
def test_an_attempt_never_overtakes_fresh_work(class_index: int, kinds: list[tuple[bool, int]]) -> None:
    """While fresh work of its class waits, late or not, work that failed is not sent, however old its deadline."""
    planner = _planner(seqs=1)
    for failed, deadline in kinds:
        planner.add(_failed(int(failed), class_index=class_index, deadline_ns=T0 + deadline * MILLISECOND))
    order: list[bool] = []
    while planner.total_queued:
        order += [work.behind for work in _run(planner, T0)]
    assert order == sorted(failed for failed, _ in kinds)


def test_what_a_dead_worker_left_keeps_its_place() -> None:
    """A requeue without a failure goes by its deadline, before fresh work with a later one."""
    planner = _planner(seqs=1)
    lost = make.work(2, deadline_ns=T0)
    planner.add(lost)
    planner.plan(T0)
    fresh = make.work(2, deadline_ns=T0 + 1)
    planner.add(fresh)
    (work,) = planner.remove_worker("w1")
    work.deaths += 1
    planner.add(work)
    planner.add_worker("w1", make.budget(max_num_seqs=1))
    assert [w for w, _ in planner.plan(T0).dispatches] == [lost]


def test_a_partition_that_leaves_takes_its_waiting_work_along() -> None:
    """Revocation and stop drop what waits for an attempt like what waits in a queue, and it never comes back."""
    planner = _planner()
    goes, stays = _failed(), _failed()
    for work in (goes, stays):
        planner.retry(work, T0)
    assert planner.drop_queued(lambda w: w is goes) == [goes]
    assert (goes.state, planner.retrying) == (State.DROPPED, 1)
    assert planner.due(T0 + 10_000 * MILLISECOND) == [stays]


def test_expired_work_does_not_pile_up() -> None:
    """Work that left from the middle is let go of long before its pause would have been over."""
    retries = Retries(3_600_000, 3_600_000)
    for _ in range(10_000):
        work = _failed()
        retries.add(work, T0)
        retries.discard(work, State.DONE)
    assert len(retries) == 0
    assert len(retries._heap) < 200


def test_two_suspects_never_share_a_worker() -> None:
    """Of requests that may kill an engine each worker gets one at a time, and unsuspected work beside it."""
    planner = _planner(seqs=8)
    suspects = [make.work(c, deadline_ns=T0) for c in (0, 0, 1, 2)]
    for work in suspects:
        work.suspect = True
        planner.add(work)
    ran: list[Work] = []
    while planner.total_queued or planner.total_in_flight:
        planner.add(make.work(1)) if len(ran) < 2 else None
        planner.plan(T0)
        flying = planner.in_flight_work()
        assert sum(work.suspect for work in flying) == 1
        for work in flying:
            planner.finish("w1", work.request_id)
        ran += [work for work in flying if work.suspect]
    assert set(map(id, ran)) == set(map(id, suspects))
