"""Which partition of an output topic a record goes to: the one where any Kafka client looks for its key."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from functools import lru_cache

_SEED, _FACTOR, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


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
    """Kafka's own hash of a key: murmur2, 32 bits, without its sign.

    aiokafka has it as well, byte by byte in Python; word by word it takes half as long, and every expired event has a
    key that was never seen before.
    """
    mixed = _SEED ^ len(key)
    words = len(key) // 4
    for word in struct.unpack_from(f"<{words}I", key):
        word = word * _FACTOR & _MASK
        word = (word ^ word >> 24) * _FACTOR & _MASK
        mixed = (mixed * _FACTOR & _MASK) ^ word
    if rest := key[4 * words :]:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * _FACTOR & _MASK
    mixed = (mixed ^ mixed >> 13) * _FACTOR & _MASK
    return (mixed ^ mixed >> 15) & 0x7FFFFFFF
