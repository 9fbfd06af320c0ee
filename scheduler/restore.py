"""What earlier owners finished above the committed offsets, read back after an assignment.

``AIOKafkaConsumer.committed()`` drops the metadata (aiokafka 0.14), so this asks through the admin client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from scheduler.errors import OffsetMapError
from scheduler.ledger import Partition
from scheduler.offset_map import Range, decode
from schemas.settings import KafkaSettings

log = structlog.get_logger()

LOGGED_CHARS = 64
"""Of metadata that we cannot read: another tool wrote it, and it may hold anything."""


async def finished_before(
    kafka: KafkaSettings, client: AIOKafkaConsumer, group: str, partitions: Iterable[TopicPartition], timeout: float
) -> dict[Partition, list[Range]]:
    """Return the finished ranges above each committed offset; empty where there are none or nobody can tell.

    Never raises: without a map finished work is done again, which is a duplicate and no loss.

    Args:
        kafka: how to reach the cluster.
        client: the group's member, for the ends of the partitions.
        group: its group.
        partitions: what it was assigned.
        timeout: most seconds to take. No heartbeat goes out meanwhile, so it must be well below the session timeout.
    """
    wanted = list(partitions)
    if not wanted:
        return {}
    found: dict[TopicPartition, list[Range]] = {}
    try:
        async with asyncio.timeout(timeout):
            for tp, entry in (await _committed(kafka, group, wanted)).items():
                if entry.offset >= 0 and (ranges := _read(tp, entry.offset, entry.metadata)):
                    found[tp] = ranges
            ends = await client.end_offsets(list(found)) if found else {}
    except Exception as error:  # noqa: BLE001 - the admin client is experimental and raises AttributeError among others
        log.warning("offset_maps_not_read", group=group, error=f"{type(error).__name__}: {error}")
        return {}
    for tp in [tp for tp, ranges in found.items() if ranges[-1][1] > ends[tp]]:
        # The log is another one, or was cut: what comes under these offsets was never seen.
        log.warning("offset_map_ignored", topic=tp.topic, partition=tp.partition, reason="it ends behind the log")
        del found[tp]
    return {(tp.topic, tp.partition): ranges for tp, ranges in found.items()}


async def _committed(kafka: KafkaSettings, group: str, partitions: list[TopicPartition]) -> dict[TopicPartition, Any]:
    admin = AIOKafkaAdminClient(**kafka.client_options())
    try:
        await admin.start()
        offsets: dict[TopicPartition, Any] = await admin.list_consumer_group_offsets(group, partitions=partitions)
        return offsets
    finally:
        await admin.close()


def _read(tp: TopicPartition, offset: int, metadata: str) -> list[Range]:
    try:
        return decode(offset, metadata or "")
    except OffsetMapError as error:
        log.warning(
            "offset_map_ignored",
            topic=tp.topic,
            partition=tp.partition,
            reason=error.reason,
            metadata=metadata[:LOGGED_CHARS],
        )
        return []
