"""Reading back and writing records on the broker of the run, with plain aiokafka clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from schemas.settings import KafkaSettings


@asynccontextmanager
async def producer(kafka: KafkaSettings, **options: Any) -> AsyncIterator[Any]:
    """Give a producer that confirms what it sends."""
    client = AIOKafkaProducer(**kafka.client_options(), acks="all", **options)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@asynccontextmanager
async def admin(kafka: KafkaSettings) -> AsyncIterator[Any]:
    """Give an admin client."""
    client = AIOKafkaAdminClient(**kafka.client_options())
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def ends(kafka: KafkaSettings, topic: str) -> dict[int, int]:
    """Return the offset after the last record of each partition."""
    client = AIOKafkaConsumer(**kafka.client_options())
    await client.start()
    try:
        partitions = [TopicPartition(topic, p) for p in range(kafka.partitions)]
        return {tp.partition: offset for tp, offset in (await client.end_offsets(partitions)).items()}
    finally:
        await client.stop()


async def committed(kafka: KafkaSettings, topic: str) -> dict[int, int]:
    """Return the offsets that the scheduler's group committed."""
    async with admin(kafka) as client:
        offsets = await client.list_consumer_group_offsets(topic)
    return {tp.partition: entry.offset for tp, entry in offsets.items() if tp.topic == topic and entry.offset >= 0}


async def read(
    kafka: KafkaSettings, topic: str, *, skip: Sequence[int] = (), isolation_level: str = "read_uncommitted"
) -> list[ConsumerRecord]:
    """Return all records that a topic holds now, in order within each partition."""
    client = AIOKafkaConsumer(
        **kafka.client_options(),
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=8 * 1024 * 1024,
        isolation_level=isolation_level,
    )
    await client.start()
    try:
        partitions = [TopicPartition(topic, p) for p in range(kafka.partitions) if p not in skip]
        wanted = {tp: end for tp, end in (await client.end_offsets(partitions)).items() if end}
        client.assign(list(wanted))
        records: list[ConsumerRecord] = []
        while wanted:
            for batch in (await client.getmany(timeout_ms=200)).values():
                records += batch
            # The position, not the last record: a transaction's marker has an offset and is none.
            for tp in [tp for tp, end in wanted.items() if await client.position(tp) >= end]:
                del wanted[tp]
        return records
    finally:
        await client.stop()
