"""Fitting priors and temperatures: against values worked out by hand, and never on what they are judged on."""

from __future__ import annotations

import math
import random

import pytest

from ops.quality.fit import MOST_CERTAIN, cross_fitted, fit, log_priors, temperature, with_temperature
from workers.calibration import HeadCalibration

EVEN = HeadCalibration(labels=["a", "b"], log_priors=[0.0, 0.0])


def test_priors_are_mean_logarithms() -> None:
    """Two texts with probabilities 0.9 and 0.4 give the logarithm of their geometric mean, 0.6."""
    found = log_priors([{"a": 0.9, "b": 0.1}, {"a": 0.4, "b": 0.6}], ["b", "a"])
    assert found == pytest.approx([math.log(math.sqrt(0.06)), math.log(0.6)])


def test_batch_calibration_evens_a_biased_model() -> None:
    """A model that answers `a` to everything tells labels apart again after its priors are taken out."""
    spreads = [{"a": 0.95, "b": 0.05}, {"a": 0.7, "b": 0.3}]
    head = fit(spreads, ["a", "b"])
    chosen = [max((out := head.apply("h", spread)), key=out.__getitem__) for spread in spreads]
    assert chosen == ["a", "b"]


def test_temperature_of_a_known_model() -> None:
    """Answers at odds of 9 to 1 that are right three times of four want odds of 3 to 1: temperature 2."""
    spreads = [{"a": 0.9, "b": 0.1}] * 4
    assert temperature(spreads, ["a", "a", "a", "b"], EVEN) == pytest.approx(2.0, rel=1e-3)


def test_temperature_below_one() -> None:
    """Answers at even odds of 0.6 that are right nine times of ten want odds of 9 to 1."""
    wanted = math.log(0.6 / 0.4) / math.log(9)
    assert temperature([{"a": 0.6, "b": 0.4}] * 10, ["a"] * 9 + ["b"], EVEN) == pytest.approx(wanted, rel=1e-3)


def test_temperature_is_bounded() -> None:
    """A handful of labels that all happen to be right does not make the model certain of everything."""
    assert temperature([{"a": 0.6, "b": 0.4}] * 3, ["a"] * 3, EVEN) == pytest.approx(MOST_CERTAIN, rel=1e-3)


def test_cross_fit_never_sees_its_own_label() -> None:
    """Changing one item's label leaves the temperature that it is judged with as it was."""
    rng = random.Random(7)
    texts = [f"text {number}" for number in range(60)]
    spreads = [{"a": p, "b": 1 - p} for p in (rng.uniform(0.05, 0.95) for _ in texts)]
    truth = ["a" if rng.random() < spread["a"] else "b" for spread in spreads]
    before = cross_fitted(EVEN, texts, spreads, truth)
    turned = ["b" if label == "a" else "a" for label in truth]
    for number in range(0, 60, 7):
        changed = [turned[i] if i == number else label for i, label in enumerate(truth)]
        after = cross_fitted(EVEN, texts, spreads, changed)
        assert after[number] == before[number]
        assert after != before


def test_cross_fit_keeps_equal_texts_together() -> None:
    """A text that stands in the file twice is not judged by a temperature that has seen its copy."""
    texts = ["same"] * 3 + [f"text {number}" for number in range(20)]
    spreads = [{"a": 0.8, "b": 0.2}] * len(texts)
    heads = cross_fitted(EVEN, texts, spreads, ["b"] * 3 + ["a"] * 15 + ["b"] * 5)
    assert heads[0] is heads[1] is heads[2]


def test_cross_fit_of_one_text() -> None:
    """With nothing else to fit on, the temperature stays 1."""
    assert cross_fitted(EVEN, ["x"], [{"a": 0.8, "b": 0.2}], ["a"]) == [EVEN]


def test_numbers_are_rounded() -> None:
    """Priors and temperature are kept with six decimals, so that equal fits have equal ids."""
    head = with_temperature(fit([{"a": 1 / 3, "b": 2 / 3}], ["a", "b"]), [{"a": 0.7, "b": 0.3}] * 3, ["a", "a", "b"])
    for number in (*head.log_priors, head.temperature):
        assert number == round(number, 6)
