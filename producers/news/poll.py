"""Polls one RSS or Atom feed: conditional requests, every new entry to the desk, a bank's statements in full."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from producers.errors import FeedError, FetchError
from producers.http import HttpClient, Response, Validators
from producers.news.desk import NewsDesk, Receipt
from producers.news.feeds import MAX_FEED_BYTES
from producers.news.formats import read_news
from producers.news.item import Defaults, NewsItem, replaced
from producers.news.statements import HIGHEST_URGENCY, Bank, statement_bank, statement_in_page
from producers.news.store import Changes, NewsStore
from producers.news.story import unpublished
from producers.pacing import Sleep
from producers.times import SECOND
from schemas.errors import DecodeError
from schemas.news_settings import NewsFeedSettings
from schemas.records import Nanoseconds

log = structlog.get_logger()

ATTEMPTS = 2
"""Per poll: the next poll is the better retry."""
STATEMENT_ATTEMPTS = 3
STATEMENT_BYTES = 4 * 1024 * 1024
OWED_NS = 6 * 3600 * SECOND
"""How old a statement may be whose page could not be fetched yet, to be tried again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PollOptions:
    """What all polled feeds share.

    Args:
        defaults: of this feed's items.
        backfill_ns: age of the items that are taken as known when the feed is read for the first time.
    """

    defaults: Defaults
    backfill_ns: Nanoseconds


class FeedPoller:
    """Follows one feed.

    Args:
        feed: its address and how to treat it.
        options: see `PollOptions`.
        client: shared by all feeds, so that one host's feeds share its pace.
        desk: takes the items.
        store: knows which feeds and stories were seen.
        sleep: waits between polls.
    """

    def __init__(
        self,
        feed: NewsFeedSettings,
        options: PollOptions,
        client: HttpClient,
        desk: NewsDesk,
        store: NewsStore,
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._feed = feed
        self._options = options
        self._client = client
        self._desk = desk
        self._store = store
        self._sleep = sleep
        self._validators = Validators()
        self._owed: dict[str, NewsItem] = {}

    async def run(self) -> None:
        """Poll until cancelled; a poll that fails is logged, and the next one comes in its time.

        Raises:
            UnavailableError, PublishError: Kafka or Redis is away.
        """
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._feed.poll_seconds
            try:
                await self.poll()
            except FetchError as error:
                log.warning("feed_not_fetched", feed=self._feed.name, kind=error.kind.value, reason=error.reason)
            except (FeedError, DecodeError) as error:
                log.warning(
                    "feed_unreadable",
                    feed=self._feed.name,
                    kind=error.kind.value,
                    field=error.field,
                    reason=error.reason,
                )
            await self._sleep(max(0.0, due - loop.time()))

    async def poll(self) -> Receipt:
        """Poll once; what was there is published, held or known when this returns.

        Raises:
            FetchError: the feed cannot be fetched.
            FeedError: what was fetched is no feed.
            UnavailableError, PublishError: Kafka or Redis is away.
        """
        answer = await self._client.get(
            self._feed.url, validators=self._validators, attempts=ATTEMPTS, max_bytes=MAX_FEED_BYTES
        )
        if not answer.modified:
            return await self._retry_owed(answer.received_at_ns)
        # In a thread: a long page takes feedparser longer than a headline may wait.
        reading = await asyncio.to_thread(read_news, answer.body, self._options.defaults, answer.received_at_ns)
        # Feeds list the newest first; in their order of publication corrections follow what they correct.
        items = sorted(reading.items, key=lambda item: item.published_at_ns)
        if not await self._store.seen("feed", self._feed.name):
            items = await self._without_old(items, answer.received_at_ns)
        receipt = await self._submit(items, answer)
        await self._store.mark_seen("feed", self._feed.name)
        # Only now: a page that was not published must be fetched again, not answered with "not modified".
        self._validators = answer.validators
        return receipt

    async def _submit(self, items: list[NewsItem], answer: Response) -> Receipt:
        ordinary = [item for item in items if not statement_bank(item.headline, self._feed.bank)]
        receipt = await self._desk.submit(ordinary, answer.received_at_ns)
        for item in items:
            if bank := statement_bank(item.headline, self._feed.bank):
                await self._submit_statement(item, bank, answer.received_at_ns)
        return receipt

    async def _without_old(self, items: list[NewsItem], now_ns: Nanoseconds) -> list[NewsItem]:
        """Take what was published long before we came as known: as news it would be hours late."""
        oldest = now_ns - self._options.backfill_ns
        old = {item.key: unpublished(item) for item in items if 0 < item.published_at_ns < oldest}
        known = await self._store.stories(old)
        await self._store.save(Changes(stories={key: state for key, state in old.items() if key not in known}))
        log.info("feed_first_read", feed=self._feed.name, items=len(items), taken_as_known=len(old))
        return [item for item in items if item.key not in old]

    async def _submit_statement(self, item: NewsItem, bank: Bank, now_ns: Nanoseconds) -> None:
        """Publish a statement with its text; without it when its page is not there, and with it as soon as it is."""
        if not await self._needs_text(item, bank, now_ns):
            return
        try:
            page = await self._client.get(item.url, attempts=STATEMENT_ATTEMPTS, max_bytes=STATEMENT_BYTES)
            text = await asyncio.to_thread(statement_in_page, page.body, bank)
        except (FetchError, FeedError) as error:
            log.warning("statement_not_read", feed=self._feed.name, url=item.url, reason=error.reason)
            self._owed[item.key] = item
            await self._desk.submit([replaced(item, notes=[*item.notes, "body: statement not read yet"])], now_ns)
            return
        self._owed.pop(item.key, None)
        full = replaced(item, body=text, statement=bank.series, urgency=HIGHEST_URGENCY)
        await self._desk.submit([full], page.received_at_ns)

    async def _needs_text(self, item: NewsItem, bank: Bank, now_ns: Nanoseconds) -> bool:
        """Return whether a statement's text is still to be published, which survives a restart."""
        if item.key not in await self._store.stories([item.key]):
            return True
        last = await self._store.statement(bank.series)
        if last and last.story == item.key:
            return False
        return item.key in self._owed or item.published_at_ns > now_ns - OWED_NS

    async def _retry_owed(self, now_ns: Nanoseconds) -> Receipt:
        for item in list(self._owed.values()):
            if bank := statement_bank(item.headline, self._feed.bank):
                await self._submit_statement(item, bank, now_ns)
        return Receipt()
