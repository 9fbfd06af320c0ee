"""``tapewire bench overhead``: throughput, latency and memory of one scheduler and one worker, with nothing to compute.

The worker runs the sim engine with zero service time, so every figure is the cost of Tapewire and the broker. The
bare loop runs in the same run on the same broker; compare ratios, since machines differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import redis.asyncio as redis
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from rich.console import Console
from rich.table import Table

from ops.bench.bare import bare_loop
from ops.config import Settings
from ops.local import local_stages, make_run_dir, private_link, start_embedded, with_values
from ops.percentiles import percentile
from ops.supervisor import Backoff, Child, Supervisor
from ops.text import stdout_console
from ops.topics import ensure_topics
from producers.events import repeated, restamped
from producers.file_feed import feed_events
from producers.publish import EventPublisher
from producers.sample_data import sample_events
from schemas.codec import decode_json
from schemas.enums import NewsStatus, Stage
from schemas.errors import TapewireError
from schemas.records import NewsEvent, Signal
from schemas.settings import KafkaSettings
from schemas.status import SchedulerStatus

MEASURED = (0.1, 0.95)
"""Share of the signals between which throughput is measured: neither the start nor the tail is the sustained rate."""
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 180.0
"""Longest wait for one phase; a machine that needs longer has no figure worth printing."""
WARM_UP_SECONDS = 2.0
"""Start of the latency run that is not counted: a broker's first requests are slow (a JVM compiles as it goes)."""
MEGABYTE = 1_000_000


class BenchError(TapewireError):
    """A benchmark could not be finished."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to run.

    Args:
        events: of the throughput run.
        rate: events/s of the latency run.
        seconds: length of the latency run.
        queued: events queued for the memory figure.
    """

    events: int
    rate: float
    seconds: float
    queued: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Broker append of the event to broker append of its signal, in milliseconds."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """The figures of one run.

    Args:
        broker: which broker it was.
        events_per_s: events in, signals out, sustained.
        bare_events_per_s: the plain aiokafka loop (`ops.bench.bare`).
        latency: at the plan's rate.
        rss_mb_idle, rss_mb_queued: resident memory of the scheduler process, in MB (10^6 bytes).
    """

    broker: str
    plan: Plan
    events_per_s: float
    bare_events_per_s: float
    latency: Latency
    rss_mb_idle: float
    rss_mb_queued: float

    def as_dict(self) -> dict[str, object]:
        """Return the figures under the names of the JSON output."""
        return {
            "broker": self.broker,
            "events_per_s": round(self.events_per_s),
            "bare_events_per_s": round(self.bare_events_per_s),
            f"at_{self.plan.rate:g}_per_s": asdict(self.latency),
            "rss_mb_idle": round(self.rss_mb_idle, 1),
            f"rss_mb_{self.plan.queued // 1000}k_queued": round(self.rss_mb_queued, 1),
        }


def table(result: Overhead) -> None:
    """Print the figures for people."""
    shown = Table(title=f"tapewire bench overhead, {result.broker}", title_justify="left")
    shown.add_column("figure")
    shown.add_column("value", justify="right")
    ratio = result.events_per_s / result.bare_events_per_s
    for name, value in (
        ("events in, signals out", f"{result.events_per_s:,.0f}/s"),
        ("bare aiokafka loop", f"{result.bare_events_per_s:,.0f}/s"),
        ("ratio", f"{ratio:.2f}"),
        (f"append to append at {result.plan.rate:g}/s, p50", f"{result.latency.p50_ms:.0f} ms"),
        (f"append to append at {result.plan.rate:g}/s, p99", f"{result.latency.p99_ms:.0f} ms"),
        ("scheduler memory, idle", f"{result.rss_mb_idle:.0f} MB"),
        (f"scheduler memory, {result.plan.queued:,} queued", f"{result.rss_mb_queued:.0f} MB"),
    ):
        shown.add_row(name, value)
    stdout_console().print(shown)


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
        bench = _Bench(settings, plan, make_run_dir(None, "bench"))
        broker = "embedded broker" if embedded else f"Kafka at {settings.kafka.bootstrap}"
        return await bench.run(broker)


class _Bench:
    """One run: services are up, topics are fresh."""

    def __init__(self, settings: Settings, plan: Plan, run_dir: Path) -> None:
        self._settings = settings
        self._kafka = settings.kafka
        self._plan = plan
        self._run_dir = run_dir
        self._events = _headlines()
        self._run = itertools.count(1)
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
        self._say(f"throughput: {self._plan.events:,} events")
        async with self._running() as services:
            throughput = await self._throughput(services)
        async with self._running() as services:
            idle = services.scheduler_memory()
            self._say(f"latency: {self._plan.rate:g} events/s for {self._plan.seconds:g} s")
            latency = await self._latency(services)
            self._say(f"memory: {self._plan.queued:,} events queued")
            queued = await self._queued_memory(services)
        return Overhead(
            broker=broker,
            plan=self._plan,
            events_per_s=throughput,
            bare_events_per_s=bare,
            latency=latency,
            rss_mb_idle=idle,
            rss_mb_queued=queued,
        )

    def _say(self, message: str) -> None:
        self._progress.print(message, style="dim", highlight=False)

    def _bare_settings(self) -> KafkaSettings:
        return self._kafka.model_copy(update={"topic_prefix": f"{self._kafka.topic_prefix}-bare"})

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[_Services]:
        """Run a scheduler and a worker as child processes, as ``tapewire up`` does."""
        supervisor = Supervisor(local_stages(self._settings, self._run_dir, 1), Backoff(give_up_after=1))
        life = asyncio.ensure_future(supervisor.run())
        scheduler, worker = supervisor.children
        services = _Services(self._settings, scheduler, worker, life)
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

    async def _throughput(self, services: _Services) -> float:
        await services.until("all signals", lambda s: sum(c.signals for c in s.classes) >= self._plan.events)
        appended = sorted([at async for at, _ in self._signals(skip=0)])
        if len(appended) < self._plan.events:
            raise BenchError(f"{len(appended):,} of {self._plan.events:,} signals are in the topic")
        low, high = (int(len(appended) * share) for share in MEASURED)
        return (high - low) / max(appended[high] - appended[low], 1) * 1000

    async def _latency(self, services: _Services) -> Latency:
        before = await services.status()
        skip = self._plan.events
        count = int(self._plan.rate * (self._plan.seconds + WARM_UP_SECONDS))
        target = sum(c.signals for c in before.classes) + count
        await self._feed(count, self._plan.rate)
        await services.until("all signals", lambda s: sum(c.signals for c in s.classes) >= target)
        pairs = [(signal.stamps[Stage.APPENDED] // 1_000_000, at) async for at, signal in self._signals(skip)]
        begins = min(event for event, _ in pairs) + WARM_UP_SECONDS * 1000
        delays = sorted(float(at - event) for event, at in pairs if event >= begins)
        return Latency(p50_ms=percentile(delays, 50), p99_ms=percentile(delays, 99))

    async def _queued_memory(self, services: _Services) -> float:
        await services.worker.stop()  # says goodbye; from now on everything waits
        await services.until("the worker to leave", lambda s: not s.workers)
        await self._feed(self._plan.queued)
        await services.until("a full queue", lambda s: sum(c.queued for c in s.classes) >= self._plan.queued)
        return services.scheduler_memory()

    async def _signals(self, skip: int) -> AsyncIterator[tuple[int, Signal]]:
        """Yield (append time in ms, signal) of the signals topic, without the first ``skip`` to be appended."""
        consumer = AIOKafkaConsumer(
            self._kafka.topics.signals,
            **self._kafka.client_options(),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            ends = await consumer.end_offsets(consumer.assignment())
            records: list[ConsumerRecord] = []
            while len(records) < sum(ends.values()):
                for batch in (await consumer.getmany(timeout_ms=500)).values():
                    records += batch
        finally:
            await consumer.stop()
        records.sort(key=lambda record: record.timestamp)
        for record in records[skip:]:
            yield record.timestamp, decode_json(record.value, Signal)


class _Services:
    """The scheduler and the worker of one phase, seen through the status that the scheduler leaves in Redis."""

    def __init__(self, settings: Settings, scheduler: Child, worker: Child, life: asyncio.Future[None]) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self._life = life
        self._key = settings.kafka.topics.status_key(settings.scheduler.id)
        self._redis = redis.Redis.from_url(settings.redis.url)

    async def close(self) -> None:
        await self._redis.delete(self._key)
        await self._redis.aclose()

    async def status(self) -> SchedulerStatus:
        raw = await self._redis.get(self._key)
        if not isinstance(raw, bytes):
            raise BenchError("the scheduler has no status")
        return decode_json(raw, SchedulerStatus)

    async def until(self, what: str, holds: Callable[[SchedulerStatus], bool]) -> None:
        """Poll the status until ``holds``; a child that died ends the wait."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self._life.done():
                self._life.result()
                raise BenchError(f"the services ended while waiting for {what}")
            with contextlib.suppress(BenchError):
                if holds(await self.status()):
                    return
            await asyncio.sleep(POLL_SECONDS)
        raise BenchError(f"waited {PATIENCE_SECONDS:g} s for {what}")

    def scheduler_memory(self) -> float:
        """Return the scheduler's resident memory in MB (Linux: VmRSS of its process)."""
        status = Path(f"/proc/{self.scheduler.pid}/status").read_text(encoding="ascii")
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / MEGABYTE
        raise BenchError("no VmRSS for the scheduler")


def _headlines() -> list[NewsEvent]:
    """Return the sample headlines that reach an engine."""
    return [e for e in sample_events("news") if isinstance(e, NewsEvent) and e.status is not NewsStatus.KILLED]
