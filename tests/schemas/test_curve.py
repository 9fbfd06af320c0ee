from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from schemas.curve import check_link, create_keys, secure_scheduler, secure_worker
from schemas.errors import ConfigError
from schemas.settings import LinkSettings


def link_to(keys: Path | None, port: int | str = "*") -> LinkSettings:
    """A link over loopback; a star lets the system choose the port."""
    return LinkSettings(address=f"tcp://127.0.0.1:{port}", keys=keys)


@asynccontextmanager
async def scheduler(keys: Path) -> AsyncIterator[tuple[zmq.asyncio.Context, zmq.asyncio.Socket, int]]:
    """A bound and secured ROUTER socket, and its port."""
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    authenticator = secure_scheduler(context, socket, link_to(keys))
    assert authenticator is not None
    try:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        yield context, socket, port
    finally:
        authenticator.stop()
        context.destroy(linger=0)


async def handshake_event(socket: zmq.asyncio.Socket, port: int) -> int:
    """Connect and return how the handshake ended."""
    monitor = socket.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    )
    socket.connect(f"tcp://127.0.0.1:{port}")
    async with asyncio.timeout(10):
        message = await recv_monitor_message(monitor)
    socket.disable_monitor()
    return int(message["event"])


async def test_a_worker_with_the_key_is_let_in(tmp_path: Path) -> None:
    """A worker that holds the keys can talk to the scheduler in both directions."""
    create_keys(tmp_path)
    async with scheduler(tmp_path) as (context, socket, port):
        worker = context.socket(zmq.DEALER)
        secure_worker(worker, link_to(tmp_path, port))
        worker.connect(f"tcp://127.0.0.1:{port}")
        async with asyncio.timeout(10):
            await worker.send(b"hello")
            identity, frame = await socket.recv_multipart()
            assert frame == b"hello"
            await socket.send_multipart([identity, b"welcome"])
            assert await worker.recv() == b"welcome"


async def test_a_stranger_with_keys_of_its_own_is_refused(tmp_path: Path) -> None:
    """Someone who knows the scheduler's public key and has a pair of its own does not get through the handshake."""
    create_keys(tmp_path / "ours")
    create_keys(tmp_path / "theirs")
    stranger_keys = tmp_path / "theirs"
    (stranger_keys / "scheduler.key").write_bytes((tmp_path / "ours" / "scheduler.key").read_bytes())
    async with scheduler(tmp_path / "ours") as (context, _, port):
        stranger = context.socket(zmq.DEALER)
        secure_worker(stranger, link_to(stranger_keys, port))
        assert await handshake_event(stranger, port) == zmq.EVENT_HANDSHAKE_FAILED_AUTH


async def test_a_worker_does_not_talk_to_a_false_scheduler(tmp_path: Path) -> None:
    """A worker that expects another scheduler's key sends it nothing: the handshake never succeeds."""
    create_keys(tmp_path / "ours")
    create_keys(tmp_path / "false")
    async with scheduler(tmp_path / "false") as (context, _, port):
        worker = context.socket(zmq.DEALER)
        secure_worker(worker, link_to(tmp_path / "ours", port))
        monitor = worker.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        worker.connect(f"tcp://127.0.0.1:{port}")
        async with asyncio.timeout(10):
            message = await recv_monitor_message(monitor)
        assert message["event"] == zmq.EVENT_DISCONNECTED
        worker.disable_monitor()


async def test_a_client_without_encryption_is_refused(tmp_path: Path) -> None:
    """A plain connection fails in the handshake, before any frame is read."""
    create_keys(tmp_path)
    async with scheduler(tmp_path) as (context, _, port):
        plain = context.socket(zmq.DEALER)
        assert await handshake_event(plain, port) == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


async def test_without_keys_the_sockets_stay_plain(tmp_path: Path) -> None:
    """On one host no keys are needed: nothing is configured on the sockets and no authenticator runs."""
    context = zmq.asyncio.Context()
    try:
        socket = context.socket(zmq.DEALER)
        assert secure_scheduler(context, socket, link_to(None)) is None
        secure_worker(socket, link_to(None))
        assert socket.mechanism == zmq.NULL
    finally:
        context.destroy(linger=0)


def test_created_keys_are_private_and_kept(tmp_path: Path) -> None:
    """Secret keys are for their owner alone, and creating keys again changes none of them."""
    directory = tmp_path / "keys"
    written = create_keys(directory)
    assert sorted(path.name for path in written) == [
        "scheduler.key",
        "scheduler.key_secret",
        "worker.key",
        "worker.key_secret",
    ]
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for name in ("scheduler", "worker"):
        assert stat.S_IMODE((directory / f"{name}.key_secret").stat().st_mode) == 0o600
    before = {path: path.read_bytes() for path in written}
    assert create_keys(directory) == []
    assert {path: path.read_bytes() for path in written} == before


@pytest.mark.parametrize("missing", ["scheduler.key", "worker.key_secret"])
async def test_a_missing_key_file_is_named(tmp_path: Path, missing: str) -> None:
    """A worker whose keys directory is incomplete is told which file, under the setting's name."""
    create_keys(tmp_path)
    (tmp_path / missing).unlink()
    context = zmq.asyncio.Context()
    try:
        with pytest.raises(ConfigError, match=r"link\.keys.*" + missing):
            secure_worker(context.socket(zmq.DEALER), link_to(tmp_path))
    finally:
        context.destroy(linger=0)


async def test_a_public_key_in_place_of_a_secret_is_named(tmp_path: Path) -> None:
    """A file that has only the public half is refused as a secret key."""
    create_keys(tmp_path)
    (tmp_path / "worker.key_secret").write_bytes((tmp_path / "worker.key").read_bytes())
    context = zmq.asyncio.Context()
    try:
        with pytest.raises(ConfigError, match="holds no secret key"):
            secure_worker(context.socket(zmq.DEALER), link_to(tmp_path))
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize(
    "link",
    [
        LinkSettings(address="tcp://127.0.0.1:7421"),
        LinkSettings(address="tcp://localhost:7421"),
        LinkSettings(address="tcp://[::1]:7421"),
        LinkSettings(address="ipc:///tmp/link"),
        LinkSettings(address="tcp://10.0.0.5:7421", plaintext=True),
        LinkSettings(address="tcp://*:7421", keys=Path("keys")),
    ],
)
def test_safe_links_pass(link: LinkSettings) -> None:
    """A link that stays on the host, is encrypted, or is meant to be plain is accepted."""
    check_link(link)


@pytest.mark.parametrize("address", ["tcp://10.0.0.5:7421", "tcp://*:7421", "tcp://0.0.0.0:7421", "tcp://[::]:7421"])
def test_a_plain_link_beyond_the_host_is_refused(address: str) -> None:
    """Text and signals do not leave the host unencrypted unless the configuration says so."""
    with pytest.raises(ConfigError, match=r"link\.address"):
        check_link(LinkSettings(address=address))
