"""A worker's end of the link as a bare socket, and a scheduler that writes down what it hears."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import zmq
import zmq.asyncio

from scheduler.link import WorkerLink
from schemas import curve
from schemas.frames import (
    Abort,
    Failure,
    FromWorker,
    Hello,
    Result,
    Started,
    StepReport,
    TokenizerFile,
    ToWorker,
    Welcome,
    decode_to_worker,
    encode_frame,
)
from schemas.settings import LinkSettings
from tests.scheduler import make

WAIT_SECONDS = 20.0
"""A bound on waits that end by an event; reached only when something is broken."""
SESSION = "session-1"

_numbers = itertools.count()


class Dealer:
    """One DEALER socket."""

    def __init__(self, context: zmq.asyncio.Context, settings: LinkSettings, identity: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.set(zmq.IDENTITY, identity.encode())
        self._socket.set(zmq.LINGER, 0)
        curve.secure_worker(self._socket, settings)
        self._socket.connect(settings.address)

    async def send(self, *frames: FromWorker | bytes) -> None:
        """Send frames, or bytes as they are."""
        for frame in frames:
            await self._socket.send(frame if isinstance(frame, bytes) else encode_frame(frame))

    async def receive(self) -> ToWorker:
        """Return the next frame that says something; aborts of nothing only look for the connection."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                frame = decode_to_worker(await self._socket.recv())
                if not isinstance(frame, Abort) or frame.request_ids:
                    return frame

    async def introduce(self, hello: Hello) -> ToWorker:
        """Say hello again and again, as a worker does, until there is an answer; return it."""
        answer = asyncio.ensure_future(self.receive())
        while not answer.done():
            await self.send(hello)
            await asyncio.wait({answer}, timeout=0.05)
        return answer.result()

    async def expect(self, kind: type[Any]) -> Any:
        """Return the next frame, which must be of this kind."""
        frame = await self.receive()
        assert isinstance(frame, kind), frame
        return frame

    async def has_more(self, milliseconds: int = 50) -> bool:
        """Return whether anything else arrives within a moment."""
        return bool(await self._socket.poll(milliseconds))

    def close(self) -> None:
        """Vanish without a word."""
        self._socket.close()


class Heard:
    """Implements `scheduler.link.LinkEvents`: accepts as told and queues every call."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        self.refusal: str | None = None
        self.file_refusal: str | None = None
        self.wants_tokenizer = False
        self.fails = False
        self.unwanted: list[int] = []

    def accepts(self, hello: Hello) -> str | None:
        """Refuse with the reason that the test gave."""
        return self.refusal

    def needs_tokenizer(self, hello: Hello) -> bool:
        """Want a tokenizer until one came."""
        return self.wants_tokenizer

    def tokenizer_file(self, worker_id: str, file: TokenizerFile) -> str | None:
        """Take the file, or refuse it with the reason that the test gave."""
        self.calls.put_nowait(("tokenizer", worker_id, file.data))
        if self.file_refusal is None:
            self.wants_tokenizer = False
        return self.file_refusal

    def worker_joined(self, hello: Hello) -> None:
        """Write it down."""
        self.calls.put_nowait(("joined", hello.worker_id))

    def worker_away(self, worker_id: str) -> None:
        """Write it down."""
        self.calls.put_nowait(("away", worker_id))

    def worker_lost(self, worker_id: str) -> None:
        """Write it down."""
        self.calls.put_nowait(("lost", worker_id))

    def worker_back(self, worker_id: str) -> list[int]:
        """Write it down; aborts what the test said."""
        self.calls.put_nowait(("back", worker_id))
        return self.unwanted

    def heartbeat(self, worker_id: str, request_ids: list[int]) -> list[int]:
        """Write it down; aborts what the test said."""
        self.calls.put_nowait(("heartbeat", worker_id, request_ids))
        return self.unwanted

    def worker_left(self, worker_id: str, reason: str, *, died: bool) -> None:
        """Write it down."""
        self.calls.put_nowait(("left", worker_id, reason, died))

    def started(self, worker_id: str, started: list[Started]) -> None:
        """Write it down."""
        self.calls.put_nowait(("started", worker_id, [s.request_id for s in started]))

    def results(self, worker_id: str, results: list[Result]) -> None:
        """Write it down, or fail as a defect would."""
        if self.fails:
            raise ZeroDivisionError("a defect")
        self.calls.put_nowait(("results", worker_id, [r.request_id for r in results]))

    def failures(self, worker_id: str, failures: list[Failure]) -> None:
        """Write it down."""
        self.calls.put_nowait(("failures", worker_id, [f.request_id for f in failures]))

    def steps(self, worker_id: str, report: StepReport) -> None:
        """Write it down."""
        self.calls.put_nowait(("steps", worker_id, report.steps))

    async def until(self, what: str) -> tuple[Any, ...]:
        """Return the next call of this kind, passing over others."""
        while (call := await self.next())[0] != what:
            pass
        return call

    async def next(self) -> tuple[Any, ...]:
        """Return the next call."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.calls.get()


class Bench:
    """A link, what it told, and sockets to talk to it."""

    def __init__(self, settings: LinkSettings) -> None:
        self.settings = settings
        self.heard = Heard()
        self.link = WorkerLink(settings, SESSION, self.heard)
        self._context = zmq.asyncio.Context()
        self._dealers: list[Dealer] = []

    def dealer(self, identity: str = "w1", settings: LinkSettings | None = None) -> Dealer:
        """Return a new socket under this identity."""
        dealer = Dealer(self._context, settings or self.settings, identity)
        self._dealers.append(dealer)
        return dealer

    async def welcomed(self, identity: str = "w1", **hello: Any) -> Dealer:
        """Return a socket that was greeted into the session."""
        dealer = self.dealer(identity)
        await dealer.send(make.hello(identity, **hello))
        await dealer.expect(Welcome)
        assert await self.heard.next() == ("joined", identity)
        return dealer

    def close(self) -> None:
        """Close everything."""
        for dealer in self._dealers:
            dealer.close()
        self.link.close()
        self._context.term()


def link_settings(**changed: Any) -> LinkSettings:
    """Return settings for a link of this test's own, whose workers never die by silence unless asked."""
    address = f"ipc://@tapewire-test-{os.getpid()}-{next(_numbers)}"
    return LinkSettings(**({"address": address, "heartbeat_seconds": 0.5, "dead_after_seconds": 60.0} | changed))


@asynccontextmanager
async def bench(**changed: Any) -> AsyncIterator[Bench]:
    """Give a link that listens."""
    one = Bench(link_settings(**changed))
    try:
        one.link.start()
        yield one
    finally:
        one.close()
