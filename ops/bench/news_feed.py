"""How long a headline takes from a feed's page to Kafka, with a local web server in place of a wire."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate

from aiohttp import web

from producers.news.service import NewsOptions, serve
from schemas.news_settings import NewsFeedSettings, NewsSettings
from schemas.records import NewsEvent
from schemas.settings import KafkaSettings, RedisSettings

SHOWN = 20
"""Items of a page, as feeds usually have."""
NEW = 3
"""Of them new on every poll: a busy minute."""
POLL_SECONDS = 1.0


async def news_latencies(kafka: KafkaSettings, redis: RedisSettings, stop: asyncio.Event, count: int) -> list[float]:
    """Return the times from a page's arrival to the confirmation of its events, in milliseconds, ascending."""
    enough = asyncio.Event()
    waiting = asyncio.create_task(_either(stop, enough))
    seen: list[NewsEvent] = []

    def on_event(event: NewsEvent) -> None:
        seen.append(event)
        if len(seen) >= count:
            enough.set()

    ended = asyncio.Event()
    waiting.add_done_callback(lambda _: ended.set())
    server = _Wire()
    url = await server.start()
    try:
        feed = NewsFeedSettings(name="bench", url=url, poll_seconds=POLL_SECONDS)
        news = NewsSettings(user_agent="Tapewire bench bench@example.com", feeds=(feed,))
        report = await serve(news, kafka, redis, ended, NewsOptions(on_event=on_event))
    finally:
        waiting.cancel()
        await server.stop()
    return sorted(latency / 1e6 for latency in report.latencies_ns)


class _Wire:
    """Serves a page whose newest items are new on every request."""

    def __init__(self) -> None:
        self._items: list[str] = []
        self._number = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Serve on loopback; returns the page's address."""
        app = web.Application()
        app.router.add_get("/feed.xml", self._page)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/feed.xml"

    async def stop(self) -> None:
        """Close."""
        if self._runner:
            await self._runner.cleanup()

    async def _page(self, _: web.Request) -> web.Response:
        for _n in range(NEW):
            self._number += 1
            self._items.insert(0, _item(self._number))
        del self._items[SHOWN:]
        channel = f"<title>Bench</title><link>http://wire.example/</link>{''.join(self._items)}"
        return web.Response(text=f"<rss version='2.0'><channel>{channel}</channel></rss>")


def _item(number: int) -> str:
    link = f"http://wire.example/{number}"
    title = f"Vantor {number} lifts its forecast for the year after orders of {number * 7} million"
    text = f"The company said so on Friday. It named no reason for the rise of its number {number}."
    return (
        f"<item><title>{title}</title><link>{link}</link><guid>{link}</guid><description>{text}</description>"
        f"<pubDate>{formatdate(time.time(), usegmt=True)}</pubDate></item>"
    )


async def _either(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
