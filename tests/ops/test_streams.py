"""Closed standard streams and an output that takes nothing, as real processes."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops.command import ROOT, SECONDS, environment
from tests.ops.test_cli import away


def _shell(line: str, env: dict[str, str], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f'exec "{sys.executable}" -m ops {line}'],
        env=environment(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "closed"),
    [("dlq ls", "<&-"), ("dlq ls", ">&-"), ("doctor", "<&-"), ("doctor", ">&-"), ("scheduler", "<&- >&- 2>&-")],
)
def test_closed_streams_do_not_abort(tmp_path: Path, unused_tcp_port: int, command: str, closed: str) -> None:
    """With any standard stream closed, a command that cannot reach Kafka says so with exit code 2, as ever."""
    env = {**away(unused_tcp_port), "TAPEWIRE_WORKER__ENGINE": "sim"}
    done = _shell(f"{command} {closed}", env, tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    if "2>&-" not in closed and command != "doctor":
        assert "kafka.bootstrap" in done.stderr


@pytest.mark.parametrize("line", ["--version", "config show"])
def test_a_full_disk_is_one_message(line: str) -> None:
    """What stdout does not take ends with exit code 1 and one message, not as a defect."""
    done = _shell(f"{line} > /dev/full", {})
    assert (done.returncode, done.stderr) == (1, "tapewire: cannot write to stdout: No space left on device\n")


def test_the_end_of_the_input_is_no_answer() -> None:
    """A question to a terminal whose input has ended says that nobody can be asked, and exits 2."""
    script = (
        "import sys, typer; from ops import cli; from ops.commands.dlq import _agreed\n"
        "@cli.app.command()\ndef ask() -> None:\n    _agreed(3, 'retry', 0)\n"
        "sys.argv = ['tapewire', 'ask']; cli.main()"
    )
    ours, theirs = pty.openpty()
    os.write(ours, b"\x04")
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        cwd=ROOT,
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 2, done.stderr
    assert "nobody can be asked" in done.stderr
    assert "--yes" in done.stderr


@pytest.mark.parametrize("code", [0, 1])
def test_a_command_that_loaded_torch_ends_at_once(code: int) -> None:
    """With torch loaded the process ends after its last line, its output whole, without taking the interpreter down."""
    script = (
        "import atexit, sys, types, typer; from ops import cli\n"
        "sys.modules['torch'] = types.ModuleType('torch')\n"
        "atexit.register(lambda: sys.stderr.write('torn down'))\n"
        "@cli.app.command()\ndef work() -> None:\n"
        f"    sys.stdout.write('all of it')\n    raise typer.Exit({code})\n"
        "sys.argv = ['tapewire', 'work']; cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "all of it", "")
