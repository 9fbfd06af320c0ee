"""The EDGAR feed: polls what is filed and knows up to which moment nothing was missed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import structlog

from producers.edgar.catch_up import CatchUp
from producers.edgar.counts import Board, FeedCounts
from producers.edgar.fetching import Fetching
from producers.edgar.pages import sec_page
from producers.edgar.progress import Progress
from producers.edgar.seen import SeenFilings
from producers.edgar.sweep import SweepEnd, Sweeper
from producers.edgar.times import deadline_ns
from producers.edgar.waiting import Rank
from producers.errors import FeedError, FetchError, FetchErrorKind
from producers.formats import Listed
from producers.http import HttpClient
from producers.outlet import Outlet
from producers.pacing import Sleep
from schemas.errors import UnavailableError
from schemas.settings import EdgarSettings

log = structlog.get_logger()

DEEP_SECONDS = 900.0
"""Between two attempts to close a gap, each of which may read sixty pages and some indexes."""


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
        self._settings = settings
        self._seen = seen
        self._sleep = sleep
        self._board = Board()
        self._progress = Progress(seen.__contains__, seen.covered_ns)
        self._sweeper = Sweeper(http, settings, self._progress.known)
        self._catch_up = CatchUp(http, settings, now_ns=now_ns)
        self._fetching = Fetching(
            settings,
            http=http,
            outlet=outlet,
            seen=seen,
            progress=self._progress,
            board=self._board,
            tickers=tickers,
            sleep=sleep,
            now_ns=now_ns,
        )
        self._gap = bool(seen.covered_ns)  # whatever was filed while we were away
        self._deep_at = 0.0
        self._polled = False

    @property
    def counts(self) -> FeedCounts:
        """What the feed has done so far."""
        return self._board.counts

    async def until(self, reached: Callable[[FeedCounts], bool]) -> None:
        """Wait until the counts of a running feed are so."""
        await self._board.until(lambda: reached(self.counts))

    async def run(self, stop: asyncio.Event, *, once: bool = False, limit: int | None = None) -> FeedCounts:
        """Feed until ``stop`` is set; filings in the middle of publishing are still confirmed then.

        Args:
            stop: ends the feed.
            once: end after one look at the feed, when everything that it named is done.
            limit: end after this many filings.

        Raises:
            UnavailableError: the very first look fails: that is for the operator to mend.
        """

        def finished() -> bool:
            enough = limit is not None and self.counts.filings >= limit
            return enough or (once and self._polled and not self._progress.pending)

        fetchers = [asyncio.create_task(self._fetching.run()) for _ in range(self._settings.fetchers)]
        poller = asyncio.create_task(self._poll(once=once))
        ends = [asyncio.create_task(stop.wait()), asyncio.create_task(self._board.until(finished))]
        watched: set[asyncio.Task[Any]] = {*ends, poller, *fetchers}
        try:
            while not any(end.done() for end in ends):
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in watched if task.done()]:
                    watched.discard(task)
                    task.result()  # a fetcher or the poller that failed ends the feed with its error
        finally:
            for task in (*ends, poller):
                task.cancel()
            await self._fetching.finish()
            for task in fetchers:
                task.cancel()
            await asyncio.gather(*ends, poller, *fetchers, return_exceptions=True)
        return self.counts

    async def _poll(self, *, once: bool) -> None:
        loop = asyncio.get_running_loop()
        first = True
        while True:
            began = loop.time()
            await self._look(first=first)
            first = False
            if once:
                self._polled = True
                await self._board.tell()
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
        await self._fetching.waiting.put(listed, rank, received_ns)

    def _rank(self, form: str) -> Rank:
        first = self._settings.first_forms
        return Rank.URGENT if first and _wanted(form, first) else Rank.LIVE


def _wanted(form: str, patterns: tuple[str, ...]) -> bool:
    """Whether a form type, or the one it amends, matches one of the patterns; no pattern at all matches every form."""
    form = form.upper()
    base = form.removesuffix("/A")
    return not patterns or any(fnmatchcase(name, pattern.upper()) for pattern in patterns for name in (form, base))
