"""The demo and ``tapewire up`` as a user runs them, with the simulated engine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from ops.bad_records import bad_records
from producers.sample_data import sample_path
from schemas.settings import KafkaSettings, LimitSettings, RedisSettings
from tests.conftest import Broker
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
    # One signal, and one entry of stamps, answers all the parts of a filing.
    assert summary["stamps_in_redis"] == sum(c["count"] for c in summary["classes"].values())
    assert summary["stamps_in_redis"] < summary["signals"] + summary["expired"]
    assert set(summary["engine"]) == {"name", "version", "model"}
    assert summary["engine"]["name"] == "sim"
    assert list(summary["classes"]) == ["flash", "standard", "bulk"]
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


def child_pid(run_dir: Path, name: str) -> int:
    """Return the process id that the demo's log names for a child."""
    events = [json.loads(line) for line in (run_dir / "demo.log").read_text().splitlines()]
    return next(int(e["pid"]) for e in events if e["event"] == "child_started" and e["child"] == name)


def test_the_demo_survives_a_killed_worker(tmp_path: Path) -> None:
    """After SIGKILL of the worker another one takes its place, and every event still ends."""
    run_dir = tmp_path / "run"
    demo = start(
        "demo", "--engine", "sim", "--events", "100", "--rate", "20", "--json", "--run-dir", str(run_dir), cwd=tmp_path
    )
    await_line(demo, "demo: running")
    os.kill(child_pid(run_dir, "worker-1"), signal.SIGKILL)
    out, err = demo.communicate(timeout=120)
    assert demo.returncode == 0, err
    summary = json.loads(out)
    assert summary["lost"] == 0
    assert summary["signals"] + summary["expired"] == 100
    assert "child_ended" in (run_dir / "demo.log").read_text()


def test_up_survives_a_killed_scheduler(
    tmp_path: Path, kafka: Broker, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """After SIGKILL of the scheduler another one takes over its partitions and its worker, and signals go on."""
    if kafka.embedded:
        pytest.skip("the embedded broker never drops a group member that died; set TAPEWIRE_TEST_KAFKA")
    run_dir = tmp_path / "run"
    env = {
        "TAPEWIRE_KAFKA__BOOTSTRAP": kafka_settings.bootstrap,
        "TAPEWIRE_KAFKA__TOPIC_PREFIX": kafka_settings.topic_prefix,
        "TAPEWIRE_REDIS__URL": redis_settings.url,
        "TAPEWIRE_LINK__ADDRESS": f"ipc://{tmp_path}/link",
    }
    up = start("up", "--engine", "sim", "--run-dir", str(run_dir), cwd=tmp_path, env=env)
    pid = json.loads(await_line(up, '"child": "scheduler"'))["pid"]
    await_line(up, "scheduler running, 1 workers")
    os.kill(int(pid), signal.SIGKILL)
    await_line(up, '"child_ended"')
    sample = str(sample_path("filings"))
    fed = tapewire("feed", "file", sample, "--limit", "3", env=env)
    assert fed.returncode == 0, fed.stderr
    tail = tapewire("tail", "signals", "--from-beginning", "--limit", "3", "--json", env=env)
    assert len({json.loads(line)["event_id"] for line in tail.stdout.splitlines()}) == 3
    up.send_signal(signal.SIGINT)
    _, err = up.communicate(timeout=60)
    assert up.returncode == 0, err
    assert (run_dir / "scheduler.log").read_text().count('"scheduler_running"') == 2


def test_a_killed_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    """SIGKILL of the demo itself takes scheduler, worker, broker and Valkey with it."""
    run_dir = tmp_path / "run"
    demo = start("demo", "--engine", "sim", "--json", "--run-dir", str(run_dir), cwd=tmp_path)
    await_line(demo, "demo: running")
    config = (run_dir / "tapewire.toml").read_text()
    ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", config)]
    assert len(ports) >= 2
    demo.kill()
    demo.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while running_from(run_dir) or any(listening(port) for port in ports):
        assert time.monotonic() < deadline, running_from(run_dir)
        time.sleep(0.05)


def listening(port: int) -> bool:
    """Return whether something takes connections on a port of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
