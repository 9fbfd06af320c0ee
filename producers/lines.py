"""Reads the lines of a file or of standard input, off the event loop and in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from schemas.errors import ConfigError

STDIN = "-"
CHUNK_BYTES = 256 * 1024
"""Bytes per read; some hundred events, so that handing chunks between threads costs next to nothing per event."""
BOM = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """One line, or the news that it was too long.

    Args:
        number: from 1.
        data: without the line feed; empty when the line was too long.
        size: bytes that the line had, without the line feed.
    """

    number: int
    data: bytes
    size: int


class LineSplitter:
    """Cuts chunks into lines and never holds more of a line than its limit.

    Args:
        max_bytes: a longer line is measured and thrown away.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._number = 0
        self._held = bytearray()
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """Take the next bytes of the stream; yield the lines that end in them."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._take(chunk[start:end])
            yield self._cut()
            start = end + 1
        self._take(chunk[start:])

    def end(self) -> Iterator[Line]:
        """Yield the last line if the stream did not end with a line feed."""
        if self._size:
            yield self._cut()

    def _take(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._max:
            self._held += part
        else:
            self._held.clear()

    def _cut(self) -> Line:
        self._number += 1
        data = bytes(self._held)
        if self._number == 1:
            data = data.removeprefix(BOM)
        line = Line(self._number, data, self._size)
        self._held.clear()
        self._size = 0
        return line


class LineReader:
    """The lines of a file or of standard input as an async iterator; an async context manager.

    A thread of its own does the reading, because a pipe may stay silent for hours and the event loop must go on.
    The thread is a daemon that uses the bare descriptor: a read that never returns must not hold up the exit of the
    process, and Python's own buffered stdin would, with a lock that the exit waits for.

    Args:
        path: file, or ``-`` for standard input.
        max_bytes: see `LineSplitter`.
        stop: ends the iteration, a wait for a silent pipe included.

    Raises:
        ConfigError: the file cannot be opened or read.
    """

    def __init__(self, path: str | Path, *, max_bytes: int, stop: asyncio.Event) -> None:
        self._path = str(path)
        self._stop = stop
        self._splitter = LineSplitter(max_bytes)
        self._wanted: queue.SimpleQueue[asyncio.Future[bytes] | None] = queue.SimpleQueue()
        self._file = -1

    async def __aenter__(self) -> Self:
        """Open the file and start to read."""
        try:
            self._file = os.dup(0) if self._path == STDIN else os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._unreadable(error) from None
        threading.Thread(target=self._read, name="tapewire-lines", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the thread close the file; it may still be in a read, so this does not wait for it."""
        self._wanted.put(None)

    async def __aiter__(self) -> AsyncIterator[Line]:
        """Yield every line, an unfinished last one included."""
        stopped = asyncio.create_task(_until(self._stop))
        try:
            while chunk := await self._chunk(stopped):
                for line in self._splitter.feed(chunk):
                    yield line
            if not self._stop.is_set():
                for line in self._splitter.end():
                    yield line
        finally:
            stopped.cancel()

    async def _chunk(self, stopped: asyncio.Task[None]) -> bytes:
        """Return the next bytes; none at the end of the stream or after a stop."""
        read: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._wanted.put(read)
        waiters: set[asyncio.Future[Any]] = {read, stopped}
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        if not read.done():
            read.cancel()
            return b""
        try:
            return read.result()
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> ConfigError:
        return ConfigError("path", f"{self._path}: {error.strerror or error}")

    def _read(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            # The loop is gone when the process exits while a pipe is silent: then nobody waits for the answer.
            with contextlib.suppress(RuntimeError):
                try:
                    chunk = os.read(self._file, CHUNK_BYTES)
                except OSError as error:
                    wanted.get_loop().call_soon_threadsafe(_fail, wanted, error)
                else:
                    wanted.get_loop().call_soon_threadsafe(_resolve, wanted, chunk)
        os.close(self._file)


async def _until(event: asyncio.Event) -> None:
    await event.wait()


def _resolve(future: asyncio.Future[bytes], chunk: bytes) -> None:
    if not future.done():
        future.set_result(chunk)


def _fail(future: asyncio.Future[bytes], error: OSError) -> None:
    if not future.done():
        future.set_exception(error)
