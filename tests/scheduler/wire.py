"""The link without sockets: frames that take a while, in order, until a connection breaks and loses those under way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import cast

from scheduler.link_events import LinkEvents
from scheduler.peers import Peers
from schemas.frames import FromWorker, Request, StepPolicy, ToWorker, decode_from_worker, encode_frame
from schemas.settings import LinkSettings
from workers.link import WorkerLink as RealWorkerLink

MOST_LATENCY = 0.02
TICK_SECONDS = 0.25


class Pipe:
    """One direction of one connection."""

    def __init__(self, rng: random.Random, deliver: Callable[[bytes], None]) -> None:
        self._rng = rng
        self._deliver = deliver
        self._last = 0.0
        self.broken = False

    def put(self, raw: bytes) -> None:
        """Deliver after a moment, unless the connection breaks before."""
        loop = asyncio.get_running_loop()
        self._last = max(self._last, loop.time() + self._rng.uniform(0, MOST_LATENCY))
        loop.call_at(self._last, self._arrive, raw)

    def _arrive(self, raw: bytes) -> None:
        if not self.broken:
            self._deliver(raw)


class Hub:
    """Where the workers of one test connect; the scheduler behind it may change."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.scheduler: WireLink | None = None
        self.workers: list[WireWorkerLink] = []

    def replace(self, scheduler: WireLink | None) -> None:
        """Put another scheduler behind the address, or none; all connections break."""
        for worker in self.workers:
            worker.cut()
        self.scheduler = scheduler


class WireLink:
    """Stands in for `scheduler.link.WorkerLink`: the same `Peers`, this wire for its socket."""

    def __init__(self, hub: Hub, settings: LinkSettings, session: str, events: LinkEvents) -> None:
        self._pipes: dict[bytes, Pipe] = {}
        self._loop = asyncio.get_running_loop()
        self._peers = Peers(settings, session, events, self._send, self._loop.time)
        self._ticks = self._loop.create_task(self._tick())
        hub.replace(self)

    def connected(self, identity: bytes, pipe: Pipe | None) -> None:
        """Note that a worker has a connection, or none any more."""
        if pipe is None:
            self._pipes.pop(identity, None)
            self._loop.call_soon(self._peers.look)
        else:
            self._pipes[identity] = pipe

    def take(self, identity: bytes, raw: bytes) -> None:
        """Hear a frame."""
        self._peers.take(identity, decode_from_worker(raw))

    def send_requests(self, worker_id: str, requests: list[Request], policy: StepPolicy | None) -> None:
        """See `scheduler.link.WorkerLink`."""
        self._peers.send_requests(worker_id, requests, policy)

    def send_abort(self, worker_id: str, request_ids: list[int]) -> None:
        """See `scheduler.link.WorkerLink`."""
        self._peers.send_abort(worker_id, request_ids)

    def close(self) -> None:
        """Stop the clock."""
        self._ticks.cancel()

    def _send(self, identity: bytes, frame: ToWorker) -> bool:
        pipe = self._pipes.get(identity)
        if pipe is not None:
            pipe.put(encode_frame(frame))
        return pipe is not None

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._peers.tick()


class WireWorkerLink:
    """Stands in for `workers.link.WorkerLink`: keeps what is sent while there is no connection, as a DEALER does."""

    def __init__(self, hub: Hub, identity: bytes) -> None:
        self.connected = False
        self._hub = hub
        self._identity = identity
        self._inbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._changes: asyncio.Queue[bool] = asyncio.Queue()
        self._waiting: list[bytes] = []
        self._up: Pipe | None = None
        self._down: Pipe | None = None
        self._closed = False
        hub.workers.append(self)

    def as_link(self) -> RealWorkerLink:
        """Return it as what `Worker` takes."""
        return cast("RealWorkerLink", self)

    def connect(self) -> None:
        """Connect as soon as somebody listens, and again after each cut."""
        hub = self._hub
        if self._closed:
            return
        scheduler = hub.scheduler
        if scheduler is None:
            asyncio.get_running_loop().call_later(hub.rng.uniform(0.1, 0.4), self.connect)
            return
        self._up = Pipe(hub.rng, lambda raw: scheduler.take(self._identity, raw))
        self._down = Pipe(hub.rng, self._inbox.put_nowait)
        scheduler.connected(self._identity, self._down)
        self.connected = True
        self._changes.put_nowait(True)
        for raw in self._waiting:
            self._up.put(raw)
        self._waiting.clear()

    def cut(self, seconds: float | None = None) -> None:
        """Break the connection, with what is under way in it; it is back after so many seconds."""
        if not self.connected:
            return
        assert self._up is not None
        assert self._down is not None
        self._up.broken = self._down.broken = True
        self.connected = False
        self._changes.put_nowait(False)
        if self._hub.scheduler is not None:
            self._hub.scheduler.connected(self._identity, None)
        loop = asyncio.get_running_loop()
        loop.call_later(self._hub.rng.uniform(0.1, 0.4) if seconds is None else seconds, self.connect)

    def send(self, frame: FromWorker) -> None:
        """See `workers.link.WorkerLink`."""
        raw = encode_frame(frame)
        if self.connected and self._up is not None:
            self._up.put(raw)
        else:
            self._waiting.append(raw)

    async def receive(self) -> bytes:
        """See `workers.link.WorkerLink`."""
        return await self._inbox.get()

    async def changes(self) -> AsyncIterator[bool]:
        """See `workers.link.WorkerLink`."""
        while True:
            yield await self._changes.get()

    def vanish(self) -> None:
        """Lose the connection for good, as a killed process does."""
        self.cut()
        self._closed = True
        self._hub.workers.remove(self)
