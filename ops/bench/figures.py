"""The figures of one latency run, per class, whatever engine gave them; and their medians over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ops.percentiles import percentile


@dataclass(frozen=True, kw_only=True, slots=True)
class Flash:
    """The most urgent class.

    Args:
        count: events that arrived in the measured window.
        p50_ms, p99_ms, max_ms: arrival to result, of those that have one; an event that still waited when the run
            ended counts with the time it had waited, a lower bound.
        attained: share of ``count`` that had its result within the SLO.
        expired: events that were given up as too old.
    """

    count: float
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    attained: float
    expired: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Bulk:
    """The lower classes.

    Args:
        count: events that got their result in the measured window.
        p99_ms: arrival to result, of those.
        tokens_per_s: prompt and output tokens computed in the window, none of them twice, shared prefixes left out.
    """

    count: float
    p99_ms: float | None
    tokens_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One policy's run, or the medians of several.

    Args:
        isolated_p50_ms: median latency of the same urgent events one at a time in an idle engine.
    """

    flash: Flash
    bulk: Bulk
    isolated_p50_ms: float | None

    def as_dict(self) -> dict[str, object]:
        """Return the figures under the names of the JSON output."""
        flash, bulk = self.flash, self.bulk
        return {
            "flash": {
                "count": _plain(flash.count),
                "p50_ms": _plain(flash.p50_ms),
                "p99_ms": _plain(flash.p99_ms),
                "attained": round(flash.attained, 5),
                "expired": _plain(flash.expired),
            },
            "bulk": {
                "count": _plain(bulk.count),
                "p99_ms": _plain(bulk.p99_ms),
                "tokens_per_s": _plain(bulk.tokens_per_s),
            },
            "isolated_p50_ms": _plain(self.isolated_p50_ms),
        }


def flash_figures(latencies_ms: Sequence[float], slo_ms: float, *, expired: int, waiting_ms: Sequence[float]) -> Flash:
    """Sum up urgent events.

    Args:
        latencies_ms: of those with a result.
        slo_ms: latest result that counts as attained.
        expired: how many were given up.
        waiting_ms: how long those have waited that have neither.
    """
    ordered = sorted([*latencies_ms, *waiting_ms])
    count = len(ordered) + expired
    return Flash(
        count=count,
        p50_ms=percentile(ordered, 50) if ordered else None,
        p99_ms=percentile(ordered, 99) if ordered else None,
        max_ms=ordered[-1] if ordered else None,
        attained=sum(1 for ms in latencies_ms if ms <= slo_ms) / count if count else 1.0,
        expired=expired,
    )


def bulk_figures(latencies_ms: Sequence[float], tokens_per_s: float) -> Bulk:
    """Sum up lower-class events that have a result."""
    ordered = sorted(latencies_ms)
    return Bulk(count=len(ordered), p99_ms=percentile(ordered, 99) if ordered else None, tokens_per_s=tokens_per_s)


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of every figure; a figure that some run lacks is taken over those that have it."""
    return Figures(
        flash=Flash(
            count=median([r.flash.count for r in runs]),
            p50_ms=_median([r.flash.p50_ms for r in runs]),
            p99_ms=_median([r.flash.p99_ms for r in runs]),
            max_ms=_median([r.flash.max_ms for r in runs]),
            attained=median([r.flash.attained for r in runs]),
            expired=median([r.flash.expired for r in runs]),
        ),
        bulk=Bulk(
            count=median([r.bulk.count for r in runs]),
            p99_ms=_median([r.bulk.p99_ms for r in runs]),
            tokens_per_s=median([r.bulk.tokens_per_s for r in runs]),
        ),
        isolated_p50_ms=_median([r.isolated_p50_ms for r in runs]),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _plain(value: float | None) -> float | int | None:
    """Round for the output: whole numbers stay whole."""
    if value is None:
        return None
    rounded = round(value, 2)
    return int(rounded) if rounded == int(rounded) else rounded
