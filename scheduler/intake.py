"""Intake of one input topic: fetch, decode, tokenise, and hand over; rebalances and commits belong here too.

One consumer and one group per topic. aiokafka keeps one fetch in flight per broker, so headlines that shared a
consumer with filings would wait for filings; and a rebalance of one group cannot stop the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    ConsumerStoppedError,
    GroupAuthorizationFailedError,
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from scheduler.errors import OffsetsLostError
from scheduler.fetch_pace import pace_fetches
from scheduler.ledger import Ledger, Partition
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings, SchedulerSettings

log = structlog.get_logger()

FETCH_TIMEOUT_MS = 200
"""How long one fetch may come back empty; `getmany` returns at once when there is anything."""
MAX_RECORDS = 500
"""Records taken at once. Decoding them costs the event loop a few milliseconds, which heartbeats and results wait."""
FETCH_MAX_WAIT_MS = 100
PARTITION_FETCH_BYTES = 2 * 1024 * 1024
COMMIT_TIMEOUT_SECONDS = 5.0
"""aiokafka's own commit retries without end and without looking at the assignment again."""
STOP_SECONDS = 1.0
"""The same at a stop, and for leaving the group after it: whoever stops us does not wait long."""
ERROR_PAUSE_SECONDS = 0.5
JOIN_MARGIN_SECONDS = 10.0
"""Added to the drain time to give the group's rebalance timeout: members rejoin after the revoke callback."""

Commit = Callable[[str, float], Awaitable[None]]
"""Commits the finished offsets of a topic, in at most so many seconds."""


class Consumer(Protocol):
    """What intake does with what it fetched, and whether it may fetch at all."""

    def has_room(self, topic: str) -> bool:
        """Return whether more events of a topic may be taken in."""

    async def take(self, topic: str, records: list[tuple[ConsumerRecord, int]]) -> None:
        """Take records, in order within each partition, each with the time it was consumed (ns)."""

    async def drained(self, partitions: set[Partition], timeout: float) -> bool:
        """Drop what waits for these partitions, and wait for what runs."""


class Intake(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no type information
    """One topic's consumer.

    Args:
        topic: the input topic.
        kafka: how to reach the cluster.
        settings: time limits.
        ledger: shared by all intakes; each touches its own topic only.
        consumer: who takes the records.
        trouble: takes what Kafka being away explains, for the log.
        commit: commits the finished offsets of a topic where the consumer does not: in transactions.
    """

    def __init__(
        self,
        topic: str,
        kafka: KafkaSettings,
        settings: SchedulerSettings,
        ledger: Ledger,
        consumer: Consumer,
        trouble: Callable[..., None] = log.warning,
        commit: Commit | None = None,
    ) -> None:
        self.topic = topic
        self._kafka = kafka
        self._settings = settings
        self._ledger = ledger
        self._taker = consumer
        self._trouble = trouble
        self._commit = commit
        self._stopping = False
        self.paused = False
        self._client: AIOKafkaConsumer = None

    async def start(self) -> None:
        """Join the group.

        Raises:
            UnavailableError: Kafka does not answer, or the topic does not exist.
        """
        self._client = AIOKafkaConsumer(
            **self._kafka.client_options(),
            group_id=self.topic,
            client_id=self._settings.id,
            enable_auto_commit=False,
            # Never "latest" or "earliest" by itself: both skip or repeat events silently when offsets are gone.
            auto_offset_reset="none",
            session_timeout_ms=int(self._settings.session_seconds * 1000),
            heartbeat_interval_ms=int(self._settings.session_seconds * 1000 / 3),
            # aiokafka's default is the session timeout, too short to wait for running work.
            rebalance_timeout_ms=int((self._settings.drain_seconds + JOIN_MARGIN_SECONDS) * 1000),
            fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
            max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
        )
        pace_fetches(self._client)
        self._client.subscribe([self.topic], listener=self)
        try:
            async with asyncio.timeout(3 * self._kafka.connect_seconds):
                await self._client.start()
        except asyncio.CancelledError:
            await self._close()
            raise
        except UnknownTopicOrPartitionError:
            await self._close()
            raise UnavailableError(
                f"topic {self.topic}", "kafka.topic_prefix", "it does not exist; run: tapewire topics create"
            ) from None
        except (KafkaError, TimeoutError, OSError) as error:
            await self._close()
            reason = str(error) or "no answer"
            raise UnavailableError(f"Kafka at {self._kafka.bootstrap}", "kafka.bootstrap", reason) from None

    async def run(self) -> None:
        """Fetch and hand over until `stop_fetching`.

        Raises:
            OffsetsLostError: the committed offset is no longer in Kafka.
        """
        while not self._stopping:
            self._adjust_pause()
            try:
                # Its own timeout, never a wait_for: a cancelled getmany() disables aiokafka's poll watchdog for good.
                fetched = await self._client.getmany(timeout_ms=FETCH_TIMEOUT_MS, max_records=MAX_RECORDS)
            except NoOffsetForPartitionError as error:
                # This group has never read that partition; by now it may belong to another member.
                with contextlib.suppress(IllegalStateError):
                    await self._client.seek_to_beginning(*error.args)
                continue
            except OffsetOutOfRangeError as error:
                raise OffsetsLostError(
                    f"topic {self.topic}: Kafka no longer holds the committed offset ({error}); events were deleted "
                    "before they were read. Reset the group's offsets on purpose to go on"
                ) from None
            except ConsumerStoppedError:
                return
            except (TopicAuthorizationFailedError, GroupAuthorizationFailedError) as error:
                raise UnavailableError(
                    f"topic {self.topic}", "kafka.sasl_username", f"not authorised: {error}"
                ) from None
            except KafkaError as error:
                self._trouble("fetch_failed", topic=self.topic, error=str(error))
                await asyncio.sleep(ERROR_PAUSE_SECONDS)
                continue
            now = time.time_ns()
            if fetched:
                records = [(record, now) for batch in fetched.values() for record in batch]
                await self._taker.take(self.topic, records)

    def stop_fetching(self) -> None:
        """Let `run` return after the fetch that is in progress."""
        self._stopping = True

    async def stop(self) -> None:
        """Commit what is finished and leave the group."""
        await self.commit(STOP_SECONDS)
        await self._close()

    async def _close(self) -> None:
        leaving = asyncio.ensure_future(self._client.stop())
        await asyncio.wait([leaving], timeout=STOP_SECONDS)
        leaving.cancel()
        # With Kafka away aiokafka lets a CancelledError of its own tasks out of stop(); ours it is not.
        await asyncio.wait([leaving])
        error = asyncio.CancelledError() if leaving.cancelled() else leaving.exception()
        if error is not None:
            log.warning("consumer_stop_failed", topic=self.topic, error=f"{type(error).__name__}: {error}")

    async def commit(self, timeout: float = COMMIT_TIMEOUT_SECONDS) -> None:
        """Commit the finished offsets of this topic, in bounded time; a failed commit is tried again next time."""
        if self._commit is not None:
            await self._commit(self.topic, timeout)
            return
        points = self._ledger.commit_points(self.topic)
        owned = self._client.assignment()
        offsets = {TopicPartition(*p): point for p, point in points.items() if TopicPartition(*p) in owned}
        if not offsets:
            return
        try:
            await asyncio.wait_for(self._client.commit(offsets), timeout)
        except (KafkaError, IllegalStateError, TimeoutError) as error:
            self._trouble("commit_failed", topic=self.topic, error=f"{type(error).__name__}: {error}")
            return
        self._ledger.committed({(tp.topic, tp.partition): point for tp, point in offsets.items()})

    def _adjust_pause(self) -> None:
        """Pause fetching while the queues are full; a rebalance forgets pauses, so this looks every time."""
        assigned = self._client.assignment()
        if self._taker.has_room(self.topic):
            if paused := self._client.paused():
                self._client.resume(*paused)
            if self.paused:
                log.info("intake_resumed", topic=self.topic)
            self.paused = False
        elif assigned:
            self._client.pause(*assigned)
            if not self.paused:
                log.info("intake_paused", topic=self.topic, reason="the queues are full")
            self.paused = True

    # aiokafka calls these during a rebalance

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Drop what waits, wait for what runs, commit, forget."""
        partitions = {(tp.topic, tp.partition) for tp in revoked}
        if not partitions:
            return
        try:
            done = await self._taker.drained(partitions, self._settings.drain_seconds)
            await self.commit()
            log.info("partitions_revoked", topic=self.topic, partitions=sorted(p for _, p in partitions), drained=done)
        except Exception:  # aiokafka swallows what a listener raises
            log.exception("revoke_failed", topic=self.topic)
        finally:
            self._ledger.forget(partitions)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Start a new epoch for what this member owns now."""
        partitions = [(tp.topic, tp.partition) for tp in assigned]
        self._ledger.assign(partitions)
        log.info("partitions_assigned", topic=self.topic, partitions=sorted(p for _, p in partitions))
