"""``tapewire bench feeds``: how fast filings become text, in how much memory, how long after a poll they are out."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import msgspec
from rich.table import Table

from ops.bench.edgar_stand_in import EASTERN, EdgarStandIn
from ops.bench.made_filings import filed, quarterly_html, submission
from ops.bench.news_feed import news_latencies
from ops.bench.services import BenchError
from ops.config import Settings
from ops.embedded import EmbeddedKafka, EmbeddedRedis
from ops.percentiles import percentile
from ops.text import stdout_console
from ops.topics import ensure_topics
from producers.edgar.filing import parse_filing
from producers.edgar.html import html_lines
from producers.edgar.service import serve
from producers.formats import ParseContext
from schemas.settings import EdgarSettings, KafkaSettings, RedisSettings

MEGABYTE = 1_000_000
RUNS = 5
"""Runs of the speed figure; the best one counts, since whatever else the machine does only takes time away."""
FILING_BYTES = 4 * MEGABYTE
ACCESSION = "0009990001-26-999999"
PROBE_SECONDS = 120.0
POLL_SECONDS = 0.5
FILE_SECONDS = 0.4


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedFigures:
    """What was measured.

    Args:
        html_mb_per_s: HTML to lines of text, on one core, in 10^6 bytes a second.
        filing_mb_per_s: a full submission to events, on one core.
        filing_mb: size of the filing of the memory figure.
        rss_mb: largest resident memory of a process that reads that filing, in MiB, interpreter and libraries included.
        rss_idle_mb: of the same process before it reads it.
        filings: published in the latency run.
        poll_to_publish_p50_ms, poll_to_publish_p99_ms: from the feed page to Kafka's confirmation.
        news: headlines published in the news latency run.
        news_p50_ms, news_p99_ms: of the headlines, from the feed page to Kafka's confirmation.
    """

    html_mb_per_s: float
    filing_mb_per_s: float
    filing_mb: float
    rss_mb: float
    rss_idle_mb: float
    filings: int
    poll_to_publish_p50_ms: float
    poll_to_publish_p99_ms: float
    news: int
    news_p50_ms: float
    news_p99_ms: float

    def as_dict(self) -> dict[str, float]:
        """Return the figures for JSON."""
        return asdict(self)


async def measure(
    settings: Settings, stop: asyncio.Event, *, filings: int, file: Path | None, embedded: bool
) -> FeedFigures:
    """Measure.

    Args:
        settings: Kafka and Redis, unless ``embedded``.
        stop: ends the latency run early.
        filings: of the latency run.
        file: HTML to measure speed with instead of a made-up report of 4 MB.
        embedded: start a broker and a Redis for the latency run.

    Raises:
        BenchError: a part of it failed.
        UnavailableError: Kafka cannot be reached.
    """
    html = await asyncio.to_thread(_html, file)
    html_speed = _speed(len(html.encode()), lambda: html_lines(html))
    whole = submission(ACCESSION, form="10-Q", body=quarterly_html(FILING_BYTES))
    context = ParseContext(received_at_ns=time.time_ns())
    filing_speed = _speed(len(whole), lambda: parse_filing(whole, context).events(context))
    idle, peak = await asyncio.to_thread(_memory)
    latencies = await _latencies(settings, stop, filings, embedded=embedded)
    async with _services(settings, embedded=embedded) as (kafka, redis):
        news = await news_latencies(kafka, redis, stop, filings)
    if not latencies or not news:
        raise BenchError("no filing or no headline was published")
    return FeedFigures(
        html_mb_per_s=round(html_speed, 1),
        filing_mb_per_s=round(filing_speed, 1),
        filing_mb=round(len(whole) / MEGABYTE, 2),
        rss_mb=round(peak, 1),
        rss_idle_mb=round(idle, 1),
        filings=len(latencies),
        poll_to_publish_p50_ms=round(percentile(latencies, 50), 1),
        poll_to_publish_p99_ms=round(percentile(latencies, 99), 1),
        news=len(news),
        news_p50_ms=round(percentile(news, 50), 1),
        news_p99_ms=round(percentile(news, 99), 1),
    )


def table(figures: FeedFigures) -> None:
    """Print the figures for people."""
    shown = Table(title="Feeds")
    for column in ("measure", "value", "bar"):
        shown.add_column(column, justify="left" if column == "measure" else "right")
    shown.add_row("HTML to text, one core", f"{figures.html_mb_per_s} MB/s", "≥ 5 MB/s")
    shown.add_row("submission to events, one core", f"{figures.filing_mb_per_s} MB/s", "")
    shown.add_row(f"memory with a filing of {figures.filing_mb} MB", f"{figures.rss_mb} MiB", "≤ 200 MB")
    shown.add_row("  before reading it", f"{figures.rss_idle_mb} MiB", "")
    shown.add_row(f"poll to publish, p50 of {figures.filings}", f"{figures.poll_to_publish_p50_ms} ms", "")
    shown.add_row("poll to publish, p99", f"{figures.poll_to_publish_p99_ms} ms", "")
    shown.add_row(f"news, poll to publish, p50 of {figures.news}", f"{figures.news_p50_ms} ms", "")
    shown.add_row("news, poll to publish, p99", f"{figures.news_p99_ms} ms", "")
    stdout_console().print(shown)


def _html(file: Path | None) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file else quarterly_html(FILING_BYTES)


def _speed(size: int, work: Callable[[], object]) -> float:
    """Return 10^6 bytes a second of processor time, best of `RUNS`."""
    best = float("inf")
    for _ in range(RUNS):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return size / MEGABYTE / best


def _memory() -> tuple[float, float]:
    """Return resident memory in MiB, before and at most, of a fresh process that reads one filing of 4 MB."""
    whole = submission(ACCESSION, form="10-Q", body=quarterly_html(FILING_BYTES))
    with tempfile.NamedTemporaryFile(prefix="tapewire-bench-") as file:
        file.write(whole)
        file.flush()
        command = [sys.executable, "-c", _READER, file.name]
        done = subprocess.run(command, capture_output=True, check=False, timeout=PROBE_SECONDS)
    if done.returncode:
        raise BenchError(f"the memory probe failed: {done.stderr.decode(errors='replace')[-300:]}")
    return msgspec.json.decode(done.stdout, type=tuple[float, float])


_READER = """
import re, resource, sys
from pathlib import Path
from producers.edgar.filing import parse_filing
from producers.formats import ParseContext
import producers.edgar.service

def most():
    # On Linux not getrusage: its figure begins with the memory of the process that started this one.
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\\s*(\\d+)", status.read_text())[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024)

idle = most()
context = ParseContext(received_at_ns=1)
events = parse_filing(Path(sys.argv[1]).read_bytes(), context).events(context)
sys.stdout.write(f"[{idle}, {most()}]")
"""
"""A process of its own: one that had made the filing up would count its making as well."""


async def _latencies(settings: Settings, stop: asyncio.Event, count: int, *, embedded: bool) -> list[float]:
    """Return the times from poll to publish in milliseconds, ascending, with the stand-in server in place of SEC."""
    async with EdgarStandIn() as server, _services(settings, embedded=embedded) as (kafka, redis):
        edgar = EdgarSettings(
            user_agent="Tapewire bench bench@example.com",
            base_url=server.url,
            data_url=server.url,
            poll_seconds=POLL_SECONDS,
            tickers=False,
        )
        filer = asyncio.create_task(_file_filings(server, count))
        try:
            counts = await serve(edgar, kafka, redis, stop, limit=count)
        finally:
            filer.cancel()
        return sorted(counts.latencies_ms)


async def _file_filings(server: EdgarStandIn, count: int) -> None:
    """File one filing after another; with the polls that is half of what the pace of 8 requests a second can take."""
    body = quarterly_html(60_000)
    for number in range(1, count + 1):
        now = datetime.now(EASTERN)
        server.file(filed(number, body=body, accepted=f"{now:%Y%m%d%H%M%S}"))
        await asyncio.sleep(FILE_SECONDS)


@asynccontextmanager
async def _services(settings: Settings, *, embedded: bool) -> AsyncIterator[tuple[KafkaSettings, RedisSettings]]:
    async with AsyncExitStack() as stack:
        kafka, redis = settings.kafka, settings.redis
        prefix = f"bench-{uuid4().hex[:8]}"
        if embedded:
            broker = stack.enter_context(EmbeddedKafka())
            server = stack.enter_context(EmbeddedRedis())
            kafka = KafkaSettings(bootstrap=broker.bootstrap)
            redis = RedisSettings(url=server.url)
        kafka = kafka.model_copy(update={"topic_prefix": prefix})
        await ensure_topics(kafka)
        yield kafka, redis
