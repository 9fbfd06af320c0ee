"""A TCP proxy that a test slows down, holds still or cuts."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes a close a reset: what the kernel still holds is thrown away, as by a router that dies."""


class Proxy:
    """Forwards bytes to one address; ``delay`` (seconds) is waited before each piece of a reply is passed on."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._target = host, port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.delay = 0.0
        self.flowing = asyncio.Event()
        """Cleared, replies are held back until it is set again."""
        self.flowing.set()
        self.connections = 0
        self.cuts = 0
        self.port = 0

    async def start(self) -> None:
        """Listen on a port of its own."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._host, self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, back}
        self.connections += 1  # not before it can be cut
        for source, sink, reply in ((reader, back, False), (there, writer, True)):
            task = asyncio.create_task(self._pump(source, sink, reply=reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, reply: bool) -> None:
        try:
            while data := await source.read(65_536):
                if reply:
                    await asyncio.sleep(self.delay)
                    await self.flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            self._writers.discard(sink)
            sink.close()

    def cut(self) -> None:
        """Break every connection in the middle of whatever it carries; one with none to break is not counted."""
        self.cuts += bool(self._writers)
        for writer in self._writers:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxy(host: str, port: int) -> AsyncIterator[Proxy]:
    """Give a proxy to this address."""
    one = Proxy(host, port)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()
