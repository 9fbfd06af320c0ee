"""The ``feed check`` command: what the feeds would make of local files, without publishing anything."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ops.runtime import EXIT_FAILED
from ops.text import shortened
from producers.errors import FeedError, FeedErrorKind
from producers.formats import MAX_FILE_BYTES, Item, Listed, ParseContext, Parsed, parse
from schemas.codec import Limits
from schemas.errors import ConfigError, DecodeError
from schemas.records import FilingEvent, NewsEvent
from schemas.settings import EdgarSettings

SHOWN_ITEMS = 40
"""Events of one file that are shown to a person; ``--json`` has all."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check(
    paths: list[Path], edgar: EdgarSettings, limits: Limits, tickers: dict[str, list[str]], *, as_json: bool
) -> int:
    """Parse files, and those inside directories, and print what is in them; returns 1 when one was rejected.

    Raises:
        ConfigError: a path is not there.
    """
    rejected = files = 0
    for path in _files(paths):
        files += 1
        parsed = _parse(path, edgar, limits, tickers)
        rejected += parsed.rejected is not None
        sys.stdout.write((_line(path, parsed) if as_json else _text(path, parsed)) + "\n")
    if not as_json:
        sys.stdout.write(f"{files:,} files, {files - rejected:,} with events, {rejected:,} rejected\n")
    return EXIT_FAILED if rejected else 0


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(inside for inside in path.rglob("*") if inside.is_file())
        elif path.exists():
            yield path
        else:
            raise ConfigError("PATH", f"{path}: there is no such file or directory")


def _parse(path: Path, edgar: EdgarSettings, limits: Limits, tickers: dict[str, list[str]]) -> Parsed:
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            reason = f"{size} bytes, the limit is {MAX_FILE_BYTES}"
            return Parsed(format="", rejected=FeedError(FeedErrorKind.TOO_LARGE, "", reason))
        data = path.read_bytes()
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        return Parsed(format="", rejected=FeedError(FeedErrorKind.UNREADABLE, "", reason))
    context = ParseContext(
        received_at_ns=time.time_ns(),
        source="check",
        limits=limits,
        tickers=tickers,
        part_chars=edgar.part_chars,
        parts_most=edgar.parts_most,
    )
    return parse(data, context)


def _line(path: Path, parsed: Parsed) -> str:
    """Return one file as one line of JSON."""
    return json.dumps(
        {
            "path": str(path),
            "format": parsed.format or None,
            "events": [_facts(item) for item in parsed.items],
            "rejected": _rejection(parsed.rejected),
        }
    )


def _text(path: Path, parsed: Parsed) -> str:
    """Return one file for people."""
    name = shortened(str(path), 200)
    known = parsed.format or "unknown format"
    if parsed.rejected is not None:
        error = parsed.rejected
        where = f", field {shortened(error.field, 60)}" if error.field else ""
        return f"{name}: {known}: rejected ({error.kind.value}{where}): {shortened(error.reason, 300)}"
    lines = [f"{name}: {known}, {len(parsed.items):,} {'event' if len(parsed.items) == 1 else 'events'}"]
    lines.extend(f"  {_short(item)}" for item in parsed.items[:SHOWN_ITEMS])
    if len(parsed.items) > SHOWN_ITEMS:
        lines.append(f"  … and {len(parsed.items) - SHOWN_ITEMS:,} more (--json shows all)")
    return "\n".join(lines)


def _short(item: Item) -> str:
    facts = _facts(item)
    times = facts["times"]
    when = next((value for name, value in times.items() if value and name != "received"), "")
    words = [facts["event_id"], facts["form"] or facts["kind"], when, ",".join(facts["items"])]
    if isinstance(item, FilingEvent):
        words += [item.company, item.section]
    elif isinstance(item, NewsEvent):
        words += [item.status.value, item.headline]
    else:
        words.append(item.company)
    words.append(f"{facts['text_chars']:,} characters" if facts["text_chars"] else "")
    return shortened("  ".join(word for word in words if word), 200)


def _facts(item: Item) -> dict[str, Any]:
    if isinstance(item, NewsEvent):
        return _news(item)
    return _listed(item) if isinstance(item, Listed) else _filing(item)


def _filing(event: FilingEvent) -> dict[str, Any]:
    return {
        "event_id": event.event_id,
        "kind": "filing",
        "form": event.form,
        "items": event.items,
        "times": {"accepted": _iso(event.accepted_at_ns), "received": _iso(event.received_at_ns)},
        "text_chars": len(event.text),
        "accession": event.accession,
        "section": event.section,
        "part": event.part,
        "parts": event.parts,
        "company": event.company,
        "ciks": event.ciks,
        "instruments": event.instruments,
        "accepted_at_ns": event.accepted_at_ns,
        "amends": event.amends or None,
        "notes": event.notes,
    }


def _news(event: NewsEvent) -> dict[str, Any]:
    return {
        "event_id": event.event_id,
        "kind": "news",
        "form": None,
        "items": [],
        "times": {
            "published": _iso(event.published_at_ns),
            "received": _iso(event.received_at_ns),
            "embargo_until": _iso(event.embargo_until_ns),
        },
        "text_chars": len(event.headline) + len(event.body),
        "source": event.source,
        "headline": event.headline,
        "version": event.version,
        "status": event.status.value,
        "supersedes": event.supersedes,
        "language": event.language,
        "urgency": event.urgency,
        "instruments": event.instruments,
        "published_at_ns": event.published_at_ns,
    }


def _listed(listed: Listed) -> dict[str, Any]:
    return {
        "event_id": listed.accession,
        "kind": "listed",
        "form": listed.form,
        "items": listed.items,
        "times": {"updated": _iso(listed.updated_ns), "filed": listed.filed or None},
        "text_chars": 0,
        "accession": listed.accession,
        "company": listed.company,
        "ciks": listed.ciks,
        "url": listed.url,
    }


def _rejection(error: FeedError | DecodeError | None) -> dict[str, str] | None:
    if error is None:
        return None
    return {"kind": error.kind.value, "field": error.field, "reason": error.reason}


def _iso(time_ns: int) -> str | None:
    """Return a time for people; None for an unknown one."""
    if not time_ns:
        return None
    return (_EPOCH + timedelta(microseconds=time_ns // 1_000)).isoformat().replace("+00:00", "Z")
