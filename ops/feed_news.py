"""The ``feed news`` command: one line an event as it is confirmed, rejected files by name, a summary at the end."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.config import Settings
from ops.percentiles import summary_ms
from ops.runtime import EXIT_FAILED, say
from ops.text import shortened, visible
from producers.news.directory import Rejected
from producers.news.service import NewsOptions, NewsReport, serve
from schemas.codec import Limits
from schemas.enums import NewsStatus
from schemas.records import NewsEvent

HEADLINE_CHARS = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedNewsOptions:
    """The flags of ``tapewire feed news``."""

    paths: tuple[Path, ...]
    watch: bool
    as_json: bool


async def feed_news(settings: Settings, options: FeedNewsOptions, stop: asyncio.Event) -> int:
    """Feed news until stopped or until the paths are read; returns 1 when files or lines were rejected.

    Raises:
        ConfigError, UnavailableError, PublishError: see `producers.news.service.serve`.
    """
    limits = settings.scheduler.limits
    report = await serve(
        settings.news,
        settings.kafka,
        settings.redis,
        stop,
        NewsOptions(
            paths=options.paths,
            watch=options.watch,
            limits=Limits(
                record_bytes=limits.record_bytes, headline_chars=limits.headline_chars, text_chars=limits.text_chars
            ),
            on_event=_print_json if options.as_json else _print_line,
            on_rejected=_say_rejected,
        ),
    )
    if options.as_json:
        sys.stdout.write(json.dumps({"summary": _summary(report)}) + "\n")
    else:
        _print_summary(report)
    return EXIT_FAILED if report.files.rejected else 0


def _print_line(event: NewsEvent) -> None:
    mark = {NewsStatus.USABLE: " ", NewsStatus.CORRECTED: "C", NewsStatus.KILLED: "K"}[event.status]
    more = f"  ~ {visible(event.duplicate_of)}" if event.duplicate_of else ""
    headline = shortened(event.headline, HEADLINE_CHARS)
    sys.stdout.write(f"{mark} {visible(event.event_id)}  {headline}{more}\n")
    sys.stdout.flush()


def _print_json(event: NewsEvent) -> None:
    line: dict[str, Any] = {
        "event_id": event.event_id,
        "status": event.status.value,
        "headline": event.headline,
        "published_at_ns": event.published_at_ns,
        "received_at_ns": event.received_at_ns,
        "instruments": event.instruments,
        "supersedes": event.supersedes,
        "duplicate_of": event.duplicate_of,
        "changed": event.changed,
        "notes": event.notes,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _say_rejected(rejected: Rejected) -> None:
    line = f" line {rejected.line}" if rejected.line else ""
    say(f"{rejected.path}{line}: {rejected.error}")


def _summary(report: NewsReport) -> dict[str, Any]:
    return {
        "verdicts": {verdict.value: count for verdict, count in sorted(report.verdicts.items())},
        "held": report.held,
        "files_read": report.files.read,
        "files_known": report.files.known,
        "rejected": report.files.rejected,
        "arrival_to_confirmation": summary_ms(report.latencies_ns),
    }


def _print_summary(report: NewsReport) -> None:
    verdicts = ", ".join(f"{count:,} {verdict.value}" for verdict, count in sorted(report.verdicts.items()))
    parts = [verdicts or "no items"]
    if report.files.read or report.files.known:
        parts.append(f"{report.files.read:,} files read, {report.files.known:,} known from before")
    if report.files.rejected:
        parts.append(f"{report.files.rejected:,} rejected")
    if report.held:
        parts.append(f"{report.held:,} under embargo")
    if latency := summary_ms(report.latencies_ns):
        parts.append(f"arrival to confirmation p50 {latency['p50_ms']:g} ms, p99 {latency['p99_ms']:g} ms")
    sys.stdout.write("; ".join(parts) + "\n")
