"""Is the engine stuck? It has requests and makes no step, whatever its process and its health look like."""

from __future__ import annotations

import math


class StallWatch:
    """Adds up the time for which an engine had requests and made no step.

    vLLM has stopped admitting for ever with a green health check (vllm#53130), and a stopped engine process is as
    quiet: nothing but the missing steps tells. Only a step starts the count anew, not an empty engine: urgent requests
    are taken back within a quarter of a second when nobody answers them, and a stuck engine is empty in between. Time
    in which the worker itself did not run does not count.

    Args:
        most_between: longest time between two looks that counts, in seconds.
    """

    def __init__(self, most_between: float) -> None:
        self.most_between = most_between
        self._steps = -1
        self._looked_at = -math.inf
        self.seconds = 0.0
        """How long it has been so."""

    def look(self, now: float, in_flight: int, steps: int) -> float:
        """Note how the engine stands; returns for how long it has had requests without a step, in seconds.

        Args:
            now: seconds on any clock that does not go backwards.
            in_flight: requests that the engine has.
            steps: those it has made since its start.
        """
        between = min(now - self._looked_at, self.most_between)
        self._looked_at = now
        if steps != self._steps:
            self._steps, self.seconds = steps, 0.0
        elif in_flight:
            self.seconds += between
        return self.seconds
