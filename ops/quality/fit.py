"""Fit a calibration: label priors from unlabelled texts, a temperature from labelled ones; pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from workers.calibration import DIGITS, LEAST_PROBABILITY, TEMPERATURES, HeadCalibration

FOLDS = 5
GOLDEN = (math.sqrt(5) - 1) / 2
SEARCH_WIDTH = 1e-4
"""Width in the logarithm of the temperature at which the search ends: a ten-thousandth of the temperature."""
MOST_CERTAIN = 0.05
"""Lowest temperature that is fitted. With few labels that all happen to be right, the best would be zero."""

Spread = Mapping[str, float]
"""Probability per label, as the model gave it."""


def log_priors(spreads: Sequence[Spread], labels: Sequence[str]) -> list[float]:
    """Return per label the mean logarithm of its probability over at least one text (batch calibration).

    The mean of logarithms, not of probabilities (Zhou et al. 2023): taking it out makes the mean score of all labels
    equal, and one text on which the model is certain cannot move it by more than its own logarithm.
    """
    return [sum(math.log(max(s[label], LEAST_PROBABILITY)) for s in spreads) / len(spreads) for label in labels]


def temperature(spreads: Sequence[Spread], truth: Sequence[str], head: HeadCalibration) -> float:
    """Return the temperature under which the right labels are the most likely.

    The loss is convex in the inverse temperature, so it has one minimum, which golden-section search finds.

    Args:
        spreads: at least one, over a part or all of the head's labels.
        truth: the right label of each.
        head: the priors; its temperature is not used.
    """

    def loss(log_temperature: float) -> float:
        tried = HeadCalibration(labels=head.labels, log_priors=head.log_priors, temperature=math.exp(log_temperature))
        spread = (tried.apply("", raw)[label] for raw, label in zip(spreads, truth, strict=True))
        return -sum(math.log(max(p, LEAST_PROBABILITY)) for p in spread)

    return math.exp(_minimum(loss, math.log(MOST_CERTAIN), math.log(TEMPERATURES[1])))


def fit(spreads: Sequence[Spread], labels: Sequence[str]) -> HeadCalibration:
    """Return the head's calibration from unlabelled texts alone: priors, and the temperature 1."""
    return HeadCalibration(labels=list(labels), log_priors=[round(p, DIGITS) for p in log_priors(spreads, labels)])


def with_temperature(head: HeadCalibration, spreads: Sequence[Spread], truth: Sequence[str]) -> HeadCalibration:
    """Return the same priors with the temperature that these labels give."""
    fitted = round(temperature(spreads, truth, head), DIGITS)
    return HeadCalibration(labels=head.labels, log_priors=head.log_priors, temperature=fitted)


def cross_fitted(
    head: HeadCalibration, texts: Sequence[str], spreads: Sequence[Spread], truth: Sequence[str], folds: int = FOLDS
) -> list[HeadCalibration]:
    """Return for each item the calibration whose temperature was fitted on the other items.

    Equal texts are in one fold, so that no text is judged by a temperature that has seen it. Which fold is a hash of
    the text: the same on every run, and independent of the file's order.
    """
    fold_of = [crc32(text.encode("utf-8", "surrogatepass")) % folds for text in texts]
    per_fold: list[HeadCalibration] = []
    for fold in range(folds):
        others = [i for i, each in enumerate(fold_of) if each != fold]
        fitted = with_temperature(head, [spreads[i] for i in others], [truth[i] for i in others]) if others else head
        per_fold.append(fitted)
    return [per_fold[fold] for fold in fold_of]


def _minimum(loss: Callable[[float], float], low: float, high: float) -> float:
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = loss(left), loss(right)
    while high - low > SEARCH_WIDTH:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - GOLDEN * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + GOLDEN * (high - low)
            at_right = loss(right)
    return (low + high) / 2
