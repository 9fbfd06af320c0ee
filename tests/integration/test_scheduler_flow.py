"""The whole scheduler with a real worker loop: one outcome for every event, stamps, commits, restarts, pauses."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any

import pytest
import redis.asyncio as redis

from ops.embedded import EmbeddedKafka, EmbeddedRedis, free_port
from ops.topics import ensure_topics
from scheduler.service import Scheduler
from schemas.codec import decode_json
from schemas.enums import Outcome, SignalKind, Stage
from schemas.errors import UnavailableError
from schemas.records import StampEntry
from schemas.settings import ClassSettings, KafkaSettings, RedisSettings, SchedulerSettings
from tests.scheduler.dealers import link_settings
from tests.scheduler.records import committed, ends
from tests.scheduler.running import NEVER_MS, PATIENT, filing, killed, news, node, publish, results

pytestmark = pytest.mark.integration

MILLISECOND = 1_000_000
TICKING = {"sim_step_ms": 1.0}
"""An engine that makes real steps, so that first tokens and results are frames of their own."""


def _check_stamps(stamps: dict[Stage, int], stages: list[Stage]) -> None:
    assert list(stamps) == stages
    # Kafka's own stamp has a grain of a millisecond, so it is not compared with what came just before.
    ours = [at for stage, at in stamps.items() if stage is not Stage.APPENDED]
    assert ours == sorted(ours)
    assert stamps[Stage.RECEIVED] <= stamps[Stage.APPENDED] + MILLISECOND
    assert stamps[Stage.APPENDED] <= stamps[Stage.CONSUMED]


async def _stamp_entries(settings: RedisSettings, kafka: KafkaSettings) -> list[StampEntry]:
    client: Any = redis.Redis.from_url(settings.url)
    try:
        return [decode_json(fields[b"d"], StampEntry) for _, fields in await client.xrange(kafka.topics.stamps_key)]
    finally:
        await client.aclose()


@pytest.mark.parametrize("engine", [pytest.param({}, id="instant"), pytest.param(TICKING, id="ticking")])
async def test_every_event_has_one_outcome_and_every_offset_is_committed(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings, engine: dict[str, Any]
) -> None:
    """News and filings all become one signal each, with complete stamps in order, and at the stop all is committed."""
    topics = kafka_settings.topics
    stories, filings = 120, 12
    async with node(kafka_settings, redis_settings) as one:
        one.worker(**engine)
        await publish(kafka_settings, [news(str(n)) for n in range(stories)] + [filing(n) for n in range(filings)])
        await one.until_ended(stories + filings)
        await one.end()
    found = await results(kafka_settings)
    assert (len(found.signals), found.expired, found.dead_letters) == (stories + filings, [], [])
    assert set(found.outcomes.values()) == {1}
    assert {s.event_id for s in found.signals} == {f"wire:{n}:1" for n in range(stories)} | {
        f"0001-{n}:d:1" for n in range(filings)
    }
    assert len({s.signal_id for s in found.signals}) == len(found.signals)
    for signal in found.signals:
        _check_stamps(signal.stamps, list(Stage))
        assert signal.service_class == ("flash" if signal.topic == topics.news else "bulk")
        assert sum(signal.probabilities.values()) == pytest.approx(1) or signal.event_type is not None
        assert signal.deadline_ns - 60_000 * MILLISECOND <= signal.stamps[Stage.RECEIVED]
    for topic in topics.inputs:
        newest = {p: end for p, end in (await ends(kafka_settings, topic)).items() if end}
        assert await committed(kafka_settings, topic) == newest
    entries = await _stamp_entries(redis_settings, kafka_settings)
    assert Counter(e.event_id for e in entries) == Counter(s.event_id for s in found.signals)
    assert {e.outcome for e in entries} == {Outcome.SIGNAL}
    by_id = {s.event_id: s for s in found.signals}
    assert all(e.stamps == by_id[e.event_id].stamps for e in entries)


async def test_a_killed_story_is_retracted_without_an_engine(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """The kill of a story becomes a retraction of the version it supersedes, with a deterministic id of its own."""
    async with node(kafka_settings, redis_settings) as one:
        one.worker()
        await publish(kafka_settings, [news("a")])
        await one.until_ended(1)
        await publish(kafka_settings, [killed("a"), killed("b", version=3)])
        await one.until_ended(3)
        await one.end()
    found = await results(kafka_settings)
    signals = {s.event_id: s for s in found.signals}
    assert signals["wire:a:1"].kind is SignalKind.SIGNAL
    for event_id, retracted in (("wire:a:2", "wire:a:1"), ("wire:b:3", "wire:b:2")):
        retraction = signals[event_id]
        assert (retraction.kind, retraction.retracts) == (SignalKind.RETRACTION, [retracted])
        _check_stamps(
            retraction.stamps,
            [Stage.PUBLISHED, Stage.RECEIVED, Stage.APPENDED, Stage.CONSUMED, Stage.EMITTED],
        )
    assert len({s.signal_id for s in found.signals}) == 3


async def test_a_story_killed_before_its_answer_gives_no_signal(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """What is still being read when its source kills it ends as expired, so no signal follows its own retraction."""
    async with node(kafka_settings, redis_settings) as one:
        # Both stand in the topic before the first fetch, since nothing is fetched before there is a worker.
        await publish(kafka_settings, [news("a"), killed("a"), news("b")])
        one.worker()
        await one.until_ended(3)
        await one.end()
    found = await results(kafka_settings)
    assert {s.event_id: s.kind for s in found.signals} == {
        "wire:a:2": SignalKind.RETRACTION,
        "wire:b:1": SignalKind.SIGNAL,
    }
    assert [(e.event_id, e.stage) for e in found.expired] == [("wire:a:1", Stage.COMPLETED)]
    assert "killed" in found.expired[0].reason


async def test_events_wait_for_a_late_worker_and_run_or_expire(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Started before any worker, the scheduler runs what is still worth it when one comes, and expires the rest."""
    classes = (ClassSettings(name="flash", slo_ms=1, toxic_ms=2, extractor="headline"), *PATIENT[1:])
    async with node(kafka_settings, redis_settings, classes=classes) as one:
        await publish(kafka_settings, [news(str(n)) for n in range(5)] + [filing(n) for n in range(5)])
        await one.until(lambda: one.scheduler._status().state == "waiting_for_worker")
        assert one.ended == 0
        one.worker()
        await one.until_ended(10)
        await one.end()
    found = await results(kafka_settings)
    assert sorted(e.event_id for e in found.expired) == [f"wire:{n}:1" for n in range(5)]
    assert sorted(s.event_id for s in found.signals) == [f"0001-{n}:d:1" for n in range(5)]
    for expired in found.expired:
        assert (expired.service_class, expired.stage) == ("flash", Stage.QUEUED)
        assert expired.age_ns >= 2 * MILLISECOND
        assert expired.reason
        _check_stamps(expired.stamps, [*list(Stage)[:5], Stage.EMITTED])
    assert await committed(kafka_settings, kafka_settings.topics.news) == {
        p: end for p, end in (await ends(kafka_settings, kafka_settings.topics.news)).items() if end
    }


async def test_work_that_gets_toxic_in_an_engine_is_aborted_and_expires(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """An engine that never answers costs a headline its toxic age and no more; its place is free afterwards."""
    classes = (ClassSettings(name="flash", slo_ms=1500, toxic_ms=1500, extractor="headline"), *PATIENT[1:])
    async with node(kafka_settings, redis_settings, classes=classes) as one:
        one.worker(sim_step_ms=NEVER_MS)
        await one.until(lambda: one.scheduler._status().state == "running")
        await publish(kafka_settings, [news("a")])
        await one.until_ended(1)
        assert one.in_flight == 0
        await one.end()
    (expired,) = (await results(kafka_settings)).expired
    assert expired.stage is Stage.DISPATCHED
    assert expired.age_ns >= 1500 * MILLISECOND


async def test_a_clean_restart_loses_and_repeats_nothing(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Stopped in the middle of the work and started again: one outcome for every event, over both lives."""
    total = 400
    link = link_settings(heartbeat_seconds=0.1, dead_after_seconds=1.0)
    engine: dict[str, Any] = {"sim_step_ms": 20.0, "max_num_seqs": 8}
    await publish(kafka_settings, [news(str(n)) for n in range(total)])
    async with node(kafka_settings, redis_settings, link, max_queued=50) as one:
        one.worker(**engine)
        await one.until(lambda: one.ended >= 40)
        await one.end()
        first = one.ended
    assert first < total
    async with node(kafka_settings, redis_settings, link) as one:
        one.worker(**engine)
        await one.until_ended(total - first)
        await one.end()
        assert one.ended == total - first
    found = await results(kafka_settings)
    assert len(found.signals) == total
    assert set(found.outcomes.values()) == {1}


async def test_a_worker_outlives_its_scheduler(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> None:
    """The same worker process serves the next life of the scheduler, without being started again."""
    link = link_settings(heartbeat_seconds=0.1, dead_after_seconds=1.0)
    async with node(kafka_settings, redis_settings, link) as keeper:
        keeper.worker()
        await publish(kafka_settings, [news("a")])
        await keeper.until_ended(1)
        await keeper.end()
        async with node(kafka_settings, redis_settings, link) as successor:
            await publish(kafka_settings, [news("b")])
            await successor.until_ended(1)
            await successor.end()
    assert sorted(s.event_id for s in (await results(kafka_settings)).signals) == ["wire:a:1", "wire:b:1"]


async def test_intake_pauses_at_the_limit_and_everything_still_ends(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """With room for few events and a slow engine intake stops and goes on, and nothing is lost or repeated."""
    total = 1500
    await publish(kafka_settings, [news(str(n)) for n in range(total)])
    async with node(kafka_settings, redis_settings, max_queued=20) as one:
        one.worker(sim_step_ms=1.0, max_num_seqs=64)
        await one.until(lambda: one.scheduler._status().state == "paused")
        await one.until_ended(total)
        await one.until(lambda: one.scheduler._status().state == "running")
        await one.end()
    found = await results(kafka_settings)
    assert len(found.signals) == total
    assert set(found.outcomes.values()) == {1}


async def test_redis_away_costs_stamps_and_no_signal(kafka_settings: KafkaSettings) -> None:
    """Redis dies in the middle: every event still becomes a signal, lost stamps are counted, later ones arrive."""
    with EmbeddedRedis(port=free_port()) as server:
        settings = RedisSettings(url=server.url, buffer=20, timeout_seconds=1)
        async with node(kafka_settings, settings) as one:
            one.worker()
            await publish(kafka_settings, [news(str(n)) for n in range(10)])
            await one.until_ended(10)
            await one.until(lambda: one.scheduler._stamps.written == 10)
            server.stop()
            await publish(kafka_settings, [news(str(n)) for n in range(10, 110)])
            await one.until_ended(110)
            await one.until(lambda: one.scheduler._status().stamps_dropped > 0)
            server.start()
            await publish(kafka_settings, [news(str(n)) for n in range(110, 120)])
            await one.until_ended(120)
            await one.until(lambda: not one.scheduler._stamps._buffer)
            await one.end()
            stamps = one.scheduler._stamps
        assert len((await results(kafka_settings)).signals) == 120
        kept = len(await _stamp_entries(settings, kafka_settings))
        assert kept == stamps.written - 10  # the first ten died with the server
        assert stamps.written + stamps.dropped == 120


async def test_a_stop_before_any_worker_is_clean(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings, caplog: pytest.LogCaptureFixture
) -> None:
    """Ctrl-C while waiting for the first worker ends at once and leaves nothing open."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with node(kafka_settings, redis_settings) as one:
        await one.until(lambda: one.scheduler._status().state == "waiting_for_worker")
        await one.end()
    gc.collect()
    assert complaints == []
    assert not [r for r in caplog.records if r.levelname in {"WARNING", "ERROR"}]


async def test_redis_that_does_not_answer_stops_no_signal(kafka_settings: KafkaSettings) -> None:
    """A scheduler that is started while Redis is away works: schedulers may have to restart during its outage."""
    settings = RedisSettings(url=f"redis://127.0.0.1:{free_port()}/0", timeout_seconds=0.5)
    async with node(kafka_settings, settings) as one:
        one.worker()
        await publish(kafka_settings, [news("1")])
        await one.until_ended(1)
        await one.end()
    assert len((await results(kafka_settings)).signals) == 1


async def test_kafka_that_does_not_answer_is_named_at_start(redis_settings: RedisSettings) -> None:
    """One typed error with the setting; nothing else is left running."""
    kafka = KafkaSettings(bootstrap=f"127.0.0.1:{free_port()}", connect_seconds=1)
    scheduler = Scheduler(SchedulerSettings(), kafka, redis_settings, link_settings())
    with pytest.raises(UnavailableError, match=r"kafka\.bootstrap"):
        async with asyncio.timeout(30):
            await scheduler.run(asyncio.Event())


async def test_a_stop_while_kafka_is_away_is_bounded(topic_prefix: str, redis_settings: RedisSettings) -> None:
    """With the broker gone, results unconfirmed and commits impossible, Ctrl-C still ends within ten seconds."""
    with EmbeddedKafka(port=free_port()) as broker:
        kafka = KafkaSettings(bootstrap=broker.bootstrap, topic_prefix=topic_prefix)
        await ensure_topics(kafka)
        drain_seconds = SchedulerSettings().drain_seconds
        async with node(kafka, redis_settings, drain_seconds=drain_seconds, session_seconds=10.0) as one:
            one.worker(sim_step_ms=300.0)
            await publish(kafka, [news(str(n)) for n in range(20)])
            await one.until(lambda: one.in_flight > 0)
            broker.stop()
            await one.until(lambda: one.scheduler._publisher.pending > 0)
            await one.end(10.0)
