"""A real Apache Kafka of a test's own, which can be killed and comes back with what it had confirmed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LAUNCHER_VARIABLE = "TAPEWIRE_KAFKA_LAUNCHER"
"""Environment variable with the path of the program that starts and stops an Apache Kafka."""
ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 90.0
"""A JVM on two busy cores."""
QUICK_RETURN = ("--set", "broker.session.timeout.ms=3000", "--set", "broker.heartbeat.interval.ms=500")
"""A single node that comes back waits for its own old session to expire, nine seconds by default."""

EAGER_CLEANER = ("--set", "log.cleaner.backoff.ms=100")
"""A compacted topic is looked at every 15 s by default."""


def launcher() -> Path | None:
    """Return the program that starts an Apache Kafka, or none where there is no such thing."""
    named = os.environ.get(LAUNCHER_VARIABLE)
    path = Path(named) if named else ROOT.parent / "shared" / "kafka" / "kafka"
    return path.resolve() if path.is_file() else None


class OwnKafka:
    """One broker.

    Args:
        program: see `launcher`.
        data: directory of its logs.
    """

    def __init__(self, program: Path, data: Path) -> None:
        self._program = program
        self._data = data
        self.bootstrap = ""
        self.pid = 0

    def start(self) -> None:
        """Start it, or start it again with what it had, and return when it answers."""
        told = self._run("start", *QUICK_RETURN, *EAGER_CLEANER)
        self.bootstrap, self.pid = told["bootstrap"], told["pids"][0]

    @property
    def alive(self) -> bool:
        """Whether its process is there; one that has ended and not been waited for is not."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except (OSError, IndexError):
            return False

    def kill(self) -> None:
        """End it without letting it write anything, and return when it is gone: a busy kernel takes its time."""
        os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + START_SECONDS
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.01)

    def freeze(self) -> None:
        """Let it take connections and answer nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Kill it; nothing of the data is wanted any more."""
        self._run("stop", "--kill")

    def _run(self, verb: str, *arguments: str) -> dict[str, Any]:
        command = [sys.executable, str(self._program), verb, "--data", str(self._data), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
        assert not done.returncode, f"Kafka did not {verb}: {done.stderr or done.stdout}"
        try:
            told: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            return {}
        return told
