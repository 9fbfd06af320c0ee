"""Input with holes in its offsets (parallel-consumer#329, #409): transactions, aborted ones too, and compaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from schemas.settings import KafkaSettings
from tests.conftest import Broker
from tests.scheduler.intakes import Taker, committed_map, numbers, running_intake
from tests.scheduler.records import admin, committed, ends, producer, read
from tests.scheduler.waiting import until

pytestmark = pytest.mark.integration

FORGETFUL = "the embedded broker lists aborted transactions that end before the fetch; needs a real Kafka"
COMPACTION = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "50",
    "max.compaction.lag.ms": "100",
}


async def _transactions(kafka: KafkaSettings, plan: list[tuple[list[int], bool]], partition: int = 0) -> None:
    """Write each list of numbers in a transaction that is committed or aborted."""
    async with producer(kafka, transactional_id=f"{kafka.topic_prefix}-feed") as client:
        for values, commits in plan:
            await client.begin_transaction()
            for value in values:
                await client.send(kafka.topics.news, b"%d" % value, partition=partition)
            await client.flush()
            await (client.commit_transaction() if commits else client.abort_transaction())


async def test_a_transactional_feed_is_read_without_what_it_took_back(
    kafka: Broker, kafka_settings: KafkaSettings
) -> None:
    """Markers and aborted records are holes: commits pass them, every committed record comes once, no aborted one."""
    if kafka.embedded:
        pytest.skip(FORGETFUL)
    plan = [(list(range(n, n + 3)), n % 2 == 0) for n in range(0, 60, 3)]
    await _transactions(kafka_settings, plan)
    visible = [n for values, commits in plan if commits for n in values]
    topic = kafka_settings.topics.news
    async with running_intake(kafka_settings) as (_, taker):
        await until(lambda: len(taker.values) >= len(visible))
        await _transactions(kafka_settings, [([100, 101], True), ([200], False), ([102], True)])
        await until(lambda: 102 in numbers(taker))
        assert numbers(taker) == [*visible, 100, 101, 102]
    point = (await committed(kafka_settings, topic))[0]
    assert (await ends(kafka_settings, topic))[0] - point <= 1  # the marker of the last transaction
    async with running_intake(kafka_settings) as (_, taker):
        await _transactions(kafka_settings, [([300], True)])
        await until(lambda: 300 in numbers(taker))
        assert numbers(taker) == [300]


async def test_a_map_reaches_over_the_markers(kafka: Broker, kafka_settings: KafkaSettings) -> None:
    """Finished records on both sides of a marker are one run, and a restart redoes the stuck one alone."""
    if kafka.embedded:
        pytest.skip(FORGETFUL)
    await _transactions(kafka_settings, [([n, n + 1], n != 4) for n in range(0, 20, 2)])
    visible = [n for n in range(20) if n not in (4, 5)]

    def finish_all_but_the_second(taker: Taker) -> None:
        for origin in taker.unfinished:
            if origin.offset != 1:
                taker.ledger.finish(origin)

    async with running_intake(kafka_settings, finish=False) as (_, taker):
        await until(lambda: len(taker.unfinished) >= len(visible))
        finish_all_but_the_second(taker)
    ((start, end),) = await committed_map(kafka_settings, 0)
    assert start == 3
    assert end == (await ends(kafka_settings, kafka_settings.topics.news))[0] - 1
    async with running_intake(kafka_settings) as (_, taker):
        await _transactions(kafka_settings, [([300], True)])
        await until(lambda: 300 in numbers(taker))
        assert numbers(taker) == [1, 300]


async def _compacted(kafka: KafkaSettings, publish: Callable[[Any], Any]) -> list[int]:
    """Return the offsets that are left once the cleaner has been there; it leaves the newest segment alone."""
    async with admin(kafka) as client:
        await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, kafka.topics.news, configs=COMPACTION)])
    async with producer(kafka) as client:
        await publish(client)
        for _ in range(600):
            await client.send_and_wait(kafka.topics.news, b"0", key=b"filler", partition=0)
            left = [record.offset for record in await read(kafka, kafka.topics.news, skip=(1, 2, 3))]
            if len(left) < left[-1] - 10:
                return left
    raise AssertionError("the cleaner has not come")


async def test_a_compacted_topic_is_read_past_what_is_gone(own_settings: KafkaSettings) -> None:
    """Compaction takes records out of the middle: commits pass the holes and every record that is left comes once."""

    async def publish(client: Any) -> None:
        for number in range(40):
            await client.send(own_settings.topics.news, b"%d" % number, key=b"%d" % (number % 7), partition=0)
        await client.flush()

    left = await _compacted(own_settings, publish)
    topic = own_settings.topics.news
    async with running_intake(own_settings, finish=False) as (intake, taker):
        await until(lambda: len(taker.unfinished) > 0 and taker.unfinished[-1].offset >= left[-1])
        seen = [origin.offset for origin in taker.unfinished]
        assert len(seen) == len(set(seen)) < seen[-1]
        first, *others = taker.unfinished
        for origin in others:
            taker.ledger.finish(origin)
        await intake.commit()
        assert (await committed(own_settings, topic))[0] == first.offset
        ((start, end),) = await committed_map(own_settings, 0)
        assert (start, end) == (others[0].offset, seen[-1] + 1)
        taker.ledger.finish(first)
        await intake.commit()
        assert (await committed(own_settings, topic))[0] == seen[-1] + 1


async def test_an_open_transaction_is_waited_for(kafka: Broker, kafka_settings: KafkaSettings) -> None:
    """What an open transaction wrote, and what came after it, is not read before the transaction ends."""
    if kafka.embedded:
        pytest.skip("the embedded broker has no last stable offset; needs a real Kafka")
    topic, partition = kafka_settings.topics.news, TopicPartition(kafka_settings.topics.news, 0)
    async with running_intake(kafka_settings) as (intake, taker):
        await until(lambda: bool(taker.ledger.partitions(topic)))
        async with producer(kafka_settings, transactional_id=f"{topic}-slow") as slow:
            await slow.begin_transaction()
            await slow.send(topic, b"1", partition=0)
            await slow.flush()
            async with producer(kafka_settings) as client:
                await client.send_and_wait(topic, b"2", partition=0)
                await client.send_and_wait(topic, b"3", partition=1)
            await until(lambda: 3 in numbers(taker))
            await until(lambda: (intake._client.highwater(partition) or 0) >= 2)
            assert numbers(taker) == [3]
            await slow.commit_transaction()
        await until(lambda: len(taker.values) >= 3)
        assert numbers(taker) == [1, 2, 3]
