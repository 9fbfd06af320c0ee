"""The demo and ``tapewire up`` as a user runs them, with the simulated engine."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ops.bad_records import bad_records
from schemas.settings import LimitSettings
from tests.ops.command import await_line, start, tapewire

pytestmark = pytest.mark.e2e

KEYS = {
    "events",
    "signals",
    "expired",
    "dead_letters",
    "lost",
    "duplicates",
    "stamps_in_redis",
    "engine",
    "classes",
    "interrupted",
    "unfinished",
    "logs",
}


def running_from(run_dir: Path) -> list[str]:
    """Return the command lines of processes that were started with a file of this run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(run_dir) in command:
            found.append(command)
    return found


def test_the_demo_balances_its_books(tmp_path: Path) -> None:
    """Every event ends as a signal, an expired record or a dead letter; the JSON is alone on stdout and adds up."""
    run_dir = tmp_path / "run"
    done = tapewire(
        "demo", "--engine", "sim", "--events", "120", "--with-bad-records", "--json", "--run-dir", str(run_dir)
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert set(summary) == KEYS
    assert summary["events"] == 120 + len(bad_records(LimitSettings()))
    assert summary["dead_letters"] == len(bad_records(LimitSettings()))
    assert summary["signals"] + summary["expired"] + summary["dead_letters"] == summary["events"]
    assert (summary["lost"], summary["duplicates"], summary["unfinished"]) == (0, 0, 0)
    assert summary["stamps_in_redis"] == summary["signals"] + summary["expired"]
    assert set(summary["engine"]) == {"name", "version", "model"}
    assert summary["engine"]["name"] == "sim"
    assert list(summary["classes"]) == ["flash", "standard", "bulk"]
    assert sum(c["count"] for c in summary["classes"].values()) == 120
    for figures in summary["classes"].values():
        assert set(figures) == {"count", "p50_ms", "p99_ms", "slo_ms", "attained"}
    assert running_from(run_dir) == []


def test_the_demo_drains_on_ctrl_c(tmp_path: Path) -> None:
    """SIGINT in the middle prints the summary so far, says that it was interrupted, and exits with 0."""
    run_dir = tmp_path / "run"
    demo = start("demo", "--engine", "sim", "--rate", "5", "--json", "--run-dir", str(run_dir))
    await_line(demo, "demo: running")
    demo.send_signal(signal.SIGINT)
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    summary = json.loads(out)
    assert summary["interrupted"] is True
    ended = summary["signals"] + summary["expired"] + summary["dead_letters"]
    assert ended + summary["unfinished"] == summary["events"]
    assert "interrupted and drained" in err
    assert running_from(run_dir) == []
    for log in run_dir.glob("*.log"):
        assert "Traceback" not in log.read_text()
    # Both were let end by themselves, in their order.
    assert "child_killed" not in (run_dir / "demo.log").read_text()


def test_the_demo_stops_while_it_starts(tmp_path: Path) -> None:
    """SIGTERM before the engine is ready is a clean end as well."""
    run_dir = tmp_path / "run"
    demo = start("demo", "--engine", "sim", "--json", "--run-dir", str(run_dir))
    await_line(demo, "demo: starting")
    demo.send_signal(signal.SIGTERM)
    out, err = demo.communicate(timeout=60)
    assert demo.returncode == 0, err
    assert json.loads(out)["interrupted"] is True
    assert running_from(run_dir) == []


def test_up_runs_until_ctrl_c(tmp_path: Path) -> None:
    """``up --embedded`` brings all workers to the scheduler, and leaves no process behind."""
    run_dir = tmp_path / "run"
    up = start("up", "--embedded", "--engine", "sim", "--workers", "2", "--run-dir", str(run_dir), cwd=tmp_path)
    await_line(up, "2 workers connected")
    up.send_signal(signal.SIGINT)
    out, err = up.communicate(timeout=60)
    assert up.returncode == 0, err
    assert out == ""
    assert running_from(run_dir) == []
    assert "scheduler_drained" in (run_dir / "scheduler.log").read_text()
