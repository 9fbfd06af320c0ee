"""The whole link, real workers at its other end, and connections that break under load."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from ops.embedded import free_port
from schemas.errors import ConfigError
from schemas.settings import LinkSettings, WorkerSettings
from tests.scheduler.dealers import link_settings
from tests.scheduler.desk import desk
from tests.scheduler.tcp_proxy import proxy
from tests.scheduler.waiting import until
from workers.process import serve


class Running:
    """A worker in this process."""

    def __init__(self, settings: WorkerSettings, link: LinkSettings) -> None:
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(serve(settings, link, self.stop))


@asynccontextmanager
async def workers(link: LinkSettings) -> AsyncIterator[Callable[..., Running]]:
    """Start workers with the simulated engine; whatever still runs at the end is cancelled."""
    async with AsyncExitStack() as stack:

        def start(worker_id: str = "w1", **settings: float) -> Running:
            costs = {"sim_step_ms": 1.0, "sim_prefill_token_us": 1.0, "sim_decode_us": 1.0}
            worker = Running(WorkerSettings(engine="sim", id=worker_id, **(costs | settings)), link)

            async def end() -> None:
                worker.task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await worker.task

            stack.push_async_callback(end)
            return worker

        yield start


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_request_ends_once_whatever_the_connections_do(seed: int) -> None:
    """Connections cut at random points under load, in either direction: nothing lost, nothing twice, nobody died."""
    rng = random.Random(seed)
    port = free_port()
    settings = {"heartbeat_seconds": 0.1, "dead_after_seconds": 20.0}
    async with (
        desk(link_settings(address=f"tcp://127.0.0.1:{port}", **settings)) as one,
        proxy("127.0.0.1", port) as between,
        workers(link_settings(address=f"tcp://127.0.0.1:{between.port}", **settings)) as start,
    ):
        for number in range(3):
            start(f"w{number}")
        await until(lambda: len(one.registry.status()) == 3)
        added = 0
        while between.cuts < 12:
            for _ in range(rng.randrange(1, 40)):
                one.add(str(added), class_index=rng.randrange(3), tokens=rng.randrange(1, 60))
                added += 1
            await asyncio.sleep(rng.uniform(0, 0.05))
            if rng.random() < 0.3:
                between.cut()
        await until(lambda: not one.open)
        await until(one.takes_nothing)
        assert set(one.ended.values()) == {1}
        assert len(one.ended) == added
        assert (one.deaths, one.quarantined) == (0, [])


async def test_a_second_live_worker_under_an_id_ends_with_the_reason() -> None:
    """Of two workers with one id the first goes on working and the second ends with an error that names the id."""
    link = link_settings(heartbeat_seconds=0.1)
    async with desk(link) as one, workers(link) as start:
        first = start("twin")
        await until(lambda: len(one.registry.status()) == 1)
        one.add("before")
        await until(lambda: not one.open)
        second = start("twin")
        with pytest.raises(ConfigError, match=r"'twin' .* works here already"):
            await asyncio.wait_for(second.task, 20)
        one.add("after")
        await until(lambda: not one.open)
        assert not first.task.done()
        assert one.deaths == 0
