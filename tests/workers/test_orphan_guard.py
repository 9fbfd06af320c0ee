"""The guard that ends an engine's process when its owner was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workers import orphan_guard

ROOT = Path(__file__).parents[2]


def test_a_process_ends_with_its_owner() -> None:
    """Importing the module in a child is enough: kill the owner, hard, and the child goes."""
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child = subprocess.Popen(
        [sys.executable, "-c", "import workers.orphan_guard, time; print(1, flush=True); time.sleep(3600)"],
        env={**os.environ, orphan_guard.OWNER: str(owner.pid), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        assert child.poll() is None
        owner.kill()
        owner.wait()
        assert child.wait(timeout=20) == 1
    finally:
        child.kill()
        owner.kill()
        for process in (child, owner):
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.mark.parametrize("owner", ["", "nonsense", str(os.getpid())])
def test_no_guard_without_an_owner(monkeypatch: pytest.MonkeyPatch, owner: str) -> None:
    """A process that belongs to nobody, or to itself, is left alone."""
    monkeypatch.setenv(orphan_guard.OWNER, owner)
    assert orphan_guard.start() is None


def test_an_owner_that_is_gone_already() -> None:
    """Waiting for a process that has ended returns at once."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    orphan_guard.wait_for_death(process.pid)
    assert process.returncode == 0
