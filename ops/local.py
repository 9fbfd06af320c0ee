"""One scheduler and its workers as child processes of this machine: run directory, configuration, stop order."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ops.config import ENV_PREFIX, Settings, as_values
from ops.embedded import EmbeddedKafka, EmbeddedRedis
from ops.supervisor import Child, ChildSpec, tapewire_argv
from ops.toml import dump_toml
from schemas.errors import ConfigError

RUNS = Path(".tapewire")
"""Runs keep their logs here, under the working directory."""
CONFIG_FILE = "tapewire.toml"

WORKER_STOP_SECONDS = 5.0
"""From SIGTERM to SIGKILL of a worker: vLLM takes some seconds to end its own processes. Its scheduler has drained
before, so nothing of value is running."""
MOST_SCHEDULER_SECONDS = 5.5
"""Leaves its workers some of `ops.supervisor.STOP_SECONDS`."""


def make_run_dir(given: Path | None, kind: str) -> Path:
    """Create the directory of one run.

    Raises:
        ConfigError: it cannot be created or written to.
    """
    name = f"{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    path = (given or RUNS / name).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / ".write-test").write_bytes(b"")
        (path / ".write-test").unlink()
    except OSError as error:
        raise ConfigError("--run-dir", f"{path}: {error.strerror or error}") from None
    return path


async def start_embedded(stack: AsyncExitStack) -> dict[str, dict[str, Any]]:
    """Start an embedded broker and Valkey that end with ``stack``; returns the settings that lead to them.

    Raises:
        UnavailableError: a package is missing, or a service does not start.
    """
    broker, redis = EmbeddedKafka(stop_seconds=1.0), EmbeddedRedis(stop_seconds=1.0)
    for service in (broker, redis):
        # First the way out, then the way in: a start that is cut short leaves nothing behind either.
        stack.push_async_callback(asyncio.to_thread, service.stop)
        await asyncio.to_thread(service.start)
    return {
        "kafka": {"bootstrap": broker.bootstrap, "security_protocol": "PLAINTEXT", "replication": 1},
        "redis": {"url": redis.url},
    }


def private_link(stack: AsyncExitStack) -> dict[str, dict[str, Any]]:
    """Return settings for a worker link that only this user can reach, and that collides with no other run."""
    # A socket's path has about 100 bytes, which a run directory may well exceed.
    directory = tempfile.mkdtemp(prefix="tapewire-", dir=None if len(tempfile.gettempdir()) < 60 else "/tmp")  # noqa: S108 - mkdtemp makes a private directory in it
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    return {"link": {"address": f"ipc://{directory}/link", "keys": None}}


def with_values(settings: Settings, values: dict[str, dict[str, Any]]) -> Settings:
    """Return the settings with some values replaced."""
    merged = {name: getattr(settings, name).model_copy(update=values.get(name, {})) for name in Settings.model_fields}
    return Settings(**merged)


def local_stages(settings: Settings, run_dir: Path, workers: int) -> list[list[ChildSpec]]:
    """Write the children's configuration and return the scheduler and its workers, in the order they stop.

    The children read that file alone: our environment has its part in it already, and would otherwise win over it.
    """
    config = run_dir / CONFIG_FILE
    config.unlink(missing_ok=True)
    # Passwords are in it.
    with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(dump_toml(as_values(settings, secrets=True)))
    environ = {name: value for name, value in os.environ.items() if not name.upper().startswith(ENV_PREFIX)}

    def spec(name: str, stop_seconds: float, *arguments: str) -> ChildSpec:
        return ChildSpec(
            name=name,
            argv=tapewire_argv(*arguments, "--config", str(config)),
            log_path=run_dir / f"{name}.log",
            stop_seconds=stop_seconds,
            environ=environ,
        )

    drain_seconds = min(settings.scheduler.drain_seconds + 1.0, MOST_SCHEDULER_SECONDS)
    names = [f"worker-{number}" for number in range(1, workers + 1)]
    return [
        [spec("scheduler", drain_seconds, "scheduler")],
        [spec(name, WORKER_STOP_SECONDS, "worker", "--id", name) for name in names],
    ]


def worker_state(child: Child) -> tuple[str, str]:
    """Return what a worker says it is doing, from the events in its log: a state and a detail."""
    for line in reversed(child.log_lines(this_life=True)):
        if '"worker_state"' in line:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            return str(event.get("state", "")), str(event.get("detail", ""))
    return "", ""
