"""A bad deploy: dead letters stop the intake, nothing is committed past that, and a restart loses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from ops.config import Settings
from ops.doctor import Check, State, _schedulers
from ops.redis_client import redis_client
from schemas.codec import encode_json
from schemas.errors import ErrorKind
from schemas.frames import Request
from schemas.settings import KafkaSettings, RedisSettings
from schemas.status import STOPPED_BY_DEAD_LETTERS
from tests.scheduler.fake_worker import Reply, failed, fake_worker
from tests.scheduler.records import ends, producer
from tests.scheduler.running import Node, filing, news, node, publish, results
from tests.scheduler.waiting import eventually

pytestmark = pytest.mark.integration

LEAST = 20
LIMIT: dict[str, Any] = {"least": LEAST, "ratio": 0.5}


def _nonsense(request: Request) -> Reply:
    return failed(request, ErrorKind.BAD_ANSWER, retryable=False)


async def _stopped(one: Node) -> None:
    await one.until(lambda: one.scheduler._status().state == STOPPED_BY_DEAD_LETTERS)
    planner = one.scheduler._planner
    await one.until(lambda: not planner.total_queued and not planner.total_in_flight)
    await one.until(lambda: not one.scheduler._publisher.pending)
    # What is fetched on and thrown away would have to be read again; nothing is asked for any more.
    await one.until(lambda: all(intake.paused for intake in one.scheduler._intakes))


async def _look(kafka: KafkaSettings, redis: RedisSettings) -> list[Check]:
    async with redis_client(redis) as client:
        return await _schedulers(client, Settings(kafka=kafka, redis=redis))


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "stopped_by_dead_letters" in r.getMessage()]


async def test_a_worker_that_answers_nonsense_does_not_empty_the_topic(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """It stops after about the least number, stays alive and says why; a good worker then answers all that was held."""
    total, room = 3000, 100
    await publish(kafka_settings, [news(str(n)) for n in range(total)] + [filing(n) for n in range(50)])
    limits: dict[str, Any] = {"dead_letters": LIMIT, "max_queued": room}
    async with node(kafka_settings, redis_settings, **limits) as one, fake_worker(one.link, _nonsense):
        await _stopped(one)

        async def told() -> bool:
            checks = await _look(kafka_settings, redis_settings)
            return any(c.state is State.FAILED and "restart" in c.mend for c in checks)

        await eventually(told)
        await one.until(lambda: bool(_said(caplog)))
        await one.end()
    letters = (await results(kafka_settings)).dead_letters
    assert len(letters) == LEAST - 1
    (line,) = _said(caplog)
    assert "bad_answer" in line
    assert "tapewire dlq" in line
    async with node(kafka_settings, redis_settings) as one, fake_worker(one.link):
        await one.until_ended(total + 50 - len(letters))
        await one.end()
    found = await results(kafka_settings)
    assert (len(found.signals), len(found.dead_letters)) == (total + 50 - len(letters), LEAST - 1)
    assert set(found.outcomes.values()) == {1}
    assert len(found.outcomes) == total + 50


async def test_records_that_nothing_can_read_stop_it_too(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """In one fetched batch nothing behind the record that was held is received, so nothing is committed past it."""
    topic = kafka_settings.topics.news
    async with producer(kafka_settings) as client:
        for number in range(200):
            bad = number >= 10
            value = b"not JSON" if bad else encode_json(news(str(number)))
            await client.send(topic, value, partition=number % 2)
        await client.flush()
    async with node(kafka_settings, redis_settings, dead_letters=LIMIT) as one, fake_worker(one.link):
        await _stopped(one)
        await one.end()
        assert one.scheduler._limit.held == 1
    first = await results(kafka_settings)
    assert len(first.dead_letters) <= LEAST + 10
    async with node(kafka_settings, redis_settings) as one, fake_worker(one.link):
        await one.until_ended(200 - len(first.outcomes))
        await one.end()
    found = await results(kafka_settings)
    assert set(found.outcomes) == {
        (topic, p, offset) for p, end in (await ends(kafka_settings, topic)).items() for offset in range(end)
    }
    assert set(found.outcomes.values()) == {1}


async def test_a_few_bad_records_among_good_ones_stop_nothing(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """More dead letters than the least number are fine while most events become signals."""
    async with node(kafka_settings, redis_settings, dead_letters=LIMIT) as one, fake_worker(one.link):
        for _ in range(3):
            done = one.ended
            await publish(kafka_settings, [news(str(n)) for n in range(done, done + 30)])
            await one.until_ended(done + 30)
            async with producer(kafka_settings) as client:
                for _ in range(15):
                    await client.send(kafka_settings.topics.news, b"not JSON")
                await client.flush()
            await one.until_ended(done + 45)
        assert one.scheduler._status().state == "running"
        await one.end()
    assert len((await results(kafka_settings)).dead_letters) == 45
