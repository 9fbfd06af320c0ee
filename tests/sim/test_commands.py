"""``tapewire bench latency``, ``bench planner`` and ``capacity`` as a user runs them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ops.command import assert_refused, tapewire


def test_latency_prints_one_json_object() -> None:
    """``bench latency --json`` gives scenario, engine, seeds and each policy's figures, and nothing else."""
    done = tapewire("bench", "latency", "--scenario", "burst-idle", "--seeds", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["scenario"], found["engine"], found["seeds"]) == ("burst-idle", "sim", 2)
    assert set(found["policies"]) == {"fcfs", "engine-priority", "article", "tapewire-no-gate", "tapewire"}
    assert found["policies"]["fcfs"]["flash"]["count"] == 500


def test_latency_shows_a_table_and_the_bars() -> None:
    """For people there is one table, and with ``--check`` every bar with the value that was reached."""
    done = tapewire("bench", "latency", "--scenario", "long-document", "--seeds", "1", "--check")
    assert "tapewire bench latency: long-document" in done.stdout
    assert "steps a headline waits" in done.stdout
    assert done.returncode == (1 if "MISSED" in done.stdout else 0)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--scenario", "nope"], "scenario"),
        (["--engine", "cuda"], "engine"),
        (["--policies", "lifo"], "policies"),
        (["--profile", "nope"], "profile"),
        (["--profile", "missing.toml"], "profile"),
    ],
)
def test_a_wrong_name_is_one_message(arguments: list[str], named: str) -> None:
    """A scenario, engine, policy or profile that there is not: one message that names it, exit code 2."""
    assert_refused(tapewire("bench", "latency", "--seeds", "1", *arguments), named)


def test_a_plot_is_written_or_the_package_is_named(tmp_path: Path) -> None:
    """``--plot`` writes a PNG; without matplotlib it says what to install before anything is run."""
    file = tmp_path / "frontier.png"
    done = tapewire("bench", "latency", "--scenario", "burst-idle", "--seeds", "1", "--json", "--plot", str(file))
    if find_spec("matplotlib") is None:
        assert_refused(done, "plot")
        assert "tapewire[plots]" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert file.read_bytes().startswith(b"\x89PNG")


def test_planner_cost_has_one_row_per_size() -> None:
    """``bench planner`` measures each number of queued events and the growth between them."""
    done = tapewire("bench", "planner", "--queued", "200", "--queued", "400", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [size["queued"] for size in found["sizes"]] == [200, 400]
    assert found["growth"] > 0


def test_prompts_cost_is_one_json_object(tmp_path: Path) -> None:
    """``bench prompts --json`` gives every figure; what is no tokenizer is one message and exit code 2."""
    done = tapewire("bench", "prompts", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["tokenise_us"]) == {"1", "100"}
    assert found["headlines_per_s"] > 0
    assert 0 < found["filing_chunks"] < found["filing_tokens"]
    bad = tmp_path / "tokenizer.json"
    bad.write_text("{}")
    assert_refused(tapewire("bench", "prompts", "--tokenizer", str(bad)), "--tokenizer")


def test_capacity_answers_for_a_profile() -> None:
    """``capacity`` says whether the asked burst fits, what binds, and what bulk keeps."""
    done = tapewire("capacity", "--burst", "5", "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fits"] is True
    assert found["chosen"]["burst"] >= 5
    assert found["chosen"]["burst_binds"] == "time (SLO)"
    assert found["chosen"]["bulk_tokens_per_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--profile", "nope"], "profile"), (["--profile", "article", "--worker", "w"], "--worker")],
)
def test_capacity_refuses_what_it_cannot_use(arguments: list[str], named: str) -> None:
    """A profile that is not there, or two sources at once, is one message and exit code 2."""
    assert_refused(tapewire("capacity", *arguments), named)
