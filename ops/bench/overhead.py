"""``tapewire bench overhead``: throughput, latency and memory of one scheduler and one worker, with nothing to compute.

The worker runs the sim engine with zero service time, so every figure is the cost of Tapewire and the broker. The
bare loop and both modes of delivery run in the same run on the same broker; compare ratios, since machines differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

from aiokafka import AIOKafkaConsumer, ConsumerRecord
from rich.console import Console

from ops.bench.bare import bare_loop
from ops.bench.overhead_report import Latency, Mode, Overhead, Plan
from ops.bench.services import PATIENCE_SECONDS, BenchError, Services
from ops.config import Settings
from ops.local import local_stages, make_run_dir, private_link, start_embedded, with_values
from ops.percentiles import percentile
from ops.supervisor import Backoff, Supervisor
from ops.topics import ensure_topics
from producers.events import repeated, restamped
from producers.file_feed import feed_events
from producers.publish import EventPublisher
from producers.sample_data import sample_events
from schemas.codec import decode_json
from schemas.enums import NewsStatus, Stage
from schemas.records import NewsEvent, Signal
from schemas.settings import KafkaSettings

FETCH_WAIT_MS = 100
"""Longest wait of a fetch that finds nothing; one that finds something returns at once."""
MEASURED = (0.1, 0.95)
"""Share of the signals between which throughput is measured: neither the start nor the tail is the sustained rate."""
WARM_UP_SECONDS = 2.0
"""Start of the latency run that is not counted: a broker's first requests are slow (a JVM compiles as it goes)."""


async def measure(settings: Settings, plan: Plan, stop: asyncio.Event, *, embedded: bool) -> Overhead | None:
    """Run every phase; None when ``stop`` was set meanwhile.

    Raises:
        UnavailableError: Kafka or Redis cannot be used.
        BenchError: a phase did not end.
    """
    work = asyncio.ensure_future(_measure(settings, plan, embedded=embedded))
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if work.done():
        return work.result()
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    return None


async def _measure(settings: Settings, plan: Plan, *, embedded: bool) -> Overhead:
    async with AsyncExitStack() as stack:
        services = await start_embedded(stack)
        if not embedded:
            del services["kafka"]
        # Topics of this run alone: what an earlier one left behind must not be counted.
        prefix = f"{settings.kafka.topic_prefix}-{uuid4().hex[:8]}"
        services.setdefault("kafka", {})["topic_prefix"] = prefix
        settings = with_values(settings, {**services, **private_link(stack)})
        bench = _Bench(settings, plan, make_run_dir(None, "bench"), real=not embedded)
        broker = "embedded broker" if embedded else f"Kafka at {settings.kafka.bootstrap}"
        return await bench.run(broker)


class _Bench:
    """One run: services are up, topics are fresh."""

    def __init__(self, settings: Settings, plan: Plan, run_dir: Path, *, real: bool) -> None:
        self._settings = settings
        self._real = real
        self._kafka = settings.kafka
        self._plan = plan
        self._run_dir = run_dir
        self._events = _headlines()
        self._run = itertools.count(1)
        self._signals_before = 0
        self._progress = Console(stderr=True)

    async def run(self, broker: str) -> Overhead:
        await ensure_topics(self._kafka)
        self._say(f"bare loop: {self._plan.events:,} records")
        await self._feed(self._plan.events)
        copies = self._bare_settings()
        await ensure_topics(copies)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                bare = await bare_loop(self._kafka, self._kafka.topics.news, copies.topics.news, self._plan.events)
        except TimeoutError:
            raise BenchError(f"the bare loop did not end within {PATIENCE_SECONDS:g} s") from None
        # The same records again, now through the scheduler: they wait in the topic until it starts.
        default_rate = await self._throughput("at_least_once")
        async with self._running("at_least_once") as services:
            idle = services.scheduler_memory()
            default = Mode(events_per_s=default_rate, latency=await self._latency(services))
            self._say(f"memory: {self._plan.queued:,} events queued")
            queued = await self._queued_memory(services)
        return Overhead(
            broker=broker,
            plan=self._plan,
            bare_events_per_s=bare,
            default=default,
            transactional=await self._transactional() if self._real else None,
            rss_mb_idle=idle,
            rss_mb_queued=queued,
        )

    async def _transactional(self) -> Mode:
        # Topics of its own: what the memory run left queued is nothing to measure.
        self._kafka = self._kafka.model_copy(update={"topic_prefix": f"{self._kafka.topic_prefix}-tx"})
        self._signals_before = 0
        await ensure_topics(self._kafka)
        await self._feed(self._plan.events)
        rate = await self._throughput("transactional")
        async with self._running("transactional") as services:
            return Mode(events_per_s=rate, latency=await self._latency(services))

    def _say(self, message: str) -> None:
        self._progress.print(message, style="dim", highlight=False)

    def _bare_settings(self) -> KafkaSettings:
        return self._kafka.model_copy(update={"topic_prefix": f"{self._kafka.topic_prefix}-bare"})

    @asynccontextmanager
    async def _running(self, delivery: str) -> AsyncIterator[Services]:
        """Run a scheduler and a worker as child processes, as ``tapewire up`` does."""
        topics = {"topic_prefix": self._kafka.topic_prefix}
        settings = with_values(self._settings, {"kafka": topics, "scheduler": {"delivery": delivery}})
        supervisor = Supervisor(local_stages(settings, self._run_dir, 1), Backoff(give_up_after=1))
        life = asyncio.ensure_future(supervisor.run())
        scheduler, worker = supervisor.children
        services = Services(settings, scheduler, worker, life)
        try:
            await services.until("a scheduler with a worker", lambda s: s.state == "running" and bool(s.workers))
            yield services
        finally:
            life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await life
            await services.close()

    async def _feed(self, count: int, rate: float | None = None) -> None:
        events = repeated(self._events, count, f"b{next(self._run)}-")
        async with EventPublisher(self._kafka) as publisher:
            if rate is None:
                now = time.time_ns()
                for event in events:
                    await publisher.publish(restamped(event, now))
                await publisher.flush()
            else:
                await feed_events(events, publisher, rate=rate)

    async def _throughput(self, delivery: str) -> float:
        self._say(f"throughput, {delivery}: {self._plan.events:,} events")
        async with self._running(delivery) as services:
            await services.until("all signals", lambda s: sum(c.signals for c in s.classes) >= self._plan.events)
        appended = sorted([at async for at, _ in self._signals(skip=0)])
        self._signals_before = len(appended)
        if len(appended) < self._plan.events:
            raise BenchError(f"{len(appended):,} of {self._plan.events:,} signals are in the topic")
        low, high = (int(len(appended) * share) for share in MEASURED)
        return (high - low) / max(appended[high] - appended[low], 1) * 1000

    async def _latency(self, services: Services) -> Latency:
        self._say(f"latency: {self._plan.rate:g} events/s for {self._plan.seconds:g} s")
        count = int(self._plan.rate * (self._plan.seconds + WARM_UP_SECONDS))
        read: list[tuple[int, float]] = []
        async with self._consumer("latest") as consumer:
            reading = asyncio.ensure_future(_read_live(consumer, read))
            await self._feed(count, self._plan.rate)
            await services.until("all signals", lambda s: len(read) >= count)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        pairs = [(_appended_ms(signal), at) async for at, signal in self._signals(self._signals_before)]
        begins = min(event for event, _ in pairs) + WARM_UP_SECONDS * 1000
        appends = sorted(float(at - event) for event, at in pairs if event >= begins)
        reads = sorted(at - event for event, at in read if event >= begins)
        return Latency(
            p50_ms=percentile(appends, 50),
            p99_ms=percentile(appends, 99),
            read_p50_ms=percentile(reads, 50),
            read_p99_ms=percentile(reads, 99),
        )

    async def _queued_memory(self, services: Services) -> float:
        await services.worker.stop()  # says goodbye; from now on everything waits
        await services.until("the worker to leave", lambda s: not s.workers)
        await self._feed(self._plan.queued)
        await services.until("a full queue", lambda s: sum(c.queued for c in s.classes) >= self._plan.queued)
        return services.scheduler_memory()

    async def _signals(self, skip: int) -> AsyncIterator[tuple[int, Signal]]:
        """Yield (append time in ms, signal) of the signals topic, without the first ``skip`` to be appended."""
        async with self._consumer("earliest") as consumer:
            ends = await consumer.end_offsets(consumer.assignment())
            records: list[ConsumerRecord] = []
            while any([await consumer.position(tp) < end for tp, end in ends.items()]):
                for batch in (await consumer.getmany(timeout_ms=500)).values():
                    records += batch
        records.sort(key=lambda record: record.timestamp)
        for record in records[skip:]:
            yield record.timestamp, decode_json(record.value, Signal)

    @asynccontextmanager
    async def _consumer(self, begin: str) -> AsyncIterator[AIOKafkaConsumer]:
        """Give a consumer of the signals topic that reads what is committed."""
        consumer = AIOKafkaConsumer(
            self._kafka.topics.signals,
            **self._kafka.client_options(),
            enable_auto_commit=False,
            auto_offset_reset=begin,
            isolation_level="read_committed",
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        await consumer.start()
        try:
            for partition in consumer.assignment():
                await consumer.position(partition)  # from here on nothing is missed
            yield consumer
        finally:
            await consumer.stop()


async def _read_live(consumer: AIOKafkaConsumer, read: list[tuple[int, float]]) -> None:
    """Note for each signal when its event was appended and when the consumer has it, both in milliseconds."""
    while True:
        for batch in (await consumer.getmany(timeout_ms=FETCH_WAIT_MS)).values():
            now = time.time_ns() / 1_000_000
            read += [(_appended_ms(decode_json(record.value, Signal)), now) for record in batch]


def _appended_ms(signal: Signal) -> int:
    return signal.stamps[Stage.APPENDED] // 1_000_000


def _headlines() -> list[NewsEvent]:
    """Return the sample headlines that reach an engine."""
    return [e for e in sample_events("news") if isinstance(e, NewsEvent) and e.status is not NewsStatus.KILLED]
