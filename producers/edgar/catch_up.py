"""What was filed while nobody looked, from EDGAR's daily index."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import date, timedelta

import structlog

from producers.edgar.listing import parse_index
from producers.edgar.times import eastern_date
from producers.errors import FetchError, FetchErrorKind
from producers.formats import Listed
from producers.http import HttpClient
from schemas.settings import EdgarSettings

log = structlog.get_logger()

DAYS_MOST = 31
"""Longest absence that is caught up; what is older is history, for a replay and not for a feed."""
CERTAIN_AFTER = timedelta(days=2)
"""A day without an index for so long was a weekend or a holiday; before that the index may still come."""
_NO_INDEX = frozenset({403, 404})
"""SEC's file store answers either for a file that is not there."""


class CatchUp:
    """Reads daily indexes.

    Args:
        http: fetches them.
        settings: where they are.
        now_ns: wall clock, nanoseconds since the epoch.
    """

    def __init__(self, http: HttpClient, settings: EdgarSettings, *, now_ns: Callable[[], int]) -> None:
        self._http = http
        self._base = settings.base_url
        self._now_ns = now_ns

    async def days(self, covered_ns: int) -> AsyncIterator[tuple[date, list[Listed]]]:
        """Yield every day since a moment with the filings of its index, up to the last day that has one.

        Raises:
            FetchError: an index cannot be had for another reason than that there is none.
            FeedError: it is no index.
        """
        today = eastern_date(self._now_ns())
        first = eastern_date(covered_ns)
        day = max(first, today - timedelta(days=DAYS_MOST))
        if day > first:
            log.error(
                "index_not_read", since=first.isoformat(), until=day.isoformat(), reason="too long ago for a feed"
            )
        while day <= today:
            listed = await self._index(day)
            if listed is None and day.weekday() < 5 and today - day < CERTAIN_AFTER:
                return
            yield day, listed or []
            day += timedelta(days=1)

    async def _index(self, day: date) -> list[Listed] | None:
        quarter = (day.month + 2) // 3
        url = f"{self._base}/Archives/edgar/daily-index/{day.year}/QTR{quarter}/master.{day:%Y%m%d}.idx"
        try:
            response = await self._http.get(url)
        except FetchError as error:
            if error.status in _NO_INDEX and error.kind is not FetchErrorKind.REFUSED:
                return None
            raise
        return parse_index(response.body, self._base)
