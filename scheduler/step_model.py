"""How long an engine step takes: a linear model, fitted online to what the worker reports.

``seconds = step + prefill tokens * prefill_token + decodes * decode + KV tokens * kv_token``. Recursive least squares
with forgetting; outliers count less (Huber), nonsense not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from schemas.frames import StepReport
from schemas.settings import ValveSettings

FORGETTING = 0.98
"""Weight of the past at each report: with ten reports a second, half of it is gone after some three seconds of load."""
SCALE = (1.0, 1e-3, 1e-2, 1e-5)
"""Brings step, prefill tokens, decodes and KV tokens to about one, which keeps the recursion well conditioned."""
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
"""A coefficient may grow to this many times its prior, or the whole step with it: beyond that the fit is nonsense."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCosts:
    """Coefficients of the model, in seconds."""

    step: float
    prefill_token: float
    decode: float
    kv_token: float

    @classmethod
    def prior(cls, settings: ValveSettings) -> StepCosts:
        """Return what is assumed before the first report."""
        return cls(
            step=settings.step_ms / 1e3,
            prefill_token=settings.prefill_token_us / 1e6,
            decode=settings.decode_us / 1e6,
            kv_token=settings.kv_token_ns / 1e9,
        )

    def seconds(self, prefill_tokens: float, decodes: float = 0, kv_tokens: float = 0) -> float:
        """Return the predicted duration of one step."""
        return self.step + prefill_tokens * self.prefill_token + decodes * self.decode + kv_tokens * self.kv_token


class StepModel:
    """The fitted model of one worker.

    Args:
        prior: believed until reports say otherwise.
    """

    def __init__(self, prior: StepCosts) -> None:
        self._prior = prior
        coefficients = (prior.step, prior.prefill_token, prior.decode, prior.kv_token)
        self._theta = [c / s for c, s in zip(coefficients, SCALE, strict=True)]
        self._p = [[0.0] * 4 for _ in SCALE]
        for i, theta in enumerate(self._theta):
            self._p[i][i] = PRIOR_VARIANCE * max(theta * theta, 1e-8)
        self._noise = FIRST_NOISE
        self.costs = prior
        self.observed = 0
        self.rejected = 0

    def observe(self, report: StepReport, kv_capacity: int) -> bool:
        """Learn from a report that sums up some steps.

        Args:
            report: steps since the report before.
            kv_capacity: tokens that the worker's KV cache holds.

        Returns:
            False when the report is nonsense and was left out.
        """
        if not self._plausible(report):
            self.rejected += 1
            return False
        steps = report.steps
        x = [
            1.0 * SCALE[0],
            report.prefill_tokens / steps * SCALE[1],
            report.decode_tokens / steps * SCALE[2],
            report.kv_usage * kv_capacity * SCALE[3],
        ]
        self._update(x, report.seconds / steps, min(steps, 10))
        self.observed += 1
        self._read_costs()
        return True

    @staticmethod
    def _plausible(report: StepReport) -> bool:
        values = (report.seconds, report.kv_usage, report.prefill_tokens, report.decode_tokens)
        return (
            all(isfinite(v) and v >= 0 for v in values)
            and report.steps > 0
            and report.seconds <= MAX_STEP_SECONDS * report.steps
            and report.kv_usage <= 1
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
        px = [sum(row[j] * x[j] for j in range(4)) for row in self._p]
        variance = typical * typical / weight
        denominator = FORGETTING * variance + sum(v * p for v, p in zip(x, px, strict=True))
        gain = [p / denominator for p in px]
        self._theta = [t + g * residual for t, g in zip(self._theta, gain, strict=True)]
        for i in range(4):
            for j in range(4):
                self._p[i][j] = (self._p[i][j] - gain[i] * px[j]) / FORGETTING
        self._bound_covariance()

    def _bound_covariance(self) -> None:
        """Keep what is not excited by the load from growing without end (a wind-up of the forgetting)."""
        for i, theta in enumerate((self._prior.step, self._prior.prefill_token, self._prior.decode, 1e-8)):
            most = PRIOR_VARIANCE * max((theta / SCALE[i]) ** 2, 1e-8)
            if self._p[i][i] > most:
                shrink = (most / self._p[i][i]) ** 0.5
                for j in range(4):
                    self._p[i][j] *= shrink
                    self._p[j][i] *= shrink

    def _read_costs(self) -> None:
        """Take the coefficients over, none of them negative and the fixed and prefill costs never nothing."""
        step, prefill, decode, kv = (max(t * s, 0.0) for t, s in zip(self._theta, SCALE, strict=True))
        prior = self._prior
        self.costs = StepCosts(
            step=min(max(step, prior.step / 1000), prior.step * MAX_TERM_GROWTH),
            prefill_token=min(max(prefill, prior.prefill_token / 1000), prior.prefill_token * MAX_TERM_GROWTH),
            decode=min(decode, max(prior.decode, 1e-5) * MAX_TERM_GROWTH),
            kv_token=min(kv, max(prior.kv_token, 1e-8) * MAX_TERM_GROWTH),
        )
