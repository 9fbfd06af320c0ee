"""Publishing in transactions: outcomes, and the offsets that they finish, become visible together or not at all.

There is one transactional producer per input topic, since aiokafka can put the offsets of one consumer group only into
a transaction, and each input topic has a group of its own. A transaction does, in this order:

1. publish what waits, without what belongs to partitions that went elsewhere meanwhile;
2. mark the offsets of those records finished in the ledger;
3. add the ledger's commit points to the transaction;
4. look once more whether every partition in it is still owned, in the same assignment;
5. commit, and only then hand the receipts back.

When it fails, the same records go first into the next one. For what this does not cover see ``docs/delivery.md``.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, OffsetMetadataTooLargeError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from scheduler.entries import BatchError, Entry, send
from scheduler.errors import FencedError, PublishError
from scheduler.lane import TRIES_ALONE, Receipt, Record
from scheduler.ledger import Commit, Partition
from scheduler.producer import Fault, close, connect, fault_of, give_up, group_offsets
from scheduler.publisher import RETRY_SECONDS
from scheduler.work import Origin
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings, SchedulerSettings

log = structlog.get_logger()

MAX_RECORDS = 5_000
"""Records in one transaction: an aborted one is sent again as a whole."""
ABORT_SECONDS = 2.0
SETTLE_SECONDS = 0.005
"""Between two looks at the group's offsets: the markers of a transaction are there within 3 ms on an idle broker."""


class Offsets(Protocol):
    """What of the ledger goes into a transaction."""

    map_limit: int

    def owns(self, origin: Origin) -> bool:
        """Return whether the assignment that this came from is still in force."""

    def finish(self, origin: Origin) -> bool:
        """Note an outcome."""

    def commits(self, topic: str) -> Mapping[Partition, Commit]:
        """Return what should be committed for a topic: only partitions where it changed."""

    def committed(self, commits: Mapping[Partition, Commit]) -> None:
        """Note commits that Kafka confirmed."""


class Owner(Protocol):
    """The publisher that transactions belong to; see `scheduler.transactional`."""

    kafka: KafkaSettings
    settings: SchedulerSettings
    offsets: Offsets
    batch_bytes: int
    republished: int
    refused: int

    def caution(self) -> float:
        """Return for how many seconds no transaction may begin."""

    def forget(self, entries: Iterable[Entry]) -> None:
        """Count records out."""

    def on_committed(self, receipts: list[Receipt]) -> None:
        """Take the receipts of a committed transaction."""

    def on_dropped(self, receipts: list[Receipt]) -> None:
        """Take the receipts of what was not published, since its partition went elsewhere."""

    def on_refused(self, topic: str, record: Record, error: Exception) -> None:
        """Take a record that the broker will never take."""

    def fail(self, error: Exception) -> None:
        """End publishing with an error that an operator must hear."""

    def give_up_on(self, topic: str, error: Exception) -> None:
        """The same, for what aiokafka raised."""


class _LostPartitionError(Exception):
    """A partition in the transaction went elsewhere."""


class TransactionTooOldError(KafkaError):  # type: ignore[misc]  # aiokafka has no type information
    """A transaction was open for as long as Kafka lets one be."""


class Transactions:
    """The transactions of one input topic, one after the other.

    Args:
        owner: the publisher.
        topic: the input topic; its consumer group has the same name.
    """

    def __init__(self, owner: Owner, topic: str) -> None:
        self._owner = owner
        self._topic = topic
        self._id = f"{topic}.{owner.settings.id}"  # the topic begins with the prefix
        self._timeout = owner.settings.session_seconds
        self.producer: AIOKafkaProducer | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._waiting: deque[Entry] = deque()
        self._open: list[Entry] = []
        self._commits: dict[Partition, Commit] = {}
        self._last: dict[Partition, Commit] = {}
        self._committing = False
        self._finished: set[Origin] = set()
        """Marked finished in the ledger, in a transaction that is not committed."""
        self._everything = False
        self._attempts = 0
        self.failures = 0
        """Transactions that failed; what was in them went into a later one."""
        self.since = 0.0
        """When the transaction that is open was begun (monotonic seconds); 0 when none is."""

    def add(self, entry: Entry) -> None:
        """Queue one record."""
        self._waiting.append(entry)
        self._wake.set()

    async def connect(self) -> None:
        """Make a producer; Kafka fences the one before it and aborts what that left open."""
        self.producer = await connect(
            self._owner.kafka,
            self._owner.settings.id,
            self._owner.batch_bytes,
            transactional_id=self._id,
            # Readers of committed records wait for an open transaction: a scheduler that is silent for as long has
            # lost its partitions as well.
            transaction_timeout_ms=int(self._timeout * 1000),
        )

    def go(self) -> None:
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def commit(self, client: AIOKafkaConsumer, timeout: float) -> None:
        """Wait until a transaction that begins from now on is committed, for at most ``timeout`` seconds.

        Args:
            client: the group's member; a transaction does without it.
            timeout: most seconds to take.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiters.append(done)
        self._wake.set()
        await asyncio.wait([done], timeout=timeout)

    async def cancel(self) -> None:
        """Nothing to end: a transaction looks at its partitions before it commits."""

    async def settled(self, timeout: float) -> None:
        """Wait until the group's offsets are those of the last transactions, for at most ``timeout`` seconds.

        Kafka answers a commit before its markers are written. Who asks for offsets in between, and does not ask for
        stable ones (aiokafka cannot), gets those before it: our partitions' next owner would repeat that transaction.
        """
        owns = self._owner.offsets.owns
        ours = {p: c for p, c in self._last.items() if owns(Origin(*p, 0, c.epoch))}
        try:
            async with asyncio.timeout(timeout):
                while True:
                    if await self._are_there(ours):
                        return
                    await asyncio.sleep(SETTLE_SECONDS)
        except (KafkaError, TimeoutError, OSError) as error:
            log.debug("offsets_not_settled", topic=self._topic, error=f"{type(error).__name__}: {error}")

    async def stop(self) -> None:
        """Close the producer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        producer, self.producer = self.producer, None
        if producer is None:
            return
        if self.since:
            log.warning("transaction_given_up", topic=self._topic, records=len(self._open))
            await give_up(producer)
        else:
            await close(producer)

    def renew(self, reason: str) -> None:
        """Go on with a new producer, whatever the old one is waiting for."""
        if self._task is not None and self.producer is not None:
            self._task.cancel()
            self._task = asyncio.get_running_loop().create_task(self._run(reason))

    async def _run(self, reason: str = "") -> None:
        pause = self._owner.settings.transaction_ms / 1000
        loop = asyncio.get_running_loop()
        try:
            if reason:
                await self._make_anew(reason)
            while True:
                await self._wake.wait()
                self._wake.clear()
                next_at = loop.time() + pause
                if not await self._attempt():
                    continue
                await asyncio.sleep(next_at - loop.time())
        except UnavailableError as error:
            self._owner.fail(PublishError(self._topic, str(error)))
        except FencedError as error:
            self._owner.fail(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is published any more, and someone must hear
            self._owner.give_up_on(self._topic, error)

    async def _attempt(self) -> bool:
        """Do one transaction; False when it failed and what it had waits for the next one."""
        waiters, self._waiters = self._waiters, []
        try:
            await self._transaction()
        except _LostPartitionError:
            await self._abort()
        except BatchError as failed:
            self._judge(failed)
            await self._recover(failed.error)
        except asyncio.CancelledError:
            self._waiters += waiters
            raise
        except Exception as error:  # noqa: BLE001 - aiokafka's own assertions are among what a broken producer raises
            await self._recover(error)
        else:
            self._attempts = 0
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            return True
        self.failures += 1
        self._waiters += waiters
        self._wake.set()
        return False

    # One transaction

    async def _transaction(self) -> None:
        await asyncio.sleep(self._owner.caution())
        offsets, producer = self._owner.offsets, self.producer
        assert producer is not None  # noqa: S101 - connect() has set it
        entries = self._open = self._take()
        if not entries and not offsets.commits(self._topic):
            return
        self.since = time.monotonic()
        await producer.begin_transaction()
        if entries:
            await send(producer, entries)
        epochs = {(entry.origin[:2], entry.origin.epoch) for entry in entries}
        self._check(epochs)
        for origin in (origin for entry in entries for origin in entry.origins):
            if origin not in self._finished:
                self._finished.add(origin)
                offsets.finish(origin)
        commits = self._commits = dict(offsets.commits(self._topic))
        if commits:
            epochs |= {(partition, commit.epoch) for partition, commit in commits.items()}
            points = {TopicPartition(*p): OffsetAndMetadata(c.offset, c.metadata) for p, c in commits.items()}
            await producer.send_offsets_to_transaction(points, self._topic)
            self._check(epochs)
        self._committing = True
        await producer.commit_transaction()
        self._close_committed()

    def _take(self) -> list[Entry]:
        """Return what the next transaction publishes: first what the last one could not, nothing of lost partitions."""
        entries, self._open = self._open, []
        # A dead letter in place of a refused record must not come later than the offset that it finishes.
        room = len(self._waiting) if self._everything else min(len(self._waiting), MAX_RECORDS - len(entries))
        entries += [self._waiting.popleft() for _ in range(room)]
        self._everything = False
        if self._waiting:
            self._wake.set()
        owns = self._owner.offsets.owns
        lost = [entry for entry in entries if not owns(entry.origin)]
        if lost:
            entries = [entry for entry in entries if owns(entry.origin)]
            self._finished.difference_update(origin for entry in lost for origin in entry.origins)
            self._owner.forget(lost)
            self._owner.on_dropped([entry.record.receipt for entry in lost])
        return entries

    def _check(self, epochs: set[tuple[Partition, int]]) -> None:
        if time.monotonic() - self.since >= self._timeout:
            raise TransactionTooOldError  # the coordinator is about to abort it, and our partitions may be gone
        if not all(self._owner.offsets.owns(Origin(*partition, 0, epoch)) for partition, epoch in epochs):
            raise _LostPartitionError

    def _close_committed(self) -> None:
        entries, self._open = self._open, []
        self._owner.offsets.committed(self._commits)
        self._last |= self._commits
        self._commits = {}
        self._finished.clear()
        self._committing = False
        self.since = 0.0
        self._owner.forget(entries)
        self._owner.on_committed([entry.record.receipt for entry in entries])

    # What goes wrong

    async def _abort(self) -> None:
        """Abort a transaction whose partitions went elsewhere; the producer is all right."""
        assert self.producer is not None  # noqa: S101 - a transaction has one
        log.info("transaction_aborted", topic=self._topic, records=len(self._open), reason="a partition went elsewhere")
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await self.producer.abort_transaction()
        except (KafkaError, TimeoutError, AssertionError) as error:
            await self._recover(error)
            return
        self._owner.republished += len(self._open)
        self._commits = {}
        self.since = 0.0

    def _judge(self, failed: BatchError) -> None:
        """Take out a record that the broker will never take; of several, each goes alone next time."""
        fault = fault_of(failed.error)
        for entry in failed.batch:
            entry.tries += fault is Fault.UNCLEAR
        if fault is not Fault.REFUSED and max(entry.tries for entry in failed.batch) < TRIES_ALONE:
            return
        if len(failed.batch) > 1:
            for entry in failed.batch:
                entry.alone, entry.tries = True, 0
            return
        (refused,) = failed.batch
        self._open.remove(refused)
        self._owner.forget([refused])
        self._owner.refused += 1
        self._everything = True
        self._owner.on_refused(refused.topic, refused.record, failed.error)

    async def _recover(self, error: Exception) -> None:
        """Make a new producer after an error, unless the error says that there must not be one.

        Raises:
            FencedError: another scheduler has our id.
            UnavailableError: we are not authorised.
        """
        if fault_of(error) is Fault.FORBIDDEN:
            raise UnavailableError(f"topic {self._topic}", "kafka.sasl_username", f"not authorised: {error}")
        # The coordinator fences a transaction that was open for too long just as a newer producer does.
        timed_out = bool(self.since) and time.monotonic() - self.since >= self._timeout
        if isinstance(error, ProducerFenced | InvalidProducerEpoch) and not timed_out:
            raise FencedError(self._id)
        if isinstance(error.__cause__, OffsetMetadataTooLargeError):
            longest = max(len(commit.metadata) for commit in self._commits.values())
            self._owner.offsets.map_limit = min(self._owner.offsets.map_limit, longest) // 2
        await self._make_anew(f"{type(error).__name__}: {error}")

    async def _make_anew(self, reason: str) -> None:
        log.warning("producer_made_anew", topic=self._topic, reason=reason, republished=len(self._open))
        old, self.producer = self.producer, None
        if old is not None:
            await give_up(old)
        await self._connect_patiently()
        if self._committing and await self._was_committed():
            self._close_committed()
            return
        self._owner.republished += len(self._open)
        self._commits = {}
        self._committing = False
        self.since = 0.0
        self._wake.set()

    async def _connect_patiently(self) -> None:
        while True:
            pause = RETRY_SECONDS[min(self._attempts, len(RETRY_SECONDS) - 1)] if self._attempts else 0.0
            self._attempts += 1
            await asyncio.sleep(pause)
            try:
                await self.connect()
                return
            except UnavailableError as error:
                if error.setting != "kafka.bootstrap":
                    raise
                log.debug("producer_not_made", topic=self._topic, error=str(error))

    async def _was_committed(self) -> bool:
        """Return whether the transaction whose commit was not answered took effect: its offsets say so.

        The new producer has made the coordinator decide. Without offsets in it nobody can tell, and it counts as
        aborted: its records may then be there twice.
        """
        if not self._commits:
            return False
        while True:
            try:
                return await self._are_there(self._commits)
            except (KafkaError, TimeoutError, OSError):
                await asyncio.sleep(RETRY_SECONDS[-1])

    async def _are_there(self, commits: Mapping[Partition, Commit]) -> bool:
        found = await group_offsets(self._owner.kafka, self._topic) if commits else {}
        for partition, commit in commits.items():
            there = found.get(TopicPartition(*partition))
            if there is None or (there.offset, there.metadata) != (commit.offset, commit.metadata):
                return False
        return True
