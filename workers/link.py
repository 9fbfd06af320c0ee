"""The worker's end of the ZeroMQ link: one DEALER socket that knows whether a scheduler is there."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket as sockets
from collections.abc import AsyncIterator
from typing import Any, cast

import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from schemas.curve import check_link, secure_worker
from schemas.errors import ConfigError
from schemas.frames import FromWorker, encode_frame
from schemas.settings import LinkSettings

LINGER_MS = 1000
"""How long an exit waits for the last frames to leave, if a scheduler is connected at all."""
RECONNECT_MS = 100
RECONNECT_MAX_MS = 1000
SEND_QUEUE = 100_000
"""Frames that wait for a slow or absent scheduler. In-flight work bounds them far below; nothing is dropped."""
MAX_IDENTITY_BYTES = 255
"""ZeroMQ's limit on a routing id."""
LIFE_BYTES = 6
"""Random bytes in a socket's identity."""

_UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
_DOWN = zmq.EVENT_DISCONNECTED
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

log = structlog.get_logger()


def worker_identity(configured: str) -> str:
    """Return the configured id, or one that no other worker has: host, process id and four random hex digits."""
    if configured:
        return configured
    host = re.sub(r"[^A-Za-z0-9.-]", "-", sockets.gethostname())[:32]
    return f"{host}-{os.getpid()}-{secrets.token_hex(2)}"


def socket_identity(worker_id: str) -> bytes:
    """Return a name for the socket that no other process has, nor an earlier life of this worker.

    Were it the worker's id, a second worker under that id would silently take the first one's place at the ROUTER:
    libzmq 4.3.5 leaves the first one connected to nothing, and tells neither.
    """
    return worker_id.encode()[: MAX_IDENTITY_BYTES - 2 * LIFE_BYTES - 1] + b"~" + secrets.token_hex(LIFE_BYTES).encode()


class WorkerLink:
    """A connection that ZeroMQ re-establishes by itself; frames sent while it is down leave when it is back.

    Args:
        settings: address and keys.
        worker_id: names this worker; its socket's name is made of it and is this process's own.

    Raises:
        ConfigError: the address or the keys are wrong, or the address would leave the host unencrypted.
    """

    def __init__(self, settings: LinkSettings, worker_id: str) -> None:
        check_link(settings)
        self.connected = False
        self._settings = settings
        self._context = zmq.asyncio.Context()
        # pyzmq types the asyncio socket's options loosely and its results as futures.
        self._socket: Any = self._context.socket(zmq.DEALER)
        try:
            self._configure(socket_identity(worker_id))
        except ConfigError:
            self._socket.close(linger=0)
            self._context.term()
            raise

    def _configure(self, identity: bytes) -> None:
        socket = self._socket
        socket.setsockopt(zmq.IDENTITY, identity)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
        socket.setsockopt(zmq.RCVHWM, SEND_QUEUE)
        # A host that vanishes sends no FIN: let ZeroMQ's own pings, answered by its I/O thread, find out.
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(self._settings.heartbeat_seconds * 2000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(self._settings.dead_after_seconds * 1000))
        secure_worker(socket, self._settings)
        self._monitor: Any = socket.get_monitor_socket(_UP | _DOWN | _REFUSED)

    def connect(self) -> None:
        """Start connecting, and keep at it for ever.

        Raises:
            ConfigError: ``link.address`` is no address that ZeroMQ can connect to.
        """
        try:
            self._socket.connect(self._settings.address)
        except zmq.ZMQError as error:
            raise ConfigError("link.address", f"{self._settings.address}: {error.strerror}") from None

    def send(self, frame: FromWorker) -> None:
        """Queue one frame; order is kept."""
        self._socket.send(encode_frame(frame))

    async def receive(self) -> bytes:
        """Return the next frame as it came."""
        return cast("bytes", await self._socket.recv())

    async def changes(self) -> AsyncIterator[bool]:
        """Yield True whenever a scheduler is reached and False whenever it is lost."""
        refused = False
        while True:
            event = (await recv_monitor_message(self._monitor))["event"]
            if event & _REFUSED:
                # Repeats with every attempt; once is enough to find a wrong key.
                if not refused:
                    log.error("link_handshake_failed", address=self._settings.address, setting="link.keys")
                refused = True
                continue
            self.connected = bool(event & _UP)
            yield self.connected

    async def close(self) -> None:
        """Close within `LINGER_MS`, giving queued frames that long to leave."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=LINGER_MS if self.connected else 0)
        # Terminating waits for the linger time, so it must not hold the loop.
        await asyncio.to_thread(self._context.term)
