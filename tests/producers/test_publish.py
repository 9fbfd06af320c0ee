from __future__ import annotations

import asyncio
import itertools
import socket

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from ops.embedded import EmbeddedKafka
from ops.topics import ensure_topics
from producers.errors import PublishError
from producers.publish import EventPublisher
from producers.sample_data import sample_events
from schemas.codec import decode_filing, decode_news
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings
from schemas.topics import HEADER_EVENT_ID, HEADER_SCHEMA_VERSION
from tests.schemas.golden import FILING, NEWS

pytestmark = pytest.mark.integration


async def records_on(topic: str, kafka: KafkaSettings) -> list[ConsumerRecord]:
    """All records of a topic, in the order of their partitions."""
    consumer = AIOKafkaConsumer(**kafka.client_options(), enable_auto_commit=False, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, number) for number in range(kafka.partitions)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        async with asyncio.timeout(30):
            while len(records) < sum(ends.values()):
                batches = await consumer.getmany(timeout_ms=200)
                records += itertools.chain.from_iterable(batches.values())
        return records
    finally:
        await consumer.stop()


async def test_events_go_to_their_topics_with_key_and_headers(kafka_settings: KafkaSettings) -> None:
    """A news and a filing event arrive on their topics, equal, under their keys, with id, version and extra headers."""
    async with EventPublisher(kafka_settings) as publisher:
        await publisher.publish(NEWS, headers=[("traceparent", b"00-1")])
        await publisher.publish(FILING)
        topics = kafka_settings.topics
        assert await publisher.flush() == {topics.news: 1, topics.filings: 1}
        assert publisher.in_flight == 0
    (news,) = await records_on(topics.news, kafka_settings)
    (filing,) = await records_on(topics.filings, kafka_settings)
    assert (decode_news(news.value), news.key) == (NEWS, NEWS.key.encode())
    assert (decode_filing(filing.value), filing.key) == (FILING, FILING.key.encode())
    assert dict(news.headers) == {
        HEADER_EVENT_ID: NEWS.event_id.encode(),
        HEADER_SCHEMA_VERSION: b"1",
        "traceparent": b"00-1",
    }
    assert dict(filing.headers) == {HEADER_EVENT_ID: FILING.event_id.encode(), HEADER_SCHEMA_VERSION: b"1"}


async def test_leaving_the_block_confirms_everything(kafka_settings: KafkaSettings) -> None:
    """Without an explicit flush nothing that was published is lost, and order holds within a key."""
    events = sample_events()
    async with EventPublisher(kafka_settings) as publisher:
        for event in events:
            await publisher.publish(event)
    assert sum(publisher.confirmed.values()) == len(events)
    topics = kafka_settings.topics
    for topic in topics.inputs:
        sent = [event for event in events if publisher.topic_of(event) == topic]
        records = await records_on(topic, kafka_settings)
        ids = [dict(record.headers)[HEADER_EVENT_ID].decode() for record in records]
        assert sorted(ids) == sorted(event.event_id for event in sent)
        for event in sent:
            of_key = [other.event_id for other in sent if other.key == event.key]
            assert [id_ for id_ in ids if id_ in of_key] == of_key


async def test_raw_bytes_are_published_as_they_are(kafka_settings: KafkaSettings) -> None:
    """Malformed records can be fed on purpose: any bytes, with or without key and headers."""
    values = [b"", b"\xff\x00", b"{not json", b"x" * 1_000_000]
    async with EventPublisher(kafka_settings) as publisher:
        for value in values:
            await publisher.publish_raw(kafka_settings.topics.news, value)
        await publisher.publish_raw(kafka_settings.topics.news, b"keyed", key=b"k", headers=[("h", b"v")])
    records = await records_on(kafka_settings.topics.news, kafka_settings)
    assert sorted(record.value for record in records) == sorted([*values, b"keyed"])
    assert [(record.key, record.headers) for record in records if record.value == b"keyed"] == [(b"k", (("h", b"v"),))]


async def test_a_record_too_large_for_kafka_is_refused_and_the_rest_goes_on(kafka_settings: KafkaSettings) -> None:
    """A record over the request size is a typed error, and the producer's sequence stays whole."""
    topic = kafka_settings.topics.news
    async with EventPublisher(kafka_settings) as publisher:
        await publisher.publish_raw(topic, b"before")
        with pytest.raises(PublishError, match=topic):
            await publisher.publish_raw(topic, b"x" * 2_000_000)
        await publisher.publish_raw(topic, b"after")
    assert {record.value for record in await records_on(topic, kafka_settings)} == {b"before", b"after"}


async def test_an_error_in_the_block_is_not_replaced(kafka_settings: KafkaSettings) -> None:
    """The caller's own error leaves the block as it is, and the connection is closed."""
    publisher = EventPublisher(kafka_settings)

    async def failing() -> None:
        async with publisher:
            await publisher.publish(NEWS)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert publisher._producer is None


async def test_a_closed_port_is_unavailable() -> None:
    """Where nobody listens the start ends in its time, and the error names address and setting."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = KafkaSettings(bootstrap=f"127.0.0.1:{port}", connect_seconds=0.3)
    with pytest.raises(UnavailableError, match=rf"127\.0\.0\.1:{port}.*kafka\.bootstrap"):
        async with EventPublisher(settings):
            pytest.fail("started without a broker")


async def test_a_silent_port_is_unavailable() -> None:
    """Something that accepts connections and never answers does not hold up the start."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = KafkaSettings(bootstrap=f"127.0.0.1:{server.getsockname()[1]}", connect_seconds=0.3)
        with pytest.raises(UnavailableError, match=r"kafka\.bootstrap"):
            async with EventPublisher(settings):
                pytest.fail("started without a broker")


async def test_a_broker_that_goes_away_is_unavailable_and_never_hangs() -> None:
    """Records that no broker confirms any more end in a typed error, on flush and on the next publish alike."""
    with EmbeddedKafka() as broker:
        settings = KafkaSettings(bootstrap=broker.bootstrap, topic_prefix="gone", connect_seconds=30)
        await ensure_topics(settings)
        publisher = EventPublisher(settings, send_seconds=0.5)

        async def publish_past_the_end() -> None:
            async with publisher:
                await publisher.publish(NEWS)
                await publisher.flush()
                broker.stop()
                await publisher.publish(NEWS)
                with pytest.raises(UnavailableError, match="1 unconfirmed"):
                    await publisher.flush()
                await publisher.publish(NEWS)

        with pytest.raises(UnavailableError, match=r"kafka\.bootstrap"):
            await publish_past_the_end()
    assert publisher.confirmed == {settings.topics.news: 1}
