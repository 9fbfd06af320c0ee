"""Publishing: one idempotent producer, one lane per output partition, a receipt for every confirmed record.

A lane sends whatever waits as one batch as soon as the batch before it has left. At low rates that is one record at
once; at high rates batches grow by themselves, and a record costs a few microseconds rather than the fifteen of
``producer.send()`` with its future per record.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2

from scheduler.errors import PublishError
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings

log = structlog.get_logger()

MAX_BATCH_BYTES = 256 * 1024
"""A batch must stay below the broker's ``message.max.bytes`` (1 MB by default); past this size bigger batches
gain nothing and hold more records back when one fails."""

DEFAULT_MESSAGE_BYTES = 1_000_000
"""Kafka's default ``max.message.bytes`` less some framing: what we assume where a broker does not tell."""

CLOSE_SECONDS = 0.5
"""How long closing may take; with nothing waiting it takes milliseconds, and with the broker away it never ends."""

OutHeaders = list[tuple[str, bytes | None]]
"""aiokafka's record builder takes a list and nothing else."""

Receipt = object
"""What the caller wants back once a record is confirmed."""


class Record(NamedTuple):
    """One record on its way out."""

    key: bytes | None
    value: bytes
    headers: OutHeaders
    receipt: Receipt


class Publisher:
    """Publishes to the result topics and hands back the receipts of what Kafka confirmed.

    Args:
        kafka: how to reach the cluster.
        client_id: names the producer to the brokers.
        on_confirmed: called with the receipts of each confirmed batch, in order.
    """

    def __init__(self, kafka: KafkaSettings, client_id: str, on_confirmed: Callable[[list[Receipt]], None]) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._on_confirmed = on_confirmed
        self._lanes: dict[str, list[_Lane]] = {}
        self._producer: AIOKafkaProducer | None = None
        self._round_robin = itertools.count()
        self.pending = 0
        self.max_dead_letter_bytes = DEFAULT_MESSAGE_BYTES
        """Largest record that the dead-letters topic takes, in bytes."""
        self.failure: asyncio.Future[None] | None = None
        """Gets a `PublishError` when the producer cannot go on; what was not confirmed stays uncommitted."""

    async def start(self) -> None:
        """Connect and look up the partitions of every output topic.

        Raises:
            UnavailableError: Kafka does not answer, or an output topic does not exist.
        """
        self.failure = asyncio.get_running_loop().create_future()
        self._producer = AIOKafkaProducer(
            **self._kafka.client_options(),
            client_id=self._client_id,
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            max_batch_size=MAX_BATCH_BYTES,
        )
        try:
            await asyncio.wait_for(self._producer.start(), 2 * self._kafka.connect_seconds)
        except (KafkaError, TimeoutError, OSError) as error:
            await self._producer.stop()
            raise _unavailable(self._kafka, error) from None
        for topic in self._kafka.topics.outputs:
            self._lanes[topic] = [
                _Lane(self, self._producer, topic, partition) for partition in await self._partitions(topic)
            ]

        self.max_dead_letter_bytes = await _message_limit(self._kafka, self._kafka.topics.dead_letters)

    async def _partitions(self, topic: str) -> list[int]:
        assert self._producer is not None  # noqa: S101 - start() has set it
        try:
            found = await asyncio.wait_for(self._producer.partitions_for(topic), self._kafka.connect_seconds)
        except (KafkaError, TimeoutError):
            found = None
        if not found:
            await self.stop()
            raise UnavailableError(
                f"topic {topic}", "kafka.topic_prefix", "it does not exist; run: tapewire topics create"
            )
        return sorted(found)

    def publish(self, topic: str, key: bytes | None, value: bytes, headers: OutHeaders, receipt: Receipt) -> None:
        """Queue one record; its receipt comes back through ``on_confirmed``. Never blocks."""
        lanes = self._lanes[topic]
        index = next(self._round_robin) if key is None else _hash(key)
        self.pending += 1
        lanes[index % len(lanes)].add(Record(key, value, headers, receipt))

    async def flush(self, timeout: float) -> bool:
        """Wait until everything is confirmed; False when ``timeout`` seconds were not enough."""
        deadline = time.monotonic() + timeout
        while self.pending and not (self.failure and self.failure.done()):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.01)
        return not self.pending

    async def stop(self) -> None:
        """Close the producer; what is not confirmed is given up (see `flush`)."""
        for lane in itertools.chain.from_iterable(self._lanes.values()):
            lane.close()
        if self._producer is not None:
            try:
                # The producer's own stop() waits for its queue, for ever while the broker is away.
                await asyncio.wait_for(self._producer.stop(), CLOSE_SECONDS)
            except TimeoutError:
                log.warning("publisher_stop_timed_out", pending=self.pending)

    def confirmed(self, batch: list[Record]) -> None:
        """Take a confirmation from a lane."""
        self.pending -= len(batch)
        self._on_confirmed([record.receipt for record in batch])

    def failed(self, topic: str, error: BaseException) -> None:
        """Take a failure from a lane."""
        if self.failure is not None and not self.failure.done():
            self.failure.set_exception(PublishError(topic, f"{type(error).__name__}: {error}"))
            self.failure.exception()  # noted: asyncio must not print a traceback when it comes after the stop


class _Lane:
    """What goes to one output partition."""

    def __init__(self, publisher: Publisher, producer: AIOKafkaProducer, topic: str, partition: int) -> None:
        self._publisher = publisher
        self._producer = producer
        self._topic = topic
        self._partition = partition
        self._waiting: deque[Record] = deque()
        self._task: asyncio.Task[None] | None = None

    def add(self, record: Record) -> None:
        self._waiting.append(record)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, builder = self._next_batch()
                # Returns when the batch before this one has left, which is what lets batches grow under load.
                future = await self._producer.send_batch(builder, self._topic, partition=self._partition)
                future.add_done_callback(lambda done, batch=batch: self._settle(done, batch))
        except Exception as error:  # noqa: BLE001 - whatever it is, these records are not out, and someone must hear
            self._publisher.failed(self._topic, error)
        finally:
            self._task = None

    def _next_batch(self) -> tuple[list[Record], object]:
        builder = self._producer.create_batch()
        now_ms = time.time_ns() // 1_000_000
        batch: list[Record] = []
        waiting = self._waiting
        while waiting:
            record = waiting[0]
            if builder.append(timestamp=now_ms, key=record.key, value=record.value, headers=record.headers) is None:
                break
            batch.append(waiting.popleft())
        builder.close()
        return batch, builder

    def _settle(self, done: asyncio.Future[object], batch: list[Record]) -> None:
        if done.cancelled():
            return
        if error := done.exception():
            self._publisher.failed(self._topic, error)
        else:
            self._publisher.confirmed(batch)


@lru_cache(maxsize=65_536)
def _hash(key: bytes) -> int:
    """Kafka's own partitioner, so that any client finds a key in the same partition; cached, as it is pure Python."""
    hashed: int = murmur2(key)
    return hashed & 0x7FFFFFFF


def _unavailable(kafka: KafkaSettings, error: BaseException) -> UnavailableError:
    reason = str(error) or f"no answer within {kafka.connect_seconds:g} s"
    return UnavailableError(f"Kafka at {kafka.bootstrap}", "kafka.bootstrap", reason)


async def _message_limit(kafka: KafkaSettings, topic: str) -> int:
    """Return ``max.message.bytes`` of a topic; the default where we may not or cannot read it."""
    admin = AIOKafkaAdminClient(**kafka.client_options())
    try:
        await asyncio.wait_for(admin.start(), kafka.connect_seconds)
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        for answer in answers:
            for _error, _message, _type, _name, entries in answer.resources:
                values = {entry[0]: entry[1] for entry in entries}
                if limit := values.get("max.message.bytes"):
                    return int(limit)
    except (KafkaError, TimeoutError, OSError, ValueError) as error:
        log.info("topic_limit_unknown", topic=topic, assumed=DEFAULT_MESSAGE_BYTES, error=str(error))
    finally:
        await admin.close()
    return DEFAULT_MESSAGE_BYTES
