"""Read topics from outside any consumer group: for the tail, the demo's accounts and the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from ops.topics import missing_topics
from scheduler.fetch_pace import pace_fetches
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings


class TopicReader:
    """Reads all partitions of some topics, committing nothing; an async context manager.

    Args:
        topics: full names.
        from_beginning: start at the oldest records; otherwise at what comes after the start.
    """

    def __init__(self, kafka: KafkaSettings, topics: Sequence[str], *, from_beginning: bool) -> None:
        self._kafka = kafka
        self._topics = topics
        self._from_beginning = from_beginning
        self._consumer: Any = None

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            UnavailableError: no broker answers, or a topic does not exist.
        """
        if absent := set(await missing_topics(self._kafka)) & set(self._topics):
            names = ", ".join(sorted(absent))
            raise UnavailableError(f"Kafka topic {names}", "kafka.topic_prefix", "not there; tapewire topics create")
        consumer = AIOKafkaConsumer(
            *self._topics,
            **self._kafka.client_options(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        pace_fetches(consumer)
        try:
            await consumer.start()
            if not self._from_beginning:
                await consumer.seek_to_end(*consumer.assignment())
        except (KafkaError, OSError) as error:
            await consumer.stop()
            reason = str(error) or type(error).__name__
            raise UnavailableError(f"Kafka at {self._kafka.bootstrap}", "kafka.bootstrap", reason) from None
        self._consumer = consumer
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect."""
        await self._consumer.stop()

    async def read(self, timeout_ms: int, max_records: int | None = None) -> list[Any]:
        """Return the records that came within the time, in no order across partitions; maybe none."""
        batches = await self._consumer.getmany(timeout_ms=timeout_ms, max_records=max_records)
        return [record for batch in batches.values() for record in batch]

    async def end_offsets(self) -> dict[Any, int]:
        """Return the next offset of every partition read."""
        found: dict[Any, int] = await self._consumer.end_offsets(self._consumer.assignment())
        return found

    async def first_offsets(self) -> dict[Any, int]:
        """Return the lowest offset that Kafka still holds, of every partition read."""
        found: dict[Any, int] = await self._consumer.beginning_offsets(self._consumer.assignment())
        return found

    def seek(self, partition: Any, offset: int) -> None:
        """Read a partition from this offset on."""
        self._consumer.seek(partition, offset)

    async def position(self, partition: Any) -> int:
        """Return the next offset that will be read; it passes over holes, which no record tells of."""
        found: int = await self._consumer.position(partition)
        return found


def header(record: Any, name: str) -> str:
    """Return one header of a record as text, or the empty string."""
    for key, value in record.headers:
        if key == name and value is not None:
            return bytes(value).decode("utf-8", "replace")
    return ""
