"""Several schedulers in one group, and groups that do not settle."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from schemas.settings import KafkaSettings, RedisSettings
from tests.conftest import Broker
from tests.scheduler.records import committed, ends
from tests.scheduler.running import Node, news, node, publish, results

pytestmark = pytest.mark.integration

STOP_SECONDS = 10.0
"""What a supervisor gives a process before it kills it."""


@pytest.fixture(autouse=True)
def _real_kafka(kafka: Broker) -> None:
    """Groups of two never settle on the embedded broker."""
    if kafka.embedded:
        pytest.skip("groups of two never settle on the embedded broker; needs a real Kafka")


def _owned(one: Node, topic: str) -> int:
    return len(one.scheduler._ledger.partitions(topic))


async def test_two_schedulers_share_the_partitions_and_one_leaves(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """One joins while the other works and leaves again while events flow: one outcome for every event, none lost."""
    topic, everything = kafka_settings.topics.news, kafka_settings.partitions
    engine = {"sim_step_ms": 2.0}
    flow = asyncio.Event()
    published = 0

    async def feed() -> None:
        nonlocal published
        while not flow.is_set():
            await publish(kafka_settings, [news(str(n)) for n in range(published, published + 20)])
            published += 20

    async with (
        node(kafka_settings, redis_settings, id="one") as one,
        node(kafka_settings, redis_settings, id="two") as two,
    ):
        one.worker("w1", **engine)
        await one.until(lambda: _owned(one, topic) == everything)
        feeding = asyncio.create_task(feed())
        two.worker("w2", **engine)
        await two.until(lambda: _owned(two, topic) == _owned(one, topic) == everything // 2)
        before = two.ended
        await two.until(lambda: two.ended > before)
        await two.end()
        await one.until(lambda: _owned(one, topic) == everything)
        flow.set()
        await feeding
        await one.until(lambda: one.ended + two.ended >= published and not one.scheduler._publisher.pending)
        await one.end()
    found = await results(kafka_settings)
    assert len(found.outcomes) == published
    assert set(found.outcomes.values()) == {1}
    newest = {p: end for p, end in (await ends(kafka_settings, topic)).items() if end}
    assert await committed(kafka_settings, topic) == newest


async def test_a_revoke_waits_for_what_runs_and_for_nothing_else(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """With slow work in flight and more coming, a handover finishes what runs and still repeats nothing."""
    topic, everything = kafka_settings.topics.news, kafka_settings.partitions
    async with (
        node(kafka_settings, redis_settings, id="one", drain_seconds=6.0) as one,
        node(kafka_settings, redis_settings, id="two", drain_seconds=6.0) as two,
    ):
        one.worker("w1", sim_step_ms=100.0, max_num_seqs=16)
        await one.until(lambda: _owned(one, topic) == everything)
        await publish(kafka_settings, [news(str(n)) for n in range(200)])
        await one.until(lambda: one.in_flight > 0)
        two.worker("w2")
        await two.until(lambda: _owned(two, topic) == _owned(one, topic) == everything // 2)
        await one.until(lambda: one.ended + two.ended >= 200 and not one.scheduler._publisher.pending)
        await two.until_ended(0)
        await two.end()
        await one.end()
        assert one.scheduler._stats.stale_outcomes == two.scheduler._stats.stale_outcomes == 0
    found = await results(kafka_settings)
    assert len(found.outcomes) == 200
    assert set(found.outcomes.values()) == {1}


class _Stuck(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no type information
    """A member that does not give its partitions back."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.release = asyncio.Event()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Hang, except at the first join."""
        if revoked:
            self.asked.set()
            await self.release.wait()

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Nothing to do."""


async def test_a_stop_does_not_wait_for_a_stuck_rebalance(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """While another member holds up the group, a scheduler still ends in the time that a supervisor gives it."""
    topic = kafka_settings.topics.news
    stuck = _Stuck()
    others = [
        AIOKafkaConsumer(
            **kafka_settings.client_options(),
            group_id=topic,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            rebalance_timeout_ms=60_000,
            session_timeout_ms=60_000,
        )
        for _ in range(2)
    ]
    joining = None
    async with node(kafka_settings, redis_settings) as one:
        try:
            one.worker()
            await one.until(lambda: _owned(one, topic) == kafka_settings.partitions)
            others[0].subscribe([topic], listener=stuck)
            await others[0].start()
            others[1].subscribe([topic])
            joining = asyncio.create_task(others[1].start())
            await asyncio.wait_for(stuck.asked.wait(), 30)
            await one.until(lambda: not _owned(one, topic))
            await one.end(STOP_SECONDS)
        finally:
            stuck.release.set()
            if joining is not None:
                await asyncio.gather(joining, return_exceptions=True)
            for other in others:
                await other.stop()
