"""Which dead letters are handled, kept in Kafka itself: a consumer group's offsets with maps in their metadata.

The group's offset is the lowest open letter; handled ones above it are an offset map (`scheduler.offset_map`). So every
operator sees the same, from any machine, and monitoring sees the open letters as the group's lag.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from scheduler.errors import OffsetMapError
from scheduler.offset_map import Range, decode, encode
from schemas.errors import TapewireError, UnavailableError
from schemas.settings import KafkaSettings

log = structlog.get_logger()

TRIES = 5
"""Commits of ours that somebody else's commit undid before we give up."""
COMMIT_SECONDS = 10.0


class MarksFullError(TapewireError):
    """The handled letters above the lowest open one are too scattered for the metadata of one commit."""

    def __init__(self, partition: int, base: int) -> None:
        super().__init__(
            f"partition {partition} of the dead letters: too many open letters between handled ones to keep track of. "
            f"Nothing was done; handle the oldest open letters first, from {partition}/{base} on (retry or drop them)"
        )


class MarksConflictError(TapewireError):
    """Somebody else marks letters of the same partition at the same time, again and again."""

    def __init__(self, partition: int) -> None:
        super().__init__(
            f"partition {partition} of the dead letters: another operator's marks kept replacing ours; what was "
            "published stays published. Look with `tapewire dlq ls`, and drop what was published and still stands open"
        )


@dataclass(frozen=True, slots=True)
class Marks:
    """What is handled in one partition: everything below ``base``, and these ranges above it.

    Args:
        base: the lowest open letter.
        ranges: handled offsets above it, in rising order, neither overlapping nor touching.
    """

    base: int
    ranges: tuple[Range, ...] = ()

    def handled(self, offset: int) -> bool:
        """Return whether a letter is handled."""
        if offset < self.base:
            return True
        index = bisect_right(self.ranges, (offset, 2**63)) - 1
        return index >= 0 and offset < self.ranges[index][1]

    def plus(self, offsets: Iterable[int], letters: Sequence[int], end: int) -> Marks:
        """Return the marks with more letters handled.

        Args:
            offsets: the letters.
            letters: all offsets that stand between ``base`` and ``end``, in rising order. Between them are holes (of
                transactions, say), which count as handled: nothing will ever stand there.
            end: how far ``letters`` goes; what somebody else has handled behind it stays handled.
        """
        holes = _holes([o for o in letters if o >= self.base], self.base, end)
        ranges = merged([*self.ranges, *holes, *((offset, offset + 1) for offset in offsets if offset >= self.base)])
        base = ranges.pop(0)[1] if ranges and ranges[0][0] <= self.base else self.base
        return Marks(base, tuple(ranges))


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges in rising order, with those joined that overlap or touch."""
    out: list[Range] = []
    for start, end in sorted(ranges):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def _holes(letters: Sequence[int], start: int, end: int) -> list[Range]:
    edges = [start - 1, *letters, end]
    return [(before + 1, after) for before, after in itertools.pairwise(edges) if before + 1 < after]


class MarkBook:
    """Reads and writes the marks of all partitions; an async context manager.

    Args:
        kafka: how to reach the cluster; the group is the topic's own name.
    """

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._topic = kafka.topics.dead_letters
        self._admin: Any = None
        self._committer: Any = None

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            UnavailableError: no broker answers.
        """
        self._admin = AIOKafkaAdminClient(**self._kafka.client_options())
        try:
            await self._admin.start()
        except (KafkaError, OSError) as error:
            await self._admin.close()
            raise _unavailable(self._kafka, error) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        await self._admin.close()
        if self._committer is not None:
            await self._committer.stop()

    async def read(self, windows: dict[int, Range]) -> dict[int, Marks]:
        """Return the marks of partitions.

        Args:
            windows: per partition, its first offset and its end.

        Raises:
            UnavailableError: Kafka does not answer.
        """
        wanted = [TopicPartition(self._topic, partition) for partition in windows]
        try:
            async with asyncio.timeout(self._kafka.connect_seconds):
                found = await self._admin.list_consumer_group_offsets(self._topic, partitions=wanted)
        except (KafkaError, OSError, TimeoutError) as error:
            raise _unavailable(self._kafka, error) from None
        marks: dict[int, Marks] = {}
        for tp in wanted:
            first, end = windows[tp.partition]
            entry = found.get(tp)
            marks[tp.partition] = _marks(tp.partition, entry.offset, entry.metadata, end) if entry else Marks(0)
            if marks[tp.partition].base < first:  # never marked, or deleted by retention meanwhile
                marks[tp.partition] = marks[tp.partition].plus((), (), first)
        return marks

    async def add(
        self, partition: int, offsets: Sequence[int], letters: Sequence[int], known: int, window: Range
    ) -> None:
        """Mark letters as handled, beside whatever others have marked meanwhile.

        The marks are read right before they are written, and once more after it: Kafka has no commit that is refused
        when somebody else was faster. What remains is the millisecond between another operator's reading and writing,
        when ours falls into it after we have looked: then letters of ours stand open again, and nothing is lost.

        Args:
            partition: where they stand.
            offsets: the letters.
            letters: see `Marks.plus`.
            known: how far ``letters`` goes.
            window: first offset and end of the partition.

        Raises:
            MarksFullError: they do not fit; nothing was written.
            MarksConflictError: others kept undoing it.
            UnavailableError: Kafka does not answer.
        """
        for _ in range(TRIES):
            before = (await self.read({partition: window}))[partition]
            text = fitting(partition, before.plus(offsets, letters, known))
            await self._commit(partition, *text)
            after = (await self.read({partition: window}))[partition]
            if all(after.handled(offset) for offset in offsets):
                return
        raise MarksConflictError(partition)

    async def _commit(self, partition: int, base: int, text: str) -> None:
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                if self._committer is None:
                    await self._start_committer()
                await self._committer.commit({TopicPartition(self._topic, partition): (base, text)})
        except (KafkaError, OSError, TimeoutError) as error:
            raise _unavailable(self._kafka, error) from None

    async def _start_committer(self) -> None:
        self._committer = AIOKafkaConsumer(
            **self._kafka.client_options(),
            group_id=self._topic,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        # Assigned by hand, so it joins nothing and several operators can commit; it never fetches.
        partitions = [TopicPartition(self._topic, p) for p in await self._partitions()]
        self._committer.assign(partitions)
        self._committer.pause(*partitions)
        await self._committer.start()

    async def _partitions(self) -> list[int]:
        (topic,) = [t for t in await self._admin.describe_topics([self._topic]) if t["topic"] == self._topic]
        return sorted(p["partition"] for p in topic["partitions"])


def fitting(partition: int, marks: Marks) -> tuple[int, str]:
    """Return the offset and the metadata that keep these marks.

    Raises:
        MarksFullError: they do not fit.
    """
    text = encode(marks.base, marks.ranges)
    if text is None:
        raise MarksFullError(partition, marks.base)
    return marks.base, text


def _marks(partition: int, offset: int, metadata: str | None, end: int) -> Marks:
    if offset < 0:
        return Marks(0)
    try:
        ranges = decode(offset, metadata or "")
    except OffsetMapError as error:
        log.warning("dead_letter_marks_ignored", partition=partition, reason=str(error))
        ranges = []
    if max(offset, *(last for _, last in ranges[-1:]), 0) > end:
        log.warning("dead_letter_marks_ignored", partition=partition, reason="the topic is another one now")
        return Marks(0)
    return Marks(offset, tuple(ranges))


def _unavailable(kafka: KafkaSettings, error: BaseException) -> UnavailableError:
    reason = str(error) or f"no answer ({type(error).__name__})"
    return UnavailableError(f"Kafka at {kafka.bootstrap}", "kafka.bootstrap", reason)
