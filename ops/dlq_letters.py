"""Dead letters as they stand in their topic, read in a closed window: up to where it ends when the reading begins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from ops.topics import describe_topics
from scheduler.fetch_pace import pace_fetches
from scheduler.offset_map import Range
from scheduler.outcomes import OWN_HEADERS
from schemas.errors import ConfigError, UnavailableError
from schemas.settings import KafkaSettings
from schemas.topics import (
    HEADER_ERROR_ATTEMPTS,
    HEADER_ERROR_FIELD,
    HEADER_ERROR_KIND,
    HEADER_ERROR_MESSAGE,
    HEADER_ERROR_STAGE,
    HEADER_EVENT_ID,
    HEADER_RETRY,
    HEADER_SOURCE_OFFSET,
    HEADER_SOURCE_PARTITION,
    HEADER_SOURCE_TOPIC,
    HEADER_TRUNCATED_FROM,
)

POLL_MS = 250
FETCH_BYTES = 4 * 1024 * 1024
"""Of one partition: the largest letter is half of it."""
MAX_ID_BYTES = 64 * 1024
"""Values larger than this are not searched for an event id."""


class LetterId(NamedTuple):
    """Where a letter stands; people write ``3/1207``."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}/{self.offset}"


def parse_id(text: str) -> LetterId:
    """Read an id as `tapewire dlq ls` prints it.

    Raises:
        ConfigError: it is none.
    """
    partition, slash, offset = text.strip().partition("/")
    if slash and all(part.isascii() and part.isdigit() and len(part) < 19 for part in (partition, offset)):
        return LetterId(int(partition), int(offset))
    raise ConfigError("ID", f"{text!r} is no dead letter's id; one looks like 3/1207 (tapewire dlq ls)")


class Source(NamedTuple):
    """Where the original stands."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class _HasEventId(msgspec.Struct):
    event_id: str = ""


class Letter:
    """One dead letter.

    Args:
        record: as Kafka has it.
    """

    def __init__(self, record: ConsumerRecord) -> None:
        self.id = LetterId(record.partition, record.offset)
        self.at_ms: int = record.timestamp
        self.key: bytes | None = record.key
        self.value: bytes = record.value or b""
        self.headers: tuple[tuple[str, bytes | None], ...] = tuple(record.headers)
        self.kind = self._text(HEADER_ERROR_KIND)
        self.field = self._text(HEADER_ERROR_FIELD)
        self.message = self._text(HEADER_ERROR_MESSAGE)
        self.stage = self._text(HEADER_ERROR_STAGE)
        self.attempts = self._number(HEADER_ERROR_ATTEMPTS)
        self.truncated_from = self._number(HEADER_TRUNCATED_FROM)

    @property
    def source(self) -> Source | None:
        """Where the original stands, or None when the headers do not say."""
        topic = self._text(HEADER_SOURCE_TOPIC)
        partition, offset = self._number(HEADER_SOURCE_PARTITION), self._number(HEADER_SOURCE_OFFSET)
        return Source(topic, partition, offset) if topic and partition is not None and offset is not None else None

    @property
    def event_id(self) -> str:
        """The event's id where header or value tell it, or ``""``."""
        if found := self._text(HEADER_EVENT_ID):
            return found
        if len(self.value) > MAX_ID_BYTES:
            return ""
        try:
            return msgspec.json.decode(self.value, type=_HasEventId).event_id
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return ""

    def original_headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers that the original had, as far as they fitted."""
        return [header for header in self.headers if header[0] not in OWN_HEADERS and header[0] != HEADER_RETRY]

    def _text(self, name: str) -> str:
        # The last one is ours: an original may have brought a header of the same name.
        for key, value in reversed(self.headers):
            if key == name:
                return (value or b"").decode("utf-8", "replace")
        return ""

    def _number(self, name: str) -> int | None:
        text = self._text(name)
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


class LetterReader:
    """Reads dead letters, and originals from their source; joins no group; an async context manager."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._topic = kafka.topics.dead_letters
        self._client: Any = None
        self._single: Any = None
        self._partitions: dict[str, int] = {}
        self.windows: dict[int, Range] = {}
        """Per partition, the first offset and the end, as they were at the start."""

    async def __aenter__(self) -> Self:
        """Connect and fix the window.

        Raises:
            UnavailableError: no broker answers, or the topic does not exist.
        """
        self._partitions = {info.name: info.partitions for info in await describe_topics(self._kafka)}
        if self._topic not in self._partitions:
            name = f"Kafka topic {self._topic}"
            raise UnavailableError(name, "kafka.topic_prefix", "not there; tapewire topics create")
        self._client = self._consumer()
        try:
            await self._client.start()
            self.windows = await self._windows(self._topic)
        except (KafkaError, OSError, TimeoutError) as error:
            await self._client.stop()
            raise _unavailable(self._kafka, error) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        for client in (self._client, self._single):
            if client is not None:
                await client.stop()

    async def letters(self, starts: Mapping[int, int]) -> AsyncIterator[Letter]:
        """Give the letters from these offsets on to the end of the window, in order within each partition.

        Raises:
            UnavailableError: nothing came for ``kafka.connect_seconds`` though there is more.
        """
        wanted = {
            TopicPartition(self._topic, partition): max(start, self.windows[partition][0])
            for partition, start in starts.items()
        }
        ends = {tp: self.windows[tp.partition][1] for tp in wanted}
        windows = {tp: (wanted[tp], ends[tp]) for tp in wanted if wanted[tp] < ends[tp]}
        async for record in self._records(self._client, windows):
            yield Letter(record)

    async def letter(self, letter_id: LetterId) -> Letter | None:
        """Return one letter, or None when there is none at that place (any more)."""
        first, end = self.windows.get(letter_id.partition, (0, 0))
        if not first <= letter_id.offset < end:
            return None
        record = await self._record(TopicPartition(self._topic, letter_id.partition), letter_id.offset, end)
        return None if record is None else Letter(record)

    async def original(self, source: Source) -> ConsumerRecord | None:
        """Return a record of an input topic, or None when it is not there any more."""
        try:
            first, end = (await self._windows(source.topic)).get(source.partition, (0, 0))
        except (KafkaError, OSError, TimeoutError) as error:
            raise _unavailable(self._kafka, error) from None
        if not first <= source.offset < end:
            return None
        return await self._record(TopicPartition(source.topic, source.partition), source.offset, end)

    async def _record(self, tp: TopicPartition, offset: int, end: int) -> ConsumerRecord | None:
        if self._single is None:
            # One of its own: a single record is asked for in the middle of reading many.
            self._single = self._consumer()
            await self._single.start()
        async for record in self._records(self._single, {tp: (offset, min(offset + 1, end))}):
            if record.offset == offset:
                return record
        return None

    def _consumer(self) -> Any:
        consumer = AIOKafkaConsumer(
            **self._kafka.client_options(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=FETCH_BYTES,
            isolation_level="read_committed",
        )
        pace_fetches(consumer)
        return consumer

    async def _windows(self, topic: str) -> dict[int, Range]:
        async with asyncio.timeout(self._kafka.connect_seconds):
            partitions = [TopicPartition(topic, p) for p in range(self._partitions.get(topic, 0))]
            firsts = await self._client.beginning_offsets(partitions)
            ends = await self._client.end_offsets(partitions)
        return {tp.partition: (firsts[tp], ends[tp]) for tp in partitions}

    async def _records(self, client: Any, windows: Mapping[TopicPartition, Range]) -> AsyncIterator[ConsumerRecord]:
        if not windows:
            return
        left = dict(windows)
        try:
            client.assign(list(left))
            for tp, (start, _) in left.items():
                client.seek(tp, start)
            moved = time.monotonic()
            while left:
                batches = await client.getmany(*left, timeout_ms=POLL_MS)
                for tp, batch in batches.items():
                    for record in batch:
                        if record.offset < left[tp][1]:
                            yield record
                if batches:
                    moved = time.monotonic()
                # By position, not by the last record: the end of a window may be the mark of a transaction.
                for tp in [tp for tp, (_, end) in left.items() if await client.position(tp) >= end]:
                    del left[tp]
                    client.pause(tp)
                if time.monotonic() - moved > self._kafka.connect_seconds:
                    break
        except (KafkaError, OSError) as error:
            raise _unavailable(self._kafka, error) from None
        if left:
            raise _unavailable(self._kafka, TimeoutError(f"nothing more for {self._kafka.connect_seconds:g} s"))


def _unavailable(kafka: KafkaSettings, error: BaseException) -> UnavailableError:
    reason = str(error) or f"no answer ({type(error).__name__})"
    return UnavailableError(f"Kafka at {kafka.bootstrap}", "kafka.bootstrap", reason)
