"""Which partition of an output topic a record goes to: the one where any Kafka client looks for its key."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache

from aiokafka.partitioner import murmur2


class Partitioner:
    """Kafka's default partitioner; records without a key go round.

    Args:
        partitions: per topic, its partition numbers in rising order.
    """

    def __init__(self, partitions: dict[str, Sequence[int]]) -> None:
        self._partitions = partitions
        self._round_robin = itertools.count()

    def partition(self, topic: str, key: bytes | None) -> int:
        """Return the partition for a key."""
        partitions = self._partitions[topic]
        index = next(self._round_robin) if key is None else _hash(key)
        return partitions[index % len(partitions)]


@lru_cache(maxsize=65_536)
def _hash(key: bytes) -> int:
    """Kafka's own hash, cached, as it is pure Python."""
    hashed: int = murmur2(key)
    return hashed & 0x7FFFFFFF
