"""Offsets that Kafka no longer has: which ones, and in what words."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, TopicPartition

from scheduler.ledger import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class LostOffsets:
    """A gap between what this group wants to read next and what Kafka still has.

    Args:
        partition: where.
        wanted: the offset that was to be read next: the committed one after a start.
        first: the first offset that Kafka has.
        end: the offset after the last one that Kafka has.
    """

    partition: Partition
    wanted: int
    first: int
    end: int

    @property
    def began_anew(self) -> bool:
        """Whether the log ends before what was wanted: the topic was made again, or a broker lost its tail."""
        return self.wanted > self.end

    @property
    def is_gap(self) -> bool:
        """Whether anything is lost at all; a broker may also say "out of range" for a moment after an election."""
        return self.wanted < self.first or self.began_anew

    def __str__(self) -> str:
        topic, partition = self.partition
        where = f"topic {topic}, partition {partition}: offset {self.wanted} is to be read next"
        if self.began_anew:
            return (
                f"{where}, but the log ends at {self.end}: the topic was made anew, or a broker lost what was in it. "
                f"The first offset that Kafka has is {self.first}"
            )
        return (
            f"{where}, but the first offset that Kafka has is {self.first}: offsets {self.wanted} to {self.first - 1} "
            "were deleted before they were read"
        )


async def look_for(client: AIOKafkaConsumer, tp: TopicPartition, wanted: int, timeout: float) -> LostOffsets:
    """Ask Kafka what it still has of a partition whose offset ``wanted`` it called out of range.

    Raises:
        KafkaError: Kafka cannot say.
        TimeoutError: it did not in ``timeout`` seconds.
    """
    async with asyncio.timeout(timeout):
        first = (await client.beginning_offsets([tp]))[tp]
        end = (await client.end_offsets([tp]))[tp]
    return LostOffsets(partition=(tp.topic, tp.partition), wanted=wanted, first=first, end=end)
