"""Feeds news and filing events from JSON Lines, or from memory, to Kafka at a given rate."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from producers.events import check_suffix, decode_event, restamped, with_suffix
from producers.lines import Line, LineReader
from producers.publish import EventPublisher
from schemas.codec import DEFAULT_LIMITS, Limits
from schemas.errors import ConfigError, DecodeError, ErrorKind
from schemas.records import Event
from schemas.settings import KafkaSettings

REJECTED_KEPT = 1000
"""Rejected lines that a report keeps with their errors; all are counted and all go to ``on_rejected``."""
PROGRESS_SECONDS = 0.1
"""Least time between two calls of ``on_progress``: ten a second is what a person can see."""
TURN_EVENTS = 64
"""Events after which the feed lets the loop turn even when it is late: confirmations and signals must get through."""

STOP_SECONDS = 5.0
"""Longest wait for confirmations once a feed is to stop; a stop must end within ten seconds, brokers or not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedLine:
    """A line that holds no valid event.

    Args:
        number: of the line, from 1.
        error: what is wrong with it, with the field.
    """

    number: int
    error: DecodeError


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedProgress:
    """How far a feed is: events handed to the producer, lines rejected, seconds since its start."""

    published: int
    rejected: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedReport:
    """What a feed did.

    Args:
        published: events confirmed by Kafka, per topic.
        rejected: lines that were no valid event, all of them.
        rejected_lines: the first `REJECTED_KEPT` of them.
        seconds: from the first event to the last confirmation.
        stopped: ended by ``stop`` before its source did.
    """

    published: dict[str, int]
    rejected: int
    rejected_lines: tuple[RejectedLine, ...]
    seconds: float
    stopped: bool

    @property
    def total(self) -> int:
        """Events confirmed on all topics."""
        return sum(self.published.values())


async def feed_file(
    path: str | Path,
    kafka: KafkaSettings,
    *,
    rate: float | None = None,
    keep_times: bool = False,
    id_suffix: str = "",
    limit: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    on_progress: Callable[[FeedProgress], None] | None = None,
    on_rejected: Callable[[RejectedLine], None] | None = None,
    stop: asyncio.Event | None = None,
) -> FeedReport:
    """Publish the events of a JSON Lines file, each line one news or filing event; blank lines are passed over.

    A line that is no valid event is rejected with its number, its field and the reason, and the feed goes on.

    Args:
        path: file, or ``-`` for standard input.
        kafka: how to reach the cluster, and the topic names.
        rate: events per second, open loop: event *n* is due *n* / ``rate`` seconds after the first, and a feed that
            is late catches up. None means as fast as Kafka takes them.
        keep_times: leave all times as recorded. Otherwise every event is received now, because deadlines count
            from then: events with the times of their recording would be stale, and expire unseen.
        id_suffix: makes the ids of this feed its own (`producers.events.with_suffix`).
        limit: most events to publish; none means all.
        limits: bounds on one line and its texts.
        on_progress: called at most every `PROGRESS_SECONDS`, and at the end.
        on_rejected: called for every rejected line, at once.
        stop: ends the feed early; what was published is still confirmed, for `STOP_SECONDS` at most.

    Raises:
        ConfigError: the file cannot be read, or an option is out of its range.
        UnavailableError: Kafka cannot be reached, or confirms nothing any more.
        PublishError: Kafka refuses a record.
    """
    stop = stop or asyncio.Event()
    async with LineReader(path, max_bytes=limits.record_bytes, stop=stop) as lines, EventPublisher(kafka) as publisher:
        feed = _Feed(publisher, rate, id_suffix, limit, stop, keep_times=keep_times)
        feed.on_progress, feed.on_rejected = on_progress, on_rejected
        return await feed.run(feed.decoded(lines, limits))


async def feed_events(
    events: Iterable[Event],
    publisher: EventPublisher,
    *,
    rate: float | None = None,
    keep_times: bool = False,
    id_suffix: str = "",
    limit: int | None = None,
    on_progress: Callable[[FeedProgress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> FeedReport:
    """Publish events from memory through a publisher that is open already, and confirm them; otherwise as `feed_file`.

    Raises:
        ConfigError, UnavailableError, PublishError: as `feed_file`.
        DecodeError: an id gets too long with ``id_suffix``.
    """
    feed = _Feed(publisher, rate, id_suffix, limit, stop or asyncio.Event(), keep_times=keep_times)
    feed.on_progress = on_progress
    return await feed.run(feed.taken(events))


class _Feed:
    """One run of a feed: its schedule and its counts."""

    def __init__(
        self,
        publisher: EventPublisher,
        rate: float | None,
        id_suffix: str,
        limit: int | None,
        stop: asyncio.Event,
        *,
        keep_times: bool,
    ) -> None:
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise ConfigError("rate", f"{rate} is not a number of events per second above 0")
        if limit is not None and limit < 0:
            raise ConfigError("limit", f"{limit} is below 0")
        self.on_progress: Callable[[FeedProgress], None] | None = None
        self.on_rejected: Callable[[RejectedLine], None] | None = None
        self._publisher = publisher
        self._interval = 1 / rate if rate else 0.0
        self._suffix = check_suffix(id_suffix)
        self._limit = math.inf if limit is None else limit
        self._stop = stop
        self._keep_times = keep_times
        self._published: Counter[str] = Counter()
        self._count = 0
        self._rejected = 0
        self._rejected_lines: list[RejectedLine] = []
        self._clock = asyncio.get_running_loop().time
        self._started = self._clock()
        self._told = self._started

    async def run(self, events: AsyncGenerator[Event, None]) -> FeedReport:
        """Publish the events at their due times and confirm them."""
        async with contextlib.aclosing(events), self._bounded_once_stopped():
            if self._limit > 0:
                async for event in events:
                    if not await self._due():
                        break
                    await self._publish(event)
                    if self._count >= self._limit:
                        break
            await self._publisher.flush()
        self._tell()
        return FeedReport(
            published=dict(self._published),
            rejected=self._rejected,
            rejected_lines=tuple(self._rejected_lines),
            seconds=self._clock() - self._started,
            stopped=self._stop.is_set(),
        )

    async def decoded(self, lines: LineReader, limits: Limits) -> AsyncGenerator[Event, None]:
        """Yield the events of the lines; note the lines that hold none."""
        async for line in lines:
            try:
                event = _event_on(line, limits)
                if event is not None:
                    event = with_suffix(event, self._suffix)
            except DecodeError as error:
                self._reject(RejectedLine(number=line.number, error=error))
                continue
            if event is not None:
                yield event

    async def taken(self, events: Iterable[Event]) -> AsyncGenerator[Event, None]:
        """Yield events from memory."""
        for event in events:
            yield with_suffix(event, self._suffix)

    async def _due(self) -> bool:
        """Wait until the next event is due; false when the feed is to stop instead."""
        if not self._count:
            self._started = self._told = self._clock()
        wait = self._started + self._count * self._interval - self._clock()
        if wait > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stop.wait()
        elif self._count % TURN_EVENTS == 0:
            await asyncio.sleep(0)
        return not self._stop.is_set()

    async def _publish(self, event: Event) -> None:
        if not self._keep_times:
            event = restamped(event, time.time_ns())
        await self._publisher.publish(event)
        self._published[self._publisher.topic_of(event)] += 1
        self._count += 1
        if self._clock() - self._told >= PROGRESS_SECONDS:
            self._tell()

    def _reject(self, rejected: RejectedLine) -> None:
        self._rejected += 1
        if len(self._rejected_lines) < REJECTED_KEPT:
            self._rejected_lines.append(rejected)
        if self.on_rejected:
            self.on_rejected(rejected)

    def _tell(self) -> None:
        self._told = self._clock()
        if self.on_progress:
            seconds = self._told - self._started
            self.on_progress(FeedProgress(published=self._count, rejected=self._rejected, seconds=seconds))

    @contextlib.asynccontextmanager
    async def _bounded_once_stopped(self) -> AsyncIterator[None]:
        """Give the work inside `STOP_SECONDS` from the moment it is to stop, whatever it waits for then."""
        try:
            async with asyncio.timeout(None) as bound:
                watcher = asyncio.create_task(_limit_when(self._stop, bound))
                try:
                    yield
                finally:
                    watcher.cancel()
        except TimeoutError:
            raise self._publisher.unavailable(f"unconfirmed {STOP_SECONDS:g} s after the stop") from None


def _event_on(line: Line, limits: Limits) -> Event | None:
    """Return the event on a line; none if the line is blank."""
    if line.size > limits.record_bytes:
        reason = f"{line.size} bytes, the limit is {limits.record_bytes}"
        raise DecodeError(ErrorKind.RECORD_TOO_LARGE, "", reason)
    return decode_event(line.data, limits) if line.data.strip() else None


async def _limit_when(stop: asyncio.Event, bound: asyncio.Timeout) -> None:
    await stop.wait()
    bound.reschedule(asyncio.get_running_loop().time() + STOP_SECONDS)
