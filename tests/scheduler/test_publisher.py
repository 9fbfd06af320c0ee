"""Publishing to a real broker: partitions, order, receipts, large and refused records."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import MessageSizeTooLargeError

from ops.embedded import free_port
from ops.topics import DEAD_LETTER_BYTES
from scheduler.errors import PublishError
from scheduler.producer import MAX_BATCH_BYTES
from scheduler.publisher import OutHeaders, Publisher, Record
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings
from tests.conftest import Broker
from tests.scheduler.records import producer, read

pytestmark = pytest.mark.integration


@asynccontextmanager
async def _publisher(kafka: KafkaSettings) -> AsyncIterator[tuple[Publisher, list[object]]]:
    receipts: list[object] = []
    publisher = Publisher(kafka, "test", receipts.extend)
    await publisher.start()
    try:
        yield publisher, receipts
    finally:
        await publisher.stop()


async def test_a_record_arrives_as_it_was_given(kafka_settings: KafkaSettings) -> None:
    """Key, value and headers arrive untouched, and the receipt comes back once."""
    topic = kafka_settings.topics.signals
    headers: OutHeaders = [("a", b"1"), ("b", b"2"), ("empty", b"")]
    async with _publisher(kafka_settings) as (publisher, receipts):
        publisher.publish(topic, b"key", b"value \x00\xff", headers, "receipt")
        assert publisher.pending == 1
        assert await publisher.flush(20)
        assert receipts == ["receipt"]
        assert publisher.pending == 0
    (record,) = await read(kafka_settings, topic)
    assert (record.key, record.value, list(record.headers)) == (b"key", b"value \x00\xff", headers)


async def test_keys_go_where_any_other_client_puts_them(kafka_settings: KafkaSettings) -> None:
    """The partition of a key is that of Kafka's own partitioner, as aiokafka's producer applies it."""
    topic = kafka_settings.topics.signals
    keys = [f"ticker-{i}".encode() for i in range(200)] + [b"", b"\xff\x00", "株".encode()]
    async with _publisher(kafka_settings) as (publisher, _), producer(kafka_settings) as other:
        for key in keys:
            publisher.publish(topic, key, b"ours", [], None)
            await other.send(topic, b"theirs", key=key)
        assert await publisher.flush(20)
        await other.flush()
    partitions = defaultdict(set)
    for record in await read(kafka_settings, topic):
        partitions[record.key].add(record.partition)
    assert set(partitions) == set(keys)
    assert all(len(found) == 1 for found in partitions.values())
    assert len({p for found in partitions.values() for p in found}) == kafka_settings.partitions


async def test_records_without_a_key_spread_over_the_partitions(kafka_settings: KafkaSettings) -> None:
    """Dead letters of keyless records go round, so that none of the partitions takes them all."""
    topic = kafka_settings.topics.dead_letters
    async with _publisher(kafka_settings) as (publisher, _):
        for number in range(4 * kafka_settings.partitions):
            publisher.publish(topic, None, b"%d" % number, [], None)
        assert await publisher.flush(20)
    counts: defaultdict[int, int] = defaultdict(int)
    for record in await read(kafka_settings, topic):
        counts[record.partition] += 1
    assert dict(counts) == dict.fromkeys(range(kafka_settings.partitions), 4)


async def test_thousands_at_once_arrive_in_order_with_a_receipt_each(kafka_settings: KafkaSettings) -> None:
    """Under load records share batches; inside a partition they and their receipts keep the order of publishing."""
    topic = kafka_settings.topics.signals
    count = 5000
    async with _publisher(kafka_settings) as (publisher, receipts):
        for number in range(count):
            key = b"%d" % (number % 17)
            publisher.publish(topic, key, b"%06d" % number + b"x" * 200, [("n", b"%d" % number)], (key, number))
        assert await publisher.flush(30)
    assert len(receipts) == count
    assert set(receipts) == {(b"%d" % (n % 17), n) for n in range(count)}
    confirmed, written = defaultdict(list), defaultdict(list)
    for key, number in receipts:  # type: ignore[misc]  # receipts are objects to the publisher
        confirmed[key].append(number)
    for record in await read(kafka_settings, topic):
        written[record.key].append(int(record.value[:6]))
    assert written == confirmed
    assert all(numbers == sorted(numbers) for numbers in written.values())


async def test_a_record_larger_than_a_batch_goes_alone(kafka_settings: KafkaSettings) -> None:
    """Records past the batch size are sent one by one, in order with the small ones around them."""
    topic = kafka_settings.topics.dead_letters
    sizes = [10, 3 * MAX_BATCH_BYTES, 10, MAX_BATCH_BYTES - 10, 10]
    async with _publisher(kafka_settings) as (publisher, receipts):
        for number, size in enumerate(sizes):
            publisher.publish(topic, b"k", b"x" * size, [], number)
        assert await publisher.flush(20)
        assert receipts == list(range(len(sizes)))
    assert [len(r.value) for r in await read(kafka_settings, topic)] == sizes


async def test_a_missing_topic_is_named_at_start(kafka: Broker, topic_prefix: str) -> None:
    """Without its topics a scheduler does not start: one typed error that says which topic and what to run."""
    if kafka.embedded:
        pytest.skip("the embedded broker creates a topic when it is asked about one; needs a real Kafka")
    settings = KafkaSettings(bootstrap=kafka.bootstrap, topic_prefix=topic_prefix, connect_seconds=3)
    publisher = Publisher(settings, "test", lambda _: None)
    with pytest.raises(UnavailableError) as caught:
        await publisher.start()
    assert caught.value.setting == "kafka.topic_prefix"
    assert settings.topics.signals in str(caught.value)


async def test_an_unreachable_broker_is_named_at_start() -> None:
    """Nobody listens: one typed error that names the address and the setting, in bounded time."""
    settings = KafkaSettings(bootstrap=f"127.0.0.1:{free_port()}", connect_seconds=1)
    publisher = Publisher(settings, "test", lambda _: None)
    with pytest.raises(UnavailableError) as caught:
        await publisher.start()
    assert caught.value.setting == "kafka.bootstrap"
    assert settings.bootstrap in str(caught.value)
    await publisher.stop()


async def test_what_cannot_be_published_is_heard_of(kafka_settings: KafkaSettings) -> None:
    """A record that the client cannot even encode fails the publisher instead of waiting in silence."""
    async with _publisher(kafka_settings) as (publisher, receipts):
        publisher.publish(kafka_settings.topics.signals, b"k", b"v", [("h", 5)], "lost")  # type: ignore[list-item]  # on purpose
        assert publisher.failure is not None
        with pytest.raises(PublishError, match=r"signals"):
            async with asyncio.timeout(20):
                await publisher.failure
        assert receipts == []
        assert publisher.pending == 1


async def test_a_record_that_the_broker_refuses_stops_nothing_else(
    kafka: Broker, kafka_settings: KafkaSettings
) -> None:
    """One record too large in the middle of many: it comes back alone, the others arrive once and in their order."""
    if kafka.embedded:
        pytest.skip("the embedded broker takes records of any size; needs a real Kafka")
    topic = kafka_settings.topics.signals
    receipts: list[Any] = []
    refused: list[tuple[str, Record, Exception]] = []
    publisher = Publisher(kafka_settings, "test", receipts.extend, lambda *told: refused.append(told))
    await publisher.start()
    try:
        for number in range(300):
            size = 1_200_000 if number == 150 else 100
            publisher.publish(topic, b"k", b"%03d" % number + b"x" * size, [], number)
        assert await publisher.flush(30)
        assert publisher.pending == publisher.pending_bytes == 0
    finally:
        await publisher.stop()
    others = [n for n in range(300) if n != 150]
    assert receipts == others
    assert [int(r.value[:3]) for r in await read(kafka_settings, topic)] == others
    ((where, record, error),) = refused
    assert (where, record.receipt) == (topic, 150)
    assert isinstance(error, MessageSizeTooLargeError)
    assert publisher.republished == 0


async def test_without_anyone_to_take_it_a_refused_record_is_a_failure(
    kafka: Broker, kafka_settings: KafkaSettings
) -> None:
    """A refusal that nobody takes is a typed failure, nothing is confirmed for it, and a flush does not hang on it."""
    if kafka.embedded:
        pytest.skip("the embedded broker takes records of any size; needs a real Kafka")
    async with _publisher(kafka_settings) as (publisher, receipts):
        publisher.publish(kafka_settings.topics.signals, b"k", b"x" * 1_200_000, [], "too large")
        assert publisher.failure is not None
        with pytest.raises(PublishError, match="MessageSizeTooLarge"):
            async with asyncio.timeout(20):
                await publisher.failure
        assert not await publisher.flush(20)
        assert receipts == []


async def test_the_dead_letter_limit_is_the_topics_own(kafka_settings: KafkaSettings) -> None:
    """How large a dead letter may be is read from the topic's configuration."""
    async with _publisher(kafka_settings) as (publisher, _):
        assert publisher.max_dead_letter_bytes == DEAD_LETTER_BYTES
