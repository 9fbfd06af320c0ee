"""Fits an engine's step costs to a trace of its steps: how the measured profiles are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from ops.sim.driver import Step
from ops.sim.profiles import CostFigures

TERMS = ("step", "prefill_token", "decode", "kv_token")
TRIMMED = 0.05
"""Share of the steps with the largest relative error that a second fit leaves out: other processes' time slices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Costs and how well they describe the steps.

    Args:
        noise: relative error of a step, as 1.48 times the median of its size (a normal distribution's deviation).
    """

    costs: CostFigures
    steps: int
    noise: float


def fit(trace: Sequence[Step]) -> Fit:
    """Fit the linear model by least squares on relative errors, no coefficient negative.

    Raises:
        ValueError: fewer steps than coefficients.
    """
    rows = [((1.0, float(s.prefill_tokens), float(s.decode_tokens), float(s.kv_tokens)), s.seconds) for s in trace]
    if len(rows) < 2 * len(TERMS):
        raise ValueError(f"{len(rows)} steps are too few to fit {len(TERMS)} coefficients")
    coefficients = _least_squares(rows)
    rows.sort(key=lambda row: _error(row, coefficients))
    rows = rows[: max(2 * len(TERMS), int(len(rows) * (1 - TRIMMED)))]
    coefficients = _least_squares(rows)
    return Fit(
        costs=CostFigures(**dict(zip(TERMS, coefficients, strict=True))),
        steps=len(trace),
        noise=1.48 * median(_error(row, coefficients) for row in rows),
    )


Row = tuple[tuple[float, ...], float]


def _error(row: Row, coefficients: Sequence[float]) -> float:
    x, y = row
    return abs(sum(c * v for c, v in zip(coefficients, x, strict=True)) - y) / y


def _least_squares(rows: Sequence[Row]) -> list[float]:
    """Return the best coefficients that are not negative: with four of them, all subsets can be tried."""
    best: tuple[float, list[float]] | None = None
    for count in range(1, len(TERMS) + 1):
        for kept in combinations(range(len(TERMS)), count):
            solved = _solve(rows, kept)
            if solved is None or min(solved) < 0:
                continue
            full = [0.0] * len(TERMS)
            for index, value in zip(kept, solved, strict=True):
                full[index] = value
            loss = sum(_error(row, full) ** 2 for row in rows)
            if best is None or loss < best[0]:
                best = (loss, full)
    assert best is not None  # noqa: S101 - the mean alone is a solution, since times are positive
    return best[1]


def _solve(rows: Sequence[Row], kept: Sequence[int]) -> list[float] | None:
    """Solve the normal equations for some of the terms; None when they do not tell them apart."""
    size = len(kept)
    scale = [max(abs(x[i]) for x, _ in rows) or 1.0 for i in kept]
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for x, y in rows:
        features = [x[i] / s / y for i, s in zip(kept, scale, strict=True)]
        for a in range(size):
            for b in range(size):
                matrix[a][b] += features[a] * features[b]
            matrix[a][size] += features[a]
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        if abs(matrix[pivot][column]) < 1e-12:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for row in range(size):
            if row != column:
                factor = matrix[row][column] / matrix[column][column]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[column], strict=True)]
    return [matrix[i][size] / matrix[i][i] / scale[i] for i in range(size)]
