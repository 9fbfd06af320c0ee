"""Stamps and status in a real Valkey: written, bounded, and nothing but stamps lost when it goes away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio as redis

from ops.embedded import EmbeddedRedis, free_port
from scheduler.stamps import STATUS_LIVES_SECONDS, StampWriter
from schemas.codec import decode_json
from schemas.enums import Stage
from schemas.errors import UnavailableError
from schemas.records import StampEntry
from schemas.settings import RedisSettings
from schemas.status import SchedulerStatus
from schemas.topics import Topics
from tests.scheduler.waiting import until

pytestmark = pytest.mark.integration


def _entry(number: int) -> StampEntry:
    return StampEntry(
        event_id=f"wire:{number}:1",
        service_class="flash",
        outcome="signal",
        late=False,
        slo_ns=150_000_000,
        stamps={Stage.RECEIVED: number, Stage.EMITTED: number + 1},
    )


def _status() -> SchedulerStatus:
    return SchedulerStatus(
        scheduler_id="s1", at_ns=7, state="running", classes=[], workers=[], undecodable=0, stamps_dropped=0
    )


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A Valkey of this test's own, to be stopped and started on one port."""
    server = EmbeddedRedis(port=free_port())
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def _client(settings: RedisSettings) -> AsyncIterator[Any]:
    client = redis.Redis.from_url(settings.url)
    try:
        yield client
    finally:
        await client.aclose()


async def _written(settings: RedisSettings, topics: Topics) -> list[StampEntry]:
    async with _client(settings) as client:
        return [decode_json(fields[b"d"], StampEntry) for _, fields in await client.xrange(topics.stamps_key)]


async def test_entries_arrive_whole_and_in_order(redis_settings: RedisSettings, topic_prefix: str) -> None:
    """What was added is in the stream in its order, also past the size of one batch."""
    topics = Topics(prefix=topic_prefix)
    writer = StampWriter(redis_settings, topics, _status)
    await writer.start()
    entries = [_entry(n) for n in range(1234)]
    for entry in entries:
        writer.add(entry)
    await until(lambda: writer.written == len(entries))
    await writer.stop(5)
    assert await _written(redis_settings, topics) == entries
    assert writer.dropped == 0


async def test_a_stop_writes_what_waits(redis_settings: RedisSettings, topic_prefix: str) -> None:
    """Entries that were added just before the stop are not lost."""
    topics = Topics(prefix=topic_prefix)
    writer = StampWriter(redis_settings, topics, _status)
    await writer.start()
    for number in range(700):
        writer.add(_entry(number))
    await writer.stop(5)
    assert len(await _written(redis_settings, topics)) == 700


async def test_the_status_lives_as_long_as_its_scheduler(redis_settings: RedisSettings, topic_prefix: str) -> None:
    """The snapshot appears soon, expires by itself should the scheduler be killed, and goes with a clean stop."""
    key = Topics(prefix=topic_prefix).status_key("s1")
    writer = StampWriter(redis_settings, Topics(prefix=topic_prefix), _status)
    await writer.start()
    async with _client(redis_settings) as client:
        raw = None
        while raw is None:
            raw = await client.get(key)
        assert decode_json(raw, SchedulerStatus) == _status()
        assert 0 < await client.ttl(key) <= STATUS_LIVES_SECONDS
        await writer.stop(5)
        assert await client.get(key) is None


async def test_the_stream_is_trimmed(redis_settings: RedisSettings, topic_prefix: str) -> None:
    """About as many entries are kept as configured: old ones go in whole nodes of the stream."""
    topics = Topics(prefix=topic_prefix)
    writer = StampWriter(redis_settings.model_copy(update={"stamps_kept": 100}), topics, _status)
    await writer.start()
    for number in range(1000):
        writer.add(_entry(number))
    await writer.stop(5)
    kept = await _written(redis_settings, topics)
    assert 100 <= len(kept) < 400
    assert kept[-1] == _entry(999)


async def test_a_full_buffer_drops_the_oldest_and_counts(topic_prefix: str) -> None:
    """With nobody writing, memory stays bounded; what is lost is the oldest, and it is counted."""
    writer = StampWriter(RedisSettings(buffer=3), Topics(prefix=topic_prefix), _status)
    for number in range(5):
        writer.add(_entry(number))
    assert writer.dropped == 2
    assert list(writer._buffer) == [_entry(2), _entry(3), _entry(4)]


async def test_redis_away_at_the_start_costs_stamps_only(own_redis: EmbeddedRedis, topic_prefix: str) -> None:
    """A scheduler that is started while Redis is down starts, and what it wrote in the meantime arrives later."""
    topics = Topics(prefix=topic_prefix)
    settings = RedisSettings(url=own_redis.url, timeout_seconds=1)
    own_redis.stop()
    writer = StampWriter(settings, topics, _status)
    await writer.start()
    assert writer._trouble == "redis_away"
    writer.add(_entry(0))
    own_redis.start()
    await until(lambda: writer.written == 1)
    await writer.stop(5)
    assert await _written(settings, topics) == [_entry(0)]


async def test_a_refusal_at_the_start_is_named_without_the_password(
    own_redis: EmbeddedRedis, topic_prefix: str
) -> None:
    """Redis that is there and does not let us in is one typed error with setting and address, not the password."""
    async with _client(RedisSettings(url=own_redis.url)) as client:
        await client.config_set("requirepass", "another")
    url = own_redis.url.replace("redis://", "redis://user:secret@")
    with pytest.raises(UnavailableError) as caught:
        await StampWriter(RedisSettings(url=url), Topics(prefix=topic_prefix), _status).start()
    assert caught.value.setting == "redis.url"
    assert own_redis.address in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_redis_killed_and_back_costs_stamps_only(own_redis: EmbeddedRedis, topic_prefix: str) -> None:
    """While Redis is away adding never fails; when it is back, writing goes on, and every entry is counted once."""
    topics = Topics(prefix=topic_prefix)
    settings = RedisSettings(url=own_redis.url, buffer=10, timeout_seconds=1)
    writer = StampWriter(settings, topics, _status)
    await writer.start()
    writer.add(_entry(0))
    await until(lambda: writer.written == 1)
    own_redis.stop()
    for number in range(1, 26):
        writer.add(_entry(number))
    await until(lambda: bool(writer._trouble))
    assert writer.dropped == 15
    own_redis.start()
    await until(lambda: writer.written == 11)
    writer.add(_entry(26))
    await until(lambda: writer.written == 12)
    await writer.stop(5)
    assert [e.stamps[Stage.RECEIVED] for e in await _written(settings, topics)] == [*range(16, 26), 26]
    assert writer.dropped == 15


async def test_a_stop_while_redis_is_away_is_bounded_and_counts(own_redis: EmbeddedRedis, topic_prefix: str) -> None:
    """Entries that cannot be written any more are counted as dropped, and the stop returns."""
    writer = StampWriter(RedisSettings(url=own_redis.url, timeout_seconds=1), Topics(prefix=topic_prefix), _status)
    await writer.start()
    own_redis.stop()
    for number in range(5):
        writer.add(_entry(number))
    await until(lambda: bool(writer._trouble))
    await writer.stop(2)
    assert (writer.written, writer.dropped) == (0, 5)


async def test_a_stop_just_after_redis_came_back_loses_nothing(own_redis: EmbeddedRedis, topic_prefix: str) -> None:
    """What waited while Redis was away is written at the stop if it can be, or counted: never forgotten uncounted."""
    topics = Topics(prefix=topic_prefix)
    settings = RedisSettings(url=own_redis.url, timeout_seconds=1)
    writer = StampWriter(settings, topics, _status)
    await writer.start()
    own_redis.stop()
    for number in range(5):
        writer.add(_entry(number))
    await until(lambda: bool(writer._trouble))
    own_redis.start()
    await writer.stop(5)
    assert len(await _written(settings, topics)) + writer.dropped == 5


async def test_a_key_of_another_type_costs_stamps_only(redis_settings: RedisSettings, topic_prefix: str) -> None:
    """When somebody put something else under our key, stamps are lost and counted, and status goes on."""
    topics = Topics(prefix=topic_prefix)
    async with _client(redis_settings) as client:
        await client.set(topics.stamps_key, "not a stream")
        writer = StampWriter(redis_settings.model_copy(update={"buffer": 2}), topics, _status)
        await writer.start()
        for number in range(4):
            writer.add(_entry(number))
        await until(lambda: bool(writer._trouble))
        await writer.stop(5)
        assert (writer.written, writer.dropped) == (0, 4)
        await client.delete(topics.stamps_key)
