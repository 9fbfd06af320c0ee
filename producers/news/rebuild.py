"""Learns from the news topic what was published: after a crash before remembering, or when Redis is empty."""

from __future__ import annotations

from collections.abc import AsyncIterable

import structlog

from producers.news.duplicates import DuplicateIndex
from producers.news.statements import BANKS
from producers.news.store import Changes, NewsStore, StatementState, merged
from producers.news.story import StoryState, state_of
from schemas.codec import decode_news
from schemas.enums import NewsStatus
from schemas.errors import DecodeError
from schemas.records import NewsEvent

log = structlog.get_logger()


async def rebuild(store: NewsStore, duplicates: DuplicateIndex, tail: AsyncIterable[bytes]) -> int:
    """Bring the store up to what the topic holds, and fill the index of headlines; returns the events read.

    Raises:
        UnavailableError: Kafka or Redis is away.
    """
    stories: dict[str, StoryState] = {}
    statements: dict[str, StatementState] = {}
    headlines: list[NewsEvent] = []
    read = 0
    async for value in tail:
        try:
            event = decode_news(value)
        except DecodeError:  # the scheduler makes a dead letter of it; here it only means one id less is known
            continue
        read += 1
        stories[event.key] = state_of(event, stories.get(event.key))
        headlines.append(event)
        _take_statement(event, statements)
    # Partitions are read one after the other; "first" means first of all.
    for event in sorted(headlines, key=lambda e: e.received_at_ns):
        duplicates.first(event)
    newer = merged(await store.stories(stories), stories)
    missing = {name: state for name, state in statements.items() if await store.statement(name) is None}
    await store.save(Changes(stories=newer, statements=missing))
    log.info("news_tail_read", events=read, stories_learnt=len(newer), statements_learnt=len(missing))
    return read


def series_of(event: NewsEvent) -> str:
    """Return the series of an event that is a central bank's statement, else ``""``."""
    bank = BANKS.get(event.source)
    if bank and event.body and event.status is not NewsStatus.KILLED and bank.title.search(event.headline):
        return bank.series
    return ""


def _take_statement(event: NewsEvent, statements: dict[str, StatementState]) -> None:
    series = series_of(event)
    if not series:
        return
    last = statements.get(series)
    if last and last.published_at_ns > event.published_at_ns and last.story != event.key:
        return
    before = ""
    if last:
        before = last.before if last.story == event.key else last.text
    statements[series] = StatementState(
        story=event.key, text=event.body, before=before, published_at_ns=event.published_at_ns
    )
