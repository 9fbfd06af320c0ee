"""Counters of one scheduler: plain integers on the hot path, turned into status and metrics only when asked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from schemas.settings import ClassSettings

LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds; the default classes' SLOs and toxic ages are among them, so attainment reads off exactly."""


class ClassStats:
    """One service class since the start."""

    __slots__ = ("arrived", "dead_letters", "expired", "late", "latency_buckets", "latency_sum", "settings", "signals")

    def __init__(self, settings: ClassSettings) -> None:
        self.settings = settings
        self.arrived = 0
        self.signals = 0
        self.late = 0
        self.expired = 0
        self.dead_letters = 0
        self.latency_buckets = [0] * (len(LATENCY_BUCKETS) + 1)
        self.latency_sum = 0.0

    def signal(self, latency_seconds: float, *, late: bool) -> None:
        """Count a signal and its time from event to emission."""
        self.signals += 1
        self.late += late
        self.latency_buckets[bisect_left(LATENCY_BUCKETS, latency_seconds)] += 1
        self.latency_sum += latency_seconds


class Stats:
    """All counters of one scheduler."""

    def __init__(self, classes: Sequence[ClassSettings]) -> None:
        self.classes = tuple(ClassStats(c) for c in classes)
        self.undecodable = 0
        self.retractions = 0
        self.stale_outcomes = 0
        """Outcomes of work whose partition went elsewhere meanwhile; the new owner publishes them."""
        self.returned = 0
        """Requests that came back from workers, answered or failed; the watchdog wants to see this move."""
        self.republished = 0
        """Records that were sent again through a new producer, and so may be written twice."""
        self.worker_deaths = 0
        self.requeued = 0
        self.retried = 0
        """Failures after which an event got another attempt."""
        self.revoked = 0
        """Less urgent requests that were taken back from a worker to make room."""
