"""Redis in trouble: slow, cut, full, read-only, misused, cancelled; each costs stamps at most and says so once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio as redis

from ops.embedded import EmbeddedRedis, free_port
from scheduler import stamps
from scheduler.stamps import StampWriter
from schemas.codec import decode_json
from schemas.enums import Stage
from schemas.records import StampEntry
from schemas.settings import KafkaSettings, RedisSettings
from schemas.status import SchedulerStatus
from schemas.topics import Topics
from tests.scheduler.fake_worker import fake_worker
from tests.scheduler.running import news, node, publish
from tests.scheduler.tcp_proxy import Proxy, proxy
from tests.scheduler.waiting import until

pytestmark = pytest.mark.integration


def _entry(number: int) -> StampEntry:
    stamps_of_one = {Stage.RECEIVED: number, Stage.EMITTED: number + 1}
    return StampEntry(
        event_id=f"wire:{number}:1", service_class="flash", outcome="signal", late=False, slo_ns=1, stamps=stamps_of_one
    )


def _status() -> SchedulerStatus:
    return SchedulerStatus(
        scheduler_id="s1", at_ns=7, state="running", classes=[], workers=[], undecodable=0, stamps_dropped=0
    )


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "RETRY_SECONDS", 0.05)


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
    """A Valkey of this test's own, whose settings it may change."""
    server = EmbeddedRedis(port=free_port())
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Any]:
    client = redis.Redis.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def _between(url: str, **changed: Any) -> AsyncIterator[tuple[Proxy, RedisSettings]]:
    """Give a proxy before a Redis, and the settings to reach it."""
    parts = urlsplit(url)
    async with proxy(parts.hostname or "", parts.port or 6379) as one:
        through = parts._replace(netloc=f"127.0.0.1:{one.port}").geturl()
        yield one, RedisSettings(**({"url": through, "timeout_seconds": 0.3} | changed))


async def _numbers(url: str, topics: Topics) -> list[int]:
    async with _client(url) as client:
        entries = await client.xrange(topics.stamps_key)
    return [decode_json(fields[b"d"], StampEntry).stamps[Stage.RECEIVED] for _, fields in entries]


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    return [name for line in found for name in ("redis_away", "redis_refuses", "redis_back") if name in line]


async def test_a_cancelled_command_never_shifts_replies(redis_url: str, topic_prefix: str) -> None:
    """Cancelled at any point, the writer's client never takes another command's reply for its own (redis-py#2624)."""
    rng = random.Random(2624)
    async with _between(redis_url, timeout_seconds=5) as (slow, settings), _client(redis_url) as direct:
        client = StampWriter(settings, Topics(prefix=topic_prefix), _status)._client
        keys = [f"{topic_prefix}:{n}" for n in range(10)]
        await direct.mset({key: key for key in keys})
        slow.delay = 0.002
        cancelled = 0
        for _ in range(150):
            command = rng.choice([("GET", rng.choice(keys)), ("EVAL", "return 7", 0), ("PING",)])
            task = asyncio.ensure_future(client.execute_command(*command))  # type: ignore[no-untyped-call]  # redis-py has no types for it
            await asyncio.sleep(rng.random() * 0.006)
            cancelled += task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            for key in rng.sample(keys, 2):
                assert await client.get(key) == key.encode()
        assert cancelled > 20
        await client.aclose()
        await direct.delete(*keys)


async def test_a_stop_in_the_middle_of_a_write_loses_nothing(redis_url: str, topic_prefix: str) -> None:
    """Whenever the stop comes, every entry is in the stream, and what follows the cancelled write is right."""
    rng = random.Random(2665)
    async with _between(redis_url, timeout_seconds=5) as (slow, settings):
        slow.delay = 0.003
        for life in range(15):
            topics = Topics(prefix=f"{topic_prefix}-{life}")
            writer = StampWriter(settings, topics, _status)
            await writer.start()
            for number in range(1200):
                writer.add(_entry(number))
            await asyncio.sleep(rng.random() * 0.02)
            await writer.stop(5)
            assert set(await _numbers(redis_url, topics)) == set(range(1200))
            assert writer.dropped == 0
            async with _client(redis_url) as client:
                assert await client.get(topics.status_key("s1")) is None
                await client.delete(topics.stamps_key)


async def test_replies_that_do_not_come_cost_no_more_than_the_buffer(
    redis_url: str, topic_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While Redis holds its replies back adding goes on, the oldest are dropped and counted, and later all is well."""
    caplog.set_level("INFO")
    topics = Topics(prefix=topic_prefix)
    async with _between(redis_url, buffer=50) as (slow, settings):
        writer = StampWriter(settings, topics, _status)
        await writer.start()
        slow.flowing.clear()
        for number in range(500):
            writer.add(_entry(number))
        await until(lambda: bool(writer._trouble))
        assert writer.dropped == 450
        assert len(writer._buffer) <= 50
        slow.flowing.set()
        await until(lambda: not writer._trouble)
        await writer.stop(5)
    assert set(await _numbers(redis_url, topics)) >= set(range(450, 500))
    assert _lines(caplog) == ["redis_away", "redis_back"]


async def test_a_connection_cut_in_the_middle_costs_nothing(redis_url: str, topic_prefix: str) -> None:
    """Cut again and again while it writes, every entry still arrives, in its order but for repeats."""
    topics = Topics(prefix=topic_prefix)
    async with _between(redis_url) as (slow, settings):
        writer = StampWriter(settings, topics, _status)
        await writer.start()
        slow.delay = 0.01
        seen = 0
        for round_ in range(8):
            for number in range(300):
                writer.add(_entry(300 * round_ + number))
            await until(lambda before=seen: slow.connections > before)  # type: ignore[misc]  # bound to this round
            seen = slow.connections
            slow.cut()
        await until(lambda: not writer._buffer and not writer._trouble)
        await writer.stop(5)
        assert slow.connections > 8
    found = await _numbers(redis_url, topics)
    assert list(dict.fromkeys(sorted(found))) == list(range(2400))
    assert writer.dropped == 0


@pytest.mark.parametrize(
    ("spoil", "mend", "word"),
    [
        (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), "maxmemory"),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), "read only"),
    ],
)
async def test_a_refusal_that_passes_costs_nothing(
    own_redis: EmbeddedRedis,
    topic_prefix: str,
    caplog: pytest.LogCaptureFixture,
    spoil: tuple[str, ...],
    mend: tuple[str, ...],
    word: str,
) -> None:
    """A full Redis and one that has become a replica refuse for a while: one line each way, and no stamp is lost."""
    caplog.set_level("INFO")
    topics = Topics(prefix=topic_prefix)
    writer = StampWriter(RedisSettings(url=own_redis.url, timeout_seconds=1), topics, _status)
    await writer.start()
    async with _client(own_redis.url) as client:
        await client.execute_command(*spoil)
        for number in range(700):
            writer.add(_entry(number))
        await until(lambda: bool(writer._trouble))
        assert writer.written == 0
        await client.execute_command(*mend)
    await until(lambda: writer.written == 700)
    await until(lambda: not writer._trouble)
    await writer.stop(5)
    assert await _numbers(own_redis.url, topics) == list(range(700))
    assert writer.dropped == 0
    assert _lines(caplog) == ["redis_away", "redis_back"]
    assert any(word in record.getMessage() for record in caplog.records)


async def test_a_key_of_another_type_is_named_and_does_not_hold_up_the_rest(
    redis_url: str, topic_prefix: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused for good is counted as lost, not tried for ever; it is told again until the key is gone."""
    caplog.set_level("INFO")
    monkeypatch.setattr(stamps, "REMIND_SECONDS", 0.2)
    topics = Topics(prefix=topic_prefix)
    async with _client(redis_url) as client:
        await client.set(topics.stamps_key, "x")
        writer = StampWriter(RedisSettings(url=redis_url), topics, _status)
        await writer.start()
        for number in range(700):
            writer.add(_entry(number))
        await until(lambda: writer.dropped == 700)
        await until(lambda: not writer._trouble)  # nothing is left to be refused
        while _lines(caplog).count("redis_refuses") < 2:
            writer.add(_entry(0))
            await asyncio.sleep(0.05)
        assert await client.get(topics.status_key("s1")) is not None
        await client.delete(topics.stamps_key)
        lost = writer.dropped
        await until(lambda: not writer._buffer and not writer._trouble)
        writer.add(_entry(1000))
        await until(lambda: writer.written > 0)
        await writer.stop(5)
        assert writer.dropped >= lost
        assert (await _numbers(redis_url, topics))[-1] == 1000
        assert any(topics.stamps_key in r.getMessage() for r in caplog.records if "refuses" in r.getMessage())
        await client.delete(topics.stamps_key)


async def test_an_evicted_stream_begins_anew(redis_url: str, topic_prefix: str) -> None:
    """When Redis evicts the whole stream, what comes next is written to a new one."""
    topics = Topics(prefix=topic_prefix)
    writer = StampWriter(RedisSettings(url=redis_url), topics, _status)
    await writer.start()
    writer.add(_entry(1))
    await until(lambda: writer.written == 1)
    async with _client(redis_url) as client:
        await client.delete(topics.stamps_key)
    writer.add(_entry(2))
    await writer.stop(5)
    assert await _numbers(redis_url, topics) == [2]


async def test_a_status_that_cannot_be_made_costs_no_stamp(redis_url: str, topic_prefix: str) -> None:
    """A defect in the snapshot neither ends the writer nor holds up what it writes."""
    topics = Topics(prefix=topic_prefix)

    def broken() -> SchedulerStatus:
        raise ZeroDivisionError("a defect")

    writer = StampWriter(RedisSettings(url=redis_url), topics, broken)
    await writer.start()
    await until(lambda: bool(writer._trouble))
    writer.add(_entry(1))
    await until(lambda: writer.written == 1)
    writer._status = _status
    await writer.stop(5)


async def test_redis_that_holds_its_replies_stops_no_signal(kafka_settings: KafkaSettings, redis_url: str) -> None:
    """With no reply from Redis at all, every event still becomes a signal, and only stamps are lost."""
    async with (
        _between(redis_url, buffer=10) as (slow, settings),
        node(kafka_settings, settings) as one,
        fake_worker(one.link),
    ):
        await one.until(lambda: one.scheduler._status().state == "running")
        slow.flowing.clear()
        await publish(kafka_settings, [news(str(n)) for n in range(200)])
        await one.until_ended(200)
        # What is in a write that gets no reply comes back when its time is up, and makes others leave the full buffer.
        await one.until(lambda: one.scheduler._status().stamps_dropped >= 190)
        await one.end()
    assert sum(c.signals for c in one.scheduler._stats.classes) == 200
