"""Waiting for a condition that nothing announces, with a bound that only a defect reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

LOOK_SECONDS = 0.01


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return as soon as the condition holds.

    Raises:
        TimeoutError: it did not in that time.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(LOOK_SECONDS)


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    """Return as soon as the awaited condition holds.

    Raises:
        TimeoutError: it did not in that time.
    """
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(LOOK_SECONDS)
