"""Real worker processes that are killed, stopped, sent home or get stuck, under a supervisor, before a real link."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ops.config import Settings
from ops.local import local_stages
from ops.supervisor import Backoff, Child, Supervisor
from schemas.settings import LinkSettings, WorkerSettings
from tests.scheduler.dealers import link_settings
from tests.scheduler.desk import Desk, desk
from tests.scheduler.waiting import until
from workers.process import serve

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
NEVER = 3600.0
"""Seconds of a limit that must not be what ends the wait."""
SLOW_MS = 20.0
ENDLESS_MS = 3_600_000.0


@asynccontextmanager
async def supervised(
    tmp_path: Path, link: LinkSettings, count: int, step_ms: float, **engine: int
) -> AsyncIterator[tuple[list[Child], Callable[[], Awaitable[None]]]]:
    """Run worker processes under a supervisor; gives them, and what stops them in order."""
    worker = WorkerSettings(engine="sim", sim_step_ms=step_ms).model_copy(update=engine)
    settings = Settings(link=link, worker=worker)
    specs = local_stages(settings, tmp_path, count)[1]
    supervisor = Supervisor([specs], Backoff(first=0.1, longest=0.2))
    running = asyncio.create_task(supervisor.run())

    async def stop() -> None:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    try:
        yield supervisor.children, stop
    finally:
        await stop()


def busy(one: Desk, worker_id: str) -> int:
    """Return how much a worker has."""
    return len(one.planner.in_flight_at(worker_id))


def signal_to(child: Child, number: signal.Signals) -> None:
    """Signal a worker process."""
    assert child.pid is not None
    os.kill(child.pid, number)


def end(process: asyncio.subprocess.Process) -> None:
    """Kill a process if it still runs."""
    if process.returncode is None:
        process.kill()


async def test_work_of_a_killed_process_runs_elsewhere_long_before_its_silence_would_tell(tmp_path: Path) -> None:
    """Killed -9 with a silence limit of an hour: the closed connection tells, and everything ends once, elsewhere."""
    link = link_settings(dead_after_seconds=NEVER)
    async with desk(link) as one, supervised(tmp_path, link, 2, ENDLESS_MS) as (children, _):
        await until(lambda: len(one.registry.status()) == 2)
        for number in range(8):
            one.add(str(number))
        await until(lambda: busy(one, "worker-1") + busy(one, "worker-2") == 8 and busy(one, "worker-1") > 0)
        await children[0].stop(0.0)  # not started again, so that only the connection can tell
        await until(lambda: busy(one, "worker-2") == 8)
        assert one.deaths == 0
        assert not one.ended
        await children[1].stop(0.0)


async def test_the_only_worker_is_killed_and_its_next_life_does_the_work(tmp_path: Path) -> None:
    """Under a supervisor: one death is counted, the next process gets in under the same id, everything ends once."""
    link = link_settings(dead_after_seconds=NEVER)
    async with desk(link) as one, supervised(tmp_path, link, 1, SLOW_MS) as (children, _):
        await until(lambda: len(one.registry.status()) == 1)
        for number in range(30):
            one.add(str(number), class_index=2)
        await until(lambda: busy(one, "worker-1") > 0)
        signal_to(children[0], signal.SIGKILL)
        await until(lambda: not one.open)
        assert one.deaths == 1
        assert set(one.ended.values()) == {1}
        assert children[0].starts == 2


async def test_a_stopped_process_loses_its_work_and_comes_back(tmp_path: Path) -> None:
    """SIGSTOP closes no connection: the silence tells. After SIGCONT the same process joins again and works."""
    link = link_settings(heartbeat_seconds=0.1, dead_after_seconds=1.0)
    async with desk(link) as one, supervised(tmp_path, link, 2, SLOW_MS) as (children, _):
        await until(lambda: len(one.registry.status()) == 2)
        signal_to(children[0], signal.SIGSTOP)
        for number in range(20):
            one.add(str(number))
        await until(lambda: not one.open)
        assert [status.worker_id for status in one.registry.status()] == ["worker-2"]
        assert one.deaths == 1
        signal_to(children[0], signal.SIGCONT)
        await until(lambda: len(one.registry.status()) == 2)
        one.add("after")
        await until(lambda: not one.open)
        assert set(one.ended.values()) == {1}
        assert (children[0].starts, one.deaths) == (1, 1)


async def test_a_worker_that_is_sent_home_delivers_what_it_can(tmp_path: Path) -> None:
    """SIGTERM: what ends within the drain is delivered, the rest runs elsewhere, nothing counts as a death."""
    link = link_settings(dead_after_seconds=NEVER)
    crawl = {"long_prefill_token_threshold": 16}
    async with desk(link) as one, supervised(tmp_path, link, 1, 100.0, **crawl) as (_, stop):
        await until(lambda: len(one.registry.status()) == 1)
        one.add("quick")
        for number in range(6):
            one.add(f"slow-{number}", class_index=2, tokens=1000)  # more than sixty steps: longer than a drain waits
        await until(lambda: busy(one, "worker-1") == 7)
        await stop()
        await until(lambda: not one.registry.status())
        assert one.ended == {"quick": 1}
        assert (one.deaths, one.requeued, one.planner.total_queued) == (0, 6, 6)


async def test_a_stuck_engine_is_started_anew_and_what_sticks_it_is_quarantined(tmp_path: Path) -> None:
    """Heartbeats and no steps: the process ends, twice, and the request that was there both times meets no third."""
    link = link_settings(heartbeat_seconds=0.1, dead_after_seconds=NEVER, stuck_after_seconds=0.5)
    with capture_logs() as logs:
        await _poison(tmp_path, link)
    ends = [event["how"] for event in logs if event["event"] == "child_ended"]
    assert ends[:2] == ["with exit code 1"] * 2
    log = (tmp_path / "worker-1.log").read_text()
    assert log.count("tapewire: engine sim died: it has 1 requests and made no step for") >= 2


async def _poison(tmp_path: Path, link: LinkSettings) -> None:
    async with desk(link) as one, supervised(tmp_path, link, 1, ENDLESS_MS) as (children, _):
        await until(lambda: len(one.registry.status()) == 1)
        one.add("poison")
        await until(lambda: not one.open)
        assert one.quarantined == ["poison"]
        assert (one.deaths, one.requeued) == (2, 1)
        await until(lambda: children[0].starts == 3)


@asynccontextmanager
async def desk_processes(link: LinkSettings) -> AsyncIterator[Callable[[int], Awaitable[asyncio.subprocess.Process]]]:
    """Start schedulers as processes, each ready when it is given, with two slow workers in this process."""
    stop = asyncio.Event()
    costs = WorkerSettings(engine="sim", sim_step_ms=100.0)
    workers = [asyncio.create_task(serve(costs.model_copy(update={"id": name}), link, stop)) for name in ("w1", "w2")]
    processes: list[asyncio.subprocess.Process] = []

    async def start(count: int) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.scheduler.desk_process",
            link.model_dump_json(),
            str(count),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        processes.append(process)
        await told(process, b"ready")
        return process

    try:
        yield start
    finally:
        for process in processes:
            end(process)
            await process.wait()
        stop.set()
        await asyncio.gather(*workers)


async def told(process: asyncio.subprocess.Process, start: bytes) -> bytes:
    """Return the first line that a process writes and that starts so."""
    assert process.stdout is not None
    async with asyncio.timeout(60):
        while not (line := await process.stdout.readline()).startswith(start):
            assert line or process.returncode is None, "the scheduler ended"
    return line


async def test_a_scheduler_that_was_stopped_calls_nobody_dead() -> None:
    """SIGSTOP for longer than every limit, with work in flight: the same workers go on, and each event ends once."""
    link = link_settings(heartbeat_seconds=0.1, dead_after_seconds=0.6)
    async with desk_processes(link) as start:
        process = await start(30)
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(4 * link.dead_after_seconds)  # the pause that the test is about
        process.send_signal(signal.SIGCONT)
        account = json.loads(await told(process, b"{"))
    assert (account["ends"], account["deaths"], account["workers"]) == ([1], 0, 2)


async def test_workers_outlive_a_killed_scheduler() -> None:
    """Its successor has both workers at once, with all of their room: what the first one gave them is dropped."""
    link = link_settings(heartbeat_seconds=0.1)
    async with desk_processes(link) as start:
        first = await start(30)
        end(first)
        account = json.loads(await told(await start(30), b"{"))
    assert (account["ends"], account["deaths"], account["workers"]) == ([1], 0, 2)
