"""Scores against values worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.quality.metrics import (
    Judged,
    brier,
    calibration_error,
    coverage,
    log_loss,
    macro_f1,
    majority,
    reliability,
    scores,
)

FOUR = [
    Judged({"a": 0.9, "b": 0.1}, "a"),
    Judged({"a": 0.6, "b": 0.4}, "b"),
    Judged({"a": 0.2, "b": 0.8}, "b"),
    Judged({"a": 0.55, "b": 0.45}, "a"),
]
"""Three of four right: a chosen three times and right twice, b chosen once and right."""


def test_accuracy_and_majority() -> None:
    """Accuracy counts right answers, and the baseline is the share of the most frequent label."""
    assert scores(FOUR).accuracy == 0.75
    assert majority(["a", "b", "b", "c"]) == 0.5


def test_macro_f1() -> None:
    """F1 of a is 4/5, of b 2/3; a label that is chosen and never right counts with zero."""
    assert macro_f1(FOUR) == pytest.approx((4 / 5 + 2 / 3) / 2)
    wrong = [*FOUR, Judged({"a": 0.1, "b": 0.2, "c": 0.7}, "a")]
    # a: 2 TP of 3 true and 3 chosen, b: 1 TP of 2 true and 1 chosen, c: none
    assert macro_f1(wrong) == pytest.approx((4 / 6 + 2 / 3 + 0) / 3)


def test_brier_is_summed_over_labels() -> None:
    """Certain and wrong gives 2, certain and right 0, and the four items 0.02, 0.72, 0.08 and 0.405."""
    assert brier([Judged({"a": 1.0, "b": 0.0}, "b")]) == 2.0
    assert brier([Judged({"a": 1.0, "b": 0.0}, "a")]) == 0.0
    assert brier(FOUR) == pytest.approx((0.02 + 0.72 + 0.08 + 0.405) / 4)


def test_log_loss() -> None:
    """The mean negative logarithm of the right label's probability, finite at zero."""
    assert log_loss(FOUR) == pytest.approx(-(math.log(0.9) + math.log(0.4) + math.log(0.8) + math.log(0.45 + 0.1)) / 4)
    assert math.isfinite(log_loss([Judged({"a": 1.0, "b": 0.0}, "b")]))


def test_calibration_error() -> None:
    """Bins 0.5, 0.6, 0.8 and 0.9 hold one item each with errors 0.45, 0.6, 0.2 and 0.1."""
    bins = reliability(FOUR)
    assert [(each.low, each.count, each.accuracy) for each in bins] == [
        (0.5, 1, 1.0), (0.6, 1, 0.0), (0.8, 1, 1.0), (0.9, 1, 1.0)
    ]  # fmt: skip
    assert calibration_error(bins) == pytest.approx((0.45 + 0.6 + 0.2 + 0.1) / 4)


def test_certain_answers_have_a_bin() -> None:
    """Confidence 1 falls into the last bin rather than past it."""
    assert [each.low for each in reliability([Judged({"a": 1.0, "b": 0.0}, "a")])] == [0.9]


def test_coverage() -> None:
    """Three of four are at least 0.6 confident, two of them right; above every confidence there is no accuracy."""
    share, accuracy = coverage(FOUR, 0.6)
    assert (share, accuracy) == (0.75, 2 / 3)
    assert coverage(FOUR, 0.95) == (0.0, None)


@given(
    st.lists(
        st.tuples(st.lists(st.floats(0.001, 1), min_size=3, max_size=3), st.sampled_from("abc")),
        min_size=1,
        max_size=40,
    )
)
def test_bounds(drawn: list[tuple[list[float], str]]) -> None:
    """Whatever the answers, every score stays inside its range and the bins lose no answer."""
    items = [
        Judged({name: weight / sum(weights) for name, weight in zip("abc", weights, strict=True)}, label)
        for weights, label in drawn
    ]
    found = scores(items)
    assert 0 <= found.accuracy <= 1
    assert 0 <= found.macro_f1 <= 1
    assert 0 <= found.ece <= 1
    assert 0 <= found.brier <= 2
    assert sum(each.count for each in reliability(items)) == len(items)
