"""A scheduler that is killed with work in every place loses none of it (llm-d-async#404)."""

from __future__ import annotations

import asyncio
import random
import sys

import pytest

from schemas.frames import Request
from schemas.settings import KafkaSettings, RedisSettings, SchedulerSettings
from tests.conftest import Broker
from tests.scheduler.dealers import link_settings
from tests.scheduler.fake_worker import Reply, answered, failed, fake_worker
from tests.scheduler.records import committed
from tests.scheduler.running import PATIENT, ROOT, kill, news, node, publish, results

pytestmark = pytest.mark.integration

TOTAL = 1500


async def test_accepted_work_survives_kill_9(
    kafka: Broker, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Killed twice with events queued, in flight, between attempts and unconfirmed: each one still has an outcome."""
    if kafka.embedded:
        pytest.skip("the embedded broker keeps a killed member in its group for over a minute")
    rng = random.Random(404)
    link = link_settings(heartbeat_seconds=0.1, dead_after_seconds=5.0)
    seen = 0

    def reply(request: Request) -> Reply:
        nonlocal seen
        seen += 1
        chance = rng.random()
        return None if chance < 0.05 else failed(request) if chance < 0.3 else answered(request)

    settings = SchedulerSettings(
        classes=PATIENT, session_seconds=6.0, commit_seconds=0.1, retry_ms=50, max_attempts=100, max_queued=300
    )
    await publish(kafka_settings, [news(str(n)) for n in range(TOTAL)])
    arguments = [s.model_dump_json() for s in (settings, kafka_settings, redis_settings, link)]
    async with fake_worker(link, reply):
        for _ in range(2):
            before = seen
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.scheduler.scheduler_process", *arguments, cwd=ROOT
            )
            try:
                async with asyncio.timeout(60):
                    while seen < before + 300:  # noqa: ASYNC110 - the worker's callback sets no event
                        await asyncio.sleep(0.005)
            finally:
                kill(process)
                await process.wait()
    middle = (await results(kafka_settings)).outcomes
    for partition, offset in (await committed(kafka_settings, kafka_settings.topics.news)).items():
        assert {(kafka_settings.topics.news, partition, o) for o in range(offset)} <= middle.keys()
    assert 0 < len(middle) < TOTAL
    async with node(kafka_settings, redis_settings, link) as one, fake_worker(link):

        async def all_have_an_outcome() -> bool:
            return len((await results(kafka_settings)).outcomes) == TOTAL

        async with asyncio.timeout(60):
            while not await all_have_an_outcome():  # noqa: ASYNC110 - what is looked at is in Kafka
                await asyncio.sleep(0.2)
        await one.end()
    found = await results(kafka_settings)
    assert (found.expired, found.dead_letters) == ([], [])
    assert {s.event_id for s in found.signals} == {f"wire:{n}:1" for n in range(TOTAL)}
    # Twice: at most what had no commit yet at a kill, a tenth of a second's work and what was in flight.
    assert sum(found.outcomes.values()) - TOTAL <= 2 * 300
