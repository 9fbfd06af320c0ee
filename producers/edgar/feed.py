"""The EDGAR feed: polls what is filed, fetches each submission, publishes its parts once, and only then marks it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import structlog

from producers.edgar.amendments import AmendmentLinks
from producers.edgar.catch_up import CatchUp
from producers.edgar.filing import Filing, parse_filing
from producers.edgar.pages import is_html_page, sec_page
from producers.edgar.progress import Progress
from producers.edgar.seen import SeenFilings
from producers.edgar.sweep import SweepEnd, Sweeper
from producers.edgar.times import deadline_ns
from producers.edgar.waiting import Rank, Waiting, WaitingFilings
from producers.errors import FeedError, FetchError, FetchErrorKind, PublishError
from producers.formats import Listed, ParseContext
from producers.http import HttpClient
from producers.outlet import Outlet
from producers.pacing import Sleep
from schemas.errors import UnavailableError
from schemas.settings import EdgarSettings

log = structlog.get_logger()

RETRY_SECONDS = 5.0
"""Before the second attempt at a filing; doubles up to `RETRY_MOST_SECONDS`. The feed can list a submission some
seconds before its file is there."""
RETRY_MOST_SECONDS = 600.0
DEEP_SECONDS = 900.0
"""Between two attempts to close a gap, each of which may read sixty pages and some indexes."""
LATENCIES_KEPT = 100_000
STOP_SECONDS = 6.0
"""How long a stop waits for filings that are being published; the rest is fetched again after the restart."""
MIB = 1024 * 1024
UNFINISHED_ATTEMPTS = 3
"""Attempts at a file without its end tag; after them it is read as far as it goes."""

_ENDED = re.compile(rb"</(?:SEC-DOCUMENT|IMS-DOCUMENT|SUBMISSION)>\s*(?:-----END|\Z)", re.IGNORECASE)


@dataclass(slots=True)
class FeedCounts:
    """What a feed has done so far.

    Args:
        sweeps: complete looks at the current feed.
        listed: filings taken from the feed or the index.
        filings: published and confirmed.
        events: their parts.
        without_events: filings that hold no text.
        given_up: filings that could not be had.
        retries: attempts that failed and were repeated.
        latencies_ms: from the page that first named a filing to Kafka's confirmation of its last part; the latest
            `LATENCIES_KEPT`, those of a catch-up left out.
    """

    sweeps: int = 0
    listed: int = 0
    filings: int = 0
    events: int = 0
    without_events: int = 0
    given_up: int = 0
    retries: int = 0
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))


class EdgarFeed:
    """One feed.

    Args:
        settings: what to read and how fast.
        http: fetches, at SEC's pace.
        outlet: where events go.
        seen: what was published before.
        tickers: instruments per CIK.
        sleep: waits that many seconds.
        now_ns: wall clock, nanoseconds since the epoch.
    """

    def __init__(
        self,
        settings: EdgarSettings,
        *,
        http: HttpClient,
        outlet: Outlet,
        seen: SeenFilings,
        tickers: dict[str, list[str]],
        sleep: Sleep = asyncio.sleep,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.counts = FeedCounts()
        self._settings = settings
        self._http = http
        self._outlet = outlet
        self._seen = seen
        self._tickers = tickers
        self._sleep = sleep
        self._now_ns = now_ns
        self._waiting = WaitingFilings(settings.waiting_most)
        self._progress = Progress(seen.__contains__, seen.covered_ns)
        self._sweeper = Sweeper(http, settings, self._progress.known)
        self._links = AmendmentLinks(http, settings)
        self._catch_up = CatchUp(http, settings, now_ns=now_ns)
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._publishing = 0
        self._stopping = False
        self._gap = bool(seen.covered_ns)  # whatever was filed while we were away
        self._deep_at = 0.0
        self._polled = False

    async def run(self, stop: asyncio.Event, *, once: bool = False, limit: int | None = None) -> FeedCounts:
        """Feed until ``stop`` is set.

        Args:
            stop: ends the feed; filings in the middle of publishing are still confirmed, for `STOP_SECONDS` at most.
            once: end after one look at the feed, when everything that it named is done.
            limit: end after this many filings.

        Raises:
            UnavailableError: the very first look fails: that is for the operator to mend.
        """
        fetchers = [self._spawn(self._fetch_all()) for _ in range(self._settings.fetchers)]
        ends = [self._spawn(self._poll(once=once)), self._spawn(self._done(once=once, limit=limit))]
        stopped = asyncio.create_task(stop.wait())
        watched: set[asyncio.Task[object]] = {stopped, *ends, *fetchers}
        try:
            while not stopped.done() and not ends[1].done():
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in watched if task.done()]:
                    watched.discard(task)
                    task.result()  # a fetcher or the poller that failed ends the feed with its error
        finally:
            stopped.cancel()
            await self._finish(fetchers)
        return self.counts

    def _spawn(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)  # type: ignore[arg-type]  # a coroutine
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _finish(self, fetchers: list[asyncio.Task[None]]) -> None:
        """Let filings that are being published end; what is only fetched or waiting is fetched again later."""
        self._stopping = True
        for task in self._tasks - set(fetchers):
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS), self._changed:
                await self._changed.wait_for(lambda: not self._publishing)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until(self, reached: Callable[[FeedCounts], bool]) -> None:
        """Wait until the counts of a running feed are so."""
        async with self._changed:
            await self._changed.wait_for(lambda: reached(self.counts))

    async def _done(self, *, once: bool, limit: int | None) -> None:
        """Return when there is nothing more to do."""

        def finished(counts: FeedCounts) -> bool:
            enough = limit is not None and counts.filings >= limit
            return enough or (once and self._polled and not self._progress.pending)

        await self.until(finished)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # Polling ----------------------------------------------------------------------------------------------------

    async def _poll(self, *, once: bool) -> None:
        loop = asyncio.get_running_loop()
        first = True
        while True:
            began = loop.time()
            await self._look(first=first)
            first = False
            if once:
                self._polled = True
                await self._tell()
                return
            await self._sleep(max(0.0, began + self._settings.poll_seconds - loop.time()))

    async def _look(self, *, first: bool) -> None:
        """Take what the feed names; note how far it is covered, or that there is a gap.

        Raises:
            UnavailableError: it is the first look, and it fails.
        """
        clock = asyncio.get_running_loop().time
        deep = self._gap and clock() >= self._deep_at
        if deep:
            self._sweeper.forget()
        end = SweepEnd()
        try:
            sweep = self._sweeper.sweep(
                end, covered_ns=self._progress.covered_ns, gap=deep, attempts=1 if first else None
            )
            async for listed, received_ns in sweep:
                await self._begin(end.oldest_ns)
                await self._take(listed, self._rank(listed.form), received_ns)
        except FetchError as error:
            if first:
                raise self._unavailable(error) from None
            log.warning("feed_unreachable", reason=error.reason, status=error.status)
            return
        if end.complete:
            self.counts.sweeps += 1
            if deep:
                self._gap = False
            if not self._gap and end.updated_ns:
                self._progress.reach(end.updated_ns)
                await self._seen.cover(self._progress.covered_now())
            return
        self._sweeper.forget()
        log.warning("feed_gap", reason=end.reason, pages=end.pages)
        if deep:
            self._deep_at = clock() + DEEP_SECONDS
            await self._read_indexes()
        self._gap = True

    async def _begin(self, oldest_ns: int) -> None:
        """Note where a feed that never ran before begins, before it takes anything.

        A feed that is killed during its first look would otherwise begin anew at the next one, and what had left the
        first page meanwhile would be lost.
        """
        if not self._progress.covered_ns and oldest_ns:
            self._progress.reach(oldest_ns - 1)
            await self._seen.cover(self._progress.covered_now())

    def _unavailable(self, error: FetchError) -> UnavailableError:
        refused = error.kind is FetchErrorKind.REFUSED or sec_page(error.body) is not None
        setting = "edgar.user_agent" if refused else "edgar.base_url"
        return UnavailableError(f"EDGAR at {self._settings.base_url}", setting, error.reason)

    async def _read_indexes(self) -> None:
        """Take what the daily indexes name for the days of a gap."""
        try:
            async for day, listed in self._catch_up.days(self._progress.covered_ns):
                before = self.counts.listed
                for one in listed:
                    if not self._progress.known(one.accession):
                        await self._take(one, Rank.BACKLOG, 0)
                self._progress.reach(deadline_ns(day))
                log.info("index_read", day=day.isoformat(), filings=len(listed), new=self.counts.listed - before)
        except (FetchError, FeedError) as error:
            log.warning("index_unreachable", error=str(error))

    async def _take(self, listed: Listed, rank: Rank, received_ns: int) -> None:
        if not _wanted(listed.form, self._settings.forms):
            self._progress.skip(listed.accession)
            return
        self._progress.start(listed.accession)
        self.counts.listed += 1
        await self._waiting.put(listed, rank, received_ns)

    def _rank(self, form: str) -> Rank:
        first = self._settings.first_forms
        return Rank.URGENT if first and _wanted(form, first) else Rank.LIVE

    # Fetching and publishing ------------------------------------------------------------------------------------

    async def _fetch_all(self) -> None:
        while not self._stopping:
            waiting = await self._waiting.get()
            try:
                await self._handle(waiting)
            except FetchError as error:
                await self._failed(waiting, str(error))
            except PublishError as error:
                await self._failed(waiting, str(error))
            except FeedError as error:
                log.warning("filing_without_events", accession=waiting.listed.accession, error=str(error))
                self.counts.without_events += 1
                await self._settle(waiting.listed.accession, published=True)

    async def _handle(self, waiting: Waiting) -> None:
        """Fetch, read and publish one filing.

        Raises:
            FetchError, FeedError, PublishError: what went wrong.
        """
        listed = waiting.listed
        response = await self._http.get(listed.url, max_bytes=int(self._settings.submission_mb * MIB))
        context = ParseContext(
            received_at_ns=response.received_at_ns,
            url=listed.url,
            tickers=self._tickers,
            part_chars=self._settings.part_chars,
            parts_most=self._settings.parts_most,
        )
        filing = await self._read(waiting, response.body, context)
        events = filing.events(context, await self._links.original_of(filing.header))
        if self._stopping:
            return
        self._publishing += 1
        try:
            await self._outlet.send(events)
            # Only now: a filing that is marked before its confirmation is lost when we are killed in between.
            self.counts.filings += 1
            self.counts.events += len(events)
            if waiting.seen_at_ns:
                self.counts.latencies_ms.append((self._now_ns() - waiting.seen_at_ns) / 1e6)
            await self._settle(listed.accession, published=True)
        finally:
            self._publishing -= 1
            await self._tell()

    async def _read(self, waiting: Waiting, body: bytes, context: ParseContext) -> Filing:
        """Read a submission in a thread: the largest take seconds, and the loop must go on answering Kafka.

        Raises:
            FetchError: it is a page of SEC's web server, not whole yet, or another filing.
            FeedError: it is a submission without text.
        """
        listed = waiting.listed
        if is_html_page(body):
            raise FetchError(FetchErrorKind.UNEXPECTED, listed.url, "an HTML page in place of the submission")
        if waiting.attempts < UNFINISHED_ATTEMPTS and not _ENDED.search(body[-200:]):
            raise FetchError(FetchErrorKind.UNAVAILABLE, listed.url, "the file stops before its end tag")
        try:
            filing = await asyncio.to_thread(parse_filing, body, context)
        except FeedError:
            raise
        except Exception as error:
            # A defect of ours must cost one filing and not the feed; it is tried again after the next start.
            log.exception("filing_unreadable", accession=listed.accession)
            raise FetchError(FetchErrorKind.UNEXPECTED, listed.url, f"{type(error).__name__} while reading") from None
        if filing.header.accession != listed.accession:
            reason = f"the file says it is {filing.header.accession}"
            raise FetchError(FetchErrorKind.UNEXPECTED, listed.url, reason)
        if filing.left_out:
            log.warning("filing_cut", accession=listed.accession, parts=len(filing.pieces), left_out=filing.left_out)
        return filing

    async def _settle(self, accession: str, *, published: bool) -> None:
        if published:
            await self._seen.mark(accession)
        await self._seen.cover(self._progress.settle(accession, given_up=not published))
        await self._tell()

    async def _failed(self, waiting: Waiting, error: str) -> None:
        """Try a filing again later, or give it up after the last attempt."""
        waiting.attempts += 1
        if waiting.attempts >= self._settings.attempts_most:
            log.error("filing_given_up", accession=waiting.listed.accession, attempts=waiting.attempts, error=error)
            self.counts.given_up += 1
            await self._settle(waiting.listed.accession, published=False)
            return
        wait = min(RETRY_SECONDS * 2 ** (waiting.attempts - 1), RETRY_MOST_SECONDS)
        log.info("filing_retry", accession=waiting.listed.accession, attempt=waiting.attempts, wait_s=wait, error=error)
        self.counts.retries += 1
        self._spawn(self._again(waiting, wait))

    async def _again(self, waiting: Waiting, seconds: float) -> None:
        await self._sleep(seconds)
        await self._waiting.put_back(waiting)


def _wanted(form: str, patterns: tuple[str, ...]) -> bool:
    """Whether a form type, or the one it amends, matches one of the patterns; no pattern at all matches every form."""
    form = form.upper()
    base = form.removesuffix("/A")
    return not patterns or any(fnmatchcase(name, pattern.upper()) for pattern in patterns for name in (form, base))
