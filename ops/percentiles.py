"""Percentiles by nearest rank: every figure shown is one that was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

NS_PER_MS = 1_000_000


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least ``percent`` of the values do not exceed.

    Args:
        ordered: at least one value, ascending.
        percent: above 0, at most 100.
    """
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summary_ms(durations_ns: Sequence[int]) -> dict[str, float] | None:
    """Return p50, p90 and p99 in milliseconds, or none when there is nothing to summarise."""
    if not durations_ns:
        return None
    ordered = sorted(durations_ns)
    return {f"p{p}_ms": round(percentile(ordered, p) / NS_PER_MS, 3) for p in (50, 90, 99)}
