"""A desk with a real broker and a real Redis, and a web server that plays the sources."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from producers.news.desk import NewsDesk
from producers.news.duplicates import DuplicateIndex
from producers.news.store import NewsStore
from producers.outlet import Outlet
from producers.tail import topic_tail
from schemas.codec import decode_news
from schemas.records import NewsEvent
from schemas.settings import KafkaSettings, RedisSettings


class Clock:
    """A wall clock that a test moves."""

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        """The time, in nanoseconds since the epoch."""
        return self.now_ns


@dataclass(kw_only=True, slots=True)
class Office:
    """A desk at work, and what stands around it."""

    desk: NewsDesk
    store: NewsStore
    kafka: KafkaSettings
    confirmed: asyncio.Queue[NewsEvent] = field(default_factory=asyncio.Queue)

    async def topic(self) -> list[NewsEvent]:
        """Everything on the news topic, by receipt; a story's versions in the order of their partition."""
        events = [decode_news(value) async for value in topic_tail(self.kafka, self.kafka.topics.news, 10_000)]
        return sorted(events, key=lambda event: event.received_at_ns)


OpenOffice = Callable[..., AbstractAsyncContextManager[Office]]


@pytest.fixture
def open_office(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> OpenOffice:
    """Open a desk; opening another one afterwards is what a restart is."""

    @asynccontextmanager
    async def opened(now_ns: Callable[[], int] | None = None) -> AsyncIterator[Office]:
        store = NewsStore(redis_settings, kafka_settings.topics, seen_seconds=3600)
        await store.start()
        confirmed: asyncio.Queue[NewsEvent] = asyncio.Queue()
        async with Outlet(kafka_settings, client_id="tests") as outlet:
            options: dict[str, Any] = {"now_ns": now_ns} if now_ns else {}
            desk = NewsDesk(store, outlet, DuplicateIndex(similarity=0.75), on_event=confirmed.put_nowait, **options)
            stop = asyncio.Event()
            working = asyncio.create_task(desk.run(stop))
            try:
                yield Office(desk=desk, store=store, kafka=kafka_settings, confirmed=confirmed)
            finally:
                stop.set()
                await working
                await store.close()

    return opened


@pytest_asyncio.fixture
async def office(open_office: OpenOffice) -> AsyncIterator[Office]:
    """A desk at work, with the real clock."""
    async with open_office() as found:
        yield found


Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Site:
    """A web server on loopback whose answers a test sets path by path; it keeps what it was asked."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[web.BaseRequest] = []
        self._answers: dict[str, Respond] = {}

    def answer(self, path: str, respond: Respond) -> None:
        """Answer a path with a function."""
        self._answers[path] = respond

    def serve(self, path: str, body: bytes, *, status: int = 200, etag: str = "") -> None:
        """Answer a path with a body; with an ETag, conditional requests get 304."""

        async def respond(request: web.Request) -> web.Response:
            if etag and request.headers.get("If-None-Match") == etag:
                return web.Response(status=304)
            headers = {"ETag": etag} if etag else {}
            return web.Response(body=body, status=status, headers=headers)

        self._answers[path] = respond

    def asked(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(request.path == path for request in self.requests)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self.requests.append(request)
        if respond := self._answers.get(request.path):
            return await respond(request)
        return web.Response(status=404)


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    """A web server that plays a source."""
    found = Site()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    server = web.TCPSite(runner, "127.0.0.1", 0)
    await server.start()
    host, port = runner.addresses[0][:2]
    found.url = f"http://{host}:{port}"
    try:
        yield found
    finally:
        with suppress(asyncio.CancelledError):
            await runner.cleanup()
