"""What publishing does when its producer or its broker fails: nothing lost, every receipt once, duplicates counted."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition

from scheduler.broker_watch import BrokerWatch
from scheduler.publisher import Publisher
from schemas.settings import KafkaSettings
from tests.conftest import Broker
from tests.own_kafka import OwnKafka
from tests.scheduler.records import read
from tests.scheduler.waiting import until

pytestmark = pytest.mark.integration

KEYS = [b"%d" % n for n in range(7)]


class _Load:
    """A publisher, what it was given and what came back."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        self.receipts: list[Any] = []
        self.publisher = Publisher(kafka, "test", self.receipts.extend)
        self.published = 0

    def publish(self, count: int) -> None:
        for number in range(self.published, self.published + count):
            key = KEYS[number % len(KEYS)]
            self.publisher.publish(self.kafka.topics.signals, key, b"%06d" % number, [], number)
        self.published += count

    async def check(self, *, most_twice: int) -> None:
        """Everything has one receipt and is on the topic in order, at most so many records twice."""
        assert sorted(self.receipts) == list(range(self.published))
        written: defaultdict[bytes, list[int]] = defaultdict(list)
        for record in await read(self.kafka, self.kafka.topics.signals):
            written[record.key].append(int(record.value))
        first = {key: list(dict.fromkeys(numbers)) for key, numbers in written.items()}
        assert first == {key: list(range(n, self.published, len(KEYS))) for n, key in enumerate(KEYS)}
        assert sum(map(len, written.values())) - self.published <= most_twice


@asynccontextmanager
async def _load(kafka: KafkaSettings) -> AsyncIterator[_Load]:
    load = _Load(kafka)
    await load.publisher.start()
    try:
        yield load
    finally:
        await load.publisher.stop()


async def test_a_producer_out_of_step_is_made_anew(kafka: Broker, kafka_settings: KafkaSettings) -> None:
    """aiokafka#1017: after OutOfOrderSequenceNumber a producer never recovers; ours goes on, nothing written twice."""
    if kafka.embedded:
        pytest.skip("the embedded broker does not check sequence numbers; needs a real Kafka")
    async with _load(kafka_settings) as load:
        load.publish(70)
        assert await load.publisher.flush(20)
        old: Any = load.publisher._producer
        for partition in range(kafka_settings.partitions):
            # What a lost answer and an expired batch do in the wild: the client's next number is not the broker's.
            tp = TopicPartition(kafka_settings.topics.signals, partition)
            old._txn_manager.increment_sequence_number(tp, 5)
        load.publish(700)
        assert await load.publisher.flush(20)
        assert load.publisher._producer is not old
        await load.check(most_twice=load.publisher.republished)


async def test_a_sender_that_died_is_noticed(kafka_settings: KafkaSettings) -> None:
    """A producer whose sender task is gone confirms nothing and says nothing; the watch replaces it in bounded time."""
    async with _load(kafka_settings) as load:
        publisher = load.publisher
        watch = BrokerWatch(publisher, dict, publish_seconds=3.5)
        watching = asyncio.create_task(watch.run())
        old: Any = publisher._producer
        old._sender._sender_task.cancel()
        load.publish(70)
        await until(lambda: publisher._producer not in (None, old))
        assert await publisher.flush(20)
        await until(lambda: not watch.away)
        watching.cancel()
        await load.check(most_twice=publisher.republished)
        assert publisher.republished <= 70


@pytest.mark.parametrize("seed", range(2))
async def test_new_producers_at_any_time_lose_nothing(kafka_settings: KafkaSettings, seed: int) -> None:
    """Made anew at random moments under load: one receipt each, order kept, and no more twice than was counted."""
    chance = random.Random(seed)
    async with _load(kafka_settings) as load:
        for _ in range(6):
            load.publish(chance.randrange(1, 2000))
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            load.publisher.renew("the test says so")
            await until(lambda: load.publisher._renewal is None)
        assert await load.publisher.flush(30)
        await load.check(most_twice=load.publisher.republished)


async def test_a_killed_broker_costs_time_and_nothing_else(own_kafka: OwnKafka, own_settings: KafkaSettings) -> None:
    """Killed under load and started again: every record is there once, since the producer outlives the outage."""
    async with _load(own_settings) as load:
        load.publish(5000)
        await until(lambda: len(load.receipts) > 100)
        await asyncio.to_thread(own_kafka.kill)
        load.publish(5000)
        async with asyncio.timeout(60):
            while await load.publisher.answers(2):
                pass  # an answer that was on its way when the broker died
        assert load.publisher.pending
        await asyncio.to_thread(own_kafka.start)
        assert await load.publisher.flush(60)
        await load.check(most_twice=0)
        assert load.publisher.republished == 0


async def test_a_publisher_stops_with_its_broker_away(own_kafka: OwnKafka, own_settings: KafkaSettings) -> None:
    """A stop with records on their way to a frozen broker takes its bound and leaves no task of the producer behind."""
    load = _Load(own_settings)
    await load.publisher.start()
    before = asyncio.all_tasks()
    await asyncio.to_thread(own_kafka.freeze)
    try:
        load.publish(100)
        await until(lambda: load.publisher.oldest_seconds > 0)
        async with asyncio.timeout(60):  # aiokafka's own stop() would wait for as long as the broker is frozen
            await load.publisher.stop()
        assert asyncio.all_tasks() <= before
        assert load.receipts == []
    finally:
        own_kafka.thaw()
