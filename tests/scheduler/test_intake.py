"""Intake on a real broker: where a group starts, what it commits, rebalances, pauses and lost offsets."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import RecordsToDelete

from ops.embedded import free_port
from scheduler.errors import OffsetsLostError
from scheduler.fetch_pace import PAUSE_SECONDS, pace_fetches
from scheduler.intake import Intake
from scheduler.ledger import Ledger
from scheduler.member import FETCH_MAX_WAIT_MS
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings
from tests.conftest import Broker
from tests.scheduler.intakes import SETTINGS, Taker, numbers, publish_numbers, running_intake
from tests.scheduler.records import admin, committed, ends
from tests.scheduler.waiting import until

pytestmark = pytest.mark.integration


async def test_a_group_that_never_read_starts_at_the_beginning(kafka_settings: KafkaSettings) -> None:
    """Events that were published before the first start are taken, in order within each partition."""
    await publish_numbers(kafka_settings, range(100))
    async with running_intake(kafka_settings) as (_, taker):
        await until(lambda: len(taker.values) >= 100)
        assert numbers(taker) == list(range(100))
        for partition in range(kafka_settings.partitions):
            mine = [n for n in map(int, taker.values) if n % kafka_settings.partitions == partition]
            assert mine == sorted(mine)


async def test_an_empty_topic_is_read_from_what_comes_first(kafka_settings: KafkaSettings) -> None:
    """A group that found nothing to read misses nothing that is published afterwards."""
    async with running_intake(kafka_settings) as (_, taker):
        await publish_numbers(kafka_settings, range(8))
        await until(lambda: len(taker.values) >= 8)
        assert numbers(taker) == list(range(8))


async def test_a_restart_goes_on_at_the_commit(kafka_settings: KafkaSettings) -> None:
    """What was finished and committed is not read again; what was not is, and what came meanwhile too."""
    await publish_numbers(kafka_settings, range(40))
    async with running_intake(kafka_settings, finish=False) as (_, taker):
        await until(lambda: len(taker.values) >= 40)
        done = [o for o in taker.unfinished if o.partition != 0 or o.offset < 3]
        for origin in done:
            taker.ledger.finish(origin)
    assert (await committed(kafka_settings, kafka_settings.topics.news))[0] == 3
    await publish_numbers(kafka_settings, range(40, 48))
    async with running_intake(kafka_settings) as (_, taker):
        await until(lambda: len(taker.values) >= 7 + 8)
        assert numbers(taker) == [12, 16, 20, 24, 28, 32, 36, *range(40, 48)]
    assert await committed(kafka_settings, kafka_settings.topics.news) == await ends(
        kafka_settings, kafka_settings.topics.news
    )


async def test_nothing_finished_commits_nothing_new(kafka_settings: KafkaSettings) -> None:
    """A stop with everything unfinished leaves every event to the next start."""
    await publish_numbers(kafka_settings, range(20))
    for _ in range(2):
        async with running_intake(kafka_settings, finish=False) as (_, taker):
            await until(lambda taker=taker: len(taker.values) >= 20)  # type: ignore[misc]  # bound at once
            assert numbers(taker) == list(range(20))


async def test_deleted_events_stop_the_scheduler(kafka: Broker, kafka_settings: KafkaSettings) -> None:
    """When retention ate events before they were read, going on would skip them in silence: it stops and says so."""
    if kafka.embedded:
        pytest.skip("the embedded broker does not delete records; needs a real Kafka")
    topic = kafka_settings.topics.news
    await publish_numbers(kafka_settings, range(40))
    async with running_intake(kafka_settings, finish=False) as (_, taker):
        await until(lambda: len(taker.values) >= 40)
        for origin in taker.unfinished[:]:
            if origin.offset < 2:
                taker.ledger.finish(origin)
    async with admin(kafka_settings) as client:
        await client.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=5)})
    ledger = Ledger()
    intake = Intake(topic, kafka_settings, SETTINGS, ledger, Taker(ledger))
    await intake.start()
    try:
        with pytest.raises(OffsetsLostError) as caught:
            async with asyncio.timeout(30):
                await intake.run()
        assert topic in str(caught.value)
    finally:
        await intake.stop()


async def test_a_missing_input_topic_is_named_at_start(kafka: Broker, topic_prefix: str) -> None:
    """A scheduler that would wait for ever for a topic nobody made does not start: it names topic and setting."""
    if kafka.embedded:
        pytest.skip("the embedded broker creates a topic when it is asked about one; needs a real Kafka")
    settings = KafkaSettings(bootstrap=kafka.bootstrap, topic_prefix=topic_prefix, connect_seconds=3)
    ledger = Ledger()
    intake = Intake(settings.topics.news, settings, SETTINGS, ledger, Taker(ledger))
    with pytest.raises(UnavailableError) as caught:
        await intake.start()
    assert caught.value.setting == "kafka.topic_prefix"
    assert settings.topics.news in str(caught.value)


async def test_an_unreachable_broker_is_named_at_start() -> None:
    """Nobody listens: one typed error that names address and setting."""
    settings = KafkaSettings(bootstrap=f"127.0.0.1:{free_port()}", connect_seconds=1)
    ledger = Ledger()
    with pytest.raises(UnavailableError) as caught:
        await Intake(settings.topics.news, settings, SETTINGS, ledger, Taker(ledger)).start()
    assert caught.value.setting == "kafka.bootstrap"
    assert settings.bootstrap in str(caught.value)


async def test_a_full_scheduler_pauses_and_goes_on(kafka_settings: KafkaSettings) -> None:
    """Without room nothing is fetched and nothing is skipped; with room again everything comes."""
    async with running_intake(kafka_settings) as (intake, taker):
        taker.room = False
        await until(lambda: intake.paused)
        before = len(taker.values)
        await publish_numbers(kafka_settings, range(30))
        newest = await ends(kafka_settings, kafka_settings.topics.news)
        assert sum(newest.values()) == 30
        assert len(taker.values) == before
        assert intake.paused
        taker.room = True
        await until(lambda: len(taker.values) >= 30)
        assert numbers(taker) == list(range(30))
        assert not intake.paused


async def test_members_share_the_partitions_and_nothing_is_lost(kafka: Broker, kafka_settings: KafkaSettings) -> None:
    """A second member gets a share, events in between are read at least once, and the leaver's share comes back."""
    if kafka.embedded:
        pytest.skip("groups of two never settle on the embedded broker; needs a real Kafka")
    async with running_intake(kafka_settings) as (_, first):
        await publish_numbers(kafka_settings, range(40))
        await until(lambda: len(first.values) >= 40)
        async with running_intake(kafka_settings) as (_, second):
            everything = kafka_settings.partitions

            def shared() -> bool:
                one, other = (t.ledger.partitions(kafka_settings.topics.news) for t in (first, second))
                return bool(one) and bool(other) and len(one) + len(other) == everything

            await until(shared)
            assert first.drains[0] == {(kafka_settings.topics.news, p) for p in range(everything)}
            await publish_numbers(kafka_settings, range(40, 80))
            await until(lambda: set(range(80)) <= {int(v) for v in first.values + second.values})
        await until(lambda: len(first.ledger.partitions(kafka_settings.topics.news)) == everything)
        await publish_numbers(kafka_settings, range(80, 120))
        await until(lambda: set(range(120)) <= {int(v) for v in first.values + second.values})
        counts = Counter(map(int, first.values + second.values))
        assert set(counts.values()) == {1}  # everything was finished and committed before each handover


async def test_an_idle_consumer_does_not_spin(kafka_settings: KafkaSettings) -> None:
    """A broker that answers an empty fetch at once is asked hundreds of times a second, not thousands."""
    consumer = AIOKafkaConsumer(
        kafka_settings.topics.news,
        **kafka_settings.client_options(),
        enable_auto_commit=False,
        fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
    )
    asked: list[str] = []
    send = consumer._client.send

    async def counting(node_id: Any, request: Any, **options: Any) -> Any:
        asked.append(type(request).__name__)
        return await send(node_id, request, **options)

    consumer._client.send = counting
    pace_fetches(consumer)
    await consumer.start()
    try:
        asked.clear()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await consumer.getmany(timeout_ms=600)
        fetches = sum(name.startswith("Fetch") for name in asked)
        assert 0 < fetches <= (loop.time() - began) / PAUSE_SECONDS + 2
    finally:
        await consumer.stop()
