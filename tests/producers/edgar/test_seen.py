from __future__ import annotations

import pytest
import redis.asyncio as redis

from ops.embedded import free_port
from producers.edgar.seen import PRUNE_EVERY, SeenFilings
from producers.publish import EventPublisher
from schemas.records import FilingEvent
from schemas.settings import KafkaSettings, RedisSettings

pytestmark = pytest.mark.integration

DAY = 86_400


def _event(number: int, part: int = 1, parts: int = 1) -> FilingEvent:
    accession = f"0009990001-26-{number:06d}"
    return FilingEvent(
        event_id=f"{accession}:1:{part}",
        accession=accession,
        form="8-K",
        text="Text.",
        received_at_ns=1_772_485_500_000_000_000,
        part=part,
        parts=parts,
    )


async def test_marks_survive_a_restart(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> None:
    """What one process marks the next one knows, with how far the feed was covered."""
    first = SeenFilings(kafka_settings, redis_settings, days=7)
    await first.load()
    await first.mark("a")
    await first.cover(1_000)
    await first.cover(500)  # never backwards
    await first.close()
    second = SeenFilings(kafka_settings, redis_settings, days=7)
    assert await second.load() == "redis"
    assert ("a" in second, "b" in second, second.covered_ns) == (True, False, 1_000)
    await second.close()


async def test_marks_have_a_time_limit(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> None:
    """An accession is forgotten after its days, in Redis and in memory, and the key itself expires."""
    now = [100.0 * DAY]
    seen = SeenFilings(kafka_settings, redis_settings, days=7, now=lambda: now[0])
    await seen.load()
    await seen.mark("old")
    now[0] += 8 * DAY
    for number in range(PRUNE_EVERY):
        await seen.mark(f"new-{number}")
    assert "old" not in seen
    assert "new-0" in seen
    client = redis.Redis.from_url(redis_settings.url)
    assert await client.zscore(kafka_settings.topics.edgar_seen_key, "old") is None
    assert 0 < await client.ttl(kafka_settings.topics.edgar_seen_key) <= 7 * DAY + 1
    await client.aclose()
    await seen.close()


async def test_without_redis_the_topic_says_what_was_published(kafka_settings: KafkaSettings) -> None:
    """With Redis away a start reads the topic; a filing of which a part is missing does not count."""
    async with EventPublisher(kafka_settings) as publisher:
        for event in (_event(1), _event(2, 1, 2), _event(2, 2, 2), _event(3, 1, 2)):
            await publisher.publish(event)
        await publisher.publish_raw(kafka_settings.topics.filings, b"not ours")
    away = RedisSettings(url=f"redis://127.0.0.1:{free_port()}/0", timeout_seconds=0.5)
    seen = SeenFilings(kafka_settings, away, days=7)
    assert await seen.load() == "topic"
    assert [f"0009990001-26-{number:06d}" in seen for number in (1, 2, 3)] == [True, True, False]
    await seen.mark("later")  # kept in memory, without an error
    assert "later" in seen
    await seen.close()
