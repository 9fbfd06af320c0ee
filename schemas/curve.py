"""CURVE keys for the worker link: who may speak to a scheduler, and encryption beyond one host.

A keys directory holds ``scheduler.key`` (public), ``scheduler.key_secret``, ``worker.key`` and
``worker.key_secret``, in ZeroMQ's certificate format. The scheduler needs all but the worker's secret; a worker
needs the scheduler's public key and its own pair.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import zmq.asyncio
import zmq.auth
from zmq.auth.asyncio import AsyncioAuthenticator

from schemas.errors import ConfigError
from schemas.settings import LinkSettings

SCHEDULER = "scheduler"
WORKER = "worker"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})


def create_keys(directory: Path) -> list[Path]:
    """Create the key pairs of a scheduler and its workers; existing ones are kept.

    Returns:
        the files that were written.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    written: list[Path] = []
    for name in (SCHEDULER, WORKER):
        secret = directory / f"{name}.key_secret"
        if secret.exists():
            continue
        public_file, secret_file = zmq.auth.create_certificates(directory, name)
        Path(secret_file).chmod(0o600)
        written += [Path(public_file), Path(secret_file)]
    return written


def check_link(link: LinkSettings) -> None:
    """Refuse an unencrypted link beyond this host unless the configuration says so.

    Raises:
        ConfigError: ``link.address`` leaves the host and neither ``link.keys`` nor ``link.plaintext`` is set.
    """
    if link.keys or link.plaintext or link.address.startswith("ipc://"):
        return
    host = urlsplit(link.address).hostname or "*"
    if host not in LOOPBACK:
        reason = f"{link.address} leaves this host: set link.keys (tapewire keys DIR makes them) or link.plaintext"
        raise ConfigError("link.address", reason)


def secure_scheduler(
    context: zmq.asyncio.Context, socket: zmq.asyncio.Socket, link: LinkSettings
) -> AsyncioAuthenticator | None:
    """Make a bound socket accept only workers that hold the worker key; returns the authenticator to stop later."""
    if link.keys is None:
        return None
    public, secret = _load(link.keys, SCHEDULER)
    worker_public, _ = _load(link.keys, WORKER, secret=False)
    authenticator = AsyncioAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(credentials_provider=_OneKey(worker_public))
    socket.curve_publickey = public
    socket.curve_secretkey = secret
    socket.curve_server = True
    return authenticator


def secure_worker(socket: zmq.asyncio.Socket, link: LinkSettings) -> None:
    """Make a connecting socket prove the worker key and check the scheduler's."""
    if link.keys is None:
        return
    scheduler_public, _ = _load(link.keys, SCHEDULER, secret=False)
    public, secret = _load(link.keys, WORKER)
    socket.curve_publickey = public
    socket.curve_secretkey = secret
    socket.curve_serverkey = scheduler_public


class _OneKey:
    """Credentials provider in pyzmq's form: one worker key is allowed."""

    def __init__(self, allowed: bytes) -> None:
        self._allowed = allowed

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether ``key`` (Z85 text) may connect."""
        return key == self._allowed


def _load(directory: Path, name: str, *, secret: bool = True) -> tuple[bytes, bytes]:
    path = directory / f"{name}.key{'_secret' if secret else ''}"
    try:
        public, private = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError("link.keys", f"{path}: {error}") from None
    if secret and private is None:
        raise ConfigError("link.keys", f"{path} holds no secret key")
    return public, private or b""
