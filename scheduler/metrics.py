"""Prometheus metrics, computed when they are scraped: the hot path only counts integers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple
from wsgiref.simple_server import WSGIServer

import structlog
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from scheduler.dead_letter_limit import DeadLetterLimit
from scheduler.stats import LATENCY_BUCKETS, Stats
from schemas.errors import UnavailableError
from schemas.settings import SchedulerSettings
from schemas.status import STOPPED_METRIC, SchedulerStatus

log = structlog.get_logger()


class DeliveryCounts(NamedTuple):
    """What delivery has counted since the start; see `scheduler.ledger`, `scheduler.commits`, `scheduler.intake`."""

    skipped: int = 0
    stale: int = 0
    maps_dropped: int = 0
    commit_failures: int = 0
    made_anew: int = 0


class MetricsServer(Collector):
    """Serves metrics over HTTP where ``scheduler.metrics_port`` asks for it.

    Args:
        settings: port and address.
        status: gives queue depths and workers.
        stats: gives the counters.
        limit: says whether dead letters have stopped the intake.
        delivery: gives what delivery has counted.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        status: Callable[[], SchedulerStatus],
        stats: Stats,
        limit: DeadLetterLimit | None = None,
        delivery: Callable[[], DeliveryCounts] = DeliveryCounts,
    ) -> None:
        self._settings = settings
        self._status = status
        self._stats = stats
        self._limit = limit or DeadLetterLimit(settings.dead_letters)
        self._delivery = delivery
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen.

        Raises:
            UnavailableError: the address is taken.
        """
        port = self._settings.metrics_port
        if not port:
            return
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, self._settings.metrics_host, registry)
        except OSError as error:
            where = f"metrics address {self._settings.metrics_host}:{port}"
            raise UnavailableError(where, "scheduler.metrics_port", str(error)) from None

    def stop(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of this scheduler."""
        status = self._status()
        by_class = ["service_class"]
        queued = GaugeMetricFamily("tapewire_queued_events", "Events that wait for an engine.", labels=by_class)
        flying = GaugeMetricFamily("tapewire_in_flight_events", "Events at workers.", labels=by_class)
        for entry in status.classes:
            queued.add_metric([entry.name], entry.queued)
            flying.add_metric([entry.name], entry.in_flight)
        yield queued
        yield flying
        yield GaugeMetricFamily("tapewire_workers", "Workers that are connected.", len(status.workers))
        yield GaugeMetricFamily("tapewire_retrying_events", "Failed events before their next attempt.", status.retrying)
        yield GaugeMetricFamily(
            STOPPED_METRIC, "1 when dead letters have stopped the intake.", float(self._limit.tripped)
        )
        yield from self._counters(by_class)
        yield CounterMetricFamily("tapewire_retries", "Failures that got another attempt.", self._stats.retried)
        yield CounterMetricFamily(
            "tapewire_held_events", "Events that no dead letter was written for any more.", self._limit.held
        )
        yield CounterMetricFamily("tapewire_undecodable_records", "Records that no schema fits.", status.undecodable)
        yield CounterMetricFamily("tapewire_stamps_dropped", "Stamps lost to Redis trouble.", status.stamps_dropped)
        yield CounterMetricFamily("tapewire_revoked_requests", "Taken back for urgent work.", self._stats.revoked)
        yield CounterMetricFamily(
            "tapewire_republished_records", "Sent again by a new producer.", self._stats.republished
        )
        yield CounterMetricFamily("tapewire_worker_deaths", "Workers that died.", self._stats.worker_deaths)
        yield CounterMetricFamily(
            "tapewire_requeued_events", "Runs that were given up and queued again.", self._stats.requeued
        )
        yield CounterMetricFamily(
            "tapewire_retractions", "Killed stories that were retracted.", self._stats.retractions
        )
        yield CounterMetricFamily(
            "tapewire_stale_outcomes", "Outcomes of partitions that went elsewhere.", self._stats.stale_outcomes
        )
        yield from self._of_delivery()

    def _of_delivery(self) -> Iterator[Metric]:
        counts = self._delivery()
        yield CounterMetricFamily(
            "tapewire_skipped_records", "Records that an earlier owner of their partition had finished.", counts.skipped
        )
        yield CounterMetricFamily(
            "tapewire_stale_confirmations", "Confirmed outcomes that the next owner repeats.", counts.stale
        )
        yield CounterMetricFamily("tapewire_offset_maps_dropped", "Commits without their map.", counts.maps_dropped)
        yield CounterMetricFamily("tapewire_commit_failures", "Commits that failed.", counts.commit_failures)
        yield CounterMetricFamily(
            "tapewire_consumers_made_anew", "Consumers that stood still and were made anew.", counts.made_anew
        )

    def _counters(self, by_class: list[str]) -> Iterator[Metric]:
        arrived = CounterMetricFamily("tapewire_events", "Events taken in.", labels=by_class)
        late = CounterMetricFamily("tapewire_late_signals", "Signals after their deadline.", labels=by_class)
        ended = CounterMetricFamily("tapewire_outcomes", "How events ended.", labels=[*by_class, "outcome"])
        latency = HistogramMetricFamily("tapewire_signal_latency_seconds", "Event time to signal.", labels=by_class)
        for counters in self._stats.classes:
            name = counters.settings.name
            arrived.add_metric([name], counters.arrived)
            late.add_metric([name], counters.late)
            ended.add_metric([name, "signal"], counters.signals)
            ended.add_metric([name, "expired"], counters.expired)
            ended.add_metric([name, "dead_letter"], counters.dead_letters)
            total = 0
            buckets: list[tuple[str, float]] = []
            for bound, count in zip((*LATENCY_BUCKETS, float("inf")), counters.latency_buckets, strict=True):
                total += count
                buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
            latency.add_metric([name], buckets, counters.latency_sum)
        yield arrived
        yield late
        yield ended
        yield latency
