"""The demo's books: what counts as ended, as a duplicate and as missing."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from ops.accounts import Accounts
from schemas.codec import decode_json, encode_json
from schemas.enums import Direction, Outcome, Stage
from schemas.records import Expired, FilingReading, Signal, SourceRecord
from schemas.settings import ClassSettings
from schemas.topics import HEADER_SOURCE_OFFSET, HEADER_SOURCE_PARTITION, HEADER_SOURCE_TOPIC, Topics

TOPICS = Topics(prefix="t")
MS = 1_000_000


@dataclass
class Record:
    """What a consumer hands over, as far as the books look at it."""

    topic: str
    value: bytes
    headers: list[tuple[str, bytes]] = field(default_factory=list)


@dataclass(frozen=True)
class Partition:
    """A partition, as aiokafka names it."""

    topic: str
    partition: int


def signal(offset: int, total_ms: int) -> Record:
    """Return a signal about one record of the news topic."""
    record = Signal(
        signal_id=f"id-{offset}",
        event_id=f"e-{offset}",
        event_version=1,
        topic=TOPICS.news,
        partition=0,
        offset=offset,
        service_class="flash",
        direction=Direction.NEUTRAL,
        probabilities={},
        score=0.0,
        model="m",
        model_revision="r",
        prompt_version="p",
        deadline_ns=0,
        late=False,
        stamps={Stage.RECEIVED: MS, Stage.EMITTED: MS + total_ms * MS},
    )
    return Record(TOPICS.signals, encode_json(record))


def expired(offset: int) -> Record:
    """Return an expired record about one record of the news topic."""
    record = Expired(
        event_id=f"e-{offset}",
        event_version=1,
        topic=TOPICS.news,
        partition=0,
        offset=offset,
        service_class="flash",
        stage=Stage.QUEUED,
        age_ns=0,
        deadline_ns=0,
        reason="old",
        stamps={},
    )
    return Record(TOPICS.expired, encode_json(record))


def dead_letter(offset: int) -> Record:
    """Return a dead letter of one record of the news topic."""
    headers = [
        (HEADER_SOURCE_TOPIC, TOPICS.news.encode()),
        (HEADER_SOURCE_PARTITION, b"0"),
        (HEADER_SOURCE_OFFSET, b"%d" % offset),
    ]
    return Record(TOPICS.dead_letters, b"\xff", headers)


def books(*records: Record) -> Accounts:
    """Return books with these records entered."""
    accounts = Accounts(TOPICS, [ClassSettings(name="flash", slo_ms=100)])
    for record in records:
        accounts.add(record)
    return accounts


def test_each_outcome_ends_its_record() -> None:
    """Signal, expired and dead letter each end one input record; the one without any is missing."""
    accounts = books(signal(0, 10), expired(1), dead_letter(2))
    assert accounts.missing({Partition(TOPICS.news, 0): 4}) == [(TOPICS.news, 0, 3)]
    assert accounts.outcomes == {Outcome.SIGNAL: 1, Outcome.EXPIRED: 1, Outcome.DEAD_LETTER: 1}


def test_a_second_outcome_is_a_duplicate() -> None:
    """A redelivered record counts as a duplicate, whatever its second outcome, and moves no figure."""
    accounts = books(signal(0, 10), signal(0, 900), expired(0))
    assert accounts.duplicates == 2
    assert accounts.classes["flash"].figures()["count"] == 1
    assert accounts.classes["flash"].figures()["p99_ms"] == 10.0


def test_expired_records_are_misses() -> None:
    """Attainment is the share within the SLO of all that was due, expired records included."""
    figures = books(signal(0, 10), signal(1, 100), signal(2, 101), expired(3)).classes["flash"].figures()
    assert figures == {"count": 4, "p50_ms": 100.0, "p99_ms": 101.0, "slo_ms": 100, "attained": 0.5}


def test_a_class_without_events_has_no_figures() -> None:
    """Nothing measured is nothing claimed."""
    figures = books().classes["flash"].figures()
    assert figures == {"count": 0, "p50_ms": None, "p99_ms": None, "slo_ms": 100, "attained": None}


def test_an_unreadable_result_is_counted_and_ends_nothing() -> None:
    """A result that is not what its topic holds does not balance the books by accident."""
    accounts = books(Record(TOPICS.signals, b"{}"), Record(TOPICS.dead_letters, b"no headers"))
    assert accounts.unreadable == 2
    assert accounts.ended == set()


def filing(*offsets: int, partial: bool = False) -> Record:
    """Return the signal of a filing whose parts are these records of the filings topic."""
    reading = FilingReading(
        accession="a",
        event_types=[],
        guidance=None,
        items=[],
        figures=[],
        conflicts=[],
        partial=partial,
        coverage=1.0,
        chunks=1,
        parts=len(offsets),
        missing_parts=[],
        sources=[SourceRecord(event_id=f"e-{n}", topic=TOPICS.filings, partition=0, offset=n) for n in offsets],
    )
    record = msgspec.structs.replace(decode_json(signal(offsets[0], 10).value, Signal), filing=reading)
    return Record(TOPICS.signals, encode_json(record))


def test_a_filing_s_signal_ends_all_its_parts() -> None:
    """Three parts answered by one signal: three records ended, one latency, one stamp; the next part is missing."""
    accounts = books(filing(0, 1, 2))
    assert accounts.missing({Partition(TOPICS.filings, 0): 4}) == [(TOPICS.filings, 0, 3)]
    assert accounts.outcomes == {Outcome.SIGNAL: 3}
    assert accounts.classes["flash"].figures()["count"] == 1
    assert (accounts.stamped, accounts.duplicates) == (1, 0)


def test_a_partial_signal_ends_nothing() -> None:
    """The whole one that follows is no duplicate of it."""
    accounts = books(filing(0, 1, partial=True), filing(0, 1))
    assert accounts.outcomes == {Outcome.SIGNAL: 2}
    assert (accounts.stamped, accounts.duplicates) == (1, 0)
    assert len(accounts.last_signals) == 2


def test_a_filing_that_was_read_twice_is_one_duplicate() -> None:
    """After a kill the same parts give the same signal again."""
    assert books(filing(0, 1), filing(0, 1)).duplicates == 1
