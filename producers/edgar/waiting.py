"""The filings that wait to be fetched: urgent forms first, then the rest, then what a catch-up brings."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import count

from producers.formats import Listed


class Rank(IntEnum):
    """Order of fetching."""

    URGENT = 0
    LIVE = 1
    BACKLOG = 2


@dataclass(order=True, slots=True)
class Waiting:
    """One filing to fetch.

    Args:
        rank: what comes first.
        place: order of arrival inside a rank.
        listed: the filing.
        seen_at_ns: when the feed page that first named it was here.
        attempts: failed ones.
    """

    rank: Rank
    place: int
    listed: Listed = field(compare=False)
    seen_at_ns: int = field(compare=False, default=0)
    attempts: int = field(compare=False, default=0)


class WaitingFilings:
    """A bounded priority queue in which a backlog never keeps a live filing out.

    Args:
        most: filings that wait, counted for the backlog and for live ones apart.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[Waiting] = []
        self._counts = {False: 0, True: 0}
        self._changed = asyncio.Condition()
        self._places = count()

    def __len__(self) -> int:
        return len(self._heap)

    async def put(self, listed: Listed, rank: Rank, seen_at_ns: int) -> None:
        """Add a filing; waits while there is no room."""
        backlog = rank is Rank.BACKLOG
        async with self._changed:
            await self._changed.wait_for(lambda: self._counts[backlog] < self._most)
            self._add(Waiting(rank, next(self._places), listed, seen_at_ns))

    async def put_back(self, waiting: Waiting) -> None:
        """Add a filing again after a failed attempt, room or not: it had its place before."""
        async with self._changed:
            self._add(waiting)

    async def get(self) -> Waiting:
        """Take the most urgent filing; waits while there is none."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._heap))
            waiting = heapq.heappop(self._heap)
            self._counts[waiting.rank is Rank.BACKLOG] -= 1
            self._changed.notify_all()
            return waiting

    def _add(self, waiting: Waiting) -> None:
        heapq.heappush(self._heap, waiting)
        self._counts[waiting.rank is Rank.BACKLOG] += 1
        self._changed.notify_all()
