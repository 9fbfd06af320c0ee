"""Noticing that nothing moves although it could: fetching, and completions.

Progress is what ends, not what lags: a group that looks healthy from outside can stand still for ever
(parallel-consumer#857). Both watches are pure: positions, counts and the time are passed in. `ends_of`
and `positions_of` ask for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

ASK_SECONDS = 5.0
"""How long Kafka may take to say where partitions end."""
POSITION_SECONDS = 0.2
"""How long the client may take to say where it reads; it knows at once, or something is wrong."""


class FetchWatch:
    """Finds partitions that Kafka has records for and from which none come.

    Args:
        seconds: how long that may last.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._behind: dict[TopicPartition, tuple[int | None, float]] = {}

    def look(
        self, now: float, positions: Mapping[TopicPartition, int | None], ends: Mapping[TopicPartition, int]
    ) -> list[TopicPartition]:
        """Return the partitions that stand still.

        Args:
            now: monotonic time in seconds.
            positions: what is read next, of the partitions that are meant to be read now, so without those that are
                paused; None where the client does not know where to read.
            ends: the offset after the last readable record, as Kafka says; None of them where Kafka does not answer.
        """
        behind: dict[TopicPartition, tuple[int | None, float]] = {}
        for partition, position in positions.items():
            end = ends.get(partition)
            if end is None or (position is not None and end <= position):
                continue
            before = self._behind.get(partition)
            behind[partition] = before if before is not None and before[0] == position else (position, now)
        self._behind = behind
        return [partition for partition, (_, since) in behind.items() if now - since >= self._seconds]


class CompletionWatch:
    """Says whether work is in flight and none of it ends.

    Args:
        seconds: how long that may last.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ended = -1
        self._since = 0.0
        self.stalled = False

    def look(self, now: float, in_flight: int, ended: int) -> bool:
        """Return whether it began or ceased to stand still just now.

        Args:
            now: monotonic time in seconds.
            in_flight: requests at workers.
            ended: how many ever came back from there, whatever became of them.
        """
        if not in_flight or ended != self._ended:
            self._ended, self._since = ended, now
        stalled = now - self._since >= self._seconds
        changed = stalled != self.stalled
        self.stalled = stalled
        return changed


async def ends_of(client: AIOKafkaConsumer, topic: str) -> dict[TopicPartition, int]:
    """Return the offset after the last readable record of each partition; empty where Kafka does not answer."""
    try:
        async with asyncio.timeout(ASK_SECONDS):
            partitions = client.partitions_for_topic(topic) or ()
            ends: dict[TopicPartition, int] = await client.end_offsets([TopicPartition(topic, p) for p in partitions])
            return ends
    except (KafkaError, TimeoutError):
        return {}


async def positions_of(client: AIOKafkaConsumer, partitions: list[TopicPartition]) -> dict[TopicPartition, int | None]:
    """Return what is read next of each partition; None where the client does not know."""
    positions = await asyncio.gather(*(_position(client, tp) for tp in partitions))
    return dict(zip(partitions, positions, strict=True))


async def _position(client: AIOKafkaConsumer, tp: TopicPartition) -> int | None:
    try:
        async with asyncio.timeout(POSITION_SECONDS):
            position: int = await client.position(tp)
            return position
    except (KafkaError, TimeoutError):
        return None
