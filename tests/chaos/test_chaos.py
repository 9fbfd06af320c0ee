"""A short seeded part of the bench, for every change: each kind of fault at least once, on a real Apache Kafka."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.broker import LAUNCHER_VARIABLE, ROOT, launcher
from tests.chaos.plan import FaultKind, Options, make_plan
from tests.chaos.report import JSON_KEYS

SECONDS, RATE = 45.0, 250.0
RUNS = (
    Options(
        seed=1,
        seconds=SECONDS,
        rate=RATE,
        faults=(
            FaultKind.SCHEDULER_KILL,
            FaultKind.BROKER_KILL,
            FaultKind.WORKER_KILL,
            FaultKind.REDIS_KILL,
            FaultKind.MALFORMED_FLOOD,
        ),
    ),
    Options(
        seed=2,
        seconds=SECONDS,
        rate=RATE,
        faults=(
            FaultKind.SCHEDULER_PAUSE,
            FaultKind.MEMBER_JOIN_LEAVE,
            FaultKind.WORKER_PAUSE,
            FaultKind.CLOCK_STEP,
        ),
    ),
    Options(
        seed=3,
        seconds=SECONDS,
        rate=RATE,
        faults=(
            FaultKind.SCHEDULER_STOP,
            FaultKind.BROKER_SLOW,
            FaultKind.ENGINE_STUCK,
            FaultKind.ENGINE_FAILURES,
        ),
    ),
)
LIMIT_SECONDS = 240.0
"""A run takes a minute; past this, something hangs."""


def why_not() -> str:
    """Return why an Apache Kafka cannot be started here; empty when it can."""
    if launcher() is None:
        return f"no Apache Kafka: neither {LAUNCHER_VARIABLE} nor {ROOT.parent}/shared/kafka/kafka names its launcher"
    return "" if shutil.which("java") else "no Apache Kafka: java is not on the path"


def bench(options: Options, tmp_path: Path) -> tuple[int, dict[str, Any], str]:
    """Run the bench as its users do; returns exit code, JSON object and what it said."""
    command = [sys.executable, *options.command().split()[1:], "--json", "--report", str(tmp_path / "report")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    said = done.stderr[-6000:]
    assert done.stdout, said
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), said


def test_the_short_runs_hold_every_kind_of_fault() -> None:
    """What CI runs leaves no kind of fault out, whatever the plans are changed to."""
    kinds = [{fault.kind for fault in make_plan(options)} for options in RUNS]
    assert kinds == [set(options.faults) for options in RUNS]
    assert set().union(*kinds) == set(FaultKind)


@pytest.mark.chaos
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("options", RUNS, ids=lambda options: f"seed{options.seed}")
def test_no_event_is_lost_and_every_duplicate_has_a_cause(options: Options, tmp_path: Path) -> None:
    """Under faults, every event has one outcome, but for repeats that a crash explains and its commit left open."""
    code, result, said = bench(options, tmp_path)
    assert (code, result["lost"], result["vanished"], result["phantoms"], result["quiet"]) == (0, 0, [], 0, True), said
    assert set(result["faults"]) == set(options.faults), said
    assert result["events"] > SECONDS * RATE / 2, said
    assert result.keys() >= JSON_KEYS
    repeats = {**result["duplicates"], **result["conflicts"]}
    assert not repeats.keys() & {"unexplained", "clean_stop", "rebalance"}, (repeats, said)
    for kill in result["kills"]:
        assert kill["redone"] == 0, (kill, said)
        assert kill["in_flight"] is None or kill["duplicates"] <= kill["in_flight"], (kill, said)
