"""What the broker knows of the consumer groups: who owns which partition, and what is committed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import KafkaError

from schemas.settings import KafkaSettings

SNAPSHOT_SECONDS = 3.0
"""A new owner commits only after the session timeout, six seconds; what comes later than this proves nothing."""

Partition = tuple[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Committed:
    """A commit of one partition.

    Args:
        offset: everything below it is done.
        metadata: the scheduler's map of what is done above it.
    """

    offset: int
    metadata: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """Both groups at one moment.

    Args:
        owners: scheduler id of each assigned partition; empty while a group rebalances.
        committed: per partition; none where nothing was ever committed.
    """

    owners: dict[Partition, str] = field(default_factory=dict)
    committed: dict[Partition, Committed] = field(default_factory=dict)

    def owned_by(self, scheduler: str) -> frozenset[Partition]:
        """Return the partitions of one scheduler."""
        return frozenset(partition for partition, owner in self.owners.items() if owner == scheduler)


async def look(kafka: KafkaSettings) -> Groups | None:
    """Return the state of the groups; none when the broker does not tell in time."""
    admin = AIOKafkaAdminClient(**kafka.client_options(), client_id="chaos-groups")
    try:
        async with asyncio.timeout(SNAPSHOT_SECONDS):
            await admin.start()
            return await _look(admin, kafka)
    except (KafkaError, TimeoutError, OSError, AttributeError):
        # AttributeError: aiokafka asks a controller that is not elected for its id.
        return None
    finally:
        await admin.close()


async def _look(admin: Any, kafka: KafkaSettings) -> Groups:
    owners: dict[Partition, str] = {}
    committed: dict[Partition, Committed] = {}
    for group in kafka.topics.inputs:  # a group is named after its topic
        for answer in await admin.describe_consumer_groups([group]):
            for described in answer.groups:
                for _member, client, _host, _metadata, assignment, *_ in described[5]:
                    if assignment:
                        decoded = ConsumerProtocolMemberAssignment.decode(assignment)
                        owners.update({(tp.topic, tp.partition): client for tp in decoded.partitions()})
        for tp, found in (await admin.list_consumer_group_offsets(group)).items():
            if found.offset >= 0:
                committed[tp.topic, tp.partition] = Committed(offset=found.offset, metadata=found.metadata)
    return Groups(owners=owners, committed=committed)
