"""The ledger: which received offsets are finished, and what may be committed.

Offsets are not contiguous (transaction markers and compaction leave holes), so the ledger knows the offsets that
were *received* and never counts from one to the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from scheduler.work import Origin

Partition = tuple[str, int]
"""Topic and partition number."""


class Commit(NamedTuple):
    """What should be committed for a partition.

    Args:
        offset: the lowest unfinished received offset, or the position where nothing is unfinished.
        metadata: goes with it.
        epoch: of the assignment that it belongs to.
    """

    offset: int
    metadata: str
    epoch: int


class PartitionLedger:
    """One partition during one assignment."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._received: deque[int] = deque()
        self._finished: set[int] = set()
        self._position: int | None = None
        self._committed: int | None = None

    def receive(self, offset: int) -> None:
        """Note an offset that the consumer handed out; offsets come in rising order."""
        self._received.append(offset)
        self._position = offset + 1

    def finish(self, offset: int) -> None:
        """Note that the outcome of an offset is confirmed."""
        self._finished.add(offset)

    @property
    def unfinished(self) -> int:
        """How many received offsets have no confirmed outcome yet."""
        return len(self._received) - len(self._finished)

    def commit_point(self) -> int | None:
        """Return the lowest unfinished received offset, or the next position when all are finished.

        None when nothing was received, or nothing changed since `committed` was last called with it.
        """
        received, finished = self._received, self._finished
        while received and received[0] in finished:
            finished.remove(received.popleft())
        point = received[0] if received else self._position
        return None if point == self._committed else point

    def committed(self, point: int) -> None:
        """Note that Kafka has this commit."""
        self._committed = point


class Ledger:
    """All partitions that this process owns, each with the number of its assignment."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, PartitionLedger] = {}
        self._epoch = 0

    def assign(self, partitions: Iterable[Partition]) -> None:
        """Start a fresh ledger, under a new epoch, for each partition."""
        self._epoch += 1
        for partition in partitions:
            self._partitions[partition] = PartitionLedger(self._epoch)

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Drop partitions that went elsewhere; what is still running for them is ignored from now on."""
        for partition in partitions:
            self._partitions.pop(partition, None)

    def owns(self, origin: Origin) -> bool:
        """Return whether the assignment that this came from is still in force."""
        owned = self._partitions.get((origin.topic, origin.partition))
        return owned is not None and owned.epoch == origin.epoch

    def receive(self, topic: str, partition: int, offset: int) -> Origin | None:
        """Note a received offset; None when the partition is not owned any more."""
        owned = self._partitions.get((topic, partition))
        if owned is None:
            return None
        owned.receive(offset)
        return Origin(topic, partition, offset, owned.epoch)

    def finish(self, origin: Origin) -> bool:
        """Note a confirmed outcome; False, and no effect, when it comes from an older assignment."""
        owned = self._partitions.get((origin.topic, origin.partition))
        if owned is None or owned.epoch != origin.epoch:
            return False
        owned.finish(origin.offset)
        return True

    def unfinished(self, topics: Iterable[str]) -> int:
        """How many received offsets of these topics have no confirmed outcome yet."""
        wanted = set(topics)
        return sum(p.unfinished for (topic, _), p in self._partitions.items() if topic in wanted)

    def partitions(self, topic: str) -> list[Partition]:
        """Return the partitions of a topic that this process owns."""
        return [partition for partition in self._partitions if partition[0] == topic]

    def commit_points(self, topic: str) -> dict[Partition, int]:
        """Return what should be committed for a topic: only partitions where it changed."""
        points: dict[Partition, int] = {}
        for partition, owned in self._partitions.items():
            if partition[0] == topic and (point := owned.commit_point()) is not None:
                points[partition] = point
        return points

    def commits(self, topic: str) -> dict[Partition, Commit]:
        """Return what should be committed for a topic, each with the assignment that it belongs to."""
        return {p: Commit(point, "", self._partitions[p].epoch) for p, point in self.commit_points(topic).items()}

    def committed(self, points: Mapping[Partition, int | Commit]) -> None:
        """Note commits that Kafka confirmed."""
        for partition, point in points.items():
            if owned := self._partitions.get(partition):
                owned.committed(point.offset if isinstance(point, Commit) else point)
