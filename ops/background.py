"""Work that runs beside a block and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from ops.accounts import Accounts
from ops.demo_view import View
from ops.results import TopicReader

TICK_SECONDS = 0.25
READ_MS = 200


@contextlib.contextmanager
def refreshing(view: View) -> Iterator[None]:
    """Refresh a view while the block runs."""

    async def refresh() -> None:
        while True:
            view.refresh()
            await asyncio.sleep(TICK_SECONDS)

    task = asyncio.ensure_future(refresh())
    try:
        yield
    finally:
        task.cancel()


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run something beside the block and end it with the block."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def reading(reader: TopicReader, accounts: Accounts) -> AsyncIterator[None]:
    """Enter every result into the books while the block runs."""
    done = asyncio.Event()

    async def read() -> None:
        while not done.is_set():
            for record in await reader.read(READ_MS):
                accounts.add(record)

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        # A fetch is left to end by itself: cancelling aiokafka's getmany loses what it had in hand.
        done.set()
        await task
