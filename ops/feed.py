"""The ``feed file`` command: progress while it publishes, rejected lines by number and field, a summary."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ops.config import Settings
from ops.runtime import EXIT_FAILED, say
from producers.file_feed import REJECTED_KEPT, FeedProgress, RejectedLine, feed_file
from schemas.codec import Limits

SHOWN_REJECTED = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedOptions:
    """The flags of ``tapewire feed file``; see `producers.file_feed.feed_file`."""

    path: str
    rate: float | None
    keep_times: bool
    id_suffix: str
    limit: int | None
    as_json: bool


async def feed(settings: Settings, options: FeedOptions, stop: asyncio.Event) -> int:
    """Publish the file; returns 1 when lines were rejected.

    Raises:
        ConfigError: the file cannot be read, or a flag is out of its range.
        UnavailableError: Kafka cannot be reached.
        PublishError: Kafka refuses a record.
    """
    limits = settings.scheduler.limits
    shown = 0

    def on_rejected(line: RejectedLine) -> None:
        nonlocal shown
        shown += 1
        if shown <= SHOWN_REJECTED:
            say(f"line {line.number}: {line.error}")

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:

        def on_progress(progress: FeedProgress) -> None:
            if live.console.is_terminal:
                done = f"{progress.published:,} published, {progress.rejected:,} rejected, {progress.seconds:.0f} s"
                live.update(Text(done), refresh=True)

        report = await feed_file(
            options.path,
            settings.kafka,
            rate=options.rate,
            keep_times=options.keep_times,
            id_suffix=options.id_suffix,
            limit=options.limit,
            limits=Limits(
                record_bytes=limits.record_bytes, headline_chars=limits.headline_chars, text_chars=limits.text_chars
            ),
            on_progress=on_progress,
            on_rejected=on_rejected,
            stop=stop,
        )
    if options.as_json:
        rejected = [
            {"line": line.number, "kind": line.error.kind.value, "field": line.error.field, "reason": line.error.reason}
            for line in report.rejected_lines[:REJECTED_KEPT]
        ]
        summary = {
            "published": report.published,
            "rejected": report.rejected,
            "rejected_lines": rejected,
            "seconds": round(report.seconds, 3),
            "interrupted": report.stopped,
        }
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        where = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(report.published.items())) or "nothing"
        sys.stdout.write(f"published {where} in {report.seconds:.1f} s; rejected lines: {report.rejected:,}\n")
    return EXIT_FAILED if report.rejected else 0
