"""What the news feed handler must not forget, in Redis: stories, embargoed items, statements, files it has read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, TypeVar

import msgspec
import redis.asyncio as redis
import structlog
from msgspec import Struct
from redis.exceptions import RedisError

from producers.news.item import NewsItem
from producers.news.story import StoryState
from schemas.codec import encode_json
from schemas.errors import UnavailableError
from schemas.records import Nanoseconds
from schemas.settings import RedisSettings
from schemas.topics import Topics

log = structlog.get_logger()

RETRY_SECONDS = 0.5
GRACE_SECONDS = 30.0
"""How long Redis may be away in mid-work; meanwhile nothing is published, because nothing could be remembered."""
RECENT_STORIES = 20_000
"""Stories of this run that are known without Redis: one that comes back empty must not make a second version 1."""
STATEMENT_SECONDS = 400 * 86_400
"""Statements come every six weeks and are diffed against the last one, however long ago it was."""

T = TypeVar("T")


class Held(Struct, kw_only=True, frozen=True):
    """An item that waits for the end of its embargo."""

    item: NewsItem
    received_at_ns: Nanoseconds


class StatementState(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The last statement of a series.

    Args:
        story: key of its story.
        text: the whole statement.
        before: text of the one before it, for corrections of this one.
        published_at_ns: 0 when unknown.
    """

    story: str
    text: str
    before: str = ""
    published_at_ns: Nanoseconds = 0


class Changes(Struct):
    """What one batch of work leaves behind; saved in one transaction once it is confirmed."""

    stories: dict[str, StoryState] = {}
    hold: dict[str, Held] = {}
    release: set[str] = set()
    statements: dict[str, StatementState] = {}


class NewsStore:
    """The feed handler's memory; everything in it can be lost without losing a story (`producers.news.rebuild`).

    Args:
        settings: where Redis is.
        topics: give the names of the keys.
        seen_seconds: how long a story is known after its last version.
        grace_seconds: how long Redis may be away before the work ends with an error.
    """

    def __init__(
        self,
        settings: RedisSettings,
        topics: Topics,
        *,
        seen_seconds: float,
        grace_seconds: float = GRACE_SECONDS,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._url = settings.url
        self._topics = topics
        self._seen_seconds = max(1, int(seen_seconds))
        self._grace_seconds = grace_seconds
        self._sleep = sleep
        self._recent: dict[str, StoryState] = {}
        self._client: Any = redis.Redis.from_url(
            settings.url, socket_timeout=settings.timeout_seconds, socket_connect_timeout=settings.timeout_seconds
        )

    async def start(self) -> None:
        """Check that Redis answers.

        Raises:
            UnavailableError: it does not.
        """
        try:
            await self._client.ping()
        except (RedisError, OSError) as error:
            await self._client.aclose()
            raise self._unavailable(error) from None

    async def close(self) -> None:
        """Disconnect."""
        await self._client.aclose()

    async def stories(self, keys: Iterable[str]) -> dict[str, StoryState]:
        """Return what is known of these stories; unknown ones are left out.

        Raises:
            UnavailableError: Redis stays away.
        """
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        names = [self._story(key) for key in wanted]
        values: list[bytes | None] = await self._patiently(lambda: self._client.mget(names))
        found: dict[str, StoryState] = {}
        for key, value in zip(wanted, values, strict=True):
            known = [state for state in (_decoded(value, StoryState), self._recent.get(key)) if state is not None]
            if known:
                found[key] = max(known, key=lambda state: state.version)
        return found

    async def held(self) -> dict[str, Held]:
        """Return the items under embargo, by story.

        Raises:
            UnavailableError: Redis stays away.
        """
        values: dict[bytes, bytes] = await self._patiently(lambda: self._client.hgetall(self._topics.news_held_key))
        found = {key.decode(): _decoded(value, Held) for key, value in values.items()}
        return {key: held for key, held in found.items() if held is not None}

    async def statement(self, series: str) -> StatementState | None:
        """Return the last statement of a series.

        Raises:
            UnavailableError: Redis stays away.
        """
        name = self._topics.news_statement_key(series)
        return _decoded(await self._patiently(lambda: self._client.get(name)), StatementState)

    async def save(self, changes: Changes) -> None:
        """Remember what a batch of work did, all of it or nothing.

        Raises:
            UnavailableError: Redis stays away.
        """
        await self._patiently(lambda: self._transaction(changes))
        for key, state in changes.stories.items():
            self._recent.pop(key, None)  # so that the newest stand last
            self._recent[key] = state
        while len(self._recent) > RECENT_STORIES:
            del self._recent[next(iter(self._recent))]

    async def seen(self, kind: str, name: str) -> bool:
        """Return whether a feed or a file was read before.

        Raises:
            UnavailableError: Redis stays away.
        """
        key = self._seen_key(kind, name)
        return bool(await self._patiently(lambda: self._client.exists(key)))

    async def mark_seen(self, kind: str, name: str) -> None:
        """Remember that a feed or a file was read.

        Raises:
            UnavailableError: Redis stays away.
        """
        key = self._seen_key(kind, name)
        await self._patiently(lambda: self._client.set(key, b"1", ex=self._seen_seconds))

    async def _transaction(self, changes: Changes) -> None:
        async with self._client.pipeline(transaction=True) as pipe:
            for key, state in changes.stories.items():
                pipe.set(self._story(key), encode_json(state), ex=self._seen_seconds)
            for key, held in changes.hold.items():
                pipe.hset(self._topics.news_held_key, key, encode_json(held))
            if changes.release:
                pipe.hdel(self._topics.news_held_key, *sorted(changes.release))
            for series, statement in changes.statements.items():
                pipe.set(self._topics.news_statement_key(series), encode_json(statement), ex=STATEMENT_SECONDS)
            if pipe.command_stack:
                await pipe.execute()

    async def _patiently(self, command: Callable[[], Awaitable[T]]) -> T:
        """Run a command again and again while Redis is away; every command here may run twice without harm."""
        deadline = asyncio.get_running_loop().time() + self._grace_seconds
        told = False
        while True:
            try:
                return await command()
            except (RedisError, OSError) as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise self._unavailable(error) from None
                if not told:
                    log.warning("redis_away", reason=str(error) or type(error).__name__)
                    told = True
                await self._sleep(RETRY_SECONDS)

    def _story(self, key: str) -> str:
        return self._topics.news_story_key(key)

    def _seen_key(self, kind: str, name: str) -> str:
        return self._topics.news_seen_key(kind, blake2b(name.encode("utf-8", "surrogateescape")).hexdigest()[:32])

    def _unavailable(self, error: BaseException) -> UnavailableError:
        host = self._url.rpartition("@")[2].removeprefix("redis://").removeprefix("rediss://")
        return UnavailableError(f"Redis at {host}", "redis.url", str(error) or type(error).__name__)


def merged(stored: Mapping[str, StoryState], read: Mapping[str, StoryState]) -> dict[str, StoryState]:
    """Return those states read from the topic that are newer than what is stored."""
    return {key: state for key, state in read.items() if key not in stored or stored[key].version < state.version}


def _decoded(value: bytes | None, kind: type[T]) -> T | None:
    """Decode a stored value; one of another version or broken is as good as lost."""
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        log.warning("stored_value_unreadable", kind=kind.__name__)
        return None
