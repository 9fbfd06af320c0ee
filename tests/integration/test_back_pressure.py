"""Far more events than room: memory holds a bounded part of them, and a flood leaves the other topic its place."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.intake import MAX_RECORDS
from schemas.codec import encode_json
from schemas.frames import Request
from schemas.settings import KafkaSettings, RedisSettings
from tests.scheduler.fake_worker import Reply, answered, fake_worker
from tests.scheduler.records import producer
from tests.scheduler.running import Node, filing, news, node, publish, results

pytestmark = pytest.mark.integration

FETCHES = 5


def _keep(request: Request) -> Reply:
    return None


async def _flood(kafka: KafkaSettings, topic: str, count: int) -> None:
    """Publish so many small events, as fast as they go."""
    value = encode_json(news("flood") if topic == kafka.topics.news else filing(0, "Results rose. "))
    name = b"wire:flood:1" if topic == kafka.topics.news else b"0001-0:d:1"
    assert name in value
    async with producer(kafka, linger_ms=20, max_batch_size=256 * 1024) as client:
        for number in range(count):
            unique = value.replace(name, b"wire:%d:1" % number if b"wire" in name else b"0001-%d:d:1" % number)
            await client.send(topic, unique, partition=number % kafka.partitions)
        await client.flush()


def _unfinished(one: Node) -> int:
    return one.scheduler._ledger.unfinished(intake.topic for intake in one.scheduler._intakes)


async def test_a_topic_of_any_length_stays_in_kafka(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """With a worker that answers nothing the process holds its room and one fetch; with one that does, all end."""
    total, room = 20_000, 1_000
    await _flood(kafka_settings, kafka_settings.topics.news, total)
    most = 0

    def looked() -> bool:
        nonlocal most
        most = max(most, sum(one.scheduler._room._events.values()))
        return one.scheduler._status().state == "paused"

    async with node(kafka_settings, redis_settings, max_queued=room) as one, fake_worker(one.link, _keep) as worker:
        await one.until(looked)
        # Fetches go on while it is paused, and bring nothing: some of them are waited for.
        asked = FETCHES
        fetch = one.scheduler._intakes[0]._client.getmany

        async def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal asked
            asked -= 1
            return await fetch(*args, **kwargs)

        one.scheduler._intakes[0]._client.getmany = counted
        await one.until(lambda: looked() and asked <= 0)
        assert room <= most < room + MAX_RECORDS
        assert _unfinished(one) == most  # nothing is received beside what the room counts
        worker.reply = answered
        await worker.settle(list(worker.held.values()))
        await one.until(lambda: looked() is not None and one.ended >= total)
        await one.until_ended(total)
        assert most < room + MAX_RECORDS
        await one.until(lambda: _unfinished(one) == 0)
        await one.end()
    found = await results(kafka_settings)
    assert len(found.signals) == total
    assert set(found.outcomes.values()) == {1}


async def test_a_flood_of_filings_does_not_hold_up_headlines(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """A thousand filings to one headline (confluent-kafka-python#1676): each headline ends while most filings wait."""
    flood = 5_000
    await _flood(kafka_settings, kafka_settings.topics.filings, flood)
    async with node(kafka_settings, redis_settings, max_queued=100) as one:
        one.worker(sim_step_ms=2.0, max_num_seqs=16)
        stats = one.scheduler._stats.classes
        await one.until(lambda: stats[2].signals > 0)
        for number in range(5):
            before = stats[2].signals
            await publish(kafka_settings, [news(str(number))])
            await one.until(lambda n=number: stats[0].signals == n + 1)
            assert stats[2].signals - before < flood // 5
        assert stats[2].signals < flood
        await one.end()


async def test_a_flood_of_headlines_does_not_starve_filings(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """A thousand headlines to one filing: each filing is taken in and ends while most headlines still wait."""
    flood = 5_000
    await publish(kafka_settings, [filing(n, "Results rose. ") for n in range(5)])
    await _flood(kafka_settings, kafka_settings.topics.news, flood)
    async with node(kafka_settings, redis_settings, max_queued=500) as one:
        one.worker(sim_step_ms=2.0, max_num_seqs=16)
        stats = one.scheduler._stats.classes
        await one.until(lambda: stats[2].signals == 5)
        assert stats[0].signals < flood // 2
        await one.end()
