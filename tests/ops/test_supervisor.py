"""The supervisor, with small real child processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ops.local import worker_state
from ops.supervisor import Backoff, Child, ChildError, ChildRefusedError, ChildSpec, Supervisor
from ops.up import _line

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


async def test_what_only_a_person_can_decide_is_not_started_again(tmp_path: Path) -> None:
    """A child that ends with exit code 3, in whatever life, ends the supervisor with the child's own sentence."""
    marker = tmp_path / "lived"
    code = (
        "import pathlib, sys\n"
        f"first = not pathlib.Path({str(marker)!r}).exists(); pathlib.Path({str(marker)!r}).touch()\n"
        "sys.stderr.write('tapewire: ' + ('a crash' if first else 'two with one id') + '\\n')\n"
        "sys.exit(1 if first else 3)"
    )
    supervisor = Supervisor([[spec(tmp_path, "a", code)]], QUICK)
    with capture_logs() as logs, pytest.raises(ChildRefusedError, match="two with one id"):
        async with asyncio.timeout(30):
            await supervisor.run()
    assert supervisor.children[0].starts == 2
    (ended,) = [line for line in logs if line["event"] == "child_ended"]
    assert ended["reason"] == "a crash"


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


async def test_a_crash_loop_backs_off_with_one_line_each(tmp_path: Path) -> None:
    """Each end is one line with what happened and when it goes on; the waits double up to the bound."""
    code = "import sys; sys.exit(9)"
    with capture_logs() as logs, pytest.raises(ChildError):
        await Supervisor([[spec(tmp_path, "a", code)]], Backoff(first=0.01, longest=0.04, give_up_after=5)).run()
    ends = [(e["how"], e["crashes"], e["restart_in_seconds"]) for e in logs if e["event"] == "child_ended"]
    assert ends == [("with exit code 9", n, wait) for n, wait in ((1, 0.01), (2, 0.02), (3, 0.04), (4, 0.04))]


async def test_a_crash_after_a_healthy_time_is_the_first_again(tmp_path: Path) -> None:
    """What ran well for a while and then crashed is started again as quickly as ever."""
    backoff = Backoff(first=0.01, longest=60.0, healthy_after=0.0)
    with capture_logs() as logs:
        supervisor = Supervisor([[spec(tmp_path, "a", "import sys; sys.exit(9)")]], backoff)
        running = asyncio.create_task(supervisor.run())
        await until(lambda: supervisor.children[0].starts == 4)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    ends = [(e["crashes"], e["restart_in_seconds"]) for e in logs if e["event"] == "child_ended"]
    assert set(ends) == {(1, 0.01)}


async def test_a_child_that_waits_for_its_restart_says_why_and_stops_at_once(tmp_path: Path) -> None:
    """A long wait after a crash is visible, and a stop does not sit it out."""
    supervisor = Supervisor([[spec(tmp_path, "a", "import sys; sys.exit(9)")]], Backoff(first=3600.0, longest=3600.0))
    running = asyncio.create_task(supervisor.run())
    (child,) = supervisor.children
    await until(lambda: child.waits != "")
    assert child.waits == "ended with exit code 9, 1 in a row, starts again after 3600 s"
    assert _line(None, supervisor).endswith(f"(a down ({child.waits}))")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (child.starts, child.waits) == (1, "")


async def test_a_stopped_child_is_shown_and_ended(tmp_path: Path) -> None:
    """SIGSTOP ends nothing, so the supervisor leaves it alone and shows it; a stop gets rid of it all the same."""
    supervisor = Supervisor([[spec(tmp_path, "a", SERVES, stop_seconds=0.2)]], QUICK)
    running = asyncio.create_task(supervisor.run())
    await written(tmp_path / "a.log", "up")
    (child,) = supervisor.children
    pid = child.pid
    assert pid is not None
    assert not child.stopped
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: child.stopped)
    assert _line(None, supervisor).endswith(f"(a stopped (kill -CONT {pid} lets it go on))")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert gone(pid)
    assert child.starts == 1


async def test_a_child_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    """Killed before it ran a line of its own: it comes back like after any crash."""
    supervisor = Supervisor([[spec(tmp_path, "a", SERVES)]], QUICK)
    running = asyncio.create_task(supervisor.run())
    (child,) = supervisor.children
    await until(lambda: child.pid is not None)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: child.starts == 2)
    await written(tmp_path / "a.log", "up")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert child.pid is None


async def test_a_stop_while_the_process_is_being_made_leaves_none(tmp_path: Path) -> None:
    """There is no process to signal yet; when there is one it is ended before anybody believes that all are gone."""
    child = Child(spec(tmp_path, "a", STUBBORN), QUICK)
    life = asyncio.create_task(child.keep_running())
    await asyncio.sleep(0)
    assert (child.pid, child.starts) == (None, 0)
    await child.stop()
    await life
    assert child.starts == 1
    assert child._process is not None
    assert gone(child._process.pid)


async def test_a_program_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    """No program, no memory, no process slots: a crash like any other, that ends nothing else."""
    broken = ChildSpec(name="b", argv=[str(tmp_path / "none")], log_path=tmp_path / "b.log", stop_seconds=1.0)
    supervisor = Supervisor([[broken]], Backoff(first=0.01, give_up_after=3))
    with pytest.raises(ChildError, match=r"ended 3 times, last before it ran: .*No such file"):
        await supervisor.run()


async def test_the_state_of_a_former_life_is_not_shown(tmp_path: Path) -> None:
    """What a worker said before it crashed tells nothing of the one that is starting."""
    code = """
import os, time
mark = "{name}.second"
if os.path.exists(mark):
    time.sleep(3600)
open(mark, "w").close()
print('{"event": "worker_state", "state": "working", "detail": ""}', flush=True)
os._exit(1)
"""
    code = code.replace("{name}", str(tmp_path / "mark"))
    supervisor = Supervisor([[spec(tmp_path, "a", code)]], QUICK)
    running = asyncio.create_task(supervisor.run())
    (child,) = supervisor.children
    await until(lambda: child.starts == 2 and child.pid is not None)
    assert child.log_lines() != []
    assert worker_state(child) == ("", "")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_stop_before_the_first_start_starts_nothing(tmp_path: Path) -> None:
    """A child that is stopped before it ran never runs."""
    child = Child(spec(tmp_path, "a", SERVES), QUICK)
    await child.stop()
    await child.keep_running()
    assert child.starts == 0
