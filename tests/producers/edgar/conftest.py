"""Fixtures: the stand-in for SEC, and feeds that read it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from ops.bench.edgar_stand_in import EdgarStandIn
from producers.edgar.feed import EdgarFeed
from producers.edgar.pages import judge
from producers.edgar.seen import SeenFilings
from producers.http import HttpClient
from producers.outlet import Outlet
from producers.pacing import HostPacer
from producers.tail import topic_tail
from schemas.codec import decode_filing
from schemas.records import FilingEvent
from schemas.settings import EdgarSettings, KafkaSettings, RedisSettings

AGENT = "Tapewire tests tests@example.com"
DEADLINE_SECONDS = 30.0
"""Bound on every wait of these tests: what takes longer has failed."""

FeedMaker = Callable[..., AbstractAsyncContextManager[EdgarFeed]]


async def brief_sleep(seconds: float) -> None:
    """Let the loop turn instead of sleeping: backoffs, pauses and poll intervals cost the tests no time."""
    await asyncio.sleep(min(seconds, 0.002))


@pytest_asyncio.fixture
async def server() -> AsyncIterator[EdgarStandIn]:
    """The stand-in for SEC on loopback."""
    async with EdgarStandIn() as running:
        yield running


@pytest.fixture
def make_feed(server: EdgarStandIn, kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> FeedMaker:
    """Make feeds on the stand-in, each like a process that has just started."""

    @asynccontextmanager
    async def make(*, now_ns: int = 0, **options: Any) -> AsyncIterator[EdgarFeed]:
        values: dict[str, Any] = {"user_agent": AGENT, "base_url": server.url, "data_url": server.url}
        settings = EdgarSettings(**(values | {"poll_seconds": 0.01} | options))
        client = HttpClient(
            user_agent=AGENT,
            setting="edgar.user_agent",
            per_second=settings.requests_per_second,
            judge=judge(settings.pause_seconds),
            pacer=HostPacer(sleep=brief_sleep, clock=_Leaps()),
            timeout_seconds=settings.timeout_seconds,
            sleep=brief_sleep,
        )
        seen = SeenFilings(kafka_settings, redis_settings, days=settings.seen_days)
        async with client as http, Outlet(kafka_settings, client_id="test") as outlet:
            await seen.load()
            clock = (lambda: now_ns) if now_ns else time.time_ns
            yield EdgarFeed(settings, http=http, outlet=outlet, seen=seen, tickers={}, sleep=brief_sleep, now_ns=clock)
            await seen.close()

    return make


class _Leaps:
    """A clock that moves on by itself: a pacer with it never has to wait long."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 1_000.0
        return self._now


async def look_once(make_feed: FeedMaker, **options: Any) -> EdgarFeed:
    """Run a feed for one look and return it with its counts."""
    async with asyncio.timeout(DEADLINE_SECONDS), make_feed(**options) as feed:
        await feed.run(asyncio.Event(), once=True)
        return feed


async def published(settings: KafkaSettings) -> list[FilingEvent]:
    """Return every filing event on the topic, in order within each partition."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        return [decode_filing(value) async for value in topic_tail(settings, settings.topics.filings)]
