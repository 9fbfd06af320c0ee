"""A scheduler and a worker of one benchmark phase, seen through the status that the scheduler leaves in Redis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import redis.asyncio as redis

from ops.config import Settings
from ops.supervisor import Child
from schemas.codec import decode_json
from schemas.errors import TapewireError
from schemas.status import SchedulerStatus

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 180.0
"""Longest wait for one phase; a machine that needs longer has no figure worth printing."""
MEGABYTE = 1_000_000


class BenchError(TapewireError):
    """A benchmark could not be finished."""


class Services:
    """The scheduler and the worker of one phase.

    Args:
        settings: of the run.
        scheduler, worker: the processes.
        life: ends when they do.
    """

    def __init__(self, settings: Settings, scheduler: Child, worker: Child, life: asyncio.Future[None]) -> None:
        self.scheduler = scheduler
        self.worker = worker
        self._life = life
        self._key = settings.kafka.topics.status_key(settings.scheduler.id)
        self._redis = redis.Redis.from_url(settings.redis.url)

    async def close(self) -> None:
        """Forget the status, so that the next phase does not take it for its own."""
        await self._redis.delete(self._key)
        await self._redis.aclose()

    async def status(self) -> SchedulerStatus:
        """Return the scheduler's status."""
        raw = await self._redis.get(self._key)
        if not isinstance(raw, bytes):
            raise BenchError("the scheduler has no status")
        return decode_json(raw, SchedulerStatus)

    async def until(self, what: str, holds: Callable[[SchedulerStatus], bool]) -> None:
        """Poll the status until ``holds``; a child that died ends the wait."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self._life.done():
                self._life.result()
                raise BenchError(f"the services ended while waiting for {what}")
            with contextlib.suppress(BenchError):
                if holds(await self.status()):
                    return
            await asyncio.sleep(POLL_SECONDS)
        raise BenchError(f"waited {PATIENCE_SECONDS:g} s for {what}")

    def scheduler_memory(self) -> float:
        """Return the scheduler's resident memory in MB (Linux: VmRSS of its process)."""
        status = Path(f"/proc/{self.scheduler.pid}/status").read_text(encoding="ascii")
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / MEGABYTE
        raise BenchError("no VmRSS for the scheduler")
