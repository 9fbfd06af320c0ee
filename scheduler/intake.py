"""Intake of one input topic: fetch and hand over; rebalances, pauses, lost offsets and a consumer that stands still.

One consumer and one group per topic. aiokafka keeps one fetch in flight per broker, so headlines that shared a
consumer with filings would wait for filings; and a rebalance of one group cannot stop the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
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
)

from scheduler.commits import Commits, Committer, warn
from scheduler.errors import OffsetsLostError
from scheduler.ledger import Ledger, Partition
from scheduler.lost_offsets import LostOffsets, look_for
from scheduler.member import join, leave, new_member, rebalance_seconds, was_thrown_out
from scheduler.restore import finished_before
from scheduler.watchdog import FetchWatch, ends_of, positions_of
from scheduler.work import Origin
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings, SchedulerSettings

log = structlog.get_logger()

FETCH_TIMEOUT_MS = 200
"""How long one fetch may come back empty; `getmany` returns at once when there is anything."""
MAX_RECORDS = 500
"""Records taken at once. Decoding them costs the event loop a few milliseconds, which heartbeats and results wait."""
COMMIT_SECONDS = 5.0
"""How long one commit may take."""
STOP_SECONDS = 1.0
"""The same at a stop: whoever stops us does not wait long."""
SETTLE_SECONDS = 0.5
"""How long a last commit may take to become readable for the partitions' next owner; some milliseconds do."""
ERROR_PAUSE_SECONDS = 0.5
TAKE_SECONDS = 1.0
"""How long a revoke waits for the records that are being taken in: half a thousand are tokenised in far less."""
RESTORE_SECONDS = 3.0
"""How long the maps of an assignment may take; a third of the session at most, as no heartbeat goes out meanwhile."""
ASK_SECONDS = 5.0
"""How long Kafka may take to say where a partition begins and ends."""
LOOKS = 5
"""How often the watchdog looks in the time after which it acts."""


class Consumer(Protocol):
    """What intake does with what it fetched, and whether it may fetch at all."""

    def has_room(self, topic: str) -> bool:
        """Return whether more events of a topic may be taken in."""

    async def take(self, topic: str, records: list[tuple[ConsumerRecord, int]]) -> None:
        """Take records, in order within each partition, each with the time it was consumed (ns)."""

    async def drained(self, partitions: set[Partition], timeout: float) -> bool:
        """Drop what waits for these partitions, and wait for what runs."""

    def lost(self, lost: LostOffsets, origin: Origin) -> None:
        """Record offsets that Kafka no longer has; the ledger holds the commit until this origin is finished."""


class Intake:
    """One topic's consumer.

    Args:
        topic: the input topic.
        kafka: how to reach the cluster.
        settings: time limits.
        ledger: shared by all intakes; each touches its own topic only.
        consumer: who takes the records.
        trouble: takes what Kafka being away explains, for the log.
        commits: commits this topic's finished offsets, where that is not done with the consumer but in transactions.
    """

    def __init__(
        self,
        topic: str,
        kafka: KafkaSettings,
        settings: SchedulerSettings,
        ledger: Ledger,
        consumer: Consumer,
        trouble: Callable[..., None] = warn,
        commits: Committer | None = None,
    ) -> None:
        self.topic = topic
        self._kafka = kafka
        self._settings = settings
        self._ledger = ledger
        self._taker = consumer
        self._commits: Committer = commits or Commits(topic, ledger, trouble)
        self._watch = FetchWatch(settings.stalled_seconds)
        self._trouble = trouble
        self._client: AIOKafkaConsumer = None
        self._listener: _Listener | None = None
        self._stopping = False
        self._giving_up = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._failing_since: float | None = None
        self._joining_since: float | None = None
        self.paused = False
        self.stalled = False
        """Fetching stood still and the consumer is being made anew."""
        self.made_anew = 0
        """How often that happened."""

    @property
    def commit_failures(self) -> int:
        """Commits of this topic that failed."""
        return self._commits.failures

    # Joining and leaving

    async def start(self) -> None:
        """Join the group.

        Raises:
            UnavailableError: Kafka does not answer, or the topic does not exist.
        """
        self._listener = _Listener(self)
        self._client = new_member(self.topic, self._kafka, self._settings, self._listener)
        self._failing_since, self._joining_since = None, time.monotonic()
        await join(self._client, self.topic, self._kafka)

    async def stop(self) -> None:
        """Commit what is finished and leave the group: step 4 of `give_up` at a shutdown."""
        await self._commits.commit(self._client, STOP_SECONDS)
        await self._commits.settled(SETTLE_SECONDS)
        await self._close()

    async def _close(self) -> None:
        if self._listener is not None:
            # What is left of the old consumer may still call it, and must not touch what a new one owns.
            self._listener.intake = None
        await leave(self._client, self.topic)

    # Fetching

    async def run(self) -> None:
        """Fetch and hand over until `stop_fetching`, with a new consumer whenever one stands still.

        Raises:
            OffsetsLostError: Kafka no longer has the offset to read next, and ``lost_offsets`` is ``stop``.
            UnavailableError: this consumer may not read the topic, or not use the group.
        """
        loop = asyncio.get_running_loop()
        while not self._stopping:
            fetching, standing = loop.create_task(self._fetch()), loop.create_task(self._stands_still())
            try:
                await asyncio.wait([fetching, standing], return_when=asyncio.FIRST_COMPLETED)
            finally:
                # getmany() is never cancelled on a consumer that lives on: here the consumer ends as well.
                ended = [task for task in (fetching, standing) if task.done()]
                fetching.cancel()
                standing.cancel()
                await asyncio.wait([fetching, standing])
            for task in ended:
                task.result()
            if fetching in ended:
                return
            await self._make_anew()

    def stop_fetching(self) -> None:
        """Let `run` return after the fetch that is in progress."""
        self._stopping = True

    async def _fetch(self) -> None:
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
                for tp, offset in error.args[0].items():
                    await self._out_of_range(tp, offset)
                continue
            except ConsumerStoppedError:
                return
            except (TopicAuthorizationFailedError, GroupAuthorizationFailedError) as error:
                raise UnavailableError(
                    f"topic {self.topic}", "kafka.sasl_username", f"not authorised: {error}"
                ) from None
            except KafkaError as error:
                if self._failing_since is None:
                    self._failing_since = time.monotonic()
                    self._trouble("fetch_failed", topic=self.topic, error=str(error))
                await asyncio.sleep(ERROR_PAUSE_SECONDS)
                continue
            self._failing_since = None
            if fetched:
                await self._hand_over(fetched)

    async def _hand_over(self, fetched: dict[TopicPartition, list[ConsumerRecord]]) -> None:
        now = time.time_ns()
        owned = set(self._ledger.partitions(self.topic))
        records: list[tuple[ConsumerRecord, int]] = []
        for tp, batch in fetched.items():
            if (tp.topic, tp.partition) in owned:
                records += [(record, now) for record in batch]
                continue
            # What is not owned yet is paused (see `assigned`), so this does not happen; if it did, dropping the records
            # would lose them, as the consumer has moved past them.
            log.error("records_given_back", topic=tp.topic, partition=tp.partition, offset=batch[0].offset)
            with contextlib.suppress(IllegalStateError):
                self._client.seek(tp, batch[0].offset)
        if not records:
            return
        self._idle.clear()
        try:
            await self._taker.take(self.topic, records)
        finally:
            self._idle.set()

    def _adjust_pause(self) -> None:
        """Pause what has no room, is crowded, or is not in the ledger yet; a rebalance forgets pauses, so look again.

        A pause throws away what aiokafka has prefetched: it is fetched again, and nothing is skipped.
        """
        room = self._taker.has_room(self.topic)
        owned = set(self._ledger.partitions(self.topic))
        assigned = self._client.assignment()
        held = {tp for tp in assigned if not room or tp not in owned or self._ledger.crowded((tp.topic, tp.partition))}
        if held:
            self._client.pause(*held)
        if free := self._client.paused() - held:
            self._client.resume(*free)
        paused = not room and bool(assigned)
        if paused != self.paused:
            self.paused = paused
            if paused:
                log.info("intake_paused", topic=self.topic, reason="the scheduler takes no more for now")
            else:
                log.info("intake_resumed", topic=self.topic)

    async def commit(self) -> None:
        """Commit what is finished, in bounded time; a failed commit is tried again next time.

        Not while partitions are given up, which commits by itself: this commit could displace that one, or be sent
        again when the partitions are somebody else's.
        """
        if not self._giving_up:
            await self._commits.commit(self._client, COMMIT_SECONDS)

    # Offsets that are gone

    async def _out_of_range(self, tp: TopicPartition, wanted: int) -> None:
        try:
            lost = await look_for(self._client, tp, wanted, ASK_SECONDS)
        except (KafkaError, TimeoutError) as error:
            self._trouble("fetch_failed", topic=self.topic, error=f"{type(error).__name__}: {error}")
            return
        if lost.partition not in self._ledger.partitions(self.topic):
            return  # it went elsewhere meanwhile
        if not lost.is_gap:
            log.info("offset_out_of_range_for_a_moment", topic=tp.topic, partition=tp.partition, offset=wanted)
            await asyncio.sleep(ERROR_PAUSE_SECONDS)
            return
        if self._settings.lost_offsets == "stop":
            raise OffsetsLostError(
                f"{lost}. Going on would skip them in silence. Reset the group's offset on purpose, or set "
                'scheduler.lost_offsets = "record" to have the gap as a dead letter and go on'
            )
        log.error("offsets_lost", topic=tp.topic, partition=tp.partition, wanted=wanted, first=lost.first, end=lost.end)
        await self._record(lost, tp)

    async def _record(self, lost: LostOffsets, tp: TopicPartition) -> None:
        at = lost.wanted
        if lost.began_anew:
            # Offsets start again below those of the ledger, so what runs belongs to a log that is gone.
            await self._taker.drained({lost.partition}, self._settings.drain_seconds)
            if lost.partition not in self._ledger.partitions(self.topic):
                return
            self._ledger.assign([lost.partition])
            at = lost.first - 1
        self._taker.lost(lost, self._ledger.receive_gap(lost.partition, at, lost.first))
        with contextlib.suppress(IllegalStateError):
            self._client.seek(tp, lost.first)

    # The watchdog

    async def _stands_still(self) -> None:
        """Return when fetching has stood still for too long although Kafka answers and has more."""
        while True:
            await asyncio.sleep(self._settings.stalled_seconds / LOOKS)
            reason = await self._reason_to_make_anew()
            if reason is not None:
                self.stalled = True
                log.error("intake_stalled", topic=self.topic, seconds=self._settings.stalled_seconds, reason=reason)
                return

    async def _reason_to_make_anew(self) -> str | None:
        client, patience = self._client, self._settings.stalled_seconds
        ends = await ends_of(client, self.topic)
        if not ends:
            return None  # Kafka does not answer, and a new consumer would not help
        owned = set(self._ledger.partitions(self.topic))
        reading = [tp for tp in client.assignment() - client.paused() if tp in owned]
        positions = await positions_of(client, reading)
        now = time.monotonic()
        if still := self._watch.look(now, positions, ends):
            return f"Kafka has more in partitions {sorted(tp.partition for tp in still)}, and nothing comes"
        if self._failing_since is not None and now - self._failing_since > patience:
            return "every fetch fails"
        if self._joining_since is not None and now - self._joining_since > patience + 2 * rebalance_seconds(
            self._settings
        ):
            return "the group does not settle"
        return None

    async def _make_anew(self) -> None:
        """Leave the group and join it again, with what a revoke does in between."""
        self.made_anew += 1
        await self.give_up(set(self._ledger.partitions(self.topic)))
        await self._close()
        while not self._stopping:
            try:
                await self.start()
            except UnavailableError as error:
                log.warning("rejoin_failed", topic=self.topic, error=str(error))
                await asyncio.sleep(ERROR_PAUSE_SECONDS)
            else:
                self.stalled = False
                return

    # Rebalances

    async def give_up(self, partitions: set[Partition]) -> None:
        """Let partitions go. A shutdown takes the same steps, see `scheduler.service`; docs/delivery.md lists them."""
        self._joining_since = time.monotonic()
        if not partitions:
            return
        self._giving_up = True
        try:
            # 1. Stop intake: aiokafka hands nothing out during a rebalance; what it just handed out is taken in first,
            #    so that step 2 sees it. A commit that is running ends: it could be sent again after the rebalance.
            await self._commits.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TAKE_SECONDS):
                    await self._idle.wait()
            # 2. Drop what is queued, and 3. wait for what runs and its confirmations, to a deadline below the group's
            #    rebalance timeout: past that the group goes on without us and the next commit is refused.
            done = await self._taker.drained(partitions, self._settings.drain_seconds)
            # 4. Commit.
            await self._commits.commit(self._client, COMMIT_SECONDS)
            await self._commits.settled(SETTLE_SECONDS)
            numbers = sorted(number for _, number in partitions)
            log.info("partitions_revoked", topic=self.topic, partitions=numbers, drained=done)
        except Exception:  # aiokafka swallows what a listener raises
            log.exception("revoke_failed", topic=self.topic)
        finally:
            # 5. Forget: a completion that comes later belongs to an epoch that is over.
            self._ledger.forget(partitions)
            self._giving_up = False

    async def revoked(self, partitions: set[Partition]) -> None:
        """Let partitions go, in order where there is still something to keep in order."""
        if was_thrown_out(self._client):
            await self.lose(partitions)
        else:
            await self.give_up(partitions)

    async def lose(self, partitions: set[Partition]) -> None:
        """Drop partitions that are somebody else's already: the group has thrown us out, and no commit would be taken.

        What `give_up` does would publish what their new owner publishes as well, and a transaction would set the
        group's offsets back to ours: it carries no generation that Kafka could refuse.
        """
        self._joining_since = time.monotonic()
        if not partitions:
            return
        self._ledger.forget(partitions)
        try:
            await self._commits.cancel()
            await self._taker.drained(partitions, 0.0)
        except Exception:  # aiokafka swallows what a listener raises
            log.exception("revoke_failed", topic=self.topic)
        log.warning("partitions_lost", topic=self.topic, partitions=sorted(number for _, number in partitions))

    async def assigned(self, partitions: set[TopicPartition]) -> None:
        """Start a new epoch for what this member owns now, with what earlier owners had finished.

        aiokafka has set the assignment before it calls this, and `getmany` hands out records as soon as positions are
        known, whether or not this has returned. So everything is paused until the ledger has it: a record that came
        before would be dropped or be done again.
        """
        with contextlib.suppress(IllegalStateError):
            self._client.pause(*partitions)
        listener, timeout = self._listener, min(RESTORE_SECONDS, self._settings.session_seconds / 3)
        restored = await finished_before(self._kafka, self._client, self.topic, partitions, timeout)
        if listener is None or listener.intake is None:
            return  # this consumer was closed meanwhile
        self._ledger.assign([(tp.topic, tp.partition) for tp in partitions], restored)
        self._joining_since = None
        self._adjust_pause()
        log.info(
            "partitions_assigned",
            topic=self.topic,
            partitions=sorted(tp.partition for tp in partitions),
            finished_before=sum(end - start for ranges in restored.values() for start, end in ranges),
        )


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no type information
    """What aiokafka calls during a rebalance of one consumer, until that consumer is closed."""

    def __init__(self, intake: Intake) -> None:
        self.intake: Intake | None = intake

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Let them go; after the group has forgotten this member they are gone already."""
        if self.intake is not None:
            await self.intake.revoked({(tp.topic, tp.partition) for tp in revoked})

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Take them."""
        if self.intake is not None:
            await self.intake.assigned(set(assigned))
