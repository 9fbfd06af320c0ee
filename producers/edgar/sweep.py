"""Reads the current feed back to where it is known already, page by page, and says whether it got there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import structlog

from producers.edgar.listing import CurrentPage, parse_current
from producers.edgar.pages import sec_page
from producers.errors import FeedError, FetchError
from producers.formats import Listed
from producers.http import HttpClient, Validators
from schemas.settings import EdgarSettings

log = structlog.get_logger()

SLACK_NS = 15 * 60 * 1_000_000_000
"""The feed is ordered by dissemination and shows acceptance, which can be some minutes older; going back this much
further costs a page or two after a restart."""
TAIL = 10
"""Filings at the end of a page that must all be known before the page counts as known ground: one that is known may
have been accepted long before it was listed."""

PAGE_ATTEMPTS = 2
"""At a page behind the first: past the end of the feed SEC answers 503 for ever, and the page is asked for again in
the next sweep anyway."""


@dataclass(slots=True)
class SweepEnd:
    """How a sweep ended.

    Args:
        complete: everything since the last complete sweep was seen.
        updated_ns: the moment of the feed that it covers.
        oldest_ns: oldest moment on the first page; 0 when it states none.
        pages: pages read.
        reason: why it is not complete; ``""`` when it is.
    """

    complete: bool = False
    updated_ns: int = 0
    oldest_ns: int = 0
    pages: int = 0
    reason: str = ""


class Sweeper:
    """Reads the current feed.

    Args:
        http: fetches the pages.
        settings: where they are and how many to read.
        known: whether an accession needs nothing more.
    """

    def __init__(self, http: HttpClient, settings: EdgarSettings, known: Callable[[str], bool]) -> None:
        self._http = http
        self._settings = settings
        self._known = known
        self._validators = Validators()

    async def sweep(
        self, end: SweepEnd, *, covered_ns: int, gap: bool, attempts: int | None = None
    ) -> AsyncIterator[tuple[Listed, int]]:
        """Yield the filings of the feed that are not known, newest first, with the time their page was here.

        Args:
            end: filled in; complete once the last filing was taken.
            covered_ns: moment up to which everything is known; 0 for a first look, which reads one page.
            gap: whether an earlier sweep failed to reach known ground, so that known filings at the top prove nothing.
            attempts: at the first page; None means the client's own number.

        Raises:
            FetchError: the first page cannot be had.
        """
        for number in range(self._settings.pages_most):
            try:
                page, received_ns = await self._page(number, end, attempts if number == 0 else PAGE_ATTEMPTS)
            except (FetchError, FeedError) as error:
                if number == 0 and isinstance(error, FetchError):
                    raise
                end.reason = _reason(error, number)
                return
            if page is None:
                end.complete = True
                return
            if number == 0:
                end.updated_ns = page.updated_ns
                end.oldest_ns = min((one.updated_ns for one in page.listed if one.updated_ns), default=0)
            # Before the filings are taken, because taking them makes them known.
            reached = self._reached(page, covered_ns, gap=gap)
            for listed in page.listed:
                if not self._known(listed.accession):
                    yield listed, received_ns
            if reached or page.entries < self._settings.page_entries:
                end.complete = True
                return
        end.reason = f"known ground is more than {self._settings.pages_most} pages away"

    async def _page(self, number: int, end: SweepEnd, attempts: int | None) -> tuple[CurrentPage | None, int]:
        """Fetch one page; None when the first one has not changed."""
        count = self._settings.page_entries
        url = (
            f"{self._settings.base_url}/cgi-bin/browse-edgar?action=getcurrent&count={count}"
            f"&start={number * count}&type=&owner=include&output=atom"
        )
        first = number == 0
        response = await self._http.get(url, validators=self._validators if first else None, attempts=attempts)
        if not response.modified:
            return None, response.received_at_ns
        page = parse_current(response.body, self._settings.base_url)
        end.pages += 1
        if first:
            self._validators = response.validators
        return page, response.received_at_ns

    def forget(self) -> None:
        """Ask for the first page unconditionally the next time: what it held was not all taken."""
        self._validators = Validators()

    def _reached(self, page: CurrentPage, covered_ns: int, *, gap: bool) -> bool:
        if not covered_ns:
            return True
        times = [listed.updated_ns for listed in page.listed if listed.updated_ns]
        if times and max(times) < covered_ns - SLACK_NS:
            return True
        tail = page.listed[-TAIL:]
        return not gap and bool(tail) and all(self._known(listed.accession) for listed in tail)


def _reason(error: FetchError | FeedError, number: int) -> str:
    """Say what an answer in place of a page means: an error page is neither data nor the end of the feed."""
    page = sec_page(error.body) if isinstance(error, FetchError) else None
    what = f"{error.reason} ({page.value})" if page else error.reason
    return f"page {number + 1}: {what}"
