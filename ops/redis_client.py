"""A Redis connection for the commands, with every way it can fail turned into one error that names the setting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ops.config import masked_url
from schemas.errors import UnavailableError
from schemas.settings import RedisSettings


@asynccontextmanager
async def redis_client(settings: RedisSettings) -> AsyncIterator[Any]:
    """Connect to Redis and check that it answers.

    Raises:
        UnavailableError: at the start, or later when a command inside the block fails.
    """
    what = f"Redis at {masked_url(settings.url)}"
    try:
        client = Redis.from_url(
            settings.url, socket_timeout=settings.timeout_seconds, socket_connect_timeout=settings.timeout_seconds
        )
    except (ValueError, RedisError) as error:
        raise UnavailableError(what, "redis.url", str(error)) from None
    try:
        await client.ping()
        yield client
    except (RedisError, OSError, TimeoutError) as error:
        raise UnavailableError(what, "redis.url", str(error) or type(error).__name__) from None
    finally:
        await client.aclose()
