"""The ``feed edgar`` command: runs the feed and says at its end what it did."""

from __future__ import annotations

import asyncio
import json
import sys

from ops.config import Settings
from ops.percentiles import percentile
from producers.edgar.counts import FeedCounts
from producers.edgar.service import serve


async def feed(settings: Settings, stop: asyncio.Event, *, once: bool, limit: int | None, as_json: bool) -> None:
    """Run the feed until it is stopped and print its summary.

    Raises:
        ConfigError: the User-Agent declares nobody.
        UnavailableError: Kafka or EDGAR cannot be reached at the start.
    """
    counts = await serve(settings.edgar, settings.kafka, settings.redis, stop, once=once, limit=limit)
    summary = summary_of(counts)
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    latency = (
        f"; poll to publish p50 {summary['poll_to_publish_p50_ms']:,} ms, p99 {summary['poll_to_publish_p99_ms']:,} ms"
        if counts.latencies_ms
        else ""
    )
    sys.stdout.write(
        f"published {counts.filings:,} filings in {counts.events:,} parts, {counts.without_events:,} without text, "
        f"{counts.given_up:,} given up, {counts.retries:,} retries, {counts.sweeps:,} sweeps{latency}\n"
    )


def summary_of(counts: FeedCounts) -> dict[str, int | float | None]:
    """Return the counts of a feed with its latency, for JSON."""
    latencies = sorted(counts.latencies_ms)
    return {
        "sweeps": counts.sweeps,
        "listed": counts.listed,
        "filings": counts.filings,
        "events": counts.events,
        "without_events": counts.without_events,
        "given_up": counts.given_up,
        "retries": counts.retries,
        "poll_to_publish_p50_ms": round(percentile(latencies, 50), 1) if latencies else None,
        "poll_to_publish_p99_ms": round(percentile(latencies, 99), 1) if latencies else None,
    }
