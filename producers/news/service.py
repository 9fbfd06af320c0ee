"""Runs the news feed handler: all configured sources, one desk, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import structlog

from producers.http import HttpClient, checked_user_agent
from producers.news.desk import NewsDesk, OnEvent
from producers.news.directory import FileCounts, FileSource, OnRejected
from producers.news.duplicates import DuplicateIndex
from producers.news.item import Defaults
from producers.news.poll import FeedPoller, PollOptions
from producers.news.rebuild import rebuild
from producers.news.socket import NewsSocket
from producers.news.statements import BANKS, HIGHEST_URGENCY
from producers.news.store import NewsStore
from producers.news.story import Verdict
from producers.news.webhook import Webhook
from producers.outlet import Outlet
from producers.tail import topic_tail
from producers.times import SECOND
from schemas.codec import DEFAULT_LIMITS, Limits
from schemas.errors import ConfigError, TapewireError, UnavailableError
from schemas.news_settings import NewsFeedSettings, NewsSettings, NewsSocketSettings, NewsSourceSettings
from schemas.settings import KafkaSettings, RedisSettings

log = structlog.get_logger()

STOP_SECONDS = 5.0
"""Longest wait for Kafka once the feed is to stop; a stop must end within ten seconds, brokers or not."""

CANCEL_SECONDS = 0.1
"""Between two attempts to end a source."""

Start = Callable[[], Coroutine[Any, Any, object]]

BANK_POLL_SECONDS = 5.0
USER_AGENT_SETTING = "news.user_agent"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewsOptions:
    """What one run does beside its settings.

    Args:
        paths: files and directories to read instead of the configured sources.
        watch: go on with those directories after they are read.
        limits: bounds on records.
        on_event: called for every event once it is confirmed.
        on_rejected: called for every file or line that gives no item.
    """

    paths: Sequence[Path] = ()
    watch: bool = False
    limits: Limits = DEFAULT_LIMITS
    on_event: OnEvent | None = None
    on_rejected: OnRejected | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NewsReport:
    """What a run did.

    Args:
        verdicts: items by what they were.
        files: of the files that were read.
        held: items that wait for the end of their embargo.
        latencies_ns: of the last events, from arrival to confirmation.
    """

    verdicts: Counter[Verdict]
    files: FileCounts
    held: int
    latencies_ns: list[int] = field(default_factory=list)


async def serve(
    news: NewsSettings,
    kafka: KafkaSettings,
    redis: RedisSettings,
    stop: asyncio.Event,
    options: NewsOptions = NewsOptions(),
) -> NewsReport:
    """Feed news until ``stop`` is set, or until the given paths are read.

    Raises:
        ConfigError: nothing to read is configured or given, or a setting is wrong.
        UnavailableError: Kafka or Redis cannot be used.
        PublishError: Kafka refuses a record.
    """
    feeds = [*_bank_feeds(news), *news.feeds]
    if not options.paths and not (feeds or news.directories or news.sockets or news.webhook.port):
        reason = "name central_banks, feeds, directories, sockets or a webhook, or give files to read"
        raise ConfigError("news", reason)
    for path in options.paths:
        if not path.exists():
            raise ConfigError("paths", f"{path}: no such file or directory")
    if feeds and not options.paths:
        checked_user_agent(news.user_agent, USER_AGENT_SETTING)
    async with contextlib.AsyncExitStack() as stack:
        store = NewsStore(redis, kafka.topics, seen_seconds=news.seen_days * 86_400)
        await store.start()
        stack.push_async_callback(store.close)
        duplicates = DuplicateIndex(
            similarity=news.duplicate_similarity, window_ns=int(news.duplicate_hours * 3600) * SECOND
        )
        async with contextlib.aclosing(topic_tail(kafka, kafka.topics.news, news.tail_records)) as tail:
            await rebuild(store, duplicates, tail)
        outlet = await stack.enter_async_context(Outlet(kafka, client_id="tapewire-feed-news"))
        desk = NewsDesk(store, outlet, duplicates, on_event=options.on_event)
        sources = _Sources(news, feeds, options, desk, store)
        await _run(sources, desk, stop, f"Kafka at {kafka.bootstrap}")
        return _report(sources, desk)


class _Sources:
    """All sources of one run, as coroutines that end with it."""

    def __init__(
        self,
        news: NewsSettings,
        feeds: Sequence[NewsFeedSettings],
        options: NewsOptions,
        desk: NewsDesk,
        store: NewsStore,
    ) -> None:
        self._news = news
        self._feeds = feeds
        self._options = options
        self._desk = desk
        self._store = store
        self.files = [self._file_source(options.paths, self._defaults(None))] if options.paths else []
        if not options.paths:
            self.files = [
                self._file_source([found.path], self._defaults(found), found.pattern) for found in news.directories
            ]
        for source in self.files:
            source.check()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[list[Start]]:
        """Yield what is to be started; servers and clients are open meanwhile."""
        if self._options.paths:
            (source,) = self.files
            yield [source.watch if self._options.watch else source.read_all]
            return
        async with contextlib.AsyncExitStack() as stack:
            work: list[Start] = [source.watch for source in self.files]
            work += [self._socket(found).run for found in self._news.sockets]
            if self._feeds:
                client = await stack.enter_async_context(
                    HttpClient(
                        user_agent=self._news.user_agent,
                        setting=USER_AGENT_SETTING,
                        per_second=self._news.requests_per_second,
                    )
                )
                work += [self._poller(feed, client).run for feed in self._feeds]
            if self._news.webhook.port:
                defaults = {found.name: self._defaults(found) for found in self._news.webhook.sources}
                await stack.enter_async_context(Webhook(self._news.webhook, defaults, self._desk))
                work.append(asyncio.Event().wait)  # the server works by itself
            yield work

    def _socket(self, found: NewsSocketSettings) -> NewsSocket:
        return NewsSocket(found, self._defaults(found), self._desk)

    def _poller(self, feed: NewsFeedSettings, client: HttpClient) -> FeedPoller:
        defaults = self._defaults(feed)
        if feed.bank:
            defaults = replace(defaults, urgency=HIGHEST_URGENCY)
        options = PollOptions(defaults=defaults, backfill_ns=int(self._news.backfill_hours * 3600) * SECOND)
        return FeedPoller(feed, options, client, self._desk, self._store)

    def _file_source(self, paths: Sequence[Path], defaults: Defaults, pattern: str = "*") -> FileSource:
        on_rejected = self._options.on_rejected
        return FileSource(paths, defaults, self._desk, self._store, pattern=pattern, on_rejected=on_rejected)

    def _defaults(self, source: NewsSourceSettings | None) -> Defaults:
        """Return what is said about a source; files that are given by path come from whom they say."""
        return Defaults(
            source=source.name if source else "",
            zone=ZoneInfo(source.zone) if source and source.zone else None,
            language=source.language if source else "",
            urgency=source.urgency if source else 0,
            clock_ahead_ns=int(self._news.clock_ahead_seconds * SECOND),
            limits=self._options.limits,
        )


async def _run(sources: _Sources, desk: NewsDesk, stop: asyncio.Event, kafka: str) -> None:
    """Run sources and desk together; whichever fails ends the others, and its error is the one that is raised."""
    desk_stop = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(desk.run(desk_stop))
            async with sources.opened() as work, asyncio.TaskGroup() as inner:
                for start in work:
                    inner.create_task(until_stopped(start, stop))
            desk_stop.set()
            done, _ = await asyncio.wait({working}, timeout=STOP_SECONDS if stop.is_set() else None)
            if not done:
                working.cancel()
                reason = f"unconfirmed {STOP_SECONDS:g} s after the stop; what is not confirmed is not remembered"
                raise UnavailableError(kafka, "kafka.bootstrap", reason)
    except BaseExceptionGroup as failed:
        raise _first(failed) from None


def _report(sources: _Sources, desk: NewsDesk) -> NewsReport:
    counts = FileCounts()
    for source in sources.files:
        counts.read += source.counts.read
        counts.known += source.counts.known
        counts.rejected += source.counts.rejected
    return NewsReport(verdicts=desk.verdicts, files=counts, held=desk.held, latencies_ns=list(desk.latencies_ns))


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to show: one that we raise on purpose before any other."""
    found: list[BaseException] = []
    groups: list[BaseExceptionGroup[BaseException]] = [failed]
    while groups:
        for error in groups.pop().exceptions:
            if isinstance(error, BaseExceptionGroup):
                groups.append(error)
            else:
                found.append(error)
    return next((error for error in found if isinstance(error, TapewireError)), found[0])


def _bank_feeds(news: NewsSettings) -> list[NewsFeedSettings]:
    return [
        NewsFeedSettings(name=name, url=BANKS[name].feed, bank=name, poll_seconds=BANK_POLL_SECONDS)
        for name in news.central_banks
    ]


async def until_stopped(start: Start, stop: asyncio.Event) -> None:
    """Run something until it ends or ``stop`` is set, whatever it waits for then.

    What it had handed to the desk is published all the same.
    """
    running = asyncio.ensure_future(start())
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
    finally:
        stopped.cancel()
        # Once is not always enough: anyio, inside watchfiles, can take a cancellation for one of its own.
        while not running.done():
            running.cancel()
            await asyncio.wait({running}, timeout=CANCEL_SECONDS)
        if not running.cancelled():
            running.exception()  # an error that came while stopping is nobody's any more
