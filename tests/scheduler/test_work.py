"""Work: stamps, stages, and what a requeue forgets."""

from __future__ import annotations

from scheduler.work import Original, Source, read_source
from schemas.enums import Stage
from tests.scheduler import make

SOURCE = Source(received_at_ns=make.EVENT_TIME_NS, published_at_ns=make.EVENT_TIME_NS - make.MILLISECOND)


def test_stamps_hold_the_stages_that_were_reached_in_order() -> None:
    """Stages that were not reached are left out, and the last one reached is the stage."""
    work = make.work()
    assert list(work.stamps(SOURCE)) == [Stage.PUBLISHED, Stage.RECEIVED, Stage.APPENDED, Stage.CONSUMED, Stage.QUEUED]
    assert work.stage() is Stage.QUEUED
    work.dispatched_ns = work.queued_ns + 1
    assert work.stage() is Stage.DISPATCHED


def test_the_stage_is_by_order_and_not_by_time() -> None:
    """A broker clock that runs ahead does not make a queued event look as if it had only been appended."""
    work = make.work()
    work.appended_ns = work.queued_ns + 10**12
    assert work.stage() is Stage.QUEUED


def test_the_original_record_comes_back_as_it_was() -> None:
    """Key, value and headers survive packing byte for byte, an absent key included."""
    for key in (b"story", None):
        original = Original(key, b"\x00\xff value", (("name", b"\xff"), ("name", b"")))
        work = make.work()
        work.record = original.packed()
        assert work.original() == original


def test_the_source_is_read_from_either_kind_of_event() -> None:
    """What an outcome needs is found in news and in filings, unknown fields aside."""
    filing = read_source(b'{"accession":"1","accepted_at_ns":5,"received_at_ns":6,"instruments":["A"],"version":2}')
    assert filing == Source(version=2, instruments=["A"], accepted_at_ns=5, received_at_ns=6)


def test_a_requeue_forgets_the_run_and_keeps_the_rest() -> None:
    """After a run was given up, the event looks queued; its deadline and its earlier stamps are the same."""
    work = make.work(toxic_ns=make.EVENT_TIME_NS + 5)
    before = work.stamps(SOURCE), work.deadline_ns, work.toxic_ns
    work.dispatched_ns = work.engine_started_ns = work.first_token_ns = work.completed_ns = work.queued_ns + 1
    work.worker_id, work.request_id, work.runs = "w1", 7, 1
    work.forget_run()
    assert (work.stamps(SOURCE), work.deadline_ns, work.toxic_ns) == before
    assert (work.worker_id, work.request_id, work.runs) == ("", 0, 1)
