"""The ledger: which received offsets are finished, and what may be committed.

Offsets are not contiguous (transaction markers and compaction leave holes), so the ledger knows the offsets that
were *received*, numbers them, and never counts from one offset to the next.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import structlog

from scheduler import offset_map
from scheduler.offset_map import MAX_CHARS, Range
from scheduler.work import Origin

log = structlog.get_logger()

Partition = tuple[str, int]
"""Topic and partition number."""

_ONES = re.compile(rb"\x01+")
TRIM_FROM = 4096
"""Finished offsets at the front are given back in blocks of at least this many, and at least half of what is held."""
CROWDED_FROM, CROWDED_UNTIL = 0.75, 0.5
"""Share of the map's limit at which a partition takes no new records, and below which it does again."""
SMALLEST_LIMIT = 64
"""A broker that takes fewer characters of metadata than this gets none, and then no partition waits for its map."""


class Commit(NamedTuple):
    """What should be committed for a partition.

    Args:
        offset: the lowest unfinished received offset, or the position where nothing is unfinished.
        metadata: the finished offsets above it (see `offset_map`); empty where there are none or too many.
        epoch: of the assignment that it belongs to.
    """

    offset: int
    metadata: str
    epoch: int


class PartitionLedger:
    """One partition during one assignment. A received offset costs nine bytes.

    Args:
        epoch: number of the assignment.
        restored: ranges that an earlier owner finished above its commit; records in them are finished on receipt.
    """

    def __init__(self, epoch: int, restored: Iterable[Range] = ()) -> None:
        self.epoch = epoch
        self.unfinished = 0
        """Received offsets without a confirmed outcome."""
        self.crowded = False
        self.map_dropped = False
        self._offsets = array("q")
        self._done = bytearray()  # 1 where the offset of the same index is finished
        self._first = 0  # index of the lowest unfinished offset
        self._runs = 0  # runs of finished offsets behind it
        self._last_finished = -1
        self._restored = deque(restored)
        self._position: int | None = None
        self._gap: int | None = None
        self._committed: tuple[int, str] | None = None
        self._changed = False

    def receive(self, offset: int) -> bool:
        """Note an offset that the consumer handed out, in rising order; False when there is nothing to do for it.

        That is so when an earlier owner finished it, or when it is noted already.
        """
        if self._position is not None and offset < self._position:
            return False
        restored = self._restored
        while restored and restored[0][1] <= offset:
            restored.popleft()
        self._append(offset)
        self._position = offset + 1
        if not restored or offset < restored[0][0]:
            return True
        if restored[0][1] == offset + 1:
            restored.popleft()
        self._finish_index(len(self._offsets) - 1)
        return False

    def receive_gap(self, offset: int, position: int) -> None:
        """Note offsets that Kafka lost as one received offset, behind which reading goes on at ``position``.

        Nothing is committed while it is the lowest unfinished one: the group's offset stays as the gap found it.
        """
        self._append(offset)
        self._gap = offset
        self._position = position
        while self._restored and self._restored[0][1] <= position:
            self._restored.popleft()

    def _append(self, offset: int) -> None:
        self._offsets.append(offset)
        self._done.append(0)
        self.unfinished += 1
        self._changed = True

    def finish(self, offset: int) -> None:
        """Note that the outcome of a received offset is confirmed; a second time changes nothing."""
        index = bisect_left(self._offsets, offset, self._first)
        if index < len(self._offsets) and self._offsets[index] == offset and not self._done[index]:
            self._finish_index(index)

    def _finish_index(self, index: int) -> None:
        done = self._done
        done[index] = 1
        self.unfinished -= 1
        self._changed = True
        self._last_finished = max(self._last_finished, self._offsets[index])
        if index > self._first:
            self._runs += 1 - done[index - 1] - (index + 1 < len(done) and done[index + 1])
            return
        following = done.find(0, index)
        self._first = len(done) if following < 0 else following
        self._runs -= self._first > index + 1  # the run that the front has reached
        if self._first >= TRIM_FROM and 2 * self._first >= len(done):
            del self._offsets[: self._first]
            del done[: self._first]
            self._first = 0

    def commit_point(self) -> int | None:
        """Return the lowest unfinished received offset, or the position when all are finished.

        None when nothing was received yet, or while a gap that Kafka left is what holds the commit.
        """
        if self._first == len(self._offsets):
            return self._position
        point = self._offsets[self._first]
        return None if point == self._gap else point

    def commit(self, limit: int = MAX_CHARS) -> Commit | None:
        """Return what should be committed, or None when that is what Kafka has.

        Args:
            limit: most characters of metadata.
        """
        if not self._changed or (point := self.commit_point()) is None:
            return None
        metadata = self._map(point, limit)
        self.map_dropped = metadata is None
        if self._committed is not None and self._committed[0] == point and metadata in (None, self._committed[1]):
            # Also where the map is too long now: the shorter one that Kafka has for this offset is still true.
            self._changed = False
            return None
        return Commit(point, metadata or "", self.epoch)

    def committed(self, commit: Commit) -> None:
        """Note that Kafka has this commit."""
        self._committed = (commit.offset, commit.metadata)

    def map_chars(self) -> int:
        """Return an upper bound of the characters that the map needs now, in constant time."""
        if (point := self.commit_point()) is None:
            return 0
        runs, end = self._shape()
        return offset_map.estimate(runs, end - point)

    def _shape(self) -> tuple[int, int]:
        """Return how many runs the map has (one less where two of them touch), and where the last one ends."""
        end = self._restored[-1][1] if self._restored else self._last_finished + 1
        return self._runs + len(self._restored), end

    def _map(self, point: int, limit: int) -> str | None:
        runs, end = self._shape()
        if not runs:
            return ""
        if limit < SMALLEST_LIMIT or not offset_map.may_fit(runs - 1, end - point, limit):
            return None
        return offset_map.encode(point, self._finished(), limit)

    def _finished(self) -> list[Range]:
        """Return what is finished above the commit point: of what was received, and of what is still to come."""
        offsets = self._offsets
        runs = _ONES.finditer(self._done, self._first)  # in C: there may be ten thousand
        found = [(offsets[run.start()], offsets[run.end() - 1] + 1) for run in runs]
        for start, end in self._restored:
            start = max(start, self._position or 0)
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, end))
        return found


class Ledger:
    """All partitions that this process owns, each with the number of its assignment."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, PartitionLedger] = {}
        self._epoch = 0
        self.map_limit = MAX_CHARS
        """Most characters of metadata; less than Kafka's default where a broker refused that many."""
        self.skipped = 0
        """Received records that an earlier owner of their partition had finished."""
        self.stale = 0
        """Confirmed outcomes of an assignment that is over; its partition's next owner repeats them."""
        self.maps_dropped = 0
        """Commits without the map that they should have had, because it was too long."""

    def assign(self, partitions: Iterable[Partition], restored: Mapping[Partition, list[Range]] | None = None) -> None:
        """Start a fresh ledger, under a new epoch, for each partition.

        Args:
            partitions: what this process owns now.
            restored: what was finished above the commit, as far as it is known.
        """
        self._epoch += 1
        for partition in partitions:
            self._partitions[partition] = PartitionLedger(self._epoch, (restored or {}).get(partition, ()))

    def forget(self, partitions: Iterable[Partition]) -> None:
        """Drop partitions that went elsewhere; what is still running for them is ignored from now on."""
        for partition in partitions:
            self._partitions.pop(partition, None)

    def owns(self, origin: Origin) -> bool:
        """Return whether the assignment that this came from is still in force."""
        owned = self._partitions.get((origin.topic, origin.partition))
        return owned is not None and owned.epoch == origin.epoch

    def receive(self, topic: str, partition: int, offset: int) -> Origin | None:
        """Note a received offset; None when there is nothing to do for it here.

        That is so when the partition is not owned any more, and when an earlier owner finished this offset.
        """
        owned = self._partitions.get((topic, partition))
        if owned is None:
            return None
        if not owned.receive(offset):
            self.skipped += 1
            return None
        return Origin(topic, partition, offset, owned.epoch)

    def receive_gap(self, partition: Partition, offset: int, position: int) -> Origin:
        """Note offsets that Kafka lost; see `PartitionLedger.receive_gap`. The partition must be owned."""
        owned = self._partitions[partition]
        owned.receive_gap(offset, position)
        return Origin(*partition, offset, owned.epoch)

    def finish(self, origin: Origin) -> bool:
        """Note a confirmed outcome; False, and no effect, when it comes from an older assignment."""
        owned = self._partitions.get((origin.topic, origin.partition))
        if owned is None or owned.epoch != origin.epoch:
            self.stale += 1
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

    def crowded(self, partition: Partition) -> bool:
        """Return whether a partition should take no new records, because its map comes close to the limit."""
        owned = self._partitions.get(partition)
        if owned is None:
            return False
        share = CROWDED_UNTIL if owned.crowded else CROWDED_FROM
        crowded = self.map_limit >= SMALLEST_LIMIT and owned.map_chars() > share * self.map_limit
        if crowded != owned.crowded:
            owned.crowded = crowded
            event = "partition_crowded" if crowded else "partition_uncrowded"
            log.info(event, topic=partition[0], partition=partition[1], unfinished=owned.unfinished)
        return crowded

    def commits(self, topic: str) -> dict[Partition, Commit]:
        """Return what should be committed for a topic: only partitions where it changed."""
        commits: dict[Partition, Commit] = {}
        for partition, owned in self._partitions.items():
            if partition[0] != topic:
                continue
            dropped_before = owned.map_dropped
            if (commit := owned.commit(self.map_limit)) is None:
                continue
            commits[partition] = commit
            if owned.map_dropped:
                self.maps_dropped += 1
                if not dropped_before:
                    log.warning("offset_map_dropped", topic=topic, partition=partition[1], offset=commit.offset)
        return commits

    def committed(self, commits: Mapping[Partition, Commit]) -> None:
        """Note commits that Kafka confirmed; one of an assignment that is over changes nothing."""
        for partition, commit in commits.items():
            owned = self._partitions.get(partition)
            if owned is not None and owned.epoch == commit.epoch:
                owned.committed(commit)
