"""Work: stamps, stages, and what a requeue forgets."""

from __future__ import annotations

from schemas.enums import Stage
from tests.scheduler import make


def test_stamps_hold_the_stages_that_were_reached_in_order() -> None:
    """Stages that were not reached are left out, and the last one reached is the stage."""
    work = make.work()
    assert list(work.stamps()) == [Stage.PUBLISHED, Stage.RECEIVED, Stage.APPENDED, Stage.CONSUMED, Stage.QUEUED]
    assert work.stage() is Stage.QUEUED
    work.dispatched_ns = work.queued_ns + 1
    assert work.stage() is Stage.DISPATCHED


def test_the_stage_is_by_order_and_not_by_time() -> None:
    """A source clock that runs ahead does not make an event look as if it had only been published."""
    work = make.work()
    work.published_ns = work.queued_ns + 10**12
    assert work.stage() is Stage.QUEUED


def test_a_requeue_forgets_the_run_and_keeps_the_rest() -> None:
    """After a run was given up, the event looks queued; its deadline and its earlier stamps are the same."""
    work = make.work(toxic_ns=make.EVENT_TIME_NS + 5)
    before = work.stamps(), work.deadline_ns, work.toxic_ns
    work.dispatched_ns = work.engine_started_ns = work.first_token_ns = work.completed_ns = work.queued_ns + 1
    work.worker_id, work.request_id, work.runs = "w1", 7, 1
    work.forget_run()
    assert (work.stamps(), work.deadline_ns, work.toxic_ns) == before
    assert (work.worker_id, work.request_id, work.runs) == ("", 0, 1)
