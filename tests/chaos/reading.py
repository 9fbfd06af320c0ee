"""Reads the topics of a run: output records to `Outcome`, whole topics from their beginning to their end."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from msgspec import Struct
from msgspec.json import Decoder

from schemas.settings import KafkaSettings
from schemas.topics import (
    HEADER_SCHEDULER,
    HEADER_SOURCE_OFFSET,
    HEADER_SOURCE_PARTITION,
    HEADER_SOURCE_TOPIC,
    Topics,
)
from tests.chaos.broker import BenchError
from tests.chaos.ledger import Outcome, Source

PATIENCE_SECONDS = 180.0
"""For reading everything at the end. An open transaction of a killed scheduler holds read_committed readers up until
the broker aborts it, a minute by default."""
FETCH_MS = 200
MOST_RECORDS = 500
"""Decoded at once; the loop also feeds and injects faults."""


class _Stamps(Struct):
    consumed: int = 0
    dispatched: int = 0


class _Part(Struct):
    topic: str
    partition: int
    offset: int


class _Filing(Struct):
    sources: list[_Part] = []
    partial: bool = False


class _Written(Struct):
    """What the ledger wants of a signal or an expired record."""

    topic: str
    partition: int
    offset: int
    stamps: _Stamps
    signal_id: str = ""
    filing: _Filing | None = None


_decode = Decoder(_Written).decode


def outcomes_of(record: ConsumerRecord, topics: Topics) -> list[Outcome]:
    """Return what an output record says, one entry per input record behind it.

    Raises:
        BenchError: it is not what a scheduler may write.
    """
    try:
        return _outcomes_of(record, topics)
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        where = f"{record.topic}/{record.partition}/{record.offset}"
        raise BenchError(f"{where} is no outcome: {type(error).__name__}: {error}") from None


def _outcomes_of(record: ConsumerRecord, topics: Topics) -> list[Outcome]:
    headers = {key: value or b"" for key, value in record.headers}
    writer = headers.get(HEADER_SCHEDULER, b"").decode()
    if record.topic == topics.dead_letters:
        source = Source(
            headers[HEADER_SOURCE_TOPIC].decode(),
            int(headers[HEADER_SOURCE_PARTITION]),
            int(headers[HEADER_SOURCE_OFFSET]),
        )
        return [Outcome(source, "dead_letter", "", writer, record.timestamp)]
    written = _decode(record.value)
    kind = "signal" if record.topic == topics.signals else "expired"
    sources = [Source(written.topic, written.partition, written.offset)]
    partial = False
    if written.filing is not None:
        partial = written.filing.partial
        listed = [Source(part.topic, part.partition, part.offset) for part in written.filing.sources]
        sources = listed or sources
    stamps = written.stamps
    return [
        Outcome(source, kind, written.signal_id, writer, record.timestamp, partial, stamps.consumed, stamps.dispatched)
        for source in sources
    ]


@asynccontextmanager
async def reader(kafka: KafkaSettings, names: tuple[str, ...], *, committed: bool) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a consumer of all partitions of some topics, at their beginning, in no group."""
    consumer = AIOKafkaConsumer(
        **kafka.client_options(),
        client_id="chaos-reader",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if committed else "read_uncommitted",
        max_partition_fetch_bytes=4 * 1024 * 1024,
    )
    try:
        await consumer.start()
        consumer.assign([TopicPartition(name, number) for name in names for number in range(kafka.partitions)])
        await consumer.seek_to_beginning()
        yield consumer
    finally:
        await consumer.stop()


async def read_to_end(
    kafka: KafkaSettings, names: tuple[str, ...], *, committed: bool
) -> AsyncIterator[list[ConsumerRecord]]:
    """Yield every record of some topics, from the beginning to where they end now.

    Raises:
        BenchError: the end was not reached.
    """
    async with reader(kafka, names, committed=committed) as consumer:
        ends = await consumer.end_offsets(consumer.assignment())
        left = {tp: end for tp, end in ends.items() if end}
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while left:
                    fetched = await consumer.getmany(timeout_ms=FETCH_MS, max_records=MOST_RECORDS)
                    for batch in fetched.values():
                        yield batch
                    left = {tp: end for tp, end in left.items() if await consumer.position(tp) < end}
        except TimeoutError:
            at = {f"{tp.topic}/{tp.partition}": (await consumer.position(tp), end) for tp, end in left.items()}
            raise BenchError(f"topics were not read to their end within {PATIENCE_SECONDS:g} s: {at}") from None


async def read_inputs(kafka: KafkaSettings) -> dict[tuple[str, int], array[int]]:
    """Return the offsets that are on each input partition."""
    found = {(name, number): array("q") for name in kafka.topics.inputs for number in range(kafka.partitions)}
    async for batch in read_to_end(kafka, kafka.topics.inputs, committed=True):
        found[batch[0].topic, batch[0].partition].extend(record.offset for record in batch)
    return found


async def read_outcomes(kafka: KafkaSettings, *, committed: bool) -> list[Outcome]:
    """Return everything on the output topics."""
    topics = kafka.topics
    found: list[Outcome] = []
    async for batch in read_to_end(kafka, topics.outputs, committed=committed):
        for record in batch:
            found += outcomes_of(record, topics)
    return found
