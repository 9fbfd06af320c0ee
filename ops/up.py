"""Everything on one machine in the foreground: topics, a scheduler and its workers, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from redis.exceptions import RedisError
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ops.commands.options import debugging
from ops.config import Settings, masked_url
from ops.local import CONFIG_FILE, local_stages, make_run_dir, start_embedded, with_values, worker_state
from ops.logs import configure
from ops.redis_client import redis_client
from ops.supervisor import Child, Supervisor
from ops.text import visible
from ops.topics import ensure_topics
from schemas.codec import decode_json
from schemas.errors import DecodeError, TapewireError, UnavailableError
from schemas.settings import RedisSettings
from schemas.status import STOPPED_BY_DEAD_LETTERS, STOPPED_MEND, SchedulerStatus

TICK_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class UpOptions:
    """The flags of ``tapewire up``."""

    embedded: bool
    workers: int
    run_dir: Path | None


async def run_up(settings: Settings, options: UpOptions, stop: asyncio.Event) -> None:
    """Run until ``stop``; then the scheduler drains, the workers end, embedded services last.

    Raises:
        ConfigError, UnavailableError: something is missing; the message names it.
    """
    run_dir = make_run_dir(options.run_dir, "up")
    async with AsyncExitStack() as stack:
        if sys.stderr.isatty():
            # Lines between the refreshes of a table help nobody; without a terminal they are the display.
            log = stack.enter_context((run_dir / "up.log").open("a", encoding="utf-8"))
            configure(settings.log, log, debug=debugging())
            stack.callback(configure, settings.log, debug=debugging())
        if options.embedded:
            settings = with_values(settings, await start_embedded(stack))
        await ensure_topics(settings.kafka)
        async with redis_client(settings.redis):
            pass  # a wrong address should be told now, not by lines without stamps
        _check_address(settings)
        supervisor = Supervisor(local_stages(settings, run_dir, options.workers))
        tasks = [
            asyncio.create_task(supervisor.run()),
            asyncio.create_task(stop.wait()),
            asyncio.create_task(_show(settings, supervisor, run_dir)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome


def _check_address(settings: Settings) -> None:
    """Refuse an address that somebody listens on: our workers would join a scheduler that is not ours."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        try:
            socket.bind(settings.link.address)
        except zmq.ZMQError as error:
            raise UnavailableError(f"address {settings.link.address}", "link.address", str(error)) from None


async def _show(settings: Settings, supervisor: Supervisor, run_dir: Path) -> None:
    """Show a table on a terminal; anywhere else one line whenever something changes."""
    where = f"Kafka {settings.kafka.bootstrap}, Redis {masked_url(settings.redis.url)}, link {settings.link.address}"
    config = run_dir / CONFIG_FILE
    sys.stderr.write(f"{visible(where)}\nlogs in {run_dir}\n")
    sys.stderr.write(f"other commands reach this with --config {visible(str(config))}\n")
    key = settings.kafka.topics.status_key(settings.scheduler.id)
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_table(await _status(settings.redis, key), supervisor), refresh=True)
                await asyncio.sleep(TICK_SECONDS)
    told = ""
    while True:
        line = _line(await _status(settings.redis, key), supervisor)
        if line != told:
            told = line
            sys.stderr.write(f"{visible(line)}\n")
            sys.stderr.flush()
        await asyncio.sleep(TICK_SECONDS)


async def _status(redis: RedisSettings, key: str) -> SchedulerStatus | None:
    with contextlib.suppress(TapewireError, DecodeError, RedisError):
        async with redis_client(redis) as client:
            raw: Any = await client.get(key)
            return decode_json(raw, SchedulerStatus) if raw else None
    return None


def _line(status: SchedulerStatus | None, supervisor: Supervisor) -> str:
    state = status.state if status else "starting"
    connected = len(status.workers) if status else 0
    children = ", ".join(f"{child.spec.name} {_state(child)}" for child in supervisor.children)
    mend = f" - {STOPPED_MEND}" if state == STOPPED_BY_DEAD_LETTERS else ""
    return f"scheduler {state}, {connected} workers connected ({children}){mend}"


def _state(child: Child) -> str:
    if child.pid is None:
        return f"down ({child.waits})" if child.waits else "down"
    if child.stopped:
        return f"stopped (kill -CONT {child.pid} lets it go on)"
    return worker_state(child)[0] or "up"


def _table(status: SchedulerStatus | None, supervisor: Supervisor) -> Table:
    table = Table(title=Text(visible(_line(status, supervisor))), title_justify="left")
    for heading in ("class", "SLO", "arrived", "waiting", "in flight", "signals", "late", "expired", "dead letters"):
        table.add_column(heading, justify="left" if heading == "class" else "right")
    for c in status.classes if status else []:
        counts = (c.arrived, c.queued, c.in_flight, c.signals, c.late, c.expired, c.dead_letters)
        table.add_row(visible(c.name), f"{c.slo_ms:g} ms", *(str(count) for count in counts))
    if status:
        age = (time.time_ns() - status.at_ns) / 1e9
        table.caption = f"status {age:.1f} s old; {status.stamps_dropped} stamps dropped"
    return table
