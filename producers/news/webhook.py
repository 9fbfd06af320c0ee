"""The HTTP server for vendors that push: a request is answered once its items are confirmed."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog
from aiohttp import web

from producers.errors import FeedError, PublishError
from producers.news.desk import NewsDesk, Receipt
from producers.news.formats import Reading, read_news
from producers.news.item import Defaults
from producers.news.json_lines import Problem
from schemas.errors import DecodeError, UnavailableError
from schemas.news_settings import NewsWebhookSettings

log = structlog.get_logger()

CLOSE_SECONDS = 5.0
"""How long requests in work may take once the server is to stop."""
PUBLISH_SECONDS = 10.0
"""Longest wait for a confirmation; vendors give up on a request after 15 to 30 s, and then do not know what it did."""
REPORTED = 20
"""Bad lines of one request that its answer names; all are counted."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Webhook:
    """Serves ``POST /news/NAME``; an async context manager.

    200 means that everything in the body that can be read is published, held or known. 400 says what is wrong with a
    body that gives nothing; sending it again would not help. 503 asks to send it again.

    Args:
        settings: address, token and sources.
        defaults: per source.
        desk: takes the items.
        publish_seconds: how long a request waits for its confirmation.
    """

    def __init__(
        self,
        settings: NewsWebhookSettings,
        defaults: Mapping[str, Defaults],
        desk: NewsDesk,
        *,
        publish_seconds: float = PUBLISH_SECONDS,
    ) -> None:
        self._settings = settings
        self._defaults = defaults
        self._desk = desk
        self._publish_seconds = publish_seconds
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Webhook:
        """Bind and serve.

        Raises:
            UnavailableError: the address cannot be bound.
        """
        app = web.Application(client_max_size=int(self._settings.max_mb * 1024 * 1024), middlewares=[self._guarded])
        app.router.add_post("/news/{name}", self._post)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._settings.host, self._settings.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            what = f"port {self._settings.port} on {self._settings.host}"
            raise UnavailableError(what, "news.webhook.port", error.strerror or str(error)) from None
        log.info("webhook_listens", host=self._settings.host, port=self._settings.port, sources=list(self._defaults))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish the requests in work and close."""
        if self._runner:
            await self._runner.cleanup()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        token = self._settings.token.get_secret_value()
        if token:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
            if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode()):
                return web.json_response({"error": "a bearer token is needed"}, status=401)
        return await handler(request)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        defaults = self._defaults.get(request.match_info["name"])
        if defaults is None:
            return web.json_response({"error": "no such source"}, status=404)
        body = await request.read()
        received = time.time_ns()
        try:
            reading = await asyncio.to_thread(read_news, body, defaults, received)
        except (FeedError, DecodeError) as error:
            log.warning("push_rejected", source=defaults.source, kind=error.kind.value, reason=error.reason)
            return web.json_response({"rejected": [_reason(0, error)]}, status=400)
        if not reading.items:
            return web.json_response(_report(reading, Receipt()), status=400)
        try:
            async with asyncio.timeout(self._publish_seconds):
                receipt = await self._desk.submit(reading.items, received)
        except (UnavailableError, PublishError, TimeoutError):
            return web.json_response({"error": "not published, send it again"}, status=503)
        return web.json_response(_report(reading, receipt))


def _report(reading: Reading, receipt: Receipt) -> dict[str, Any]:
    report: dict[str, Any] = {
        "published": receipt.published,
        "verdicts": {verdict.value: count for verdict, count in receipt.verdicts.items()},
    }
    if reading.problems:
        report["rejected"] = [_reason(line, problem) for line, problem in reading.problems[:REPORTED]]
        report["rejected_count"] = len(reading.problems)
    return report


def _reason(line: int, error: Problem) -> dict[str, Any]:
    return {"line": line, "kind": error.kind.value, "field": error.field, "reason": error.reason}
