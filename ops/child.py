"""A child process that never outlives us and that the terminal's Ctrl-C does not reach."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

KILL_SECONDS = 5.0
"""How long the kernel may take to end a child after SIGKILL."""

# Runs in a fresh interpreter between fork and exec. PR_SET_PDEATHSIG must be set in the child itself and survives
# exec; a preexec_fn would do it in a copy of our threaded process, where taking any lock can hang for ever. The check
# of the parent closes the gap: if we died before prctl, the signal will never come.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class TetheredProcess:
    """One child process, forked and waited for by a thread of its own.

    Linux sends the parent-death signal when the *thread* that forked ends, so the fork must not happen on a caller's
    thread that may come from a pool. This thread lives exactly as long as the child does. (Elsewhere than on Linux a
    child survives kill -9 of its parent.)

    Args:
        command: program and arguments.
        cwd: working directory.
        log: file that its stdout and stderr are appended to.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: list[str], cwd: Path, log: Path) -> None:
        self._command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
        self._cwd = cwd
        self._log = log
        self._forked = threading.Event()
        self._exited = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._error: OSError | None = None
        threading.Thread(target=self._guard, name=f"guard-{Path(command[0]).name}", daemon=True).start()
        self._forked.wait()
        if self._error is not None:
            raise self._error

    def _guard(self) -> None:
        try:
            with self._log.open("ab") as log:
                # A session of its own: the terminal's Ctrl-C must not reach the broker before we have drained into it.
                self._process = subprocess.Popen(
                    self._command,
                    cwd=self._cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            self._error = error
            self._exited.set()
        finally:
            self._forked.set()
        if self._process is not None:
            self._process.wait()
            self._exited.set()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None  # noqa: S101 - a child without one has raised in its constructor
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status once the child is gone; none while it runs."""
        if sys.platform == "linux" and not self._exited.is_set():
            # The guard may not have run yet since the child ended; ask the kernel, and leave the reaping to the guard.
            try:
                gone = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            except ChildProcessError:
                gone = True
            if gone:
                self._exited.wait(KILL_SECONDS)
        return self._process.returncode if self._process is not None and self._exited.is_set() else None

    def end(self, grace_seconds: float) -> None:
        """Send SIGTERM, wait up to ``grace_seconds`` seconds, then SIGKILL."""
        for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, KILL_SECONDS)):
            if self._exited.is_set():
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if self._exited.wait(seconds):
                return
