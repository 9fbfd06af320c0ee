"""Publishing: one idempotent producer, one lane per output partition, a receipt for every confirmed record.

A lane has one batch on its way and sends whatever waits as the next one when that is confirmed. At low rates a batch
is one record at once; at high rates batches grow by themselves, and a record costs a few microseconds rather than the
fifteen of ``producer.send()`` with its future per record.

A producer that cannot go on is given up and made anew, and what it has not confirmed is sent again in its order: it
may then be written twice, and never out of the order within its lane.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Protocol

import structlog
from aiokafka import AIOKafkaProducer

from scheduler.errors import PublishError
from scheduler.lane import Lane, OutHeaders, Receipt, Record
from scheduler.partitioner import Partitioner
from scheduler.producer import (
    DEFAULT_MESSAGE_BYTES,
    MAX_BATCH_BYTES,
    Fault,
    answers,
    close,
    connect,
    fault_of,
    give_up,
    message_limits,
    partitions_of,
)
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings

log = structlog.get_logger()

RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses before the next attempt at a producer; the last one holds from there on."""

OnConfirmed = Callable[[list[Receipt]], None]
OnRefused = Callable[[str, Record, Exception], None]
"""Called with the topic, the record and the broker's error; the record is out of the publisher's hands."""


class Outlet(Protocol):
    """Where outcomes go, in either mode of delivery."""

    @property
    def max_dead_letter_bytes(self) -> int:
        """Largest record that the dead-letters topic takes, in bytes."""

    def publish(self, topic: str, key: bytes | None, value: bytes, headers: OutHeaders, receipt: Receipt) -> None:
        """Queue one record; its receipt comes back once it is out for good. Never blocks."""

    def give_up_on(self, topic: str, error: Exception) -> None:
        """Fail for good: a record can be published nowhere."""


class Pending(Protocol):
    """A publisher, as far as it shows what it still has to do."""

    pending: int
    failure: asyncio.Future[None] | None


async def settled(publisher: Pending, timeout: float) -> bool:
    """Wait until a publisher has nothing pending; False when it failed or ``timeout`` seconds were not enough."""
    deadline = time.monotonic() + timeout
    while publisher.pending and not (publisher.failure and publisher.failure.done()):
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.01)
    return not publisher.pending


class Publisher:
    """Publishes to the result topics and hands back the receipts of what Kafka confirmed, each once.

    Args:
        kafka: how to reach the cluster.
        client_id: names the producer to the brokers.
        on_confirmed: called with the receipts of each confirmed batch, in order.
        on_refused: called with a record that the broker will never take; without it that is a failure.
    """

    def __init__(
        self, kafka: KafkaSettings, client_id: str, on_confirmed: OnConfirmed, on_refused: OnRefused | None = None
    ) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._on_confirmed = on_confirmed
        self._on_refused = on_refused
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._partitioner = Partitioner({})
        self._producer: AIOKafkaProducer | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._renewed_at = 0.0
        self._renewals = 0
        self._batch_bytes = MAX_BATCH_BYTES
        self.pending = 0
        self.pending_bytes = 0
        """Of the values of what is pending: with a broker away they are what memory goes to."""
        self.republished = 0
        """Records that were sent again through a new producer, and so may be written twice."""
        self.refused = 0
        self.max_dead_letter_bytes = DEFAULT_MESSAGE_BYTES
        """Largest record that the dead-letters topic takes, in bytes."""
        self.failure: asyncio.Future[None] | None = None
        """Gets a `PublishError` when no producer can go on; what was not confirmed stays uncommitted."""

    async def start(self) -> None:
        """Connect and look up the partitions of every output topic.

        Raises:
            UnavailableError: Kafka does not answer, or an output topic does not exist.
        """
        self.failure = asyncio.get_running_loop().create_future()
        producer = await self._connect()
        try:
            found = {t: await partitions_of(producer, self._kafka, t) for t in self._kafka.topics.outputs}
        except BaseException:
            await close(producer)
            raise
        self._producer = producer
        self._partitioner = Partitioner(dict(found))
        self._lanes = {(t, p): Lane(self, t, p) for t, partitions in found.items() for p in partitions}
        for lane in self._lanes.values():
            lane.go(producer)

    async def _connect(self) -> AIOKafkaProducer:
        topics = self._kafka.topics
        # First the producer: its error says best why a cluster cannot be used.
        producer = await connect(self._kafka, self._client_id, self._batch_bytes)
        limits = await message_limits(self._kafka, topics.outputs)
        self.max_dead_letter_bytes = limits[topics.dead_letters]
        if (smallest := min(limits.values())) < self._batch_bytes:
            self._batch_bytes = smallest
            await close(producer)
            producer = await connect(self._kafka, self._client_id, smallest)
        return producer

    def publish(self, topic: str, key: bytes | None, value: bytes, headers: OutHeaders, receipt: Receipt) -> None:
        """Queue one record; its receipt comes back through ``on_confirmed``. Never blocks."""
        self.pending += 1
        self.pending_bytes += len(value)
        self._lanes[topic, self._partitioner.partition(topic, key)].add(Record(key, value, headers, receipt))

    @property
    def oldest_seconds(self) -> float:
        """How long the batch that waits longest for its confirmation has been doing so."""
        begins = [lane.sent_at for lane in self._lanes.values() if lane.sent_at]
        if self._renewal is not None:
            begins.append(self._renewed_at)
        return time.monotonic() - min(begins) if begins else 0.0

    async def answers(self, seconds: float) -> bool:
        """Return whether the cluster answers in that time."""
        return self._producer is not None and await answers(self._producer, seconds)

    async def flush(self, timeout: float) -> bool:
        """Wait until everything is confirmed; False when ``timeout`` seconds were not enough."""
        return await settled(self, timeout)

    async def stop(self) -> None:
        """Close the producer; what is not confirmed is given up (see `flush`)."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        for lane in self._lanes.values():
            lane.hold()
        producer, self._producer = self._producer, None
        if producer is not None and self.pending:
            log.warning("publisher_stopped", unconfirmed=self.pending)
            await give_up(producer)
        elif producer is not None:
            await close(producer)

    def renew(self, reason: str) -> None:
        """Give the producer up and make a new one; everything that is not confirmed goes through that, in its order."""
        if self._renewal is None and self._producer is not None:
            self._renewed_at = time.monotonic()
            self._renewal = asyncio.get_running_loop().create_task(self._make_anew(reason))

    async def _make_anew(self, reason: str) -> None:
        try:
            old, self._producer = self._producer, None
            again = sum([lane.hold() for lane in self._lanes.values()])
            self.republished += again
            log.warning("producer_made_anew", reason=reason, republished=again)
            if old is not None:
                await give_up(old)
            self._producer = producer = await self._connect_patiently()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is published any more, and someone must hear
            self._fail(PublishError("any topic", str(error)))
            return
        self._renewal = None
        for lane in self._lanes.values():
            lane.go(producer)

    async def _connect_patiently(self) -> AIOKafkaProducer:
        """Connect, however long Kafka is away; a producer that fails again and again is not made at full speed."""
        first, self._renewals = self._renewals, self._renewals + 1
        for attempt in itertools.count(first):
            if attempt:
                await asyncio.sleep(RETRY_SECONDS[min(attempt, len(RETRY_SECONDS)) - 1])
            try:
                return await self._connect()
            except UnavailableError as error:
                if error.setting != "kafka.bootstrap":
                    raise
                log.debug("producer_not_made", error=str(error))
        raise AssertionError("counting never ends")

    # What lanes tell

    def confirmed(self, batch: list[Record]) -> None:
        """Take a confirmation from a lane."""
        self._renewals = 0
        self._forget(batch)
        self._on_confirmed([record.receipt for record in batch])

    def failed(self, topic: str, error: Exception) -> None:
        """Take a failed batch from a lane, which keeps its records.

        Whatever it was, this producer's sequence numbers are past the batch now, and the broker's are not.
        """
        if fault_of(error) is Fault.FORBIDDEN:
            self._fail(PublishError(topic, f"not authorised: {error}"))
        else:
            self.renew(f"{topic}: {type(error).__name__}: {error}")

    def refuse(self, topic: str, record: Record, error: Exception) -> None:
        """Take a record from a lane that the broker will never take."""
        if self._on_refused is None:
            self.give_up_on(topic, error)
            return
        self.refused += 1
        self._forget([record])
        self._on_refused(topic, record, error)

    def give_up_on(self, topic: str, error: Exception) -> None:
        """Fail for good: a record can be published nowhere, and losing it is not an option."""
        self._fail(PublishError(topic, f"{type(error).__name__}: {error}"))

    def _forget(self, batch: list[Record]) -> None:
        self.pending -= len(batch)
        self.pending_bytes -= sum([len(record.value) for record in batch])

    def _fail(self, error: PublishError) -> None:
        if self.failure is not None and not self.failure.done():
            self.failure.set_exception(error)
            self.failure.exception()  # noted: asyncio must not print a traceback when it comes after the stop


__all__ = ["OutHeaders", "Outlet", "Publisher", "Receipt", "Record"]
