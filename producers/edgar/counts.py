"""What a feed has done so far, and a way to wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

LATENCIES_KEPT = 100_000


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


class Board:
    """The counts of one feed; whoever waits for them is told of every change."""

    def __init__(self) -> None:
        self.counts = FeedCounts()
        self._changed = asyncio.Condition()

    async def tell(self) -> None:
        """Let those who wait look again."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait until a condition on the feed's state holds."""
        async with self._changed:
            await self._changed.wait_for(reached)
