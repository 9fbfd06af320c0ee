"""Puts the EDGAR feed together from the configuration and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from producers.edgar.counts import FeedCounts
from producers.edgar.feed import EdgarFeed
from producers.edgar.listing import parse_tickers
from producers.edgar.pages import judge
from producers.edgar.seen import SeenFilings
from producers.errors import FeedError, FetchError
from producers.http import HttpClient
from producers.outlet import Outlet
from schemas.errors import ConfigError
from schemas.settings import EdgarSettings, KafkaSettings, RedisSettings

log = structlog.get_logger()

CLIENT_ID = "tapewire-feed-edgar"
TICKERS_ATTEMPTS = 2


async def serve(
    settings: EdgarSettings,
    kafka: KafkaSettings,
    redis: RedisSettings,
    stop: asyncio.Event,
    *,
    once: bool = False,
    limit: int | None = None,
    on_start: Callable[[FeedCounts], None] | None = None,
) -> FeedCounts:
    """Feed EDGAR's filings to Kafka until ``stop`` is set.

    Args:
        settings: the feed.
        kafka: where the events go.
        redis: where published accessions are remembered.
        stop: ends the feed.
        once: end after one look at the current feed.
        limit: end after this many filings.
        on_start: gets the counts that the feed will keep up to date.

    Raises:
        ConfigError: the User-Agent declares nobody, or the tickers file cannot be read.
        UnavailableError: Kafka or EDGAR cannot be reached at the start.
    """
    client = HttpClient(
        user_agent=settings.user_agent,
        setting="edgar.user_agent",
        per_second=settings.requests_per_second,
        judge=judge(settings.pause_seconds),
        timeout_seconds=settings.timeout_seconds,
    )
    async with client as http, Outlet(kafka, client_id=CLIENT_ID) as outlet:
        seen = SeenFilings(kafka, redis, days=settings.seen_days)
        try:
            source = await seen.load()
            tickers = await load_tickers(settings, http)
            feed = EdgarFeed(settings, http=http, outlet=outlet, seen=seen, tickers=tickers)
            log.info("edgar_feed_started", seen=len(seen), seen_from=source, companies=len(tickers))
            if on_start:
                on_start(feed.counts)
            return await feed.run(stop, once=once, limit=limit)
        finally:
            await seen.close()


async def load_tickers(settings: EdgarSettings, http: HttpClient | None) -> dict[str, list[str]]:
    """Return tickers per CIK from the file or from SEC; none when SEC does not answer, and filings name their own.

    Raises:
        ConfigError: the file cannot be read or is no map of tickers.
    """
    path = settings.tickers_file
    if path is not None:
        try:
            return parse_tickers(await asyncio.to_thread(path.read_bytes))
        except OSError as error:
            raise ConfigError("edgar.tickers_file", f"{path}: {error.strerror or error}") from None
        except FeedError as error:
            raise ConfigError("edgar.tickers_file", f"{path}: {error.reason}") from None
    if http is None or not settings.tickers:
        return {}
    try:
        response = await http.get(f"{settings.base_url}/files/company_tickers.json", attempts=TICKERS_ATTEMPTS)
        return parse_tickers(response.body)
    except (FetchError, FeedError) as error:
        log.warning("tickers_unavailable", error=str(error))
        return {}
