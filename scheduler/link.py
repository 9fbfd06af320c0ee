"""The scheduler's end of the worker link: the socket, its clock, and what its monitor sees.

The protocol is described in `schemas.frames`, and what follows from it in `scheduler.peers`.
"""

from __future__ import annotations

import asyncio
import time

import msgspec
import structlog
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator
from zmq.utils.monitor import recv_monitor_message

from scheduler.link_events import LinkEvents
from scheduler.peers import Peers
from schemas import curve
from schemas.errors import UnavailableError
from schemas.frames import Drain, Request, StepPolicy, ToWorker, decode_from_worker, encode_frame
from schemas.settings import LinkSettings

log = structlog.get_logger()

SEND_HIGH_WATER = 100_000
"""Frames that may wait for one slow worker. Budgets bound what is really in flight; this only must not be lower."""
LINGER_MS = 500
MOST_TICK_SECONDS = 0.25
"""Longest time between two looks at who is there."""
SETTLE_SECONDS = 0.02
"""From a monitor's event to our look: the socket hears of a lost connection a moment later than its monitor."""


class WorkerLink:
    """Binds the link and turns frames into calls of `LinkEvents`.

    Args:
        settings: address, keys and time limits.
        session: names this life of the scheduler.
        events: who wants to hear.
    """

    def __init__(self, settings: LinkSettings, session: str, events: LinkEvents) -> None:
        self._settings = settings
        self._peers = Peers(settings, session, events, self._send, lambda: self._seconds)
        self._seconds = 0.0
        self._overflow_told = False
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._monitor: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._authenticator: AsyncioAuthenticator | None = None

    def start(self) -> None:
        """Bind and listen.

        Raises:
            ConfigError: the link would leave this host unencrypted, or a key cannot be read.
            UnavailableError: the address cannot be bound.
        """
        curve.check_link(self._settings)
        self._socket.set(zmq.SNDHWM, SEND_HIGH_WATER)
        self._socket.set(zmq.RCVHWM, SEND_HIGH_WATER)
        self._socket.set(zmq.LINGER, LINGER_MS)
        self._socket.set(
            zmq.ROUTER_HANDOVER, 1
        )  # of one process: it may be back before its old connection is found dead
        self._socket.set(zmq.ROUTER_MANDATORY, 1)  # a send to a worker without a connection fails
        self._authenticator = curve.secure_scheduler(self._context, self._socket, self._settings)
        try:
            self._socket.bind(self._settings.address)
        except zmq.ZMQError as error:
            self.close()
            raise UnavailableError(f"address {self._settings.address}", "link.address", str(error)) from None
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._receive(), self._watch(), self._watch_connections())]

    def close(self) -> None:
        """Stop listening; frames already sent still go out."""
        for task in self._tasks:
            task.cancel()
        if self._authenticator is not None:
            self._authenticator.stop()
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()

    # Sending

    def send_requests(self, worker_id: str, requests: list[Request], policy: StepPolicy | None) -> None:
        """Give work to a worker, and tell it how to split its steps where that has changed."""
        self._peers.send_requests(worker_id, requests, policy)

    def send_abort(self, worker_id: str, request_ids: list[int]) -> None:
        """Take work back from a worker."""
        self._peers.send_abort(worker_id, request_ids)

    def send_drain(self, reason: str) -> None:
        """Ask every worker to finish and leave."""
        self._peers.tell_all(Drain(reason=reason))

    def _send(self, identity: bytes, frame: ToWorker) -> bool:
        """Send a frame; False when there is no connection to that worker."""
        # Without waiting, so that one worker that reads nothing does not hold up the others; done at once.
        sent = asyncio.ensure_future(self._socket.send_multipart([identity, encode_frame(frame)], flags=zmq.DONTWAIT))
        error = sent.exception()
        if error is None:
            return True
        if isinstance(error, zmq.ZMQError) and error.errno == zmq.EHOSTUNREACH:
            return False
        # What a worker misses is found out by its heartbeats, once it reads again.
        if not self._overflow_told:
            log.warning("frame_not_sent", worker_id=identity.decode(errors="replace"), error=str(error))
        self._overflow_told = True
        return True

    # Receiving

    async def _receive(self) -> None:
        while True:
            parts = await self._socket.recv_multipart()
            identity, payload = parts[0], parts[-1]
            try:
                frame = decode_from_worker(payload)
            except msgspec.DecodeError as error:
                log.warning("frame_undecodable", worker_id=identity.decode(errors="replace"), error=str(error))
                continue
            try:
                self._peers.take(identity, frame)
            except Exception:  # one bad frame must not deafen the scheduler
                log.exception("frame_failed", worker_id=identity.decode(errors="replace"))

    async def _watch(self) -> None:
        """Let time pass for `Peers`, no more of it than we were awake for.

        When we are the ones who slept (a stopped process, a suspended machine), what the workers sent meanwhile still
        waits in the socket, and nobody can be called silent yet.
        """
        tick = min(MOST_TICK_SECONDS, self._settings.heartbeat_seconds / 2)
        while True:
            before = time.monotonic()
            await asyncio.sleep(tick)
            self._seconds += min(time.monotonic() - before, 2 * tick)
            try:
                self._peers.tick()
            except Exception:  # nor may it stop watching
                log.exception("watch_failed")

    async def _watch_connections(self) -> None:
        """Look at once when a connection was lost; the monitor does not say whose it was."""
        assert self._monitor is not None  # noqa: S101 - start() has made it
        while True:
            await recv_monitor_message(self._monitor)
            await asyncio.sleep(SETTLE_SECONDS)
            self._peers.look()
