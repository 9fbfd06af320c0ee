"""Whole schedulers and workers inside a test: started, watched and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiokafka import ConsumerRecord

from producers.publish import EventPublisher
from scheduler.service import Scheduler
from schemas.codec import decode_json
from schemas.enums import NewsStatus
from schemas.records import Event, Expired, FilingEvent, NewsEvent, Signal
from schemas.settings import (
    ClassSettings,
    KafkaSettings,
    LinkSettings,
    RedisSettings,
    SchedulerSettings,
    WorkerSettings,
)
from schemas.topics import HEADER_EVENT_ID
from tests.scheduler.dealers import link_settings
from tests.scheduler.records import read
from tests.scheduler.waiting import until
from workers.process import serve

ROOT = Path(__file__).parents[2]
PATIENT = (
    ClassSettings(name="flash", slo_ms=60_000, extractor="headline"),
    ClassSettings(name="standard", slo_ms=60_000, extractor="headline"),
    ClassSettings(name="bulk", slo_ms=60_000, extractor="filing"),
)
"""Classes whose work never gets too old to run, however slow the machine is."""
NEVER_MS = 3_600_000.0
"""Cost of a step in an engine that is meant to die before it answers."""


def news(story: str, headline: str = "Acme raises its guidance", *, version: int = 1, **changed: Any) -> NewsEvent:
    """Return a news event received now."""
    values: dict[str, Any] = {
        "event_id": f"wire:{story}:{version}",
        "source": "wire",
        "headline": headline,
        "received_at_ns": time.time_ns(),
        "published_at_ns": time.time_ns() - 1_000_000,
        "version": version,
        "instruments": [f"T{story}"],
    }
    return NewsEvent(**(values | changed))


def filing(number: int, text: str = "The company reports results. " * 20, **changed: Any) -> FilingEvent:
    """Return a filing part received now."""
    values: dict[str, Any] = {
        "event_id": f"0001-{number}:d:1",
        "accession": f"0001-{number}",
        "form": "10-Q",
        "text": text,
        "received_at_ns": time.time_ns(),
        "accepted_at_ns": time.time_ns() - 2_000_000,
    }
    return FilingEvent(**(values | changed))


def killed(story: str, *, version: int = 2) -> NewsEvent:
    """Return the kill of a story."""
    return news(story, "", version=version, status=NewsStatus.KILLED, supersedes=f"wire:{story}:{version - 1}")


async def publish(kafka: KafkaSettings, events: Iterable[Event]) -> None:
    """Publish events and confirm them."""
    async with EventPublisher(kafka) as publisher:
        for event in events:
            await publisher.publish(event)


class Node:
    """One scheduler in this process and loop, with workers."""

    def __init__(
        self, kafka: KafkaSettings, redis: RedisSettings, link: LinkSettings | None = None, **settings: Any
    ) -> None:
        values: dict[str, Any] = {
            "classes": PATIENT,
            "commit_seconds": 0.2,
            "session_seconds": 6.0,
            "drain_seconds": 3.0,
        }
        self.settings = SchedulerSettings(**(values | settings))
        self.link = link or link_settings(heartbeat_seconds=0.1, dead_after_seconds=1.0)
        self.scheduler = Scheduler(self.settings, kafka, redis, self.link)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._workers: list[tuple[asyncio.Event, asyncio.Task[None]]] = []
        self._processes: list[asyncio.subprocess.Process] = []

    def start(self) -> None:
        """Start the scheduler."""
        self._task = asyncio.create_task(self.scheduler.run(self._stop))

    def worker(self, worker_id: str = "w1", **settings: Any) -> tuple[asyncio.Event, asyncio.Task[None]]:
        """Start a worker in this process; its stop event and its task."""
        stop = asyncio.Event()
        task = asyncio.create_task(serve(_worker_settings(worker_id, settings), self.link, stop))
        self._workers.append((stop, task))
        return stop, task

    async def worker_process(self, worker_id: str = "w1", **settings: Any) -> asyncio.subprocess.Process:
        """Start a worker as a process that can be killed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.scheduler.worker_process",
            _worker_settings(worker_id, settings).model_dump_json(),
            self.link.model_dump_json(),
            cwd=ROOT,
        )
        self._processes.append(process)
        return process

    async def until(self, condition: Any, seconds: float = 60.0) -> None:
        """Wait for a condition; a scheduler that failed meanwhile fails the test with its own error."""
        assert self._task is not None
        task = self._task
        await until(lambda: task.done() or condition(), seconds)
        if task.done():
            await task

    async def until_ended(self, count: int) -> None:
        """Wait until so many events have ended and Kafka has confirmed all of their outcomes."""
        scheduler = self.scheduler
        await self.until(lambda: self.ended >= count and not scheduler._publisher.pending)

    @property
    def ended(self) -> int:
        """Events that have an outcome."""
        stats = self.scheduler._stats
        by_class = sum(c.signals + c.expired + c.dead_letters for c in stats.classes)
        return by_class + stats.undecodable + stats.retractions

    @property
    def in_flight(self) -> int:
        """Events at workers."""
        return self.scheduler._planner.total_in_flight

    async def end(self, seconds: float = 30.0) -> None:
        """Stop the scheduler as Ctrl-C does, and its workers."""
        self._stop.set()
        if self._task is not None:
            async with asyncio.timeout(seconds):
                await self._task

    async def clean(self) -> None:
        """End whatever still runs."""
        self._stop.set()
        for stop, _ in self._workers:
            stop.set()
        tasks = [task for _, task in self._workers] + ([self._task] if self._task else [])
        if tasks:
            await asyncio.wait(tasks, timeout=30)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for process in self._processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def node(
    kafka: KafkaSettings, redis: RedisSettings, link: LinkSettings | None = None, **settings: Any
) -> AsyncIterator[Node]:
    """Give a scheduler that runs, without a worker yet."""
    one = Node(kafka, redis, link, **settings)
    try:
        one.start()
        yield one
    finally:
        await one.clean()


def kill(process: asyncio.subprocess.Process) -> None:
    """Kill a process without letting it say goodbye."""
    os.kill(process.pid, signal.SIGKILL)


def ended_by(signal: Signal) -> list[tuple[str, int, int]]:
    """Return the input records whose outcome a signal is: all of a filing's, and none where another one follows."""
    if signal.filing is None:
        return [(signal.topic, signal.partition, signal.offset)]
    if signal.filing.partial:
        return []
    return [(source.topic, source.partition, source.offset) for source in signal.filing.sources]


class Results:
    """Everything on the result topics."""

    def __init__(self, signals: list[Signal], expired: list[Expired], dead_letters: list[ConsumerRecord]) -> None:
        self.signals = signals
        self.expired = expired
        self.dead_letters = dead_letters

    @property
    def outcomes(self) -> Counter[tuple[str, int, int]]:
        """How often each input offset has an outcome."""
        seen = Counter(source for signal in self.signals for source in ended_by(signal))
        seen.update((e.topic, e.partition, e.offset) for e in self.expired)
        for letter in self.dead_letters:
            headers = dict(letter.headers)
            seen[
                headers["tapewire-source-topic"].decode(),
                int(headers["tapewire-source-partition"]),
                int(headers["tapewire-source-offset"]),
            ] += 1
        return seen


async def results(kafka: KafkaSettings) -> Results:
    """Read the result topics."""
    signals = await read(kafka, kafka.topics.signals)
    expired = await read(kafka, kafka.topics.expired)
    for record in (*signals, *expired):
        assert dict(record.headers)[HEADER_EVENT_ID]
    return Results(
        [decode_json(r.value, Signal) for r in signals],
        [decode_json(r.value, Expired) for r in expired],
        await read(kafka, kafka.topics.dead_letters),
    )


def _worker_settings(worker_id: str, changed: dict[str, Any]) -> WorkerSettings:
    values: dict[str, Any] = {
        "id": worker_id,
        "engine": "sim",
        "sim_step_ms": 0,
        "sim_prefill_token_us": 0,
        "sim_decode_us": 0,
    }
    return WorkerSettings(**(values | changed))
