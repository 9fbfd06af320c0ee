"""What predicted probabilities are worth against the right labels: pure functions over small lists."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BINS = 10
"""Equal-width bins of the expected calibration error, as in Guo et al. 2017 (there 15, on test sets of thousands)."""
LEAST = 1e-12
"""What a probability of zero counts as in the log loss."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One prediction and the truth.

    Args:
        spread: probability per label, summing to 1.
        label: the right one.
    """

    spread: Mapping[str, float]
    label: str

    @property
    def chosen(self) -> str:
        """The most probable label; the first of several."""
        return max(self.spread, key=self.spread.__getitem__)

    @property
    def confidence(self) -> float:
        """Its probability."""
        return max(self.spread.values())

    @property
    def right(self) -> bool:
        """Whether it is the right one."""
        return self.chosen == self.label


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """Predictions of about the same confidence.

    Args:
        low, high: the confidences that fall into it; ``high`` only in the last bin.
        count: how many did.
        confidence: their mean.
        accuracy: share of them that is right.
    """

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """How good predictions are.

    Args:
        accuracy: share that is right.
        macro_f1: mean of the F1 over all labels that are right or chosen somewhere.
        brier: mean squared distance to the truth, summed over the labels: 0 is perfect, 2 the worst (Brier 1950).
        ece: expected calibration error, mean distance of confidence and accuracy over the bins, weighted by count.
        log_loss: mean negative logarithm of the right label's probability.
    """

    accuracy: float
    macro_f1: float
    brier: float
    ece: float
    log_loss: float


def scores(items: Sequence[Judged]) -> Scores:
    """Return all scores of at least one prediction."""
    return Scores(
        accuracy=sum(item.right for item in items) / len(items),
        macro_f1=macro_f1(items),
        brier=brier(items),
        ece=calibration_error(reliability(items)),
        log_loss=log_loss(items),
    )


def macro_f1(items: Sequence[Judged]) -> float:
    """Return the unweighted mean of each label's F1, 2 TP / (2 TP + FP + FN)."""
    truth = Counter(item.label for item in items)
    chosen = Counter(item.chosen for item in items)
    hits = Counter(item.label for item in items if item.right)
    labels = truth.keys() | chosen.keys()
    return sum(2 * hits[label] / (truth[label] + chosen[label]) for label in labels) / len(labels)


def brier(items: Sequence[Judged]) -> float:
    """Return the mean over predictions of the squared error summed over labels."""
    total = 0.0
    for item in items:
        total += sum((p - (label == item.label)) ** 2 for label, p in item.spread.items())
    return total / len(items)


def log_loss(items: Sequence[Judged]) -> float:
    """Return the mean negative log likelihood, natural logarithm."""
    return -sum(math.log(max(item.spread[item.label], LEAST)) for item in items) / len(items)


def reliability(items: Sequence[Judged], bins: int = BINS) -> list[Bin]:
    """Sort predictions into bins of equal width by confidence; bins without any are left out."""
    held: dict[int, list[Judged]] = {}
    for item in items:
        held.setdefault(min(int(item.confidence * bins), bins - 1), []).append(item)
    return [
        Bin(
            low=number / bins,
            high=(number + 1) / bins,
            count=len(inside),
            confidence=sum(item.confidence for item in inside) / len(inside),
            accuracy=sum(item.right for item in inside) / len(inside),
        )
        for number, inside in sorted(held.items())
    ]


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error of predictions in bins."""
    total = sum(each.count for each in bins)
    return sum(each.count / total * abs(each.confidence - each.accuracy) for each in bins)


def coverage(items: Sequence[Judged], threshold: float) -> tuple[float, float | None]:
    """Return the share of predictions at least this confident, and their accuracy; none where there are none."""
    sure = [item for item in items if item.confidence >= threshold]
    return len(sure) / len(items), sum(item.right for item in sure) / len(sure) if sure else None


def majority(labels: Sequence[str]) -> float:
    """Return the accuracy of always answering the most frequent label."""
    return Counter(labels).most_common(1)[0][1] / len(labels)
