"""The supervisor, with small real child processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.supervisor import Backoff, Child, ChildError, ChildRefusedError, ChildSpec, Supervisor

QUICK = Backoff(first=0.01, longest=0.05)
SERVES = """
import os, signal
def stop(*_):
    os.write(1, b"{name} stopped\\n")  # not print: the signal may come in the middle of one
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
os.write(1, b"up\\n")
while True: signal.pause()
"""
PARENT = """
import asyncio, sys
from pathlib import Path
import structlog
from ops.supervisor import ChildSpec, Supervisor

CHILD = "import signal; from ops.supervisor import die_with_parent as d; d(); print('up', flush=True); signal.pause()"

async def main():
    argv = [sys.executable, "-c", CHILD]
    supervisor = Supervisor([[ChildSpec(name="c", argv=argv, log_path=Path(sys.argv[1]), stop_seconds=1)]])
    running = asyncio.create_task(supervisor.run())
    while not supervisor.children[0].pid:
        await asyncio.sleep(0.01)
    print("child", supervisor.children[0].pid, flush=True)
    await running

structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=sys.stderr))
asyncio.run(main())
"""
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True: signal.pause()
"""


def spec(tmp_path: Path, name: str, code: str, *, stop_seconds: float = 10.0, log: str = "") -> ChildSpec:
    """Return a child that runs Python code."""
    argv = [sys.executable, "-c", code.replace("{name}", name)]
    return ChildSpec(name=name, argv=argv, log_path=tmp_path / (log or f"{name}.log"), stop_seconds=stop_seconds)


async def until(happened: Callable[[], bool]) -> None:
    """Poll what other processes do, which no event of ours announces."""
    async with asyncio.timeout(30):
        while not happened():  # noqa: ASYNC110 - there is nothing to wait on
            await asyncio.sleep(0.01)


async def written(path: Path, text: str) -> None:
    """Wait until a log has the text."""
    await until(lambda: path.exists() and text in path.read_text())


def gone(pid: int) -> bool:
    """Return whether no process has this id (a zombie counts as gone)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_a_crashed_child_is_started_again(tmp_path: Path) -> None:
    """A child killed from outside comes back, as another process, until the supervisor ends."""
    supervisor = Supervisor([[spec(tmp_path, "a", SERVES)]], QUICK)
    running = asyncio.create_task(supervisor.run())
    log = tmp_path / "a.log"
    await written(log, "up\n")
    (child,) = supervisor.children
    first = child.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await written(log, "up\nup\n")
    assert child.pid != first
    assert child.starts == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert child.pid is None


async def test_stages_stop_in_order(tmp_path: Path) -> None:
    """The scheduler has ended before its workers are told to."""
    stages = [
        [spec(tmp_path, "scheduler", SERVES, log="all.log")],
        [spec(tmp_path, f"worker-{n}", SERVES, log="all.log") for n in (1, 2)],
    ]
    running = asyncio.create_task(Supervisor(stages, QUICK).run())
    await written(tmp_path / "all.log", "up\nup\nup\n")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    stopped = [line for line in (tmp_path / "all.log").read_text().splitlines() if line.endswith("stopped")]
    assert stopped[0] == "scheduler stopped"
    assert sorted(stopped[1:]) == ["worker-1 stopped", "worker-2 stopped"]


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """The wait for a child is bounded, and afterwards it is gone."""
    supervisor = Supervisor([[spec(tmp_path, "a", STUBBORN, stop_seconds=0.2)]], QUICK)
    running = asyncio.create_task(supervisor.run())
    await written(tmp_path / "a.log", "up")
    pid = supervisor.children[0].pid
    assert pid is not None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert gone(pid)


async def test_what_a_child_left_behind_dies_with_it(tmp_path: Path) -> None:
    """A process that a crashed worker had started does not live on with its memory."""
    code = (
        "import os, subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(f'grandchild {p.pid}', flush=True)\n"
        "os._exit(1)\n"
    )
    supervisor = Supervisor([[spec(tmp_path, "a", code)]], Backoff(first=0.01, give_up_after=1))
    with pytest.raises(ChildError):
        await supervisor.run()
    pid = int((tmp_path / "a.log").read_text().split()[1])
    await until(lambda: gone(pid))


async def test_a_wrong_configuration_is_told_and_not_retried(tmp_path: Path) -> None:
    """Exit code 2 at the first start ends the supervisor with the child's own message."""
    code = (
        'import sys; print(\'{"event": "starting"}\'); '
        "sys.stderr.write('tapewire: kafka.bootstrap: wrong\\n  worker.model: too\\n'); sys.exit(2)"
    )
    other = spec(tmp_path, "other", SERVES)
    supervisor = Supervisor([[spec(tmp_path, "a", code)], [other]], QUICK)
    with pytest.raises(ChildRefusedError) as caught:
        await supervisor.run()
    assert str(caught.value) == "kafka.bootstrap: wrong\n  worker.model: too"
    assert supervisor.children[0].starts == 1
    assert supervisor.children[1].pid is None


async def test_crashes_in_a_row_are_given_up(tmp_path: Path) -> None:
    """After the allowed number of crashes the error shows the end of the child's log."""
    code = "import sys; sys.stderr.write('the reason\\n'); sys.exit(9)"
    supervisor = Supervisor([[spec(tmp_path, "a", code)]], Backoff(first=0.01, give_up_after=3))
    with pytest.raises(ChildError) as caught:
        await supervisor.run()
    assert supervisor.children[0].starts == 3
    assert "with exit code 9" in str(caught.value)
    assert caught.value.log_tail.count("the reason") == 3


def test_backoff_doubles_up_to_its_longest() -> None:
    """Crashes wait longer and longer, and never longer than the bound."""
    backoff = Backoff(first=0.5, longest=30.0)
    assert [backoff.delay(n) for n in (1, 2, 3, 7, 1000)] == [0.5, 1.0, 2.0, 30.0, 30.0]


async def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """Even SIGKILL of the supervising process leaves no child behind."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        str(tmp_path / "c.log"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    pid = int((await process.stdout.readline()).removeprefix(b"child "))
    await written(tmp_path / "c.log", "up")
    process.kill()
    await process.wait()
    await until(lambda: gone(pid))


async def test_stop_before_the_first_start_starts_nothing(tmp_path: Path) -> None:
    """A child that is stopped before it ran never runs."""
    child = Child(spec(tmp_path, "a", SERVES), QUICK)
    await child.stop()
    await child.keep_running()
    assert child.starts == 0
