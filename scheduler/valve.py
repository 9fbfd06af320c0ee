"""The valve: how many tokens of a step less urgent classes may fill, so that an arriving headline still meets its SLO.

A headline that arrives at the worst moment waits for the step that runs (and for those that the engine has decided
ahead), then needs steps of its own: one for its prompt and the first token of its answer, one for each further token.
The valve spends what the SLO leaves beside that, all of it and no more::

    (1 + steps ahead) * S(T) + own steps + overhead <= SLO * (1 - margin)

``S(T)`` is the predicted step with ``T`` less urgent prefill tokens. Where the engine has a step gate, the own steps
carry none of them; without one they carry as many as the step before.
"""

from __future__ import annotations

from scheduler.step_model import StepCosts
from schemas.settings import ValveSettings

NANOSECONDS = 1_000_000_000
URGENT_TOKENS = 160
"""Prompt tokens of the headline that may arrive: the longest that counts as flash, less the cached prefix."""
CLOSE = 0.98
"""An urgent request whose time in the engine passes this share of what the SLO leaves for it was too close."""
CLOSE_STEP = 0.02
"""What one such request adds to the margin."""
CLOSE_SHARE = 0.001
"""Share of urgent requests that may come that close: where the margin neither grows nor shrinks. A quantile tracker
(a stochastic approximation of the 99.9th percentile), so it settles instead of swinging."""
OPEN_PER_SECOND = 1.0
"""Share by which the valve opens at most per second; it closes at once."""


class Valve:
    """The valve of one worker.

    Args:
        slo_seconds: of the most urgent class.
        settings: margins and the overhead outside the engine.
        most: step tokens of the engine.
        gated: the engine has a step gate.
        steps_ahead: steps that are already decided when a request arrives.
        answer_tokens: of an urgent request.
    """

    def __init__(
        self,
        slo_seconds: float,
        settings: ValveSettings,
        most: int,
        *,
        gated: bool,
        steps_ahead: int = 0,
        answer_tokens: int = 1,
    ) -> None:
        self._slo = slo_seconds
        self._settings = settings
        self._most = most
        self._gated = gated
        self._in_the_way = 1 + steps_ahead
        self._own_steps = max(answer_tokens, 1)
        self._tokens: float | None = None
        self._read_at = 0
        self.margin = settings.margin

    @property
    def engine_seconds(self) -> float:
        """What the SLO leaves for an urgent request's time in the engine, before the margin."""
        return max(self._slo - self._settings.overhead_ms / 1000, 0.0)

    def target(self, costs: StepCosts, urgent_tokens: int, decodes: int, kv_tokens: float) -> int:
        """Return the less urgent prefill tokens per step that the SLO can absorb.

        Args:
            costs: the worker's step-time model.
            urgent_tokens: prompt tokens of urgent work that waits; at least one headline is always expected.
            decodes: less urgent requests that are decoding.
            kv_tokens: tokens in the KV cache.
        """
        budget = self.engine_seconds * (1 - self.margin)
        own = costs.seconds(max(urgent_tokens, URGENT_TOKENS), decodes, kv_tokens)
        empty = costs.seconds(0, decodes, kv_tokens)
        # Less urgent tokens hide the reading of the weights in the steps that carry them.
        base = empty - costs.decode_step
        carried = self._in_the_way if self._gated else self._in_the_way + self._own_steps
        answer = empty if self._gated else base
        left = budget - own - self._in_the_way * base - (self._own_steps - 1) * answer
        tokens = left / (carried * costs.prefill_token)
        return int(max(min(tokens, self._most), self._settings.min_step_tokens))

    def read(self, now_ns: int, costs: StepCosts, urgent_tokens: int, decodes: int, kv_tokens: float) -> int:
        """Return the tokens to allow now: the target, approached slowly upwards and at once downwards.

        A clock that jumps moves the valve by no more than one second's worth.
        """
        target = self.target(costs, urgent_tokens, decodes, kv_tokens)
        elapsed = min(max(now_ns - self._read_at, 0) / NANOSECONDS, 1.0)
        self._read_at = now_ns
        opened = target if self._tokens is None else self._tokens * (1 + OPEN_PER_SECOND * elapsed)
        self._tokens = min(target, opened)
        return int(self._tokens)

    def observe(self, engine_seconds: float) -> None:
        """Learn from an urgent request that had the engine's next step to itself: did it come close to the limit?"""
        settings = self._settings
        if engine_seconds > CLOSE * self.engine_seconds:
            self.margin = min(self.margin + CLOSE_STEP, settings.max_margin)
        else:
            self.margin = max(self.margin - CLOSE_STEP * CLOSE_SHARE / (1 - CLOSE_SHARE), settings.margin)
