"""Reads the newest records of a topic, from which a feed handler learns what it has published already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings

POLL_MS = 500
SECONDS = 60.0
"""Longest time for reading a tail: a start must end, and what is missing then costs duplicates that carry their id."""


async def topic_tail(
    kafka: KafkaSettings,
    topic: str,
    records: int | None = None,
    *,
    since_ms: int | None = None,
    seconds: float = SECONDS,
) -> AsyncGenerator[bytes, None]:
    """Yield the values of a topic's newest records, in order within each partition.

    Args:
        kafka: how to reach the cluster.
        topic: its full name; one that does not exist has no records.
        records: how many, over all partitions together; None means no bound.
        since_ms: only records that Kafka timestamped at or after this, in milliseconds since the epoch.
        seconds: after which the rest is left unread.

    Raises:
        UnavailableError: no broker answers.
        ConfigError: a certificate of the configuration cannot be read.
    """
    # Without a group a consumer assigns itself every partition of its topic; it learns of them in no other public way.
    consumer = AIOKafkaConsumer(
        topic, **kafka.client_options(), group_id=None, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    deadline = asyncio.get_running_loop().time() + seconds
    try:
        try:
            await consumer.start()
            ends = await _positions(consumer, records, since_ms)
        except UnknownTopicOrPartitionError:
            return
        except (KafkaError, OSError) as error:
            what = f"Kafka at {kafka.bootstrap}"
            raise UnavailableError(what, "kafka.bootstrap", str(error) or type(error).__name__) from None
        while ends and asyncio.get_running_loop().time() < deadline:
            batches = await consumer.getmany(timeout_ms=POLL_MS)
            for batch in batches.values():
                for record in batch:
                    if record.value is not None:
                        yield record.value
            # The position counts, not the last record: the end of a compacted or transactional log holds none.
            for partition in list(ends):
                if await consumer.position(partition) >= ends[partition]:
                    del ends[partition]
    finally:
        await consumer.stop()


async def _positions(
    consumer: AIOKafkaConsumer, records: int | None, since_ms: int | None
) -> dict[TopicPartition, int]:
    """Place the consumer and return, for each partition with something to read, the offset where its reading ends."""
    partitions = sorted(consumer.assignment())
    if not partitions:
        return {}
    starts = dict(await consumer.beginning_offsets(partitions))
    ends = await consumer.end_offsets(partitions)
    if since_ms is not None:
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        starts = {p: found[p].offset if found.get(p) else ends[p] for p in partitions}
    if records is not None:
        each = max(1, records // len(partitions))
        starts = {p: max(starts[p], ends[p] - each) for p in partitions}
    for partition in partitions:
        consumer.seek(partition, starts[partition])
    return {p: ends[p] for p in partitions if ends[p] > starts[p]}
