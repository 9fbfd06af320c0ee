"""The processes under test, and a supervisor that a fault can lay its hands on: kill, pause, end, start again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from ops.child import TetheredProcess
from tests.chaos.broker import ROOT

RESTART_SECONDS = 0.5
"""What ended by itself is started again after this, as ``tapewire up`` or a container platform would do."""
LOOK_SECONDS = 0.05
STOP_SECONDS = 20.0
"""From SIGTERM to SIGKILL; a clean stop has its drain time and a few seconds for Kafka."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """A process that ended without being told to.

    Args:
        at_ns: wall clock, nanoseconds since the epoch.
        last_line: the end of its log.
    """

    name: str
    code: int
    at_ns: int
    last_line: str


@dataclass(kw_only=True)
class Managed:
    """One process and what the bench wants of it."""

    name: str
    kind: str
    command: list[str]
    log: Path
    wanted: bool = False
    starts: int = 0
    child: TetheredProcess | None = None
    lives: list[tuple[int, int]] = field(default_factory=list)
    """Process id and wall-clock time (ns) of each start."""

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self.child.pid if self.child is not None and self.child.returncode is None else None

    def start(self) -> None:
        """Start it and keep it running."""
        self.wanted = True
        if self.pid is None:
            self.child = TetheredProcess(self.command, ROOT, self.log)
            self.starts += 1
            self.lives.append((self.child.pid, time.time_ns()))

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False when it does not run."""
        pid = self.pid
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def kill(self) -> bool:
        """End it with SIGKILL, not to be started again until `start`; False when it does not run."""
        self.wanted = False
        return self.signal(signal.SIGKILL)

    async def terminate(self, seconds: float = STOP_SECONDS) -> bool:
        """End it with SIGTERM; False when it had to be killed."""
        self.wanted = False
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while self.pid is not None:
            if time.monotonic() > deadline:
                self.signal(signal.SIGCONT)
                self.signal(signal.SIGKILL)
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    def last_line(self) -> str:
        """Return the last line of its log."""
        with contextlib.suppress(OSError, IndexError):
            return self.log.read_bytes()[-4096:].decode(errors="replace").strip().splitlines()[-1]
        return ""


class Fleet:
    """All of them; `watch` starts again what ends by itself, and remembers that it did."""

    def __init__(self) -> None:
        self._managed: dict[str, Managed] = {}
        self.exits: list[Exit] = []

    def add(self, managed: Managed) -> None:
        """Take a process; it is not started."""
        self._managed[managed.name] = managed

    def __getitem__(self, name: str) -> Managed:
        return self._managed[name]

    @property
    def all(self) -> list[Managed]:
        """Every process, running or not."""
        return list(self._managed.values())

    async def watch(self) -> None:
        """Start again what ends by itself, until cancelled."""
        due: dict[str, float] = {}
        while True:
            for managed in self.all:
                if not managed.wanted or managed.pid is not None or managed.child is None:
                    due.pop(managed.name, None)
                elif managed.name not in due:
                    code = managed.child.returncode
                    self.exits.append(
                        Exit(
                            name=managed.name,
                            code=-1 if code is None else code,
                            at_ns=time.time_ns(),
                            last_line=managed.last_line(),
                        )
                    )
                    due[managed.name] = time.monotonic() + RESTART_SECONDS
                elif time.monotonic() >= due[managed.name]:
                    del due[managed.name]
                    managed.start()
            await asyncio.sleep(LOOK_SECONDS)

    async def stop(self) -> list[str]:
        """End schedulers first, then workers; returns the names of those that had to be killed."""
        killed: list[str] = []
        for kind in ("scheduler", "worker"):
            group = [managed for managed in self.all if managed.kind == kind]
            for managed in group:
                managed.signal(signal.SIGCONT)
            ended = await asyncio.gather(*(managed.terminate() for managed in group))
            killed += [managed.name for managed, clean in zip(group, ended, strict=True) if not clean]
        return killed

    def kill(self) -> None:
        """End everything at once."""
        for managed in self.all:
            managed.signal(signal.SIGCONT)
            managed.kill()
