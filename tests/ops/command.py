"""Runs the ``tapewire`` command as the real subprocess that a user would start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0
"""No command under test takes a tenth of it; a hang must end the test and not the run."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment without any setting of the machine's own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TAPEWIRE_")}
    return {**clean, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **(extra or {})}


def tapewire(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "ops", *arguments],
        env=environment(env),
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def start(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT, stderr: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start one command in a session of its own and leave it running."""
    return subprocess.Popen(
        [sys.executable, "-m", "ops", *arguments],
        env=environment(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def await_line(process: subprocess.Popen[str], text: str) -> str:
    """Read the command's stderr until a line has the text."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"the command ended without saying {text!r}")


def assert_refused(done: subprocess.CompletedProcess[str], setting: str) -> None:
    """Check for one clear message: exit code 2, the setting's name, no traceback, nothing on stdout."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    messages = [line for line in done.stderr.splitlines() if line.startswith("tapewire: ")]
    assert len(messages) == 1, done.stderr
    assert setting in messages[0]
    assert done.stdout == ""
