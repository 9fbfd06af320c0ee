"""An intake on its own: it runs against a broker, and whoever takes its records does what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition

from scheduler.intake import Intake
from scheduler.ledger import Ledger, Partition
from scheduler.lost_offsets import LostOffsets
from scheduler.offset_map import Range, decode
from scheduler.work import Origin
from schemas.settings import KafkaSettings, SchedulerSettings
from tests.scheduler.records import admin, producer
from tests.scheduler.waiting import until

SETTINGS = SchedulerSettings(session_seconds=6.0, drain_seconds=1.0)


class Taker:
    """Implements `scheduler.intake.Consumer`: notes offsets as received, and finishes them when told."""

    def __init__(self, ledger: Ledger, *, finish: bool = True) -> None:
        self.ledger = ledger
        self.finish = finish
        self.room = True
        self.values: list[bytes] = []
        self.unfinished: list[Origin] = []
        self.drains: list[set[Partition]] = []
        self.gaps: list[tuple[LostOffsets, Origin]] = []

    def has_room(self, topic: str) -> bool:
        """Say what the test says."""
        return self.room

    async def take(self, topic: str, records: list[tuple[ConsumerRecord, int]]) -> None:
        """Receive each record."""
        for record, _ in records:
            origin = self.ledger.receive(topic, record.partition, record.offset)
            if origin is None:
                continue
            self.values.append(record.value)
            if self.finish:
                self.ledger.finish(origin)
            else:
                self.unfinished.append(origin)

    def lost(self, lost: LostOffsets, origin: Origin) -> None:
        """Note it, and finish it when told."""
        self.gaps.append((lost, origin))

    async def drained(self, partitions: set[Partition], timeout: float) -> bool:
        """Nothing runs here."""
        self.drains.append(partitions)
        return True


@asynccontextmanager
async def running_intake(
    kafka: KafkaSettings, *, finish: bool = True, settings: SchedulerSettings = SETTINGS
) -> AsyncIterator[tuple[Intake, Taker]]:
    """Give an intake of the news topic that runs."""
    ledger = Ledger()
    taker = Taker(ledger, finish=finish)
    intake = Intake(kafka.topics.news, kafka, settings, ledger, taker)
    await intake.start()
    running = asyncio.create_task(intake.run())
    try:
        yield intake, taker
    finally:
        intake.stop_fetching()
        await asyncio.gather(running, return_exceptions=True)
        await intake.stop()


async def publish_numbers(kafka: KafkaSettings, values: Iterable[int]) -> None:
    """Publish numbers to the news topic, each to the partition of its remainder."""
    async with producer(kafka) as client:
        for value in values:
            await client.send(kafka.topics.news, b"%d" % value, partition=value % kafka.partitions)
        await client.flush()


def numbers(taker: Taker) -> list[int]:
    """Return what was taken, sorted."""
    return sorted(map(int, taker.values))


async def rejoin(intake: Intake) -> None:
    """Make a member leave its partitions and get them back, as a rebalance does."""
    before = intake._client._coordinator.generation
    intake._client._coordinator.request_rejoin()
    await until(
        lambda: intake._client._coordinator.generation > before and bool(intake._ledger.partitions(intake.topic))
    )


async def commit_as_group(kafka: KafkaSettings, offsets: dict[int, tuple[int, str]]) -> None:
    """Commit offsets and metadata for the news topic's group, as another tool would while nobody is there."""
    topic = kafka.topics.news
    client = AIOKafkaConsumer(
        **kafka.client_options(), group_id=topic, enable_auto_commit=False, auto_offset_reset="none"
    )
    await client.start()
    try:
        client.assign([TopicPartition(topic, p) for p in offsets])
        await client.commit({TopicPartition(topic, p): entry for p, entry in offsets.items()})
    finally:
        await client.stop()


async def committed_map(kafka: KafkaSettings, partition: int) -> list[Range]:
    """Return what the news topic's group says is finished above its committed offset."""
    topic = kafka.topics.news
    async with admin(kafka) as client:
        entry = (await client.list_consumer_group_offsets(topic))[TopicPartition(topic, partition)]
    return decode(entry.offset, entry.metadata)


class Nobody(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no type information
    """Does nothing in a rebalance."""

    def on_partitions_revoked(self, revoked: object) -> None:
        """Nothing."""

    def on_partitions_assigned(self, assigned: object) -> None:
        """Nothing."""
