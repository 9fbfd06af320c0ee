"""A scheduler's end of the link, bare: a ROUTER socket that a test drives frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import zmq
import zmq.asyncio

from schemas.frames import FromWorker, Hello, Request, ToWorker, Welcome, decode_from_worker, encode_frame, pack_tokens
from schemas.settings import LinkSettings, WorkerSettings
from workers.engine import WorkerState
from workers.process import serve

PATIENCE = 20.0
"""Seconds after which a test stops waiting for something that will not come."""

T = TypeVar("T")


class FakeScheduler:
    """Binds the link's address and speaks the protocol only as far as a test tells it to."""

    def __init__(self, address: str) -> None:
        self._context = zmq.asyncio.Context()
        self._socket: Any = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self.identity = b""

    def send(self, frame: ToWorker) -> None:
        """Send to the worker heard last."""
        self._socket.send_multipart([self.identity, encode_frame(frame)])

    def send_raw(self, data: bytes) -> None:
        """Send bytes that need not be a frame."""
        self._socket.send_multipart([self.identity, data])

    async def receive(self, patience: float = PATIENCE) -> FromWorker:
        """Return the next frame of any kind."""
        async with asyncio.timeout(patience):
            self.identity, raw = await self._socket.recv_multipart()
        return decode_from_worker(raw)

    async def expect(self, kind: type[T], patience: float = PATIENCE) -> T:
        """Return the next frame of this kind, passing over others."""
        async with asyncio.timeout(patience):
            while True:
                frame = await self.receive(patience)
                if isinstance(frame, kind):
                    return frame

    async def welcome(self, session: str, patience: float = PATIENCE) -> Hello:
        """Wait for a hello and welcome the worker."""
        hello = await self.expect(Hello, patience)
        self.send(Welcome(session=session, heartbeat_seconds=0.05))
        return hello

    def welcome_again(self, session: str) -> None:
        """Welcome the worker that is already known, without being asked."""
        self.send(Welcome(session=session, heartbeat_seconds=0.05))

    def close(self) -> None:
        """Vanish without a word."""
        self._socket.close(linger=0)
        self._context.term()


def make_request(request_id: int, text: list[int] | None = None, extractor: str = "headline") -> Request:
    """Build a request with arbitrary text tokens."""
    return Request(
        request_id=request_id,
        text_tokens=pack_tokens(text or [40, 41, 42]),
        service_class="flash",
        priority=0,
        deadline_ns=2**62,
        extractor=extractor,
    )


INSTANT = WorkerSettings(engine="sim", id="worker-1", sim_step_ms=0, sim_prefill_token_us=0, sim_decode_us=0)
"""Every request is answered in the turn in which it comes."""
STUCK = WorkerSettings(engine="sim", id="worker-1", sim_step_ms=3_600_000)
"""No request is answered within a test."""
BRIEF = WorkerSettings(engine="sim", id="worker-1", sim_step_ms=50)
"""A request takes a noticeable moment."""


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Return an address on this host that is free."""
    return f"ipc://{tmp_path}/link"


@pytest.fixture
def link(address: str) -> LinkSettings:
    """Return a link with a quick heartbeat."""
    return LinkSettings(address=address, heartbeat_seconds=0.05, dead_after_seconds=5)


@pytest.fixture
async def scheduler(address: str) -> AsyncIterator[FakeScheduler]:
    """Bind a scheduler to the address."""
    fake = FakeScheduler(address)
    yield fake
    fake.close()


class RunningWorker:
    """A worker that runs in this process, its stop event and the states it told."""

    def __init__(self, settings: WorkerSettings, link: LinkSettings) -> None:
        self.stop = asyncio.Event()
        self.states: list[str] = []
        self._reached = {state: asyncio.Event() for state in WorkerState}
        self.task = asyncio.create_task(serve(settings, link, self.stop, self._on_state))

    def _on_state(self, state: WorkerState, _detail: str) -> None:
        self.states.append(state.value)
        self._reached[state].set()

    async def reached(self, state: WorkerState) -> None:
        """Wait until the worker has told this state."""
        await asyncio.wait_for(self._reached[state].wait(), PATIENCE)

    async def ended(self) -> None:
        """Wait for the worker's end; raises what it raised."""
        await asyncio.wait_for(self.task, PATIENCE)


@pytest.fixture
async def start_worker(link: LinkSettings) -> AsyncIterator[Callable[..., RunningWorker]]:
    """Start workers on the link, with other time limits if given; what still runs at the end is cancelled."""
    async with AsyncExitStack() as stack:

        def start(settings: WorkerSettings, **limits: float) -> RunningWorker:
            worker = RunningWorker(settings, link.model_copy(update=limits))

            async def end() -> None:
                worker.task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await worker.task

            stack.push_async_callback(end)
            return worker

        yield start
