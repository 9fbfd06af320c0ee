"""The scheduler's end of the worker link: who is there, what they say, and who has fallen silent.

The protocol is described in `schemas.frames`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog
import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from schemas import curve
from schemas.errors import UnavailableError
from schemas.frames import (
    PROTOCOL_VERSION,
    Abort,
    Drain,
    Failure,
    Failures,
    FromWorker,
    Goodbye,
    Heartbeat,
    Hello,
    Progress,
    Refused,
    Request,
    Requests,
    Result,
    Results,
    Started,
    StepPolicy,
    StepReport,
    TokenizerFile,
    TokenizerWanted,
    ToWorker,
    Welcome,
    WhoAreYou,
    decode_from_worker,
    encode_frame,
)
from schemas.settings import LinkSettings

log = structlog.get_logger()

SEND_HIGH_WATER = 100_000
"""Frames that may wait for one slow worker. Budgets bound what is really in flight; this only must not be lower."""
LINGER_MS = 500


class LinkEvents(Protocol):
    """What the scheduler wants to hear; all of it is called from the event loop and must not block."""

    def accepts(self, hello: Hello) -> str | None:
        """Return why a worker cannot serve here, or None when it can."""

    def needs_tokenizer(self, hello: Hello) -> bool:
        """Return whether the worker must send its tokenizer file before it gets work."""

    def tokenizer_file(self, worker_id: str, file: TokenizerFile) -> str | None:
        """Take a tokenizer file; returns why it is of no use, or None."""

    def worker_joined(self, hello: Hello) -> None:
        """A worker is ready for work."""

    def worker_left(self, worker_id: str, reason: str, *, died: bool) -> None:
        """A worker is gone; what it had must be given to others."""

    def started(self, worker_id: str, started: list[Started]) -> None:
        """Requests produced their first token."""

    def results(self, worker_id: str, results: list[Result]) -> None:
        """Requests are done."""

    def failures(self, worker_id: str, failures: list[Failure]) -> None:
        """Requests ended without an answer."""

    def steps(self, worker_id: str, report: StepReport) -> None:
        """The engine made steps."""


@dataclass(slots=True)
class _Peer:
    hello: Hello
    last_seen: float
    welcomed: bool = False
    in_session: bool = False
    """It has answered the welcome: a hello after that comes from another life of the worker."""
    steps: int = 0


class WorkerLink:
    """Binds the link and turns frames into calls of `LinkEvents`.

    Args:
        settings: address, keys and time limits.
        session: names this life of the scheduler.
        events: who wants to hear.
    """

    def __init__(self, settings: LinkSettings, session: str, events: LinkEvents) -> None:
        self._settings = settings
        self._session = session
        self._events = events
        self._peers: dict[bytes, _Peer] = {}
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
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
        self._socket.set(zmq.ROUTER_HANDOVER, 1)  # a restarted worker may come back under its old name
        self._authenticator = curve.secure_scheduler(self._context, self._socket, self._settings)
        try:
            self._socket.bind(self._settings.address)
        except zmq.ZMQError as error:
            self.close()
            raise UnavailableError(f"address {self._settings.address}", "link.address", str(error)) from None
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._receive()), loop.create_task(self._watch())]

    def close(self) -> None:
        """Stop listening; frames already sent still go out."""
        for task in self._tasks:
            task.cancel()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._socket.close()
        self._context.term()

    # Sending

    def send_requests(self, worker_id: str, requests: list[Request], policy: StepPolicy | None) -> None:
        """Give work to a worker, and tell it how to split its steps where that has changed."""
        self._send(worker_id.encode(), Requests(session=self._session, requests=requests, policy=policy))

    def send_abort(self, worker_id: str, request_ids: list[int]) -> None:
        """Take work back from a worker."""
        self._send(worker_id.encode(), Abort(session=self._session, request_ids=request_ids))

    def send_drain(self, reason: str) -> None:
        """Ask every worker to finish and leave."""
        for identity in self._peers:
            self._send(identity, Drain(reason=reason))

    def _send(self, identity: bytes, frame: ToWorker) -> None:
        # An asyncio socket sends at once where it can and gives back a finished future.
        sent = asyncio.ensure_future(self._socket.send_multipart([identity, encode_frame(frame)]))
        if not sent.done():
            sent.add_done_callback(_log_failed_send)

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
                self._take(identity, frame)
            except Exception:  # one bad frame must not deafen the scheduler
                log.exception("frame_failed", worker_id=identity.decode(errors="replace"))

    def _take(self, identity: bytes, frame: FromWorker) -> None:
        if isinstance(frame, Hello):
            self._hello(identity, frame)
            return
        peer = self._peers.get(identity)
        if peer is None:
            if not isinstance(frame, Goodbye):
                self._send(identity, WhoAreYou(session=self._session))
            return
        peer.last_seen = time.monotonic()
        worker_id = peer.hello.worker_id
        if isinstance(frame, TokenizerFile):
            if reason := self._events.tokenizer_file(worker_id, frame):
                self._refuse(identity, reason)
            self._welcome_waiting()
        elif frame.session != self._session or not peer.welcomed:
            return
        else:
            peer.in_session = True
            self._take_in_session(identity, worker_id, peer, frame)

    def _take_in_session(self, identity: bytes, worker_id: str, peer: _Peer, frame: FromWorker) -> None:
        if isinstance(frame, Results):
            self._events.results(worker_id, frame.results)
        elif isinstance(frame, Progress):
            self._events.started(worker_id, frame.started)
        elif isinstance(frame, Failures):
            self._events.failures(worker_id, frame.failures)
        elif isinstance(frame, StepReport):
            self._events.steps(worker_id, frame)
        elif isinstance(frame, Heartbeat):
            peer.steps = frame.steps
        elif isinstance(frame, Goodbye):
            self._left(identity, frame.reason, died=frame.died)

    def _hello(self, identity: bytes, hello: Hello) -> None:
        known = self._peers.get(identity)
        # In a container every life has the same process id.
        if known is not None and known.hello.pid == hello.pid and not known.in_session:
            known.last_seen = time.monotonic()  # it repeats itself until the welcome arrives
        else:
            if known is not None:
                self._left(identity, "restarted under the same name", died=True)
            if hello.worker_id.encode() != identity:
                self._refuse(identity, f"its id {hello.worker_id!r} is not its socket's identity")
                return
            if hello.protocol != PROTOCOL_VERSION:
                self._refuse(identity, f"protocol {hello.protocol}, this scheduler speaks {PROTOCOL_VERSION}")
                return
            if reason := self._events.accepts(hello):
                self._refuse(identity, reason)
                return
            self._peers[identity] = _Peer(hello, time.monotonic())
        self._welcome(identity)

    def _welcome(self, identity: bytes) -> None:
        peer = self._peers[identity]
        if self._events.needs_tokenizer(peer.hello):
            self._send(identity, TokenizerWanted())
            return
        self._send(identity, Welcome(session=self._session, heartbeat_seconds=self._settings.heartbeat_seconds))
        if not peer.welcomed:
            peer.welcomed = True
            self._events.worker_joined(peer.hello)

    def _welcome_waiting(self) -> None:
        for identity, peer in list(self._peers.items()):
            if peer.welcomed:
                continue
            if reason := self._events.accepts(peer.hello):
                self._refuse(identity, reason)
            else:
                self._welcome(identity)

    def _refuse(self, identity: bytes, reason: str) -> None:
        self._peers.pop(identity, None)
        log.error("worker_refused", worker_id=identity.decode(errors="replace"), reason=reason)
        self._send(identity, Refused(reason=reason))

    def _left(self, identity: bytes, reason: str, *, died: bool) -> None:
        peer = self._peers.pop(identity)
        if peer.welcomed:
            self._events.worker_left(peer.hello.worker_id, reason, died=died)

    async def _watch(self) -> None:
        """Declare silent workers dead."""
        beat, limit = self._settings.heartbeat_seconds, self._settings.dead_after_seconds
        while True:
            before = time.monotonic()
            await asyncio.sleep(beat)
            now = time.monotonic()
            if now - before > beat + limit / 2:
                # We were the ones who slept (a stopped process, a suspended machine): what the workers sent
                # meanwhile still waits in the socket, so nobody can be called silent yet.
                for peer in self._peers.values():
                    peer.last_seen = now
            for identity, peer in list(self._peers.items()):
                if now - peer.last_seen > limit:
                    self._left(identity, f"silent for {limit:g} s", died=True)


def _log_failed_send(sent: asyncio.Future[zmq.MessageTracker | None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        if error := sent.exception():
            log.warning("frame_not_sent", error=str(error))
