"""The scheduler process: intake, planner, worker link and publisher wired together, from start to drained stop."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import structlog
from aiokafka import ConsumerRecord

from scheduler.admit import Admission
from scheduler.broker_watch import BrokerWatch
from scheduler.commits import Committer
from scheduler.dead_letter_limit import DeadLetterLimit
from scheduler.filing_desk import FilingDesk
from scheduler.instruments import load_instruments
from scheduler.intake import Intake
from scheduler.ledger import Ledger, Partition
from scheduler.link import WorkerLink
from scheduler.lost_offsets import LostOffsets
from scheduler.metrics import DeliveryCounts, MetricsServer
from scheduler.outcomes import NANOSECONDS, Receipt
from scheduler.planner import Plan, Planner
from scheduler.publisher import Publisher, Record
from scheduler.quarantine import blame
from scheduler.retries import Retries
from scheduler.room import Room
from scheduler.stamps import StampWriter
from scheduler.stats import Stats
from scheduler.tokens import TextTokenizer
from scheduler.transactional import TransactionalPublisher
from scheduler.watchdog import CompletionWatch
from scheduler.work import Origin, Work
from scheduler.workers import WorkerRegistry
from schemas.errors import ErrorKind
from schemas.frames import Failure, Request, Result, Started
from schemas.settings import KafkaSettings, LinkSettings, RedisSettings, SchedulerSettings
from schemas.status import STOPPED_BY_DEAD_LETTERS, ClassStatus, SchedulerStatus

log = structlog.get_logger()

KILLED = "killed by its source before it was answered"
SESSION_DIGITS = 8
"""Of this life's random name, in a header of everything that is written: enough to tell two lives apart."""
MAX_UNCONFIRMED = 20_000
"""Published but unconfirmed records at which intake pauses: with a broker away, nothing may pile up here."""
MAX_UNCONFIRMED_BYTES = 64 * 1024 * 1024
"""The same in bytes: dead letters may be as large as the largest input record."""
TOO_OLD = "older than its class's toxic age"
HOPELESS = "no worker could answer it before its class's toxic age"
LONGEST_TIMER_SECONDS = 1.0
"""A timer is set by the wall clock's time; looking again this often bounds what a step of that clock can do."""
POLL_SECONDS = 0.02
FETCH_SECONDS = 1.0
"""How long a stop waits for the fetches in progress to come back."""
FLUSH_SECONDS = 0.5
"""How long a stop waits for the last confirmations after the drain, which has waited for them before. With Kafka away
the waits of a stop add up: the drain, this, the commits and the leaving must stay below ten seconds together."""
STAMPS_SECONDS = 1.0
"""How long a stop waits for Redis to take the last stamps."""


async def serve(
    settings: SchedulerSettings,
    kafka: KafkaSettings,
    redis: RedisSettings,
    link: LinkSettings,
    stop: asyncio.Event,
) -> None:
    """Run a scheduler until ``stop`` is set, then drain and return.

    Raises:
        ConfigError: a setting that an operator must mend.
        UnavailableError: Kafka, a topic or the link's address cannot be used at start, or Redis refuses us.
        SchedulerError: the scheduler cannot go on without losing events; everything unconfirmed stays uncommitted.
    """
    await Scheduler(settings, kafka, redis, link).run(stop)


class Scheduler:
    """One scheduler; see `serve`."""

    def __init__(
        self, settings: SchedulerSettings, kafka: KafkaSettings, redis: RedisSettings, link: LinkSettings
    ) -> None:
        # One tokenising thread is enough, and a pool of them would take the cores from an engine on this host.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        topics = kafka.topics
        self._settings = settings
        self._session = uuid4().hex
        self._state = "starting"
        self._stats = Stats(settings.classes)
        # Microseconds since the epoch: ids of this life and of the one before can never meet.
        self._planner = Planner(
            settings.classes,
            settings.valve,
            retries=Retries(settings.retry_ms, settings.retry_most_ms),
            first_request_id=time.time_ns() // 1000,
        )
        self._room = Room(topics.inputs, settings)
        self._ledger = Ledger()
        self._publisher, commits = self._make_publisher(kafka)
        self._broker = BrokerWatch(self._publisher, self._waits, settings.publish_seconds)
        self._limit = DeadLetterLimit(settings.dead_letters)
        self._outcomes = FilingDesk(
            self._publisher,
            topics,
            self._stats,
            settings,
            self._room,
            self._queue,
            load_instruments(settings.company_tickers),
            self._limit,
            f"{settings.id}/{self._session[:SESSION_DIGITS]}",
        )
        self._admission = Admission(settings, topics, self._ledger, self._outcomes, self._queue, self._outcomes.take)
        self._stamps = StampWriter(redis, topics, self._status)
        self._workers = WorkerRegistry(self._planner, settings, self)
        self._link = WorkerLink(link, self._session, self._workers)
        self._completions = CompletionWatch(settings.stalled_seconds)
        trouble = self._broker.trouble
        self._intakes = [
            Intake(topic, kafka, settings, self._ledger, self, trouble, commits.get(topic)) for topic in topics.inputs
        ]
        self._metrics = MetricsServer(settings, self._status, self._stats, self._limit, self._delivery_counts)
        self._pump_scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def _make_publisher(
        self, kafka: KafkaSettings
    ) -> tuple[Publisher | TransactionalPublisher, Mapping[str, Committer]]:
        """Return the publisher for the mode of delivery, and per topic who commits offsets where intake does not."""
        settings = self._settings
        if settings.delivery == "at_least_once":
            return Publisher(kafka, settings.id, self._confirmed, self._refused), {}
        transactional = TransactionalPublisher(
            kafka, settings, self._ledger, self._concluded, self._dropped, self._refused
        )
        return transactional, transactional.committers

    # Life

    async def run(self, stop: asyncio.Event) -> None:
        """Start, work until ``stop`` is set or something fails for good, drain, and close everything."""
        watching: asyncio.Task[None] | None = None
        try:
            self._metrics.start()
            self._link.start()
            await self._publisher.start()
            watching = asyncio.get_running_loop().create_task(self._broker.run())
            await self._stamps.start()
            self._state = "waiting_for_worker"
            log.info("scheduler_waiting_for_worker", scheduler=self._settings.id)
            ready = asyncio.ensure_future(self._workers.ready.wait())
            if await _done_before(ready, stop) and not stop.is_set():
                await self._work(stop)
            ready.cancel()
        finally:
            if watching is not None:
                watching.cancel()
            await self._close()

    async def _work(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        joined = loop.create_task(self._join())
        # A group that is in a rebalance lets nobody in for a while, and a stop must not wait for that.
        if not await _done_before(joined, stop):
            joined.cancel()
            await asyncio.gather(joined, return_exceptions=True)
            return
        gc.collect()
        gc.freeze()  # what is here now stays; without this every full collection walks it
        self._state = "running"
        log.info("scheduler_running", scheduler=self._settings.id)
        tasks = [loop.create_task(intake.run()) for intake in self._intakes]
        commits = loop.create_task(self._commit_regularly())
        assert self._publisher.failure is not None  # noqa: S101 - start() has set it
        try:
            stopped = loop.create_task(stop.wait())
            ends: list[asyncio.Future[Any]] = [stopped, commits, self._publisher.failure, *tasks]
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            for finished in done:
                finished.result()
        finally:
            self._state = "draining"
            log.info("scheduler_draining", in_flight=self._planner.total_in_flight, queued=self._planner.total_queued)
            # The steps of `Intake.give_up`, for all partitions together. 1. Stop intake.
            commits.cancel()
            for intake in self._intakes:
                intake.stop_fetching()
            # A fetch waits out a rebalance, and another member can hold that up for longer than we may take.
            _, stuck = await asyncio.wait(tasks, timeout=FETCH_SECONDS)
            for task in stuck:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            everything = {p for intake in self._intakes for p in self._ledger.partitions(intake.topic)}
            # 2. Drop what is queued, and 3. wait for what runs and for its confirmations.
            drained = await self.drained(everything, self._settings.drain_seconds)
            await self._publisher.flush(FLUSH_SECONDS)
            # 4. Commit; 5. to forget is to end.
            await asyncio.gather(*(intake.stop() for intake in self._intakes))
            log.info("scheduler_drained", complete=drained, unconfirmed=self._publisher.pending)

    async def _join(self) -> None:
        starts = [asyncio.ensure_future(intake.start()) for intake in self._intakes]
        try:
            await asyncio.gather(*starts)
        finally:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._admission.close()
        self._outcomes.close()
        await self._publisher.stop()
        await self._stamps.stop(STAMPS_SECONDS)
        self._link.close()
        self._metrics.stop()

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.commit_seconds)
            await asyncio.gather(*(intake.commit() for intake in self._intakes))
            self._watch_completions()
            if (notice := self._limit.notice(time.monotonic())) is not None:
                log.error("stopped_by_dead_letters", scheduler=self._settings.id, **notice._asdict())

    def _watch_completions(self) -> None:
        in_flight = self._planner.total_in_flight
        if self._completions.look(time.monotonic(), in_flight, self._stats.returned):
            event = "completions_stalled" if self._completions.stalled else "completions_go_on"
            log.warning(event, in_flight=in_flight, seconds=self._settings.stalled_seconds)

    # Intake

    def has_room(self, topic: str) -> bool:
        """Return whether more events of a topic may be taken in."""
        if not self._room.has_room(topic):
            self._outcomes.make_room(topic)
        publisher = self._publisher
        piled_up = publisher.pending >= MAX_UNCONFIRMED or publisher.pending_bytes >= MAX_UNCONFIRMED_BYTES
        return not self._limit.tripped and not piled_up and self._room.has_room(topic)

    async def take(self, topic: str, records: list[tuple[ConsumerRecord, int]]) -> None:
        """Admit what intake fetched."""
        tokenizer: TextTokenizer | None = self._workers.tokenizer
        assert tokenizer is not None  # noqa: S101 - intake starts after the first worker brought it
        sizes = [self._workers.chunk_size(c.extractor) for c in self._settings.classes]
        await self._admission.admit(topic, records, tokenizer, self._workers.text_limit, sizes)
        self._wake()

    def lost(self, lost: LostOffsets, origin: Origin) -> None:
        """Record offsets that Kafka no longer has."""
        self._outcomes.dead_gap(origin, lost.wanted, str(lost))

    async def drained(self, partitions: set[Partition], timeout: float) -> bool:
        """Drop what waits for these partitions, then wait for what runs and for its confirmations."""
        for work in self._planner.drop_queued(lambda w: w.origin[:2] in partitions):
            self._room.leave(work)
        self._outcomes.forget(partitions, waiting_only=True)
        try:
            return await self._ended(partitions, timeout)
        finally:
            self._outcomes.forget(partitions)

    async def _ended(self, partitions: set[Partition], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._outcomes.unconfirmed(partitions) or any(
            w.origin[:2] in partitions for w in self._planner.in_flight_work()
        ):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def _queue(self, work: Work) -> None:
        if work.part is None:  # a filing's part was counted when it came
            self._stats.classes[work.class_index].arrived += 1
        self._room.enter(work)
        self._planner.add(work)

    # Planning and dispatch

    def _wake(self) -> None:
        """Plan once in the next turn of the loop, however many reasons there are."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        now = time.time_ns()
        for work in self._planner.due(now):
            self._again(work, now)
        plan = self._planner.plan(now)
        self._stats.revoked += len(plan.revoked)
        for work in plan.expired:
            self._end(work)
            if self._ledger.owns(work.origin):
                too_old = now >= work.toxic_ns
                self._outcomes.expired(work, now, TOO_OLD if too_old else HOPELESS)
        self._send(plan, now)
        self._arm_timer(now)

    def _send(self, plan: Plan, now: int) -> None:
        aborts: defaultdict[str, list[int]] = defaultdict(list)
        for worker_id, request_id in plan.aborts:
            aborts[worker_id].append(request_id)
        for worker_id, request_ids in aborts.items():
            self._link.send_abort(worker_id, request_ids)
        requests: defaultdict[str, list[Request]] = defaultdict(list)
        classes = self._settings.classes
        for work, worker_id in plan.dispatches:
            work.dispatched_ns = now
            service_class = classes[work.class_index]
            requests[worker_id].append(
                Request(
                    request_id=work.request_id,
                    text_tokens=work.tokens,
                    service_class=service_class.name,
                    priority=work.class_index,
                    deadline_ns=work.deadline_ns,
                    extractor=service_class.extractor,
                    floor=work.floor,
                )
            )
        for worker_id in requests.keys() | plan.policies.keys():
            self._link.send_requests(worker_id, requests[worker_id], plan.policies.get(worker_id))

    def _arm_timer(self, now: int) -> None:
        """Plan again when the next piece of work gets toxic or may be tried again, whatever else happens or not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        times = [t for t in (self._planner.next_expiry_ns(), self._planner.next_due_ns()) if t is not None]
        if times:
            delay = min(max(0.0, (min(times) - now) / NANOSECONDS), LONGEST_TIMER_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    # What workers say (called by `WorkerRegistry`)

    def worker_ready(self) -> None:
        """A worker can take work."""
        self._wake()

    def worker_gone(self, lost: list[Work], *, died: bool, moved: Sequence[Work] = ()) -> None:
        """Requeue what a worker had, with its deadline; quarantine what kills workers."""
        self._stats.worker_deaths += died
        killer = blame([*lost, *moved]) if died else None
        if killer is not None and not any(work is killer for work in lost):
            killer.suspect = True  # it runs elsewhere by now; the next death with it in flight ends it
        for work in lost:
            if work is killer:
                self._die(work, ErrorKind.QUARANTINED, f"in flight at {work.deaths} worker deaths")
            else:
                self._requeue(work)
        self._wake()

    def request_started(self, work: Work, started: Started) -> None:
        """A request's prefill is over, so its budget shrinks and more may fit."""
        work.engine_started_ns = started.engine_started_ns
        work.first_token_ns = started.first_token_ns
        self._wake()

    def request_done(self, work: Work, result: Result, worker_id: str) -> None:
        """Publish an answer, unless it came too late to be of use or its partition went elsewhere."""
        self._stats.returned += 1
        self._end(work)
        work.engine_started_ns = result.engine_started_ns
        work.first_token_ns = result.first_token_ns
        work.completed_ns = result.completed_ns
        self._wake()
        if not self._ledger.owns(work.origin):
            self._stats.stale_outcomes += 1
            return
        now = time.time_ns()
        if work.event_id in self._admission.killed:
            self._outcomes.expired(work, now, KILLED)
            return
        if work.toxic_ns and now > work.toxic_ns:
            self._outcomes.expired(work, now, "answered after its class's toxic age")
            return
        extractor = self._settings.classes[work.class_index].extractor
        engine, prompt_version = self._workers.made_by(worker_id, extractor)
        self._outcomes.signal(work, result, engine, prompt_version)

    def request_failed(self, work: Work, failure: Failure) -> None:
        """Try again later where that may help, with the original deadline; else the event becomes a dead letter."""
        self._stats.returned += 1
        work.refusals += 1
        if not failure.retryable or work.refusals >= self._settings.max_attempts:
            self._die(work, failure.kind, failure.message)
        elif self._still_ours(work):
            self._stats.retried += 1
            work.forget_run()
            self._planner.retry(work, time.time_ns())
        self._wake()

    def _again(self, work: Work, now: int) -> None:
        """Queue work that has waited for its next attempt, unless nobody wants it any more."""
        if work.event_id in self._admission.killed:
            self._end(work)
            self._outcomes.expired(work, now, KILLED)
        else:
            self._planner.add(work)

    def _requeue(self, work: Work) -> None:
        if self._still_ours(work):
            self._stats.requeued += 1
            work.forget_run()
            self._planner.add(work)

    def _still_ours(self, work: Work) -> bool:
        """Return whether work that a worker gave back belongs to us; it has ended here when it does not."""
        if self._ledger.owns(work.origin):
            return True
        self._stats.stale_outcomes += 1
        self._end(work)
        return False

    def _die(self, work: Work, kind: str, message: str) -> None:
        self._end(work)
        if self._ledger.owns(work.origin):
            self._outcomes.dead_work(work, kind, message)
        else:
            self._stats.stale_outcomes += 1

    def _end(self, work: Work) -> None:
        self._room.leave(work)

    # Confirmations and status

    def _confirmed(self, receipts: list[object]) -> None:
        for receipt in receipts:
            assert isinstance(receipt, Receipt)  # noqa: S101 - outcomes publish with nothing else
            for origin in receipt.origins:
                self._ledger.finish(origin)
        self._concluded(receipts)

    def _concluded(self, receipts: list[object]) -> None:
        """Outcomes are out and their offsets finished; a transaction has done the second itself."""
        for receipt in receipts:
            assert isinstance(receipt, Receipt)  # noqa: S101 - outcomes publish with nothing else
            self._outcomes.confirmed(receipt)
            if receipt.entry is not None:
                self._stamps.add(receipt.entry)

    def _dropped(self, receipts: list[object]) -> None:
        """Outcomes were not published, since their partition went elsewhere before their transaction."""
        for receipt in receipts:
            assert isinstance(receipt, Receipt)  # noqa: S101 - outcomes publish with nothing else
            self._outcomes.confirmed(receipt)
            self._stats.stale_outcomes += 1

    def _refused(self, topic: str, record: Record, error: Exception) -> None:
        self._outcomes.refused(topic, record, error)

    def _waits(self) -> dict[str, int]:
        return {
            "unconfirmed": self._publisher.pending,
            "unfinished": self._ledger.unfinished(intake.topic for intake in self._intakes),
            "queued": self._planner.total_queued,
        }

    def _delivery_counts(self) -> DeliveryCounts:
        return DeliveryCounts(
            skipped=self._ledger.skipped,
            stale=self._ledger.stale,
            maps_dropped=self._ledger.maps_dropped,
            commit_failures=sum(intake.commit_failures for intake in self._intakes),
            made_anew=sum(intake.made_anew for intake in self._intakes),
        )

    def _status(self) -> SchedulerStatus:
        self._stats.republished = self._publisher.republished
        state = self._state
        if state == "running" and self._limit.tripped:
            state = STOPPED_BY_DEAD_LETTERS
        elif state == "running" and self._broker.away:
            state = "kafka_away"
        elif state == "running" and (self._completions.stalled or any(intake.stalled for intake in self._intakes)):
            state = "stalled"
        elif state == "running" and any(intake.paused for intake in self._intakes):
            state = "paused"
        return SchedulerStatus(
            scheduler_id=self._settings.id,
            at_ns=time.time_ns(),
            state=state,
            classes=[
                ClassStatus(
                    name=c.settings.name,
                    slo_ms=c.settings.slo_ms,
                    arrived=c.arrived,
                    queued=self._planner.queued(index),
                    in_flight=self._planner.in_flight(index),
                    signals=c.signals,
                    late=c.late,
                    expired=c.expired,
                    dead_letters=c.dead_letters,
                )
                for index, c in enumerate(self._stats.classes)
            ],
            workers=self._workers.status(),
            undecodable=self._stats.undecodable,
            stamps_dropped=self._stamps.dropped,
            retrying=self._planner.retrying,
            unconfirmed=self._publisher.pending,
            unfinished=self._ledger.unfinished(intake.topic for intake in self._intakes),
        )


async def _done_before(wanted: asyncio.Future[Any], stop: asyncio.Event) -> bool:
    """Wait for ``wanted`` or for ``stop``; return whether ``wanted`` is done, raising what it raised."""
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([wanted, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if wanted.done():
        wanted.result()
        return True
    return False
