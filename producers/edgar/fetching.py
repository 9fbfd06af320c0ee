"""Fetches the filings that wait, reads them, publishes their parts, and only then marks them as published."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable

import structlog

from producers.edgar.amendments import AmendmentLinks
from producers.edgar.counts import Board
from producers.edgar.filing import Filing, parse_filing
from producers.edgar.pages import is_html_page
from producers.edgar.progress import Progress
from producers.edgar.seen import SeenFilings
from producers.edgar.waiting import Waiting, WaitingFilings
from producers.errors import FeedError, FetchError, FetchErrorKind, PublishError
from producers.formats import ParseContext
from producers.http import HttpClient
from producers.outlet import Outlet
from producers.pacing import Sleep
from schemas.settings import EdgarSettings

log = structlog.get_logger()

RETRY_SECONDS = 5.0
"""Before the second attempt at a filing; doubles up to `RETRY_MOST_SECONDS`. The feed can list a submission some
seconds before its file is there."""
RETRY_MOST_SECONDS = 600.0
STOP_SECONDS = 6.0
"""How long a stop waits for filings that are being published; the rest is fetched again after the restart."""
MIB = 1024 * 1024
UNFINISHED_ATTEMPTS = 3
"""Attempts at a file without its end tag; after them it is read as far as it goes."""

_ENDED = re.compile(rb"</(?:SEC-DOCUMENT|IMS-DOCUMENT|SUBMISSION)>\s*(?:-----END|\Z)", re.IGNORECASE)


class Fetching:
    """The way of a filing from its listing to Kafka.

    Args:
        settings: how much at once, and how often again.
        http: fetches, at SEC's pace.
        outlet: where events go.
        seen: what was published.
        progress: what is on its way.
        board: counts what happens.
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
        progress: Progress,
        board: Board,
        tickers: dict[str, list[str]],
        sleep: Sleep = asyncio.sleep,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.waiting = WaitingFilings(settings.waiting_most)
        self._settings = settings
        self._http = http
        self._outlet = outlet
        self._seen = seen
        self._progress = progress
        self._board = board
        self._tickers = tickers
        self._sleep = sleep
        self._now_ns = now_ns
        self._links = AmendmentLinks(http, settings)
        self._retries: set[asyncio.Task[None]] = set()
        self._publishing = 0
        self._stopping = False

    async def finish(self) -> None:
        """Let filings that are being published end; what is only fetched or waiting is fetched again later."""
        self._stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._board.until(lambda: not self._publishing)
        for task in self._retries:
            task.cancel()
        await asyncio.gather(*self._retries, return_exceptions=True)

    async def run(self) -> None:
        """Fetch and publish one filing after another; any number of tasks may do so at the same time."""
        while not self._stopping:
            waiting = await self.waiting.get()
            try:
                await self._handle(waiting)
            except FetchError as error:
                await self._failed(waiting, str(error))
            except PublishError as error:
                await self._failed(waiting, str(error))
            except FeedError as error:
                log.warning("filing_without_events", accession=waiting.listed.accession, error=str(error))
                self._board.counts.without_events += 1
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
            self._board.counts.filings += 1
            self._board.counts.events += len(events)
            if waiting.seen_at_ns:
                self._board.counts.latencies_ms.append((self._now_ns() - waiting.seen_at_ns) / 1e6)
            await self._settle(listed.accession, published=True)
        finally:
            self._publishing -= 1
            await self._board.tell()

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
        await self._board.tell()

    async def _failed(self, waiting: Waiting, error: str) -> None:
        """Try a filing again later, or give it up after the last attempt."""
        waiting.attempts += 1
        if waiting.attempts >= self._settings.attempts_most:
            log.error("filing_given_up", accession=waiting.listed.accession, attempts=waiting.attempts, error=error)
            self._board.counts.given_up += 1
            await self._settle(waiting.listed.accession, published=False)
            return
        wait = min(RETRY_SECONDS * 2 ** (waiting.attempts - 1), RETRY_MOST_SECONDS)
        log.info("filing_retry", accession=waiting.listed.accession, attempt=waiting.attempts, wait_s=wait, error=error)
        self._board.counts.retries += 1
        self._retry_later(waiting, wait)

    def _retry_later(self, waiting: Waiting, seconds: float) -> None:
        task = asyncio.create_task(self._again(waiting, seconds))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    async def _again(self, waiting: Waiting, seconds: float) -> None:
        await self._sleep(seconds)
        await self.waiting.put_back(waiting)
