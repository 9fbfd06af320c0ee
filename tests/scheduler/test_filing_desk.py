"""What becomes of a filing's records: one signal for all, or each its own outcome; the room gets everything back."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from scheduler.chunks import Chunk
from scheduler.filing_desk import chunk_work
from scheduler.filing_signal import EVIDENCE_CHARS, MOST_MISSING
from scheduler.publisher import Record
from schemas.enums import Direction, Outcome, Stage
from schemas.identity import signal_id
from schemas.topics import (
    HEADER_ERROR_ATTEMPTS,
    HEADER_ERROR_KIND,
    HEADER_ERROR_STAGE,
    HEADER_EVENT_ID,
    HEADER_SOURCE_OFFSET,
)
from tests.scheduler import make
from tests.scheduler.filing_parts import SECOND, SENTENCES, T0, TOPICS, Desk, answer, part, result
from tests.scheduler.waiting import until

BULLISH, BEARISH = Direction.BULLISH, Direction.BEARISH


async def test_all_parts_of_a_filing_become_one_signal() -> None:
    """One signal under the accession, at its first part's place; its confirmation ends the offset of every part."""
    desk = Desk()
    parts = [part(n, 3, accession="0001-26", items=["2.02"], instruments=["ACME"]) for n in (2, 1, 3)]
    works = [work for one in parts for work in desk.take(one)]
    for work in works:
        assert desk.signals == []
        desk.answer(work, answer(BULLISH, 0.9, event_type={"dividend": 0.7, "other": 0.3}))
    (signal,) = desk.signals
    first = parts[1].whole.origin
    assert signal.event_id == "0001-26"
    assert signal.signal_id == signal_id("0001-26", 1, "r1", "filing-1")
    assert (signal.topic, signal.partition, signal.offset) == first[:3]
    assert (signal.direction, signal.service_class, signal.instruments) == (BULLISH, "bulk", ["ACME"])
    assert signal.score == pytest.approx(0.85)
    assert (signal.event_type, signal.event_type_probability) == ("dividend", 0.7)
    filing = signal.filing
    assert filing is not None
    assert (filing.accession, filing.parts, filing.missing_parts, filing.items) == ("0001-26", 3, [], ["2.02"])
    assert (filing.partial, filing.coverage, filing.chunks) == (False, 1.0, 3)
    assert [s.event_id for s in filing.sources] == ["0001-26:d:1", "0001-26:d:2", "0001-26:d:3"]
    assert sorted(desk.finished) == sorted(one.whole.origin.offset for one in parts)
    ((topic, key, _, headers, receipt),) = desk.paper.records
    assert (topic, key, headers[HEADER_EVENT_ID]) == (TOPICS.signals, b"ACME", b"0001-26")
    assert (receipt.entry.event_id, receipt.entry.outcome) == ("0001-26", Outcome.SIGNAL)  # type: ignore[union-attr]
    assert (desk.stats.classes[2].arrived, desk.stats.classes[2].signals) == (3, 1)
    assert desk.held == (0, 0)


async def test_a_short_filing_keeps_the_event_s_own_id() -> None:
    """One part in one chunk: the id and the answer are those of any other event."""
    desk = Desk()
    one = part(ciks=["7"])
    (work,) = desk.take(one)
    said = answer(BEARISH, 0.6)
    desk.answer(work, said)
    (signal,) = desk.signals
    assert signal.event_id == "0001:d:1"
    assert signal.signal_id == signal_id("0001:d:1", 1, "r1", "filing-1")
    assert signal.probabilities == said.probabilities
    assert signal.instruments == ["SEVN"]
    assert list(signal.stamps) == [stage for stage in Stage if stage in signal.stamps]
    assert signal.stamps[Stage.COMPLETED] == T0 + SECOND + 2
    assert desk.held == (0, 0)


async def test_evidence_is_quoted_from_the_text() -> None:
    """An event's spans are where the chunk says it, character for character, and of bounded length."""
    desk = Desk()
    text = SENTENCES * 40
    one = part(chunks=4, text=text)
    for number, work in enumerate(desk.take(one)):
        label = "dividend" if number == 2 else "earnings"
        desk.answer(work, answer(event_type={label: 0.6 + number / 10, "x": 0.1}))
    (signal,) = desk.signals
    assert signal.filing is not None
    mentions = {m.event_type: m for m in signal.filing.event_types}
    assert [m.event_type for m in signal.filing.event_types] == ["earnings", "dividend"]
    (dividend,) = mentions["dividend"].evidence
    assert dividend.quote.startswith("The board declared a dividend.")
    assert one.spans[2].start <= dividend.start < dividend.end <= one.spans[2].end
    for mention in signal.filing.event_types:
        for span in mention.evidence:
            assert text[span.start : span.end] == span.quote
            assert 0 < len(span.quote) <= EVIDENCE_CHARS


async def test_a_partial_signal_ends_nothing_and_has_an_id_of_its_own() -> None:
    """What is read when the deadline is near is told; offsets, counts and stamps are those of the whole one alone."""
    desk = Desk()
    one = part(chunks=4)
    works = desk.take(one)
    desk.answer(works[0])
    filing = one.filing
    assert filing is not None
    desk.desk._publish_all(desk.desk.filings.due(filing.deadline_ns - SECOND // 2))
    (partial,) = desk.signals
    assert partial.signal_id == signal_id("0001:d:1", 1, "r1", "filing-1/partial")
    assert partial.prompt_version == "filing-1"
    assert partial.filing is not None
    assert (partial.filing.partial, partial.filing.coverage, partial.filing.chunks) == (True, 0.25, 1)
    assert desk.finished == []
    assert desk.paper.records[0][-1].entry is None
    for work in works[1:]:
        desk.answer(work)
    whole = desk.signals[1]
    assert whole.signal_id == signal_id("0001:d:1", 1, "r1", "filing-1")
    assert whole.filing is not None
    assert (whole.filing.partial, whole.filing.coverage) == (False, 1.0)
    assert desk.finished == [one.whole.origin.offset]
    assert desk.stats.classes[2].signals == 1
    assert desk.held == (0, 0)


async def test_a_chunk_without_an_answer_is_left_out() -> None:
    """The filing is read without it, and says how much of it was read; a part without any answer is missing."""
    desk = Desk()
    first, second = part(1, 2, chunks=2), part(2, 2, chunks=2)
    works = desk.take(first) + desk.take(second)
    desk.answer(works[0])
    desk.fail(works[1], "bad_answer")
    desk.expire(works[2])
    desk.fail(works[3])
    (signal,) = desk.signals
    assert signal.filing is not None
    assert (signal.filing.coverage, signal.filing.missing_parts, signal.filing.partial) == (0.25, [2], False)
    assert len(desk.finished) == 2
    assert (desk.expired, desk.dead) == ([], [])
    assert desk.held == (0, 0)


async def test_a_filing_without_any_answer_becomes_dead_letters() -> None:
    """Each part is a dead letter of its own, with its own bytes, reason and attempts."""
    desk = Desk()
    parts = [part(1, 2), part(2, 2)]
    for number, work in enumerate([desk.take(one)[0] for one in parts]):
        work.runs, work.dispatched_ns = 2 + number, T0 + 1
        desk.fail(work, "engine_error" if number else "bad_answer")
    assert desk.signals == []
    assert [h[HEADER_ERROR_KIND] for h in desk.dead] == [b"bad_answer", b"engine_error"]
    assert [h[HEADER_ERROR_ATTEMPTS] for h in desk.dead] == [b"2", b"3"]
    assert [h[HEADER_ERROR_STAGE] for h in desk.dead] == [b"dispatched"] * 2
    assert [int(h[HEADER_SOURCE_OFFSET] or 0) for h in desk.dead] == [one.whole.origin.offset for one in parts]
    assert desk.held == (0, 0)


async def test_expired_chunks_expire_each_part() -> None:
    """A toxic filing becomes one expired record per part, under the part's own event id."""
    desk = Desk()
    parts = [part(1, 2, class_index=0, chunks=2), part(2, 2, class_index=0)]
    for work in [work for one in parts for work in desk.take(one)]:
        desk.expire(work)
    assert [(e.event_id, e.reason) for e in desk.expired] == [("0001:d:1", "too old"), ("0001:d:2", "too old")]
    assert sorted(desk.finished) == sorted(one.whole.origin.offset for one in parts)
    assert desk.held == (0, 0)


async def test_a_filing_that_ends_past_its_toxic_age_gives_no_signal() -> None:
    """Its answers came, and too late: every part expires."""
    desk = Desk()
    (work,) = desk.take(part(class_index=0))  # of an event years ago
    desk.answer(work)
    assert (desk.signals, len(desk.expired)) == ([], 1)
    assert desk.held == (0, 0)


async def test_ids_of_incomplete_filings_say_which_parts_they_are_of() -> None:
    """A filing without a part, its straggler, and the whole filing have three ids; the same parts have the same id."""
    ids = []
    for numbers in ([1, 2], [3], [1, 2, 3], [2, 1]):
        desk = Desk(filings={"max_open": 1})
        for number in numbers:
            (work,) = desk.take(part(number, 3))
            desk.answer(work)
        desk.take(part(1, 2, accession="next"))
        ids.append(desk.signals[0].signal_id)
        filing = desk.signals[0].filing
        assert filing is not None
        assert filing.missing_parts == [n for n in (1, 2, 3) if n not in numbers]
    assert ids[2] == signal_id("0001", 1, "r1", "filing-1")
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]


async def test_a_claim_of_two_billion_parts_costs_nothing() -> None:
    """The list of missing parts is bounded, whatever an event says."""
    desk = Desk(filings={"max_open": 1})
    (work,) = desk.take(part(5, 2**31 - 1))
    desk.answer(work)
    desk.take(part(1, 2, accession="next"))
    filing = desk.signals[0].filing
    assert filing is not None
    assert (filing.parts, len(filing.missing_parts)) == (2**31 - 1, MOST_MISSING)


async def test_the_same_parts_give_the_same_signal_in_any_order() -> None:
    """After a kill all parts are read again: id, probabilities, events and figures do not change with the order."""
    found = []
    for order in ([1, 2, 3], [3, 1, 2]):
        desk = Desk()
        works = {n: desk.take(part(n, 3))[0] for n in order}
        for n in reversed(order):
            desk.answer(works[n], answer(BULLISH, 0.5 + n / 10, event_type={f"type{n}": 0.9, "x": 0.1}))
        (signal,) = desk.signals
        filing = signal.filing
        assert filing is not None
        found.append((signal.signal_id, signal.probabilities, signal.heads, filing.event_types, filing.coverage))
    assert found[0] == found[1]


async def test_filings_that_wait_for_parts_make_way_when_nothing_else_can() -> None:
    """A room full of waiting filings takes no part in any more: the oldest are closed until something fits again."""
    desk = Desk(max_queued_mb=0.1)
    waiting = [part(1, 2, accession=str(n), text=SENTENCES * 100) for n in range(20)]
    works = []
    for one in waiting:
        works += desk.take(one)
    assert not desk.room.has_room(TOPICS.filings)
    desk.desk.make_room(TOPICS.filings)
    assert desk.signals == []  # chunks still run: they will make room
    for work in works:
        desk.answer(work)
    assert not desk.room.has_room(TOPICS.filings)
    desk.desk.make_room(TOPICS.filings)
    assert desk.room.has_room(TOPICS.filings)
    closed = [signal.event_id for signal in desk.signals]
    assert closed == [str(n) for n in range(len(closed))]
    assert 0 < len(closed) < 20


async def test_a_rebalance_gives_the_room_back() -> None:
    """Filings whose partition goes elsewhere hold nothing here and publish nothing any more."""
    desk = Desk()
    parts = [part(1, 2, chunks=3), part(1, 1, accession="2", chunks=2)]
    for one in parts:
        desk.take(one)
    assert desk.held[0] == 5
    assert desk.held[1] > 2 * len(parts[0].whole.record)
    for work in desk.queued:
        desk.room.leave(work)
    desk.desk.forget([(TOPICS.filings, 0)])
    desk.desk.signal(desk.queued[0], result(), make.engine(), "filing-1")
    assert desk.held == (0, 0)
    assert desk.paper.records == []


async def test_only_waiting_filings_are_forgotten_at_first() -> None:
    """A filing whose chunks are all running may still end within the drain; one that waits for a part cannot."""
    desk = Desk()
    waiting, whole = part(1, 2), part(accession="2")
    desk.take(waiting)
    (work,) = desk.take(whole)
    desk.desk.forget([(TOPICS.filings, 0)], waiting_only=True)
    desk.answer(work)
    assert [signal.event_id for signal in desk.signals] == ["2:d:1"]


async def test_time_alone_closes_a_filing() -> None:
    """Nobody calls: the desk's own clock ends the wait for a part."""
    desk = Desk(filings={"wait_seconds": 0.05})
    (work,) = desk.take(part(1, 2))
    desk.answer(work)
    await until(lambda: bool(desk.signals), 10)
    assert desk.held == (0, 0)
    desk.desk.close()
    assert asyncio.get_running_loop().is_running()


def test_chunks_share_their_part_s_record() -> None:
    """A hundred chunks hold one copy of the text."""
    one = part(chunks=3)
    works = [chunk_work(one, n, Chunk(0, 1, b"", 1, 1), 5, 0) for n in range(3)]
    assert all(work.record is one.whole.record for work in works)
    assert {work.deadline_ns for work in works} == {5}


async def test_a_filing_whose_signal_kafka_refuses_becomes_dead_letters() -> None:
    """The signal is too large for its topic: every part is a dead letter of its own, and no offset ends without one."""
    desk = Desk()
    parts = [part(1, 2), part(2, 2)]
    for one in parts:
        (work,) = desk.take(one)
        desk.answer(work)
    ((topic, key, value, headers, receipt),) = desk.paper.records
    record = Record(key, value, list(headers.items()), receipt)
    desk.paper.records.clear()
    desk.desk.refused(topic, record, MessageSizeTooLargeError())
    assert [h[HEADER_ERROR_KIND] for h in desk.dead] == [b"record_too_large"] * 2
    assert sorted(desk.finished) == sorted(one.whole.origin.offset for one in parts)
    for _, _, _, _, receipt in desk.paper.records:
        desk.desk.confirmed(receipt)
    assert desk.desk.unconfirmed([(TOPICS.filings, 0)]) == 0
