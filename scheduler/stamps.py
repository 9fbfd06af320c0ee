"""Latency stamps and status to Redis, off the hot path: a bounded buffer and one writer task.

Redis slow, away, full or misused costs stamps, counted in ``dropped``, one line when it begins and one when it is over;
never a signal.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import redis.asyncio as redis
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from schemas.codec import encode_json
from schemas.errors import UnavailableError
from schemas.records import StampEntry
from schemas.settings import RedisSettings
from schemas.status import SchedulerStatus
from schemas.topics import Topics

log = structlog.get_logger()

BATCH = 500
"""Stamps per round trip; more gains nothing and holds Redis longer."""
APPEND_ALL = """
for i = 2, #ARGV do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'd', ARGV[i])
end
return #ARGV - 1
"""
"""One command for a whole batch. A pipeline of XADDs does the same, but packing eight arguments and reading one reply
for every stamp took a fifth of the scheduler's time at full rate."""
FLUSH_SECONDS = 0.1
STATUS_SECONDS = 0.5
STATUS_LIVES_SECONDS = 10
"""A status key that outlives its scheduler by more than this would look like a live one."""
RETRY_SECONDS = 1.0
CANCEL_SECONDS = 0.1
REMIND_SECONDS = 30.0
"""How often a refusal that only a person can end is mentioned again."""
PASSING = (OutOfMemoryError, ReadOnlyError, ClusterDownError, TryAgainError)
"""Refusals that end by themselves: what was refused is kept and written later. Any other would come again for ever."""
PASSING_WORDS = frozenset(
    dash + code
    for code in ("OOM", "READONLY", "LOADING", "BUSY", "MISCONF", "MASTERDOWN", "NOREPLICAS")
    for dash in ("", "-")
)
"""The same where redis-py has no class for them, or an old Redis wraps a script's error: "ERR … : -OOM command …"."""


class StampWriter:
    """Writes stamps to a Redis stream and a status snapshot twice a second.

    Args:
        settings: where Redis is, and how much to keep there and here.
        topics: give the names of the keys.
        status: makes the snapshot; called from the writer task.
    """

    def __init__(self, settings: RedisSettings, topics: Topics, status: Callable[[], SchedulerStatus]) -> None:
        self._settings = settings
        self._topics = topics
        self._status = status
        self._buffer: deque[StampEntry] = deque()
        self._client = redis.Redis.from_url(
            settings.url,
            socket_timeout=settings.timeout_seconds,
            socket_connect_timeout=settings.timeout_seconds,
            # The writer tries again by itself. The client's own three tries would each wait out a slow Redis.
            retry=Retry(NoBackoff(), 0),
        )
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._trouble = ""
        self._told = 0.0
        self.dropped = 0
        self.written = 0

    async def start(self) -> None:
        """Start writing; a Redis that is away now costs stamps until it is back, as it does later.

        Raises:
            UnavailableError: Redis answers and refuses us (a password, a right), which only a person can mend.
        """
        try:
            await self._client.ping()
        except (AuthenticationError, AuthorizationError, ResponseError) as error:
            if isinstance(error, AuthenticationError | AuthorizationError) or _lasting(error):
                await self._client.aclose()
                raise UnavailableError(f"Redis at {_public(self._settings.url)}", "redis.url", str(error)) from None
            self._tell(error)
        except (RedisError, OSError) as error:
            # Schedulers that restart while Redis is down must still find each other's work.
            self._tell(error)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, entry: StampEntry) -> None:
        """Queue one entry; the oldest one is dropped when the buffer is full."""
        if len(self._buffer) >= self._settings.buffer:
            self._buffer.popleft()
            self.dropped += 1
        self._buffer.append(entry)

    async def stop(self, timeout: float) -> None:
        """Write what is left, for at most ``timeout`` seconds, and close."""
        if self._task is None:  # never started: there is nothing to write, and nobody to write it to
            await self._client.aclose()
            return
        self._stopping = True
        try:
            async with asyncio.timeout(timeout):
                # redis-py can swallow a cancellation that meets the end of a reply: then the writer goes on.
                while not self._task.done():
                    self._task.cancel()
                    await asyncio.wait([self._task], timeout=CANCEL_SECONDS)
                # The reply to a cancelled command may still come, and must not be taken for the next one's
                # (redis-py#2624, #2665): what follows gets a connection of its own.
                await self._client.connection_pool.disconnect()
                while self._buffer:
                    await self._flush()
                await self._client.delete(self._topics.status_key(self._status().scheduler_id))
        except (RedisError, OSError, TimeoutError) as error:
            self.dropped += len(self._buffer)
            log.warning("stamps_lost_at_stop", waiting=len(self._buffer), error=str(error))
        await self._client.aclose()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_status = 0.0
        while not self._stopping:
            fine = True
            if loop.time() >= next_status:
                next_status = loop.time() + STATUS_SECONDS
                fine = await self._try(self._write_status)
            fine = await self._try(self._flush_all) and fine
            if fine and self._trouble:
                self._trouble = ""
                log.info("redis_back", dropped=self.dropped)
            await asyncio.sleep(FLUSH_SECONDS if fine else RETRY_SECONDS)

    async def _try(self, write: Callable[[], Awaitable[None]]) -> bool:
        try:
            await write()
        except Exception as error:  # noqa: BLE001 - whatever it is, a writer that ends would lose all further stamps
            self._tell(error)
            return False
        return True

    def _tell(self, error: Exception) -> None:
        """Say once what is wrong; again when it is something else, or when it stays and a person must act."""
        now = asyncio.get_running_loop().time()
        trouble = "redis_refuses" if _lasting(error) else "redis_away"
        if trouble == self._trouble and (trouble == "redis_away" or now - self._told < REMIND_SECONDS):
            return
        self._trouble, self._told = trouble, now
        told = {"mend": f"look at the key {self._topics.stamps_key}"} if "WRONGTYPE" in str(error) else {}
        reason = str(error) or type(error).__name__
        log.warning(trouble, error=reason, waiting=len(self._buffer), dropped=self.dropped, **told)

    async def _flush_all(self) -> None:
        while self._buffer and not self._stopping:
            await self._flush()

    async def _flush(self) -> None:
        entries = [self._buffer.popleft() for _ in range(min(BATCH, len(self._buffer)))]
        encoded = [encode_json(entry) for entry in entries]
        try:
            await self._client.eval(APPEND_ALL, 1, self._topics.stamps_key, self._settings.stamps_kept, *encoded)
        except BaseException as error:
            if _lasting(error):
                self.dropped += len(entries)  # the same batch would be refused for ever, and all behind it with it
                raise
            # Whether Redis took them is unknown: a stamp written twice is harmless, one forgotten is not.
            self._buffer.extendleft(reversed(entries))
            while len(self._buffer) > self._settings.buffer:
                self._buffer.popleft()
                self.dropped += 1
            raise
        self.written += len(entries)

    async def _write_status(self) -> None:
        status = self._status()
        key = self._topics.status_key(status.scheduler_id)
        await self._client.set(key, encode_json(status), ex=STATUS_LIVES_SECONDS)


def _lasting(error: BaseException) -> bool:
    """Return whether Redis understood us, and will say no again to the same command."""
    if not isinstance(error, ResponseError) or isinstance(error, PASSING):
        return False
    return PASSING_WORDS.isdisjoint(str(error).split())


def _public(url: str) -> str:
    """Return a URL without its password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
