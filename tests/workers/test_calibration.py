"""Calibrations: the arithmetic against values worked out by hand, files that are wrong, and which one is used."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ConfigError
from workers.calibration import (
    SHIPPED,
    Calibration,
    CalibrationError,
    HeadCalibration,
    apply,
    check,
    find,
    load_calibration,
    load_calibrations,
    save_calibration,
)

LABELS = ["bullish", "bearish", "neutral"]


def make(
    *, revision: str = "rev", prompt: str = "headline-1", priors: tuple[float, ...] = (-0.5, -1.5, -2.0), **more: Any
) -> Calibration:
    """Return a calibration of one head."""
    head = HeadCalibration(labels=LABELS, log_priors=list(priors), temperature=more.pop("temperature", 1.0))
    return Calibration(model_revision=revision, prompt_version=prompt, heads={"direction": head}, **more)


def test_prior_is_taken_out() -> None:
    """A model that always favours a label gives it an even chance once its prior is divided out."""
    head = HeadCalibration(labels=["a", "b"], log_priors=[math.log(0.8), math.log(0.2)])
    assert head.apply("h", {"a": 0.8, "b": 0.2}) == pytest.approx({"a": 0.5, "b": 0.5})
    # 0.6/0.8 : 0.4/0.2 = 0.75 : 2
    assert head.apply("h", {"a": 0.6, "b": 0.4}) == pytest.approx({"a": 0.75 / 2.75, "b": 2 / 2.75})


def test_temperature_flattens() -> None:
    """A temperature of two takes the square root of the odds."""
    head = HeadCalibration(labels=["a", "b"], log_priors=[0.0, 0.0], temperature=2.0)
    assert head.apply("h", {"a": 0.8, "b": 0.2}) == pytest.approx({"a": 2 / 3, "b": 1 / 3})


def test_zero_probability_is_survived() -> None:
    """A label with probability zero stays the least likely and breaks nothing."""
    out = apply(make(), {"direction": {"bullish": 1.0, "bearish": 0.0, "neutral": 0.0}})["direction"]
    assert max(out, key=out.__getitem__) == "bullish"
    assert sum(out.values()) == pytest.approx(1.0)


def test_head_without_calibration_is_left_alone() -> None:
    """A head that the calibration does not name keeps the model's own distribution, and so do all without any."""
    raw = {"relevance": {"high": 0.7, "low": 0.3}}
    assert apply(make(), raw) == raw
    assert apply(None, raw) == raw


def test_part_of_the_labels() -> None:
    """A distribution over two of three labels is calibrated as if there were no third."""
    out = apply(make(priors=(-1.0, -1.0, -9.0)), {"direction": {"bullish": 0.25, "bearish": 0.75}})
    assert out["direction"] == pytest.approx({"bullish": 0.25, "bearish": 0.75})


@pytest.mark.parametrize("spread", [{"up": 1.0}, {"bullish": math.nan}, {"bullish": -0.1}, {"bullish": math.inf}])
def test_distribution_that_does_not_fit(spread: dict[str, float]) -> None:
    """An unknown label and a probability that is none are typed errors that name the head."""
    with pytest.raises(CalibrationError, match="head direction"):
        apply(make(), {"direction": spread})


@given(
    weights=st.lists(st.floats(0, 1), min_size=3, max_size=3).filter(lambda w: sum(w) > 0),
    priors=st.lists(st.floats(-100, 0), min_size=3, max_size=3),
    temperature=st.floats(0.01, 100),
)
def test_result_is_a_distribution(weights: list[float], priors: list[float], temperature: float) -> None:
    """Whatever the model says and whatever a valid file holds, the result is finite and sums to one."""
    raw = {label: weight / sum(weights) for label, weight in zip(LABELS, weights, strict=True)}
    out = HeadCalibration(labels=LABELS, log_priors=priors, temperature=temperature).apply("h", raw)
    assert sum(out.values()) == pytest.approx(1.0)
    assert all(0 <= p <= 1 for p in out.values())


def test_id_is_of_the_numbers_alone() -> None:
    """The id is the same for the same numbers wherever they came from, and another for any other number."""
    assert make(source="here", made_at="2026-01-01T00:00:00Z").id == make().id
    others = {make().id, make(temperature=1.5).id, make(revision="other").id, make(prompt="headline-2").id}
    assert len(others) == 4


def test_saved_and_read(tmp_path: Path) -> None:
    """A calibration written to a directory is read back equal, under a name that is its id."""
    made = make(model="m", extractor="headline", source="s", unlabelled=9, labelled=3, made_at="2026-01-01T00:00:00Z")
    path = save_calibration(made, tmp_path / "new")
    assert path.stem == made.id
    assert load_calibrations([tmp_path / "new"]) == [made]


def test_users_directory_goes_before_the_shipped(tmp_path: Path) -> None:
    """Of several that fit, the newest of the last directory is used."""
    first, second = tmp_path / "a", tmp_path / "b"
    save_calibration(make(temperature=1.1, made_at="2026-03-01T00:00:00Z"), first)
    old = make(temperature=1.2, made_at="2026-01-01T00:00:00Z")
    new = make(temperature=1.3, made_at="2026-02-01T00:00:00Z")
    save_calibration(new, second)
    save_calibration(old, second)
    loaded = load_calibrations([first, second])
    assert find(loaded, "rev", "headline-1") == new
    assert find(loaded, "rev", "headline-2") is None
    assert find(loaded, "other", "headline-1") is None


def test_changed_file_is_refused(tmp_path: Path) -> None:
    """A file whose numbers were changed by hand no longer has the id of its name, and signals would lie."""
    path = save_calibration(make(), tmp_path)
    content = json.loads(path.read_text())
    content["heads"]["direction"]["temperature"] = 3.0
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="was changed"):
        load_calibration(path)


def _with(**change: Any) -> str:
    head = {"labels": ["a", "b"], "log_priors": [-1.0, -2.0], "temperature": 1.0} | change
    return json.dumps({"model_revision": "r", "prompt_version": "p", "heads": {"direction": head}})


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", r"own\.json"),
        ("[]", r"own\.json"),
        ('{"prompt_version": "p", "heads": {}}', "model_revision"),
        (_with(temperature=0), r"heads\.direction\.temperature"),
        (_with(temperature="hot"), r"heads\.direction.*temperature"),
        (_with(log_priors=[-1.0]), r"heads\.direction\.log_priors"),
        (_with(log_priors=[-1.0, -1e6]), r"heads\.direction\.log_priors"),
        (_with(labels=["a", "a"]), r"heads\.direction\.labels"),
        (_with(labels=["a"], log_priors=[-1.0]), r"heads\.direction\.labels"),
        (_with(extra=1), r"heads\.direction.*extra"),
        (_with().replace("-2.0", "NaN"), r"own\.json"),
        (_with().replace("-2.0", "-1e999"), r"own\.json"),
        (" " * (1 << 20) + "{}", "larger"),
    ],
)
def test_bad_file(tmp_path: Path, content: str, named: str) -> None:
    """A file that is no calibration is an error that names the file and the field."""
    path = tmp_path / "own.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=named) as raised:
        load_calibrations([tmp_path])
    assert str(path) in str(raised.value)


def test_missing_directory(tmp_path: Path) -> None:
    """A directory that is not there is an error of the setting, not silence."""
    with pytest.raises(ConfigError, match=r"worker\.calibrations"):
        load_calibrations([tmp_path / "none"])


def test_check_against_an_extractor() -> None:
    """A calibration for other labels or another head is refused before anything runs."""
    check(make(), {"direction": ["neutral", "bullish", "bearish"]})
    with pytest.raises(ConfigError, match=r"heads\.direction\.labels"):
        check(make(), {"direction": ["bullish", "bearish"]})
    with pytest.raises(ConfigError, match="no head 'direction'"):
        check(make(), {"relevance": ["high", "low"]})


def test_shipped_files_are_valid() -> None:
    """Every shipped calibration can be read and has its id for a name."""
    for calibration, path in zip(load_calibrations([SHIPPED]), sorted(SHIPPED.glob("*.json")), strict=True):
        assert calibration.heads
        assert path.stem.startswith("cal-")


def test_nothing_heavy_is_imported() -> None:
    """The worker process can import this before it has decided on an engine: no torch, no vLLM, no Kafka."""
    code = "import sys, workers.calibration; print([m for m in sys.modules if m in {'torch', 'vllm', 'aiokafka'}])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
