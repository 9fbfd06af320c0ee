"""Follows a vendor's WebSocket: every message to the desk, a new connection when one ends, replays recognised."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable

import aiohttp
import structlog

from producers.errors import FeedError
from producers.news.desk import NewsDesk
from producers.news.formats import read_news
from producers.news.item import Defaults
from schemas.errors import DecodeError
from schemas.news_settings import NewsSocketSettings

log = structlog.get_logger()

BACKOFF_SECONDS = 0.5
BACKOFF_MOST_SECONDS = 30.0
CONNECT_SECONDS = 20.0
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
KEEPALIVES = frozenset({b"", b"ping", b"pong", b"heartbeat"})
"""Texts that vendors send to keep a connection open; they are no messages."""


class NewsSocket:
    """Follows one WebSocket.

    Vendors replay their last messages after a reconnect; the desk knows them, so nothing is published twice. A message
    is confirmed before the next one is read: a slow Kafka slows the vendor down.

    Args:
        settings: address and what to send.
        defaults: of this source's items.
        desk: takes the items.
        sleep: waits between connections.
        jitter: random number in [0, 1).
    """

    def __init__(
        self,
        settings: NewsSocketSettings,
        defaults: Defaults,
        desk: NewsDesk,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._defaults = defaults
        self._desk = desk
        self._sleep = sleep
        self._jitter = jitter
        self._failures = 0
        self.connections = 0
        self.rejected = 0

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            UnavailableError, PublishError: Kafka or Redis is away.
        """
        headers = {name: value.get_secret_value() for name, value in self._settings.headers.items()}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            while True:
                reason = await self._connection(session)
                self._failures += 1
                wait = min(BACKOFF_SECONDS * 2 ** min(self._failures - 1, 10), BACKOFF_MOST_SECONDS)
                wait *= 1 - self._jitter() / 2
                log.warning("socket_ended", source=self._settings.name, reason=reason, wait_s=round(wait, 2))
                await self._sleep(wait)

    async def _connection(self, session: aiohttp.ClientSession) -> str:
        """Use one connection until it ends; returns why it did, without the address, which may hold a token."""
        url = self._settings.url.get_secret_value()
        try:
            async with session.ws_connect(
                url, heartbeat=self._settings.silence_seconds / 2, max_msg_size=MAX_MESSAGE_BYTES
            ) as socket:
                self.connections += 1
                if subscribe := self._settings.subscribe.get_secret_value():
                    await socket.send_str(subscribe)
                pinger = asyncio.create_task(self._ping(socket))
                try:
                    async for message in socket:
                        await self._take(message)
                finally:
                    pinger.cancel()
                    with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
                        await pinger
                return f"closed with code {socket.close_code}"
        except aiohttp.WSServerHandshakeError as error:
            return f"HTTP {error.status}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return type(error).__name__

    async def _ping(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while self._settings.ping_text:
            await asyncio.sleep(self._settings.ping_seconds)
            await socket.send_str(self._settings.ping_text)

    async def _take(self, message: aiohttp.WSMessage) -> None:
        if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            return
        received = time.time_ns()
        self._failures = 0
        data = message.data.encode("utf-8", "ignore") if isinstance(message.data, str) else bytes(message.data)
        if data.strip().lower() in KEEPALIVES:
            return
        try:
            reading = await asyncio.to_thread(read_news, data, self._defaults, received)
        except (FeedError, DecodeError) as error:
            self._reject(error)
            return
        for _, problem in reading.problems:
            self._reject(problem)
        await self._desk.submit(reading.items, received)

    def _reject(self, error: FeedError | DecodeError) -> None:
        self.rejected += 1
        log.warning(
            "push_rejected", source=self._settings.name, kind=error.kind.value, field=error.field, reason=error.reason
        )
