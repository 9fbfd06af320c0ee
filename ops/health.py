"""Health checks for containers: ``python -m ops.health scheduler|worker`` exits 0 when the service in it works.

A scheduler is healthy when it serves its metrics; a worker when a scheduler counts it among its workers.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import urllib.request
from pathlib import Path

import msgspec
import redis

from ops.config import Settings, load
from schemas.errors import TapewireError
from schemas.status import STOPPED_BY_DEAD_LETTERS, STOPPED_MEND, STOPPED_METRIC, SchedulerStatus
from schemas.topics import Topics

CONFIG_VARIABLE = "TAPEWIRE_CONFIG"
"""Path of the configuration file that the service in this container runs with."""
TIMEOUT_SECONDS = 3.0


class UnhealthyError(TapewireError):
    """The service does not do its work."""


def check_scheduler(settings: Settings) -> str:
    """Return what there is to say about the scheduler in this container.

    The metrics port is bound once Kafka was reached, and is served by the process itself. A scheduler that dead letters
    have stopped counts as healthy: who restarts what is not would feed it the next thousand events.

    Raises:
        UnhealthyError: it does not serve its metrics.
    """
    port = settings.scheduler.metrics_port
    if not port:
        raise UnhealthyError("scheduler.metrics_port is 0, so there is nothing to ask")
    host = settings.scheduler.metrics_host
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=TIMEOUT_SECONDS) as answer:
            stopped = f"\n{STOPPED_METRIC} 1.0\n".encode() in answer.read()
    except OSError as error:
        raise UnhealthyError(f"no metrics at {host}:{port}: {error}") from None
    return f"{STOPPED_BY_DEAD_LETTERS}: {STOPPED_MEND}" if stopped else "serves its metrics"


def check_worker(settings: Settings, host: str) -> None:
    """Raise UnhealthyError unless a live scheduler knows this container's worker.

    Args:
        settings: names Redis, the topic prefix and, if it has one, the worker.
        host: this container's name; an unnamed worker's id begins with it.
    """
    own = settings.worker.id
    start = re.sub(r"[^A-Za-z0-9.-]", "-", host)[:32] + "-"
    pattern = Topics(prefix=settings.kafka.topic_prefix).status_key("*")
    known: list[str] = []
    try:
        with redis.Redis.from_url(settings.redis.url, socket_timeout=TIMEOUT_SECONDS) as client:
            # A status expires when its scheduler dies, so one that is there is of a live scheduler.
            for key in client.scan_iter(match=pattern, count=1000):
                if (value := client.get(key)) is not None:
                    known += [w.worker_id for w in msgspec.json.decode(value, type=SchedulerStatus).workers]
    except (redis.RedisError, msgspec.MsgspecError) as error:
        raise UnhealthyError(f"no status in Redis: {error}") from None
    if not any(name == own if own else name.startswith(start) for name in known):
        raise UnhealthyError(f"no scheduler has worker {own or start}; known: {', '.join(known) or 'none'}")


def main(arguments: list[str]) -> int:
    """Run one check; returns the exit code that a container engine expects: 0 or 1."""
    try:
        path = os.environ.get(CONFIG_VARIABLE)
        settings = load(Path(path) if path else None)
        if arguments == ["scheduler"]:
            print(check_scheduler(settings))  # noqa: T201 - the container engine keeps what a check prints
        elif arguments == ["worker"]:
            check_worker(settings, socket.gethostname())
        else:
            raise UnhealthyError("say which: scheduler or worker")
    except TapewireError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the container engine keeps what a check prints
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
