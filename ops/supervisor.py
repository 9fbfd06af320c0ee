"""Child processes of one machine: started, restarted with backoff when they crash, stopped in order, never orphaned."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from ops.runtime import EXIT_DECISION, EXIT_USER, MESSAGE_PREFIX
from ops.text import visible
from schemas.errors import TapewireError, UnavailableError

PARENT_VARIABLE = "TAPEWIRE_DIE_WITH"
"""Environment variable that names the process id a child must not outlive."""
PR_SET_PDEATHSIG = 1
"""From ``sys/prctl.h``: the signal that the kernel sends when the parent dies."""

STOP_SECONDS = 6.5
"""For all stages together: Ctrl-C ends within ten seconds, and embedded services need their part of them."""
LEAST_STOP_SECONDS = 1.0
"""What a later stage gets even when an earlier one has used up the time."""

EXIT_NOT_STARTED = 127
"""As a shell has it for a command that cannot be started."""

SHOWN_LOG_LINES = 12
"""Lines of a child's log that an error about it shows."""
SHOWN_REASON_CHARS = 300
SEEN_LOG_BYTES = 16_384
"""How much of the end of a child's log is looked at."""

log = structlog.get_logger()


class ChildRefusedError(UnavailableError):
    """A child would not start as it is configured; the message is the child's own."""

    def __init__(self, name: str, message: str) -> None:
        self.message = message
        super().__init__(name, "", message)

    def __str__(self) -> str:
        return self.message


class ChildError(TapewireError):
    """A child process could not be kept running.

    Args:
        name: of the child.
        reason: what happened.
        log_tail: the last lines that it wrote.
    """

    def __init__(self, name: str, reason: str, log_tail: str) -> None:
        self.name = name
        self.reason = reason
        self.log_tail = log_tail
        super().__init__(f"{name} {reason}" + (f"\n{log_tail}" if log_tail else ""))


@dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """Waiting time before a restart: doubles with every crash, and starts anew after a healthy time.

    Args:
        first, longest: seconds. A worker takes about a second to start beside that, and its work should run again
            within three.
        healthy_after: seconds of life after which a crash counts as the first.
        give_up_after: crashes in a row after which the child is given up; 0 means never.
    """

    first: float = 0.25
    longest: float = 30.0
    healthy_after: float = 60.0
    give_up_after: int = 0

    def delay(self, crashes: int) -> float:
        """Seconds to wait after this many crashes in a row."""
        return min(self.longest, self.first * 2.0 ** min(crashes - 1, 32))


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildSpec:
    """One child process.

    Args:
        name: for messages and the log file.
        argv: program and arguments.
        log_path: file that its stdout and stderr are appended to.
        stop_seconds: from SIGTERM to SIGKILL.
        environ: its whole environment; ours when empty.
    """

    name: str
    argv: Sequence[str]
    log_path: Path
    stop_seconds: float
    environ: Mapping[str, str] = field(default_factory=dict)


def tapewire_argv(*arguments: str) -> list[str]:
    """Return the command line of the ``tapewire`` command in this very interpreter."""
    return [sys.executable, "-m", "ops", *arguments]


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the supervising process dies; for a child to call as its first act.

    SIGTERM and not SIGKILL: a worker has an engine process of its own to take along. Done in the child and not
    between fork and exec, where Python code can deadlock in a process with threads.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent.isdigit() or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(0)  # it died before we asked


class Child:
    """One supervised process; `keep_running` is its life."""

    def __init__(self, spec: ChildSpec, backoff: Backoff) -> None:
        self.spec = spec
        self.starts = 0
        self.waits = ""
        """While it is down after a crash: what happened, and when it is started again."""
        self._backoff = backoff
        self._process: asyncio.subprocess.Process | None = None
        self._log_begin = 0
        self._stopping = asyncio.Event()
        self._gone = asyncio.Event()
        self._gone.set()

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP, a debugger): it lives, and does nothing until SIGCONT."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
        except (OSError, IndexError):
            return False

    async def keep_running(self) -> None:
        """Start the process again whenever it ends, until `stop` is called.

        Raises:
            ChildRefusedError: it refused its configuration at the first start (exit code 2), or a person must decide
                how it goes on (exit code 3).
            ChildError: it crashed too often.
        """
        crashes = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            how, code = await self._run_once()
            if self._stopping.is_set():
                return
            if code == EXIT_DECISION or (code == EXIT_USER and self.starts == 1):
                raise ChildRefusedError(self.spec.name, self._last_message())
            crashes = 1 if time.monotonic() - began >= self._backoff.healthy_after else crashes + 1
            if self._backoff.give_up_after and crashes >= self._backoff.give_up_after:
                raise ChildError(self.spec.name, f"ended {crashes} times, last {how}", self.log_tail())
            delay = self._backoff.delay(crashes)
            reason = self._reason()
            told = {"reason": reason} if reason else {}
            log.warning("child_ended", child=self.spec.name, how=how, crashes=crashes, restart_in_seconds=delay, **told)
            self.waits = f"ended {how}, {crashes} in a row, starts again after {delay:g} s"
            if reason:
                self.waits += f": {reason}"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
            self.waits = ""

    async def _run_once(self) -> tuple[str, int]:
        """Start the process and wait for its end; returns how it ended, in words and as an exit code."""
        self._gone.clear()
        try:
            code = await self._live()
        except OSError as error:
            # No memory or no process slots for a moment is no reason to end everything else.
            return f"before it ran: {error}", EXIT_NOT_STARTED
        finally:
            self._gone.set()
        return _how(code), code

    async def _live(self) -> int:
        environ = {**(self.spec.environ or os.environ), PARENT_VARIABLE: str(os.getpid())}
        self.spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log_path.open("ab") as out:
            self._log_begin = out.tell()
            # A session of its own: Ctrl-C in the terminal reaches us alone, and we stop the children in order.
            process = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environ,
                start_new_session=True,
            )
        self._process = process
        self.starts += 1
        log.info("child_started", child=self.spec.name, pid=process.pid)
        if self._stopping.is_set():  # `stop` came while it was being made, and found nothing to signal
            self._signal(signal.SIGKILL)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                self._signal(signal.SIGKILL)
                await process.wait()
            # An engine process that its worker left behind would hold memory and cores.
            _kill_group(process.pid)

    async def stop(self, most_seconds: float = math.inf) -> None:
        """Send SIGTERM, wait, then SIGKILL; returns when the process is gone.

        Args:
            most_seconds: bounds the wait where it is shorter than the child's own ``stop_seconds``.
        """
        seconds = min(self.spec.stop_seconds, most_seconds)
        self._stopping.set()
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        except TimeoutError:
            log.warning("child_killed", child=self.spec.name, after_seconds=round(seconds, 1))
            if (pid := self.pid) is not None:
                _kill_group(pid)
            await self._gone.wait()

    def _signal(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            # Not Popen.send_signal: it polls first, and may reap the child before asyncio has seen its status.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def log_lines(self, *, this_life: bool = False) -> list[str]:
        """Return the last lines that the child wrote, or those of them since its last start."""
        try:
            with self.spec.log_path.open("rb") as written:
                size = written.seek(0, os.SEEK_END)
                written.seek(max(self._log_begin if this_life else 0, size - SEEN_LOG_BYTES))
                return written.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []

    def log_tail(self) -> str:
        """Return the end of the child's log, for an error about it."""
        return "\n".join(f"  {line}" for line in self.log_lines()[-SHOWN_LOG_LINES:])

    def _reason(self) -> str:
        """Return the first line of what this life said to people before it ended; empty when it was killed."""
        said = [line for line in self.log_lines(this_life=True) if line.startswith(MESSAGE_PREFIX)]
        return visible(said[-1].removeprefix(MESSAGE_PREFIX)[:SHOWN_REASON_CHARS]) if said else ""

    def _last_message(self) -> str:
        """Return what the child said to people before it ended: the command writes that last."""
        lines = self.log_lines()
        starts = [index for index, line in enumerate(lines) if line.startswith(MESSAGE_PREFIX)]
        if not starts:
            return f"{self.spec.name} could not start\n{self.log_tail()}"
        return "\n".join(lines[starts[-1] :]).removeprefix(MESSAGE_PREFIX)


class Supervisor:
    """Several children: all start at once, and stop one stage after the other.

    The scheduler is the first stage and its workers the second: while it drains it still needs them.
    """

    def __init__(self, stages: Sequence[Sequence[ChildSpec]], backoff: Backoff | None = None) -> None:
        self.stages = [[Child(spec, backoff or Backoff()) for spec in specs] for specs in stages]

    @property
    def children(self) -> list[Child]:
        """All children, in the order they are stopped."""
        return [child for stage in self.stages for child in stage]

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Keep all children running until cancelled; then, and on the first failure, stop them all.

        Raises:
            ChildError: a child could not be kept running.
        """
        lives = [asyncio.create_task(child.keep_running(), name=child.spec.name) for child in self.children]
        try:
            if ready is not None:
                ready()
            # Not gather: its cancellation would cancel the lives, which kills the processes instead of draining them.
            done, _ = await asyncio.wait(lives, return_when=asyncio.FIRST_EXCEPTION)
            for life in done:
                life.result()
        finally:
            try:
                deadline = time.monotonic() + STOP_SECONDS
                for stage in self.stages:
                    left = max(LEAST_STOP_SECONDS, deadline - time.monotonic())
                    await asyncio.gather(*(child.stop(left) for child in stage))
            finally:
                # Reached at once when a second signal cancels the wait: each life kills its process as it ends.
                for life in lives:
                    life.cancel()
                await asyncio.gather(*lives, return_exceptions=True)


def _how(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
