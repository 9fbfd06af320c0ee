"""The broker of a run: a real Apache Kafka of one or three nodes, or the embedded one with fewer faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from ops.embedded import EmbeddedKafka
from schemas.errors import TapewireError
from tests.chaos.plan import GROUP_FAULTS, FaultKind

LAUNCHER_VARIABLE = "TAPEWIRE_KAFKA_LAUNCHER"
"""Environment variable with the path of the program that starts and stops an Apache Kafka."""
ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0
"""A JVM on two cores that five other processes use as well."""


SESSION_MS = {1: 3000, 3: 5000}
"""``broker.session.timeout.ms`` by number of nodes; Kafka's default is 9000. A single node that comes back waits for
its own old session to expire. Of three, the dead one stays in sync until then, and no record of its partitions, which
are all of them, is confirmed: with the default, Kafka alone uses up the ten seconds that a stop may take."""
HEARTBEAT_MS = 500


class BenchError(TapewireError):
    """The bench itself cannot go on."""


class Broker(Protocol):
    """What a run does with its broker; every call blocks."""

    bootstrap: str
    name: str
    without: frozenset[FaultKind]

    def start(self) -> None:
        """Start every node that does not run, and return when all answer."""

    def pid(self, node: int) -> int:
        """Return the process id of a node, counted from 1."""

    def stop(self) -> None:
        """End every node."""


def launcher() -> Path | None:
    """Return the program that starts an Apache Kafka, or none where there is no such thing."""
    named = os.environ.get(LAUNCHER_VARIABLE)
    path = Path(named) if named else ROOT.parent / "shared" / "kafka" / "kafka"
    return path.resolve() if path.is_file() else None


class RealKafka:
    """An Apache Kafka that survives ``kill -9`` of its nodes.

    Args:
        program: see `launcher`.
        data: directory of its logs.
        nodes: brokers; three replicate threefold with two in sync.
    """

    without: frozenset[FaultKind] = frozenset()

    def __init__(self, program: Path, data: Path, nodes: int) -> None:
        self.bootstrap = ""
        self.name = f"Apache Kafka, {nodes} node{'s' if nodes > 1 else ''}"
        self._program = program
        self._data = data
        self._nodes = nodes
        self._pids: list[int] = []

    def start(self) -> None:
        """Start what does not run.

        Raises:
            BenchError: it did not come up.
        """
        told = self._run("start", "--nodes", str(self._nodes), *self._settings())
        self.bootstrap = told["bootstrap"]
        self._pids = told["pids"]

    def pid(self, node: int) -> int:
        """Return the process id of a node."""
        return self._pids[node - 1]

    def stop(self) -> None:
        """Kill every node: nothing of the data is wanted any more."""
        for pid in self._pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def stop_command(self) -> list[str]:
        """Return the command that kills every node, for whoever outlives the bench."""
        return [sys.executable, str(self._program), "stop", "--data", str(self._data), "--kill"]

    def _settings(self) -> list[str]:
        values = {"broker.session.timeout.ms": SESSION_MS[self._nodes], "broker.heartbeat.interval.ms": HEARTBEAT_MS}
        return [word for name, value in values.items() for word in ("--set", f"{name}={value}")]

    def _run(self, verb: str, *arguments: str) -> dict[str, Any]:
        command = [sys.executable, str(self._program), verb, "--data", str(self._data), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise BenchError(f"Kafka did not {verb} within {START_SECONDS:g} s") from None
        if done.returncode:
            raise BenchError(f"Kafka did not {verb}: {done.stderr.strip() or done.stdout.strip()}")
        told: dict[str, Any] = json.loads(done.stdout)
        return told


class StandIn:
    """The embedded broker: forgets at ``kill -9``, keeps killed members for over a minute, and settles no group of two.

    Raises:
        UnavailableError: its package is missing.
    """

    without = frozenset(set(GROUP_FAULTS) - {FaultKind.BROKER_SLOW})

    def __init__(self, data: Path) -> None:
        self._broker = EmbeddedKafka(data_dir=data)
        self.bootstrap = ""
        self.name = "embedded broker (no Apache Kafka here: the death of brokers and schedulers is NOT tested)"

    def start(self) -> None:
        """Start it."""
        self._broker.start()
        self.bootstrap = self._broker.bootstrap

    def pid(self, node: int) -> int:
        """Return its process id."""
        assert node == 1
        assert self._broker.pid is not None
        return self._broker.pid

    def stop(self) -> None:
        """End it."""
        self._broker.stop()
