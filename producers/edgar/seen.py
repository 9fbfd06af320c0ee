"""Remembers which filings Kafka has confirmed: in memory, in Redis for a restart, in the topic when Redis is empty."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
import redis.asyncio as redis
import structlog
from redis.exceptions import RedisError

from producers.tail import topic_tail
from schemas.settings import KafkaSettings, RedisSettings

log = structlog.get_logger()

DAY_SECONDS = 86_400
TAIL_SECONDS = 120.0
"""Longest time for reading the topic's tail; a week of filings is some 200,000 records, read in seconds."""
PRUNE_EVERY = 500
"""Marks between two removals of accessions past their time."""


class _Part(msgspec.Struct):
    """What the tail is read for."""

    accession: str
    part: int = 1
    parts: int = 1


class SeenFilings:
    """The accessions that are published, and how far the feed is covered.

    Redis away costs nothing while the process lives: what could not be written is written later. After a restart
    without Redis the topic itself says what was published.

    Args:
        kafka: where the topic is.
        settings: where Redis is.
        days: how long an accession is remembered.
        now: wall clock in seconds.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        settings: RedisSettings,
        *,
        days: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._kafka = kafka
        self._key = kafka.topics.edgar_seen_key
        self._covered_key = kafka.topics.edgar_covered_key
        self._keep = days * DAY_SECONDS
        self._now = now
        self._client = redis.Redis.from_url(
            settings.url, socket_timeout=settings.timeout_seconds, socket_connect_timeout=settings.timeout_seconds
        )
        self._seen: dict[str, float] = {}
        self._unwritten: dict[str, float] = {}
        self._covered_ns = 0
        self._covered_unwritten = False
        self._marks = 0
        self._down = False

    @property
    def covered_ns(self) -> int:
        """Up to which moment of EDGAR's feed everything has been published; 0 when nothing is known."""
        return self._covered_ns

    def __contains__(self, accession: str) -> bool:
        return accession in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    async def load(self) -> str:
        """Read what is known at a start; returns from where: ``redis`` or ``topic``.

        Raises:
            UnavailableError: neither Redis has anything nor can Kafka be read.
        """
        try:
            rows: Any = await self._client.zrangebyscore(self._key, self._now() - self._keep, "+inf", withscores=True)
            covered = await self._client.get(self._covered_key)
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("redis_away", error=str(error), then="reading the topic's tail")
            rows, covered = [], None
        self._seen = {accession.decode(): score for accession, score in rows}
        self._covered_ns = int(covered) if covered and covered.isdigit() else 0
        if self._seen:
            return "redis"
        self._seen = {accession: self._now() for accession in await self._published_lately()}
        self._unwritten = dict(self._seen)
        await self._write()
        return "topic"

    async def mark(self, accession: str) -> None:
        """Note that every part of a filing is confirmed."""
        self._seen[accession] = self._unwritten[accession] = self._now()
        self._marks += 1
        if self._marks % PRUNE_EVERY == 0:
            oldest = self._now() - self._keep
            self._seen = {name: since for name, since in self._seen.items() if since >= oldest}
        await self._write()

    async def cover(self, until_ns: int) -> None:
        """Note that everything up to a moment of EDGAR's feed is published."""
        if until_ns > self._covered_ns:
            self._covered_ns = until_ns
            self._covered_unwritten = True
            await self._write()

    async def close(self) -> None:
        """Write what is left and disconnect."""
        await self._write()
        await self._client.aclose()

    async def _write(self) -> None:
        """Write what is waiting; a failure leaves it waiting."""
        waiting = dict(self._unwritten)
        pipeline = self._client.pipeline(transaction=False)
        if waiting:
            pipeline.zadd(self._key, waiting)
            pipeline.zremrangebyscore(self._key, "-inf", self._now() - self._keep)
            pipeline.expire(self._key, int(self._keep) + 1)
        if self._covered_unwritten:
            pipeline.set(self._covered_key, self._covered_ns, ex=int(self._keep) + 1)
        if not len(pipeline):
            return
        try:
            # A command that is cancelled half way would leave its reply in the connection for the next one.
            await asyncio.shield(pipeline.execute())
        except (RedisError, OSError, TimeoutError) as error:
            if not self._down:
                log.warning("redis_away", error=str(error), waiting=len(waiting))
            self._down = True
            return
        if self._down:
            log.info("redis_back", written=len(waiting))
        self._down = self._covered_unwritten = False
        for accession, score in waiting.items():
            if self._unwritten.get(accession) == score:
                del self._unwritten[accession]

    async def _published_lately(self) -> set[str]:
        """Read the tail of the filings topic; a filing counts once all of its parts are there.

        Raises:
            UnavailableError: Kafka cannot be read.
        """
        parts: dict[str, set[int]] = {}
        complete: set[str] = set()
        since_ms = int((self._now() - self._keep) * 1000)
        tail = topic_tail(self._kafka, self._kafka.topics.filings, since_ms=since_ms, seconds=TAIL_SECONDS)
        async with contextlib.aclosing(tail) as values:
            async for value in values:
                _collect(value, parts, complete)
        return complete


def _collect(value: bytes, parts: dict[str, set[int]], complete: set[str]) -> None:
    try:
        part = msgspec.json.decode(value, type=_Part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return  # whatever it is, it is no filing that we published
    if part.accession in complete:
        return
    have = parts.setdefault(part.accession, set())
    have.add(part.part)
    if len(have) >= part.parts:
        complete.add(part.accession)
        del parts[part.accession]
