"""What is published for each way an event ends, read back from a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import ConsumerRecord
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from msgspec import structs

from scheduler.outcomes import MAX_MESSAGE_CHARS, Outcomes, Receipt
from scheduler.producer import message_limits
from scheduler.publisher import Publisher
from scheduler.stats import Stats
from scheduler.work import Origin, Original
from schemas.codec import decode_json, decode_news, encode_json
from schemas.enums import Direction, NewsStatus, Outcome, SignalKind, Stage
from schemas.errors import ErrorKind
from schemas.frames import Answer, Result
from schemas.identity import signal_id
from schemas.records import Expired, NewsEvent, Signal
from schemas.settings import KafkaSettings
from schemas.topics import (
    HEADER_ERROR_ATTEMPTS,
    HEADER_ERROR_FIELD,
    HEADER_ERROR_KIND,
    HEADER_ERROR_MESSAGE,
    HEADER_ERROR_STAGE,
    HEADER_EVENT_ID,
    HEADER_REPLAY_RUN,
    HEADER_SCHEMA_VERSION,
    HEADER_SOURCE_OFFSET,
    HEADER_SOURCE_PARTITION,
    HEADER_SOURCE_TOPIC,
    HEADER_TRACE_PARENT,
    HEADER_TRUNCATED_FROM,
)
from tests.conftest import Broker
from tests.scheduler import make
from tests.scheduler.records import admin, read
from tests.scheduler.waiting import eventually

pytestmark = pytest.mark.integration

ORIGIN = Origin("test.news", 3, 77, 1)
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class _Desk:
    """Outcomes with a publisher that runs, and the receipts that came back."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        self.stats = Stats(make.CLASSES)
        self.receipts: list[Any] = []
        self.publisher = Publisher(kafka, "test", self.receipts.extend)
        self.outcomes = Outcomes(self.publisher, kafka.topics, self.stats)

    async def published(self, topic: str) -> list[ConsumerRecord]:
        """Return what a topic holds once everything is confirmed."""
        assert await self.publisher.flush(20)
        return await read(self.kafka, topic)


@asynccontextmanager
async def _desk(kafka: KafkaSettings) -> AsyncIterator[_Desk]:
    desk = _Desk(kafka)
    await desk.publisher.start()
    try:
        yield desk
    finally:
        await desk.publisher.stop()


def _result(**probabilities: float) -> Result:
    spread = {Direction(name): p for name, p in probabilities.items()}
    return Result(
        request_id=1,
        answer=Answer(direction=max(spread, key=lambda d: spread[d]), probabilities=spread),
        engine_started_ns=make.EVENT_TIME_NS + 10,
        first_token_ns=make.EVENT_TIME_NS + 20,
        completed_ns=make.EVENT_TIME_NS + 30,
        prompt_tokens=1,
        output_tokens=1,
    )


async def test_a_signal_says_all_about_its_event(kafka_settings: KafkaSettings) -> None:
    """Identity, source, answer, score and stamps are in the record; it is keyed by the primary instrument."""
    async with _desk(kafka_settings) as desk:
        work = make.work(
            origin=ORIGIN,
            original=Original(
                b"story",
                make.RECORD,
                ((HEADER_TRACE_PARENT, TRACE), (HEADER_REPLAY_RUN, b"run-1"), ("private", b"x"), ("null", None)),
            ),
        )
        desk.outcomes.signal(work, _result(bullish=0.7, bearish=0.2, neutral=0.1), make.engine(), "p1")
        (record,) = await desk.published(kafka_settings.topics.signals)
    signal = decode_json(record.value, Signal)
    assert record.key == b"ACME"
    assert dict(record.headers) == {
        HEADER_EVENT_ID: b"wire:story:1",
        HEADER_SCHEMA_VERSION: b"1",
        HEADER_TRACE_PARENT: TRACE,
        HEADER_REPLAY_RUN: b"run-1",
    }
    assert signal.signal_id == signal_id("wire:story:1", 1, "r1", "p1")
    assert (signal.topic, signal.partition, signal.offset) == ORIGIN[:3]
    assert signal.direction is Direction.BULLISH
    assert signal.score == pytest.approx(0.5)
    assert (signal.model, signal.model_revision, signal.prompt_version) == ("sim", "r1", "p1")
    assert signal.late  # its event is of another year than this test
    assert signal.instruments == ["ACME"]
    assert Stage.EMITTED in signal.stamps
    (receipt,) = desk.receipts
    assert receipt.origin == ORIGIN
    assert receipt.entry.stamps == signal.stamps
    assert (receipt.entry.outcome, receipt.entry.slo_ns) == (Outcome.SIGNAL, 150 * make.MILLISECOND)


async def test_an_answer_without_all_directions_has_a_score_too(kafka_settings: KafkaSettings) -> None:
    """A JSON answer names one direction; the others count as nothing."""
    async with _desk(kafka_settings) as desk:
        desk.outcomes.signal(make.work(), _result(bearish=0.75), make.engine(), "p1")
        (record,) = await desk.published(kafka_settings.topics.signals)
    assert decode_json(record.value, Signal).score == pytest.approx(-0.75)


async def test_a_signal_carries_every_head(kafka_settings: KafkaSettings) -> None:
    """Further heads, the model's own distributions and the calibration's id go into the record as the worker says."""
    result = _result(bullish=0.7, bearish=0.2, neutral=0.1)
    raw = {"direction": {"bullish": 0.5, "bearish": 0.4, "neutral": 0.1}, "relevance": {"high": 0.9, "low": 0.1}}
    answer = structs.replace(
        result.answer, heads={"relevance": {"high": 0.8, "low": 0.2}}, raw=raw, calibration_id="cal-1"
    )
    async with _desk(kafka_settings) as desk:
        desk.outcomes.signal(make.work(), structs.replace(result, answer=answer), make.engine(), "p1")
        (record,) = await desk.published(kafka_settings.topics.signals)
    signal = decode_json(record.value, Signal)
    assert (signal.heads, signal.raw, signal.calibration_id) == (answer.heads, raw, "cal-1")


async def test_a_huge_passed_through_header_does_not_follow(kafka_settings: KafkaSettings) -> None:
    """A trace header of a megabyte would make the result too large for its topic and stop everything: it stays back."""
    headers = ((HEADER_TRACE_PARENT, b"x" * 1_040_000),)
    async with _desk(kafka_settings) as desk:
        work = make.work(original=Original(b"story", make.RECORD, headers))
        desk.outcomes.signal(work, _result(bullish=1.0), make.engine(), "p1")
        desk.outcomes.expired(work, make.EVENT_TIME_NS, "too old")
        (signal,) = await desk.published(kafka_settings.topics.signals)
        (expired,) = await desk.published(kafka_settings.topics.expired)
    assert HEADER_TRACE_PARENT not in dict(signal.headers)
    assert HEADER_TRACE_PARENT not in dict(expired.headers)


async def test_an_expired_record_says_how_far_it_came(kafka_settings: KafkaSettings) -> None:
    """Stage, age and reason are in the record, which is keyed by its event."""
    async with _desk(kafka_settings) as desk:
        work = make.work(origin=ORIGIN)
        desk.outcomes.expired(work, work.event_time_ns + 250, "too old")
        (record,) = await desk.published(kafka_settings.topics.expired)
    expired = decode_json(record.value, Expired)
    assert record.key == b"wire:story:1"
    assert (expired.stage, expired.age_ns, expired.reason) == (Stage.QUEUED, 250, "too old")
    assert desk.receipts[0].entry.outcome == Outcome.EXPIRED
    assert desk.stats.classes[0].expired == 1


async def test_a_retraction_names_what_it_takes_back(kafka_settings: KafkaSettings) -> None:
    """It needs no model, has an id of its own, and is late by the event time that Kafka bounds."""
    event = NewsEvent(
        event_id="wire:s:2",
        source="wire",
        headline="",
        received_at_ns=make.EVENT_TIME_NS,
        version=2,
        status=NewsStatus.KILLED,
        supersedes="wire:s:1",
        instruments=["ACME"],
    )
    async with _desk(kafka_settings) as desk:
        desk.outcomes.retraction(event, ORIGIN, Original(None, b"{}", ()), {Stage.RECEIVED: make.EVENT_TIME_NS})
        (record,) = await desk.published(kafka_settings.topics.signals)
    signal = decode_json(record.value, Signal)
    assert record.key == b"ACME"
    assert (signal.kind, signal.retracts, signal.probabilities) == (SignalKind.RETRACTION, ["wire:s:1"], {})
    assert list(signal.stamps) == [Stage.RECEIVED, Stage.EMITTED]
    assert desk.stats.retractions == 1


async def test_a_dead_record_keeps_its_bytes_and_says_why(kafka_settings: KafkaSettings) -> None:
    """Key, value and foreign headers are untouched, null headers included; ours say kind, field, reason and place."""
    original = Original(b"\xff key", b"\x00 not json \xff", (("x", b"1"), ("null", None), (HEADER_EVENT_ID, b"id")))
    async with _desk(kafka_settings) as desk:
        desk.outcomes.dead_record(ORIGIN, original, ErrorKind.NOT_JSON, "some.field", "no JSON at all")
        (record,) = await desk.published(kafka_settings.topics.dead_letters)
    headers = dict(record.headers)
    assert (record.key, record.value) == (original.key, original.value)
    assert headers["x"] == b"1"
    assert not headers["null"]  # a broker may give a null header back as an empty one
    assert headers[HEADER_EVENT_ID] == b"id"
    assert headers[HEADER_ERROR_KIND] == b"not_json"
    assert headers[HEADER_ERROR_FIELD] == b"some.field"
    assert headers[HEADER_ERROR_MESSAGE] == b"no JSON at all"
    assert headers[HEADER_ERROR_STAGE] == b"consumed"
    assert headers[HEADER_ERROR_ATTEMPTS] == b"0"
    assert headers[HEADER_SOURCE_TOPIC] == b"test.news"
    assert (headers[HEADER_SOURCE_PARTITION], headers[HEADER_SOURCE_OFFSET]) == (b"3", b"77")
    assert HEADER_TRUNCATED_FROM not in headers
    assert desk.receipts == [Receipt(ORIGIN, None)]
    assert desk.stats.undecodable == 1


async def test_dead_work_has_its_stage_and_attempts(kafka_settings: KafkaSettings) -> None:
    """What was queued and run before it died says so, and has stamps."""
    async with _desk(kafka_settings) as desk:
        work = make.work()
        work.runs, work.dispatched_ns = 2, work.queued_ns + 1
        desk.outcomes.dead_work(work, ErrorKind.QUARANTINED, "killed two workers\n" + "é" * 1000)
        (record,) = await desk.published(kafka_settings.topics.dead_letters)
    headers = dict(record.headers)
    assert record.value == make.RECORD
    assert headers[HEADER_ERROR_KIND] == b"quarantined"
    assert (headers[HEADER_ERROR_STAGE], headers[HEADER_ERROR_ATTEMPTS]) == (b"dispatched", b"2")
    assert len(headers[HEADER_ERROR_MESSAGE].decode()) == MAX_MESSAGE_CHARS
    assert desk.receipts[0].entry.outcome == Outcome.DEAD_LETTER
    assert desk.stats.classes[0].dead_letters == 1


async def test_error_headers_of_an_earlier_life_are_replaced(kafka_settings: KafkaSettings) -> None:
    """A dead letter that was sent in again and died again tells of its last death, once."""
    old = ((HEADER_ERROR_KIND, b"old"), (HEADER_SOURCE_OFFSET, b"1"), (HEADER_TRUNCATED_FROM, b"9"))
    async with _desk(kafka_settings) as desk:
        desk.outcomes.dead_record(ORIGIN, Original(None, b"?", old), ErrorKind.NOT_JSON, "", "m")
        (record,) = await desk.published(kafka_settings.topics.dead_letters)
    names = [name for name, _ in record.headers]
    assert len(names) == len(set(names))
    assert dict(record.headers)[HEADER_ERROR_KIND] == b"not_json"
    assert HEADER_TRUNCATED_FROM not in names


async def test_a_dead_letter_too_large_for_its_topic_is_cut_and_says_so(kafka_settings: KafkaSettings) -> None:
    """As much of the value as fits is kept, with its original length; key and headers stay."""
    async with _desk(kafka_settings) as desk:
        limit = desk.publisher.max_dead_letter_bytes
        value = bytes(range(256)) * (limit // 256 + 10)
        original = Original(b"k" * 100, value, (("x", b"y" * 1000),))
        desk.outcomes.dead_record(ORIGIN, original, ErrorKind.RECORD_TOO_LARGE, "", "too large")
        (record,) = await desk.published(kafka_settings.topics.dead_letters)
    assert record.key == original.key
    assert dict(record.headers)["x"] == b"y" * 1000
    assert int(dict(record.headers)[HEADER_TRUNCATED_FROM]) == len(value)
    assert value.startswith(record.value)
    assert limit - 10_000 < len(record.value) < limit


@pytest.mark.parametrize(
    ("key", "headers"),
    [
        pytest.param(b"k", (("big", b"h" * 3_000_000), ("small", b"s")), id="header"),
        pytest.param(b"k" * 3_000_000, (("small", b"s"),), id="key"),
        pytest.param(b"k", tuple((f"h{n}", b"h" * 300_000) for n in range(10)), id="many headers"),
    ],
)
async def test_what_cannot_fit_beside_the_value_does_not_stop_everything(
    kafka_settings: KafkaSettings, key: bytes, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    """A record can arrive compressed with a key or headers past any limit; its dead letter must still be published."""
    async with _desk(kafka_settings) as desk:
        desk.outcomes.dead_record(ORIGIN, Original(key, b"value", headers), ErrorKind.NOT_JSON, "", "m")
        (record,) = await desk.published(kafka_settings.topics.dead_letters)
    found = dict(record.headers)
    assert found[HEADER_ERROR_KIND] == b"not_json"
    assert found[HEADER_SOURCE_OFFSET] == b"77"
    assert HEADER_TRUNCATED_FROM in found
    size = len(record.key or b"") + len(record.value) + sum(len(n) + len(v or b"") for n, v in record.headers)
    assert size < desk.publisher.max_dead_letter_bytes
    if ("small", b"s") in headers:
        assert found["small"] == b"s"


async def _limit(kafka: KafkaSettings, topic: str, most: int) -> None:
    """Let a topic take no record larger than this."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": str(most)})
    async with admin(kafka) as client:
        await client.alter_configs([resource])

    async def known() -> bool:
        return (await message_limits(kafka, (topic,)))[topic] == most

    await eventually(known)


async def test_an_outcome_that_kafka_will_not_take_becomes_a_dead_letter(
    kafka: Broker, kafka_settings: KafkaSettings
) -> None:
    """A signal over its topic's limit: the event ends as a dead letter with its own bytes, and only as that."""
    if kafka.embedded:
        pytest.skip("the embedded broker takes records of any size; needs a real Kafka")
    async with _desk(kafka_settings) as desk:
        desk.publisher._on_refused = desk.outcomes.refused
        await _limit(kafka_settings, kafka_settings.topics.signals, 2_000)
        event = decode_news(make.RECORD)
        long = make.work(original=Original(b"k", encode_json(structs.replace(event, instruments=["T" * 200] * 20)), ()))
        desk.outcomes.signal(long, _result(bullish=1.0), make.engine(), "p1")
        (letter,) = await desk.published(kafka_settings.topics.dead_letters)
        assert await desk.published(kafka_settings.topics.signals) == []
        headers = dict(letter.headers)
        assert letter.value == long.original().value
        assert headers[HEADER_ERROR_KIND] == ErrorKind.RECORD_TOO_LARGE.value.encode()
        assert headers[HEADER_ERROR_STAGE] == Stage.EMITTED.value.encode()
        (receipt,) = desk.receipts
        assert receipt.origin == long.origin
        desk.outcomes.confirmed(receipt)
        assert desk.outcomes.unconfirmed([long.origin[:2]]) == 0


async def test_a_dead_letter_that_kafka_will_not_take_gets_shorter(
    kafka: Broker, kafka_settings: KafkaSettings
) -> None:
    """The topic takes less than it said at the start: the letter is cut until it fits, and says how long it was."""
    if kafka.embedded:
        pytest.skip("the embedded broker takes records of any size; needs a real Kafka")
    async with _desk(kafka_settings) as desk:
        desk.publisher._on_refused = desk.outcomes.refused
        await _limit(kafka_settings, kafka_settings.topics.dead_letters, 8_000)
        desk.outcomes.dead_record(ORIGIN, Original(b"k", b"x" * 50_000, ()), ErrorKind.NOT_JSON, "", "bad")
        (letter,) = await desk.published(kafka_settings.topics.dead_letters)
        headers = dict(letter.headers)
        assert headers[HEADER_TRUNCATED_FROM] == b"50000"
        assert headers[HEADER_ERROR_KIND] == ErrorKind.NOT_JSON.value.encode()
        assert 1_000 < len(letter.value) < 8_000
        assert [r.origin for r in desk.receipts] == [ORIGIN]
