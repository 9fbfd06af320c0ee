"""One pace per host for the whole process: a token for every request, and a pause when the host asks for one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Sleep = Callable[[float], Awaitable[object]]
BURST = 2
"""Tokens that a bucket holds."""


@dataclass(slots=True)
class _Host:
    due_at: float = 0.0
    interval: float = 0.0
    paused_until: float = 0.0


class HostPacer:
    """A token bucket for each host, whichever task makes the requests.

    The bucket holds `BURST` tokens, so that a poll and the fetch that it leads to follow each other at once, and no
    second sees more than the rate plus `BURST` requests: a host that allows ten counts exactly that.

    Args:
        clock: monotonic seconds.
        sleep: waits that many seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, sleep: Sleep = asyncio.sleep) -> None:
        self._clock = clock
        self._sleep = sleep
        self._hosts: dict[str, _Host] = {}

    async def turn(self, host: str, per_second: float) -> None:
        """Wait for a token of ``host``; where callers differ about its rate, the slowest one counts."""
        state = self._hosts.setdefault(host, _Host())
        state.interval = max(state.interval, 1 / per_second)
        while True:
            now = self._clock()
            slot = max(now, state.due_at - (BURST - 1) * state.interval, state.paused_until)
            state.due_at = max(state.due_at, slot) + state.interval
            if slot > now:
                await self._sleep(slot - now)
            # A pause may have begun meanwhile; whoever slept through its start queues again behind it.
            if self._clock() >= state.paused_until:
                return

    def pause(self, host: str, seconds: float) -> None:
        """Let nobody ask ``host`` for anything for so long; a longer pause that runs already stays."""
        state = self._hosts.setdefault(host, _Host())
        state.paused_until = max(state.paused_until, self._clock() + seconds)

    def paused_for(self, host: str) -> float:
        """Return the seconds that ``host`` is still left alone."""
        state = self._hosts.get(host)
        return max(0.0, state.paused_until - self._clock()) if state else 0.0


PROCESS_PACER = HostPacer()
"""The pacer that every client of this process shares unless it is given another."""
