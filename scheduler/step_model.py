"""How long an engine step takes: a linear model, fitted online to what the worker reports.

``seconds = step + prefill tokens * prefill_token + decodes * decode + KV tokens * kv_token``, and ``decode_step`` on
top for a step without prefill: the weights are read in every step, and only prefill hides that. Recursive least squares
with forgetting; outliers count less (Huber), nonsense not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from schemas.frames import Limits, StepReport
from schemas.settings import ValveSettings

FORGETTING = 0.92
"""Weight at each report of what was known along its direction. Loads differ in some four directions, so about fifty
reports, five seconds, of a changing load are remembered."""
SCALE = (1.0, 1e-3, 1e-2, 1e-5, 1.0)
"""Brings the terms to about one, which keeps the recursion well conditioned."""
PRIOR_VARIANCE = 9.0
"""Of each coefficient, relative to its prior squared: three times as much or as little is no surprise."""
FIRST_NOISE = 0.3
"""Relative residual that is typical before anything is known."""
LEAST_NOISE = 0.02
"""Relative residual below which no engine's steps agree; without it a few equal steps would count as certainty."""
HUBER = 3.0
"""Residuals beyond this many typical ones count as if they were this large."""
MAX_STEP_SECONDS = 120.0
"""A reported step that is longer than this is not a measurement."""
MAX_TERM_GROWTH = 20.0
"""A coefficient may grow to this many times its prior: beyond that the fit is nonsense."""
LEAST_DECODE = 1e-5
"""Seconds per decode that are no surprise, even where the prior says that it costs nothing."""
LEAST_KV_TOKEN = 1e-8
"""The same per token in the KV cache."""
LEAST_DECODE_STEP = 1e-3
"""The same per step without prefill."""
STEPS_BETWEEN = 2
"""Steps whose tokens a report may have beyond those whose time it has."""
TERMS = ("step", "prefill_token", "decode", "kv_token", "decode_step")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCosts:
    """Coefficients of the model, in seconds."""

    step: float
    prefill_token: float
    decode: float
    kv_token: float
    decode_step: float = 0.0

    @classmethod
    def prior(cls, settings: ValveSettings) -> StepCosts:
        """Return what is assumed before the first report."""
        return cls(
            step=settings.step_ms / 1e3,
            prefill_token=settings.prefill_token_us / 1e6,
            decode=settings.decode_us / 1e6,
            kv_token=settings.kv_token_ns / 1e9,
            decode_step=settings.decode_step_ms / 1e3,
        )

    def seconds(self, prefill_tokens: float, decodes: float = 0, kv_tokens: float = 0) -> float:
        """Return the predicted duration of one step."""
        prefill = max(prefill_tokens * self.prefill_token, self.decode_step)
        return self.step + prefill + decodes * self.decode + kv_tokens * self.kv_token


class StepModel:
    """The fitted model of one worker.

    The past is forgotten only along the direction that a report speaks about (Cao and Schwartz 2000): what a steady
    load says nothing about stays as it was known, instead of being forgotten until noise decides it.

    Args:
        prior: believed until reports say otherwise.
    """

    def __init__(self, prior: StepCosts) -> None:
        coefficients = tuple(getattr(prior, term) for term in TERMS)
        least = (0.0, 0.0, LEAST_DECODE, LEAST_KV_TOKEN, LEAST_DECODE_STEP)
        usual = [max(c, low) for c, low in zip(coefficients, least, strict=True)]
        self._theta = [c / s for c, s in zip(coefficients, SCALE, strict=True)]
        self._most = [u / s * MAX_TERM_GROWTH for u, s in zip(usual, SCALE, strict=True)]
        # None is negative, and the fixed and prefill costs are never nothing: others are divided by them.
        self._least = [self._theta[0] / 1000, self._theta[1] / 1000, 0.0, 0.0, 0.0]
        self._information = [[0.0] * len(SCALE) for _ in SCALE]
        for i, (u, s) in enumerate(zip(usual, SCALE, strict=True)):
            self._information[i][i] = 1 / (PRIOR_VARIANCE * (u / s) ** 2)
        self._noise = FIRST_NOISE
        self.costs = prior
        self.observed = 0
        self.rejected = 0

    def observe(self, report: StepReport, limits: Limits) -> bool:
        """Learn from a report that sums up some steps.

        Args:
            report: steps since the report before.
            limits: what the worker's engine holds.

        Returns:
            False when the report is nonsense and was left out.
        """
        if not self._plausible(report, limits.max_num_batched_tokens):
            self.rejected += 1
            return False
        steps = report.steps
        x = [
            1.0 * SCALE[0],
            report.prefill_tokens / steps * SCALE[1],
            report.decode_tokens / steps * SCALE[2],
            report.kv_usage * limits.kv_blocks * limits.block_size * SCALE[3],
            report.decode_steps / steps * SCALE[4],
        ]
        self._update(x, report.seconds / steps, min(steps, 10))
        self.observed += 1
        self.costs = StepCosts(
            **dict(zip(TERMS, (t * s for t, s in zip(self._theta, SCALE, strict=True)), strict=True))
        )
        return True

    @staticmethod
    def _plausible(report: StepReport, step_tokens: int) -> bool:
        values = (report.seconds, report.kv_usage, report.prefill_tokens, report.decode_tokens)
        return (
            all(isfinite(v) and v >= 0 for v in values)
            and report.steps > 0
            and report.seconds <= MAX_STEP_SECONDS * report.steps
            # A step whose end falls between two reports may have its tokens in one and its time in the other.
            and report.prefill_tokens + report.decode_tokens <= step_tokens * (report.steps + STEPS_BETWEEN)
            and report.kv_usage <= 1
            and 0 <= report.decode_steps <= report.steps
        )

    def _update(self, x: list[float], y: float, weight: float) -> None:
        predicted = sum(t * v for t, v in zip(self._theta, x, strict=True))
        # Steps vary in proportion to their length: what counts is the relative residual.
        scale = 1 / max(predicted, y)
        x = [v * scale for v in x]
        residual = (y - predicted) * scale
        typical = max(self._noise, LEAST_NOISE)
        if abs(residual) > HUBER * typical:
            weight *= HUBER * typical / abs(residual)
        # The typical residual follows slowly and never by more than an outlier is allowed to count.
        self._noise += 0.05 * (min(abs(residual), HUBER * typical) - typical)
        weight /= FIRST_NOISE * FIRST_NOISE
        rows = self._information
        along = [sum(r * v for r, v in zip(row, x, strict=True)) for row in rows]
        forgotten = (1 - FORGETTING) / sum(a * v for a, v in zip(along, x, strict=True))
        for i in range(len(SCALE)):
            for j in range(i + 1):
                value = rows[i][j] - forgotten * along[i] * along[j] + weight * x[i] * x[j]
                rows[i][j] = rows[j][i] = value
        self._move([weight * residual * v for v in x])

    def _move(self, pull: list[float]) -> None:
        """Move the coefficients to where a report pulls them, within their bounds.

        One that would leave them stays there, and the others explain the rest.
        """
        stopped: dict[int, float] = {}
        while True:
            rows = [
                row if i not in stopped else [float(i == j) for j in range(len(SCALE))]
                for i, row in enumerate(self._information)
            ]
            moves = _solve(rows, [stopped.get(i, p) for i, p in enumerate(pull)])
            moved = [t + m for t, m in zip(self._theta, moves, strict=True)]
            beyond = [
                i for i in range(len(SCALE)) if i not in stopped and not self._least[i] <= moved[i] <= self._most[i]
            ]
            if not beyond:
                break
            for i in beyond:
                stopped[i] = min(max(moved[i], self._least[i]), self._most[i]) - self._theta[i]
        self._theta = [min(max(m, low), high) for m, low, high in zip(moved, self._least, self._most, strict=True)]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Return the solution of linear equations; no leading part of the matrix may be singular."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(size):
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            for j in range(i, size + 1):
                rows[k][j] -= factor * rows[i][j]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution
