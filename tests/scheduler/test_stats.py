"""Counters per class."""

from __future__ import annotations

import pytest

from scheduler.stats import LATENCY_BUCKETS, ClassStats, Stats
from schemas.settings import DEFAULT_CLASSES
from tests.scheduler import make


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (0.005, 0), (0.0051, 1), (0.15, 5), (60.0, len(LATENCY_BUCKETS) - 1), (61.0, len(LATENCY_BUCKETS))],
)
def test_a_bucket_holds_latencies_up_to_its_bound(seconds: float, bucket: int) -> None:
    """A latency at exactly a bound is inside it, as Prometheus's `le` says; what is longer than all has its own."""
    stats = ClassStats(make.CLASSES[0])
    stats.signal(seconds, late=False)
    assert stats.latency_buckets[bucket] == 1
    assert sum(stats.latency_buckets) == 1


def test_late_signals_are_signals_too() -> None:
    """Lateness is counted beside, not instead."""
    stats = ClassStats(make.CLASSES[0])
    stats.signal(0.1, late=False)
    stats.signal(0.3, late=True)
    assert (stats.signals, stats.late) == (2, 1)
    assert stats.latency_sum == pytest.approx(0.4)


def test_slos_of_the_default_classes_are_bucket_bounds() -> None:
    """Attainment of every default SLO and toxic age can be read off the histogram exactly."""
    wanted = {c.slo_ms / 1000 for c in DEFAULT_CLASSES} | {c.toxic_ms / 1000 for c in DEFAULT_CLASSES if c.toxic_ms}
    assert wanted <= set(LATENCY_BUCKETS)


def test_one_entry_per_class_in_order() -> None:
    """Class indexes of work are indexes here."""
    assert [c.settings.name for c in Stats(make.CLASSES).classes] == ["flash", "standard", "bulk"]
