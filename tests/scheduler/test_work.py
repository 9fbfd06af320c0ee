"""Work: the packed original, stamps, stages, and what a requeue forgets."""

from __future__ import annotations

import pytest

from scheduler.work import Original, read_source
from schemas.enums import Stage
from tests.scheduler import make

SOURCE = read_source(make.RECORD)


@pytest.mark.parametrize(
    "original",
    [
        Original(b"key", b"value \x00\xff", (("a", b"1"), ("a", b""))),
        Original(None, b"", ()),
        Original(b"", b"v", (("null", None), ("", b"x"))),
    ],
)
def test_the_original_record_comes_back_untouched(original: Original) -> None:
    """Key, value and headers survive being packed; Kafka allows header values that are null."""
    assert make.work(original=original).original() == original


def test_stamps_hold_the_stages_that_were_reached_in_order() -> None:
    """Stages that were not reached are left out, and the last one reached is the stage."""
    work = make.work()
    stages = [Stage.PUBLISHED, Stage.RECEIVED, Stage.APPENDED, Stage.CONSUMED, Stage.QUEUED]
    assert list(work.stamps(SOURCE)) == stages
    assert work.stage() is Stage.QUEUED
    work.dispatched_ns = work.queued_ns + 1
    assert work.stage() is Stage.DISPATCHED
    work.engine_started_ns = work.first_token_ns = work.queued_ns + 2
    assert work.stage() is Stage.FIRST_TOKEN
    work.completed_ns = work.queued_ns + 3
    assert work.stage() is Stage.COMPLETED
    assert list(work.stamps(SOURCE)) == list(Stage)[:-1]


def test_a_requeue_forgets_the_run_and_keeps_the_rest() -> None:
    """After a run was given up, the event looks queued; its deadline and its earlier stamps are the same."""
    work = make.work(toxic_ns=make.EVENT_TIME_NS + 5)
    before = work.stamps(SOURCE), work.deadline_ns, work.toxic_ns
    work.dispatched_ns = work.engine_started_ns = work.first_token_ns = work.completed_ns = work.queued_ns + 1
    work.worker_id, work.request_id, work.runs = "w1", 7, 1
    work.forget_run()
    assert (work.stamps(SOURCE), work.deadline_ns, work.toxic_ns) == before
    assert (work.worker_id, work.request_id, work.runs) == ("", 0, 1)
