"""The commands as a user runs them, on the simulated engine: output, exit codes, files written, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ops.quality.calibrate import asked_about
from schemas.settings import ClassSettings, RuleSettings, SchedulerSettings
from tests.ops.command import assert_refused, tapewire
from workers.calibration import HeadCalibration, load_calibrations, save_calibration

LABELS = ("positive", "negative", "neutral")


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Return a file of 40 labelled texts."""
    path = tmp_path / "labelled.jsonl"
    lines = [{"text": f"Company {n} raises its outlook for year {n}", "label": LABELS[n % 3]} for n in range(40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _json(*arguments: str, code: int = 0) -> dict[str, Any]:
    done = tapewire(*arguments, "--engine", "sim", "--json")
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_eval_prints_one_object(labelled: Path, tmp_path: Path) -> None:
    """`--json` gives every figure in one object, and the plot is a PNG."""
    plot = tmp_path / "plot.png"
    found = _json("eval", "--file", str(labelled), "--plot", str(plot))
    assert found["n"] == 40
    assert found["majority"] == pytest.approx(14 / 40)
    assert {"accuracy", "macro_f1", "brier", "ece", "coverage", "raw", "reliability"} <= found.keys()
    assert found["decode_steps_per_item"] == 3.0, "one step per head of the headline"
    assert {label: figures["n"] for label, figures in found["latency_ms"].items()} == {
        "bullish": 14, "bearish": 13, "neutral": 13
    }  # fmt: skip
    assert not found["restricted"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_eval_over_the_labels_that_the_file_has(labelled: Path) -> None:
    """A file with two of three labels is judged over those two, and over all three only when asked."""
    two = [line for line in labelled.read_text().splitlines() if "neutral" not in line]
    labelled.write_text("\n".join(two))
    found = _json("eval", "--file", str(labelled))
    assert found["restricted"]
    assert found["labels"] == ["bullish", "bearish"]
    assert all(each["low"] >= 0.5 for each in found["reliability"])
    found = _json("eval", "--file", str(labelled), "--all-labels")
    assert not found["restricted"]
    assert found["labels"] == ["bullish", "bearish", "neutral"]


def test_eval_goes_on_after_a_bad_line(labelled: Path) -> None:
    """A bad line is told with number and field, the rest is judged, and the exit code says so."""
    labelled.write_text(labelled.read_text() + '{"text": "x", "label": "\x1b[31mup"}\n'.replace("\x1b", "\\u001b"))
    done = tapewire("eval", "--file", str(labelled), "--engine", "sim", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["n"] == 40
    assert [(bad["line"], bad["field"], bad["kind"]) for bad in found["bad_lines"]] == [(41, "label", "unknown_label")]
    assert "line 41" in done.stderr
    assert "\x1b" not in done.stderr


def test_calibrate_then_eval(labelled: Path, tmp_path: Path) -> None:
    """A calibration made from a file is stored under its id, and the next eval uses it when told where it is."""
    into = tmp_path / "made"
    made = _json("calibrate", "--file", str(labelled), "--labelled", "--into", str(into), "--source", "a test")
    (stored,) = load_calibrations([into])
    assert stored.id == made["calibration_id"]
    assert (stored.unlabelled, stored.labelled, stored.source) == (40, 40, "a test")
    assert made["before"].keys() == made["after"].keys()
    assert "ece" in made["after"]
    found = _json("eval", "--file", str(labelled), "--calibrations", str(into))
    assert (found["calibration"], found["calibration_id"]) == ("stored", stored.id)
    assert found["temperature"] == pytest.approx(stored.heads["direction"].temperature, abs=1e-4)
    assert found["ece"] != found["raw"]["ece"]
    plain = _json("eval", "--file", str(labelled), "--calibrations", str(into), "--calibration", "none")
    assert plain["ece"] == plain["raw"]["ece"]


def test_calibrating_again_keeps_other_heads(labelled: Path, tmp_path: Path) -> None:
    """A head that a stored calibration has beside the one that is calibrated now is taken over unchanged."""
    into = tmp_path / "made"
    made = _json("calibrate", "--file", str(labelled), "--into", str(into))
    (first,) = load_calibrations([into])
    other = HeadCalibration(labels=["a", "b"], log_priors=[-0.5, -1.5], temperature=2.0)
    into.joinpath(f"{first.id}.json").unlink()
    save_calibration(structs.replace(first, heads={**first.heads, "mood": other}), into)
    again = _json("calibrate", "--file", str(labelled), "--labelled", "--into", str(into))
    assert again["heads"]["mood"]["temperature"] == 2.0
    assert again["heads"]["direction"]["log_priors"] == made["heads"]["direction"]["log_priors"]
    assert again["heads"]["direction"]["temperature"] != 1.0


def test_calibrate_says_how_a_worker_takes_it_up(labelled: Path, tmp_path: Path) -> None:
    """People are told the file, the setting that leads a worker to it, and that few texts make shaky priors."""
    done = tapewire("calibrate", "--file", str(labelled), "--engine", "sim", "--into", str(tmp_path / "made"))
    assert done.returncode == 0, done.stderr
    assert "worker.calibrations" in done.stdout
    assert str(tmp_path / "made") in done.stdout
    assert "few" in done.stderr


CLASSES = """
[[scheduler.classes]]
name = "slow"
slo_ms = 900
extractor = "filing"
[[scheduler.classes]]
name = "fast"
slo_ms = 100
extractor = "{fast}"
[[scheduler.rules]]
service_class = "slow"
forms = ["8-K"]
[[scheduler.rules]]
service_class = "fast"
"""


def test_calibrate_asks_what_the_classes_ask(labelled: Path, tmp_path: Path) -> None:
    """Without `--extractor` it is that of the first class whose rule can hold; one that nobody asks is warned about."""
    config = tmp_path / "t.toml"
    config.write_text(CLASSES.format(fast="filing"))
    into = str(tmp_path / "made")
    shared = (
        "calibrate",
        "--file",
        str(labelled),
        "--engine",
        "sim",
        "--config",
        str(config),
        "--into",
        into,
        "--json",
    )
    done = tapewire(*shared)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["extractor"] == "filing"
    assert "no service class" not in done.stderr
    other = tapewire(*shared, "--extractor", "headline")
    assert other.returncode == 0, other.stderr
    assert "no service class asks the extractor headline" in other.stderr


def test_rules_lead_a_topic_to_its_extractor() -> None:
    """The first rule that an event of the topic can meet decides; a condition of the other kind passes it over."""
    classes = (
        ClassSettings(name="slow", slo_ms=900, extractor="filing"),
        ClassSettings(name="fast", slo_ms=100, extractor="mine"),
    )
    rules = (RuleSettings(service_class="slow", forms=("8-K",)), RuleSettings(service_class="fast"))
    settings = SchedulerSettings(classes=classes, rules=rules)
    assert [asked_about(settings, topic) for topic in ("news", "filings", None)] == ["mine", "filing", "mine"]
    assert [asked_about(SchedulerSettings(), topic) for topic in ("news", "filings")] == ["headline", "headline"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("eval", "--file", "/nowhere.jsonl", "--engine", "sim"), "/nowhere.jsonl"),
        (("eval", "--file", "FILE", "--engine", "sim", "--head", "colour"), "--head"),
        (("eval", "--file", "FILE", "--engine", "sim", "--extractor", "poem"), "--extractor"),
        (("eval", "--file", "FILE", "--engine", "sim", "--calibrations", "/nowhere"), "worker.calibrations"),
        (("eval", "--file", "FILE", "--engine", "sim", "--plot", "/nowhere/p.png"), "--plot"),
        (("calibrate", "--engine", "sim"), "--topic"),
        (("calibrate", "--engine", "sim", "--topic", "weather"), "--topic"),
        (("calibrate", "--engine", "sim", "--topic", "news", "--file", "FILE"), "--labelled"),
        (("calibrate", "--engine", "sim", "--topic", "news", "--labelled"), "--file"),
        (("calibrate", "--engine", "sim", "--file", "FILE", "--into", "/dev/null/x"), "worker.calibrations"),
    ],
)
def test_wrong_use(labelled: Path, arguments: tuple[str, ...], named: str) -> None:
    """Each wrong flag is one message that names it, with exit code 2 and nothing on stdout."""
    assert_refused(tapewire(*(str(labelled) if each == "FILE" else each for each in arguments)), named)
