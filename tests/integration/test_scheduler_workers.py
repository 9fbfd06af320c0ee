"""Workers that die, leave, or cannot serve, while a whole scheduler runs."""

from __future__ import annotations

import pytest

from schemas.errors import ConfigError
from schemas.settings import KafkaSettings, RedisSettings
from schemas.topics import HEADER_ERROR_ATTEMPTS, HEADER_ERROR_KIND, HEADER_ERROR_STAGE
from tests.scheduler.records import committed, ends
from tests.scheduler.running import NEVER_MS, filing, kill, news, node, publish, results

pytestmark = pytest.mark.integration


async def test_work_of_a_killed_worker_is_finished_by_another(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Killed -9 with work in flight: after the bounded silence the work runs elsewhere, once, with its old deadline."""
    count = 6
    async with node(kafka_settings, redis_settings) as one:
        process = await one.worker_process("doomed", sim_step_ms=NEVER_MS)
        await one.until(lambda: one.scheduler._status().state == "running")
        await publish(kafka_settings, [news(str(n)) for n in range(count - 1)] + [filing(0)])
        await one.until(lambda: one.in_flight == count)
        kill(process)
        await one.until(lambda: one.scheduler._stats.worker_deaths == 1)
        assert (one.in_flight, one.scheduler._planner.total_queued) == (0, count)
        one.worker("heir")
        await one.until_ended(count)
        await one.end()
        assert one.scheduler._stats.requeued == count
    found = await results(kafka_settings)
    assert len(found.signals) == count
    assert set(found.outcomes.values()) == {1}
    for signal in found.signals:
        assert list(signal.stamps.values())[3:] == sorted(list(signal.stamps.values())[3:])


async def test_work_that_two_workers_died_with_is_quarantined(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """What was in flight at two deaths goes to the dead letters; what came later runs, and all is committed."""
    async with node(kafka_settings, redis_settings) as one:
        for death in (1, 2):
            process = await one.worker_process(f"doomed-{death}", sim_step_ms=NEVER_MS)
            await one.until(lambda: len(one.scheduler._workers.status()) == 1)
            if death == 1:
                await one.until(lambda: one.scheduler._status().state == "running")
                await publish(kafka_settings, [news("poison")])
            await one.until(lambda: one.in_flight == 1)
            kill(process)
            await one.until(lambda death=death: one.scheduler._stats.worker_deaths == death)
        await one.until_ended(1)
        one.worker("good")
        await publish(kafka_settings, [news("fine")])
        await one.until_ended(2)
        await one.end()
    found = await results(kafka_settings)
    (letter,) = found.dead_letters
    headers = dict(letter.headers)
    assert headers[HEADER_ERROR_KIND] == b"quarantined"
    assert (headers[HEADER_ERROR_STAGE], headers[HEADER_ERROR_ATTEMPTS]) == (b"dispatched", b"2")
    assert letter.key == b"wire:poison"
    assert [s.event_id for s in found.signals] == ["wire:fine:1"]
    newest = {p: end for p, end in (await ends(kafka_settings, kafka_settings.topics.news)).items() if end}
    assert await committed(kafka_settings, kafka_settings.topics.news) == newest


async def test_a_worker_that_leaves_quarantines_nothing(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Goodbyes are no deaths: work that two leaving workers could not finish runs at the third one."""
    async with node(kafka_settings, redis_settings, max_attempts=5) as one:
        first_stop, first = one.worker("w1", sim_step_ms=400.0)
        await one.until(lambda: one.scheduler._status().state == "running")
        await publish(kafka_settings, [news(str(n)) for n in range(4)])
        await one.until(lambda: one.in_flight == 4)
        first_stop.set()
        await first
        one.worker("w2")
        await one.until_ended(4)
        await one.end()
        assert one.scheduler._stats.worker_deaths == 0
    found = await results(kafka_settings)
    assert (len(found.signals), found.dead_letters) == (4, [])
    assert set(found.outcomes.values()) == {1}


async def test_work_spreads_over_workers(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> None:
    """Two workers both get work, and a dedicated one gets only its class."""
    async with node(kafka_settings, redis_settings) as one:
        one.worker("news", sim_step_ms=1.0, classes=("flash", "standard"))
        one.worker("filings", sim_step_ms=1.0, classes=("bulk",))
        await one.until(lambda: len(one.scheduler._workers.status()) == 2)
        await publish(kafka_settings, [news(str(n)) for n in range(20)] + [filing(n) for n in range(5)])
        await one.until_ended(25)
        await one.until(lambda: all(w.steps for w in one.scheduler._workers.status()))
        await one.end()
    assert len((await results(kafka_settings)).signals) == 25


async def test_a_refused_worker_ends_with_the_reason(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """A worker for a class that this scheduler does not have ends with a typed error that names the class."""
    async with node(kafka_settings, redis_settings) as one:
        _, task = one.worker("odd", classes=("platinum",))
        with pytest.raises(ConfigError, match="platinum"):
            await task
        await one.end()
