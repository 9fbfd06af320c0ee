"""The transactional mode: `scheduler.publisher.Publisher` for consumers that read committed records only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from scheduler.commits import Committer
from scheduler.entries import Entry, origin_of
from scheduler.errors import PublishError
from scheduler.partitioner import Partitioner
from scheduler.producer import DEFAULT_MESSAGE_BYTES, MAX_BATCH_BYTES, answers, message_limits, partitions_of
from scheduler.publisher import OnRefused, OutHeaders, Receipt, Record, settled
from scheduler.transactions import Offsets, Transactions
from schemas.settings import KafkaSettings, SchedulerSettings

TICK_SECONDS = 1.0
"""How often is looked whether this process was stopped for a while."""


class TransactionalPublisher:
    """`scheduler.publisher.Publisher` with transactions: a receipt comes back once its transaction is committed.

    Args:
        kafka: how to reach the cluster.
        settings: the scheduler's id (two with one id fence each other) and its time limits.
        offsets: the ledger.
        on_committed: called with the receipts of each committed transaction.
        on_dropped: called with the receipts of records that were not published, since their partition went elsewhere.
        on_refused: called with a record that the broker will never take.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: SchedulerSettings,
        offsets: Offsets,
        on_committed: Callable[[list[Receipt]], None],
        on_dropped: Callable[[list[Receipt]], None],
        on_refused: OnRefused,
    ) -> None:
        self.kafka = kafka
        self.settings = settings
        self.offsets = offsets
        self.on_committed = on_committed
        self.on_dropped = on_dropped
        self.on_refused = on_refused
        self._streams = {topic: Transactions(self, topic) for topic in kafka.topics.inputs}
        self._partitioner = Partitioner({})
        self.pending = 0
        self.pending_bytes = 0
        self.republished = 0
        """Records of transactions that were aborted or given up; a reader of committed records sees them once."""
        self.refused = 0
        self.max_dead_letter_bytes = DEFAULT_MESSAGE_BYTES
        self.batch_bytes = MAX_BATCH_BYTES
        self.failure: asyncio.Future[None] | None = None
        self._alive_at = time.monotonic()
        self._cautious_until = 0.0
        self._ticking: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Connect, end what an earlier life left open, and look up the partitions of every output topic.

        Raises:
            UnavailableError: Kafka does not answer, or an output topic does not exist.
        """
        self.failure = asyncio.get_running_loop().create_future()
        topics = self.kafka.topics
        try:
            for stream in self._streams.values():
                await stream.connect()
            limits = await message_limits(self.kafka, topics.outputs)
            first = next(iter(self._streams.values())).producer
            assert first is not None  # noqa: S101 - connect() has set it
            found = {t: await partitions_of(first, self.kafka, t) for t in topics.outputs}
        except BaseException:
            await self.stop()
            raise
        self.max_dead_letter_bytes = limits[topics.dead_letters]
        self.batch_bytes = min(MAX_BATCH_BYTES, *limits.values())
        self._partitioner = Partitioner(dict(found))
        self._tick()
        for stream in self._streams.values():
            stream.go()

    def publish(self, topic: str, key: bytes | None, value: bytes, headers: OutHeaders, receipt: Receipt) -> None:
        """Queue one record for the next transaction of its event's input topic. Never blocks."""
        self.pending += 1
        self.pending_bytes += len(value)
        partition = self._partitioner.partition(topic, key)
        stream = self._streams[origin_of(receipt).topic]
        stream.add(Entry(topic, partition, Record(key, value, headers, receipt)))

    @property
    def committers(self) -> dict[str, Committer]:
        """Per input topic, who commits its offsets."""
        return dict(self._streams)

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest transaction that is not committed has been open."""
        begins = [stream.since for stream in self._streams.values() if stream.since]
        return time.monotonic() - min(begins) if begins else 0.0

    async def answers(self, seconds: float) -> bool:
        """Return whether the cluster answers in that time."""
        for stream in self._streams.values():
            if stream.producer is not None:
                return await answers(stream.producer, seconds)
        return self.oldest_seconds < seconds

    def renew(self, reason: str) -> None:
        """Give up the producers whose transaction is stuck; the new ones abort what they left open."""
        for stream in self._streams.values():
            if stream.since:
                stream.renew(reason)

    async def flush(self, timeout: float) -> bool:
        """Wait until everything is committed; False when ``timeout`` seconds were not enough."""
        return await settled(self, timeout)

    def caution(self) -> float:
        """Return for how many seconds no transaction may begin, because we were stopped (SIGSTOP, a suspended machine).

        Meanwhile our partitions may have gone elsewhere; the next heartbeat tells. Kafka does not: aiokafka's
        transactions carry no group generation (KIP-447) that a coordinator could refuse.
        """
        now = time.monotonic()
        if now - self._alive_at > self.settings.session_seconds / 2:
            self._cautious_until = now + self.settings.session_seconds / 3 + TICK_SECONDS
        self._alive_at = now
        return max(0.0, self._cautious_until - now)

    def _tick(self) -> None:
        self.caution()
        self._ticking = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)

    async def stop(self) -> None:
        """Close the producers; a transaction that is not committed is not visible to anyone."""
        if self._ticking is not None:
            self._ticking.cancel()
        await asyncio.gather(*(stream.stop() for stream in self._streams.values()))

    def give_up_on(self, topic: str, error: Exception) -> None:
        """Fail for good: a record can be published nowhere, and losing it is not an option."""
        self.fail(PublishError(topic, f"{type(error).__name__}: {error}"))

    def fail(self, error: Exception) -> None:
        """End publishing with an error that an operator must hear."""
        if self.failure is not None and not self.failure.done():
            self.failure.set_exception(error)
            self.failure.exception()  # noted: asyncio must not print a traceback when it comes after the stop

    def forget(self, entries: Iterable[Entry]) -> None:
        """Count records out."""
        for entry in entries:
            self.pending -= 1
            self.pending_bytes -= len(entry.record.value)
