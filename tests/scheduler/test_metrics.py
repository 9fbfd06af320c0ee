"""Metrics as a Prometheus server scrapes them."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ops.embedded import free_port
from scheduler.metrics import DeliveryCounts, MetricsServer
from scheduler.stats import Stats
from schemas.errors import UnavailableError
from schemas.settings import SchedulerSettings
from schemas.status import ClassStatus, SchedulerStatus, WorkerStatus
from tests.scheduler import make


def _status(stats: Stats) -> SchedulerStatus:
    return SchedulerStatus(
        scheduler_id="s1",
        at_ns=1,
        state="running",
        classes=[
            ClassStatus(
                name=c.settings.name,
                slo_ms=c.settings.slo_ms,
                arrived=c.arrived,
                queued=index,
                in_flight=10 + index,
                signals=c.signals,
                late=c.late,
                expired=c.expired,
                dead_letters=c.dead_letters,
            )
            for index, c in enumerate(stats.classes)
        ],
        workers=[
            WorkerStatus(
                worker_id="w1", engine="sim", engine_version="1", model="sim", in_flight=1, steps=2, kv_usage=0.5
            )
        ],
        undecodable=stats.undecodable,
        stamps_dropped=7,
    )


async def _scraped(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    def fetch() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    text = await asyncio.to_thread(fetch)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_scrape_shows_what_was_counted() -> None:
    """Every counter and gauge arrives over HTTP with its value, and a histogram's buckets add up."""
    port = free_port()
    stats = Stats(make.CLASSES)
    counts = DeliveryCounts(*range(11, 16))
    server = MetricsServer(SchedulerSettings(metrics_port=port), lambda: _status(stats), stats, delivery=lambda: counts)
    server.start()
    try:
        flash = stats.classes[0]
        flash.arrived, flash.expired, flash.dead_letters = 5, 1, 2
        flash.signal(0.1, late=False)
        flash.signal(0.2, late=True)
        flash.signal(100.0, late=True)
        stats.undecodable, stats.worker_deaths, stats.requeued, stats.retractions, stats.stale_outcomes = range(3, 8)
        samples = await _scraped(port)
    finally:
        server.stop()
    of_flash = ("service_class", "flash")

    def outcome(name: str) -> float:
        return samples["tapewire_outcomes_total", (("outcome", name), of_flash)]

    assert samples["tapewire_events_total", (of_flash,)] == 5
    assert (outcome("signal"), outcome("expired"), outcome("dead_letter")) == (3, 1, 2)
    assert samples["tapewire_late_signals_total", (of_flash,)] == 2
    assert samples["tapewire_queued_events", (("service_class", "bulk"),)] == 2
    assert samples["tapewire_in_flight_events", (("service_class", "bulk"),)] == 12
    assert samples["tapewire_workers", ()] == 1
    assert samples["tapewire_stamps_dropped_total", ()] == 7
    names = ("undecodable_records", "worker_deaths", "requeued_events", "retractions", "stale_outcomes")
    assert [samples[f"tapewire_{name}_total", ()] for name in names] == [3, 4, 5, 6, 7]

    of_delivery = (
        *("skipped_records", "stale_confirmations", "offset_maps_dropped"),
        *("commit_failures", "consumers_made_anew"),
    )
    assert [samples[f"tapewire_{name}_total", ()] for name in of_delivery] == list(counts)

    def bucket(bound: str) -> float:
        return samples["tapewire_signal_latency_seconds_bucket", (("le", bound), of_flash)]

    assert [bucket(b) for b in ("0.05", "0.1", "0.15", "0.25", "60.0", "+Inf")] == [0, 1, 1, 2, 2, 3]
    assert samples["tapewire_signal_latency_seconds_count", (of_flash,)] == 3
    assert samples["tapewire_signal_latency_seconds_sum", (of_flash,)] == pytest.approx(100.3)


async def test_no_port_means_no_server() -> None:
    """Without a port nothing listens, and stopping is harmless."""
    stats = Stats(make.CLASSES)
    server = MetricsServer(SchedulerSettings(metrics_port=0), lambda: _status(stats), stats)
    server.start()
    server.stop()
    assert server._server is None


async def test_a_port_in_use_is_named() -> None:
    """A taken port is one typed error that names the setting."""
    port = free_port()
    stats = Stats(make.CLASSES)
    first, second = (
        MetricsServer(SchedulerSettings(metrics_port=port), lambda: _status(stats), stats) for _ in range(2)
    )
    first.start()
    try:
        with pytest.raises(UnavailableError, match=r"scheduler\.metrics_port"):
            second.start()
    finally:
        first.stop()
        second.stop()


async def test_the_port_is_free_again_after_stop() -> None:
    """A restarted scheduler can have its port at once."""
    port = free_port()
    stats = Stats(make.CLASSES)
    for _ in range(2):
        server = MetricsServer(SchedulerSettings(metrics_port=port), lambda: _status(stats), stats)
        server.start()
        assert ("tapewire_workers", ()) in await _scraped(port)
        server.stop()
