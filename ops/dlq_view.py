"""What ``tapewire dlq ls`` and ``show`` print: a table or lines of JSON, and one letter whole."""

from __future__ import annotations

import base64
import heapq
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.text import Text

from ops.dlq_letters import Letter, LetterId, LetterReader
from ops.dlq_marks import MarkBook
from ops.text import shortened, stdout_console, visible
from schemas.errors import ConfigError, ErrorKind
from schemas.settings import KafkaSettings

SHOWN_CHARS = 20_000
"""Of a value on a terminal; ``--raw`` writes all of it."""
MILLISECONDS = 1000
HEADINGS = ("id", "time (UTC)", "kind", "source", "tries", "event", "what")
GAP = "  "
LEAST_MESSAGE = 20
"""Characters of a message that are shown however narrow the terminal is."""
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """Which letters are wanted.

    Args:
        kind: of this error kind; empty for any.
        source: from this input topic, by its full name or without the prefix; empty for any.
        since_ms: not older than this, in milliseconds since the epoch.
        handled: also those that are handled.
    """

    kind: str = ""
    source: str = ""
    since_ms: int = 0
    handled: bool = False

    def wants(self, letter: Letter, *, handled: bool) -> bool:
        """Return whether a letter is wanted."""
        source = letter.source.topic if letter.source else ""
        return (
            (self.handled or not handled)
            and (not self.kind or letter.kind == self.kind)
            and (not self.source or source == self.source or source.rpartition(".")[2] == self.source)
            and letter.at_ms >= self.since_ms
        )


def check_filter(kafka: KafkaSettings, wanted: Filter) -> None:
    """Check that there can be such letters: a slip of the pen must not read as "there are none".

    Raises:
        ConfigError: there is no such kind or input topic.
    """
    kinds = [kind.value for kind in ErrorKind]
    if wanted.kind and wanted.kind not in kinds:
        raise ConfigError("--kind", f"{wanted.kind!r} is no kind of error; there are {', '.join(kinds)}")
    inputs = kafka.topics.inputs
    sources = [*(topic.rpartition(".")[2] for topic in inputs), *inputs]
    if wanted.source and wanted.source not in sources:
        raise ConfigError("--source", f"{wanted.source!r} is no input topic; there are {', '.join(sources)}")


def since_ms(text: str | None, now: float) -> int:
    """Return the time that ``--since`` names: a duration before now (``90s``, ``2h``, ``7d``) or an ISO 8601 time.

    Args:
        text: what was given; nothing means the beginning of time.
        now: seconds since the epoch.

    Raises:
        ConfigError: it is neither.
    """
    if not text:
        return 0
    if match := _DURATION.fullmatch(text.strip()):
        return max(0, int((now - float(match[1]) * _UNITS[match[2]]) * MILLISECONDS))
    try:
        at = datetime.fromisoformat(text.strip())
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * MILLISECONDS)
    except (ValueError, OverflowError):
        raise ConfigError(
            "--since", f"{text!r} is neither a duration like 2h nor a time like 2026-03-09T14:00"
        ) from None


def summary(letter: Letter, *, handled: bool) -> dict[str, Any]:
    """Return what a list says about a letter."""
    return {
        "id": str(letter.id),
        "time": _iso(letter.at_ms),
        "kind": letter.kind,
        "field": letter.field,
        "source": letter.source._asdict() if letter.source else None,
        "event_id": letter.event_id,
        "attempts": letter.attempts,
        "stage": letter.stage,
        "message": letter.message,
        "truncated_from": letter.truncated_from,
        "bytes": len(letter.value),
        "handled": handled,
    }


async def show_list(kafka: KafkaSettings, wanted: Filter, limit: int, *, as_json: bool) -> None:
    """Print the newest letters that are wanted, and how many there are of each kind.

    Raises:
        UnavailableError: Kafka does not answer, or the topic does not exist.
    """
    newest: list[tuple[int, LetterId, dict[str, Any]]] = []
    kinds: Counter[str] = Counter()
    async with LetterReader(kafka) as reader, MarkBook(kafka) as book:
        marks = await book.read(reader.windows)
        starts = {p: first if wanted.handled else marks[p].base for p, (first, _) in reader.windows.items()}
        async for letter in reader.letters(starts):
            handled = marks[letter.id.partition].handled(letter.id.offset)
            if not wanted.wants(letter, handled=handled):
                continue
            kinds[letter.kind] += 1
            heapq.heappush(newest, (letter.at_ms, letter.id, summary(letter, handled=handled)))
            if len(newest) > limit:
                heapq.heappop(newest)
    rows = [row for *_, row in sorted(newest, reverse=True, key=lambda entry: entry[:2])]
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.write(json.dumps({"total": kinds.total(), "shown": len(rows), "kinds": kinds}) + "\n")
        return
    if rows:
        _print_table(rows)
    counts = ", ".join(f"{visible(kind) or '(none)'} {count}" for kind, count in kinds.most_common())
    shown = f", the newest {len(rows)} shown" if len(rows) < kinds.total() else ""
    what = "" if wanted.handled else "open "
    sys.stdout.write(f"{kinds.total()} {what}dead letters{shown}{': ' if counts else ''}{counts}\n")


def _print_table(rows: list[dict[str, Any]]) -> None:
    """Print one line a letter, the message cut to what the terminal leaves: ids must be whole to be of use."""
    cells = [_cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *cells, strict=True)]
    console = stdout_console()
    left = max(console.width - sum(widths[:-1]) - len(GAP) * len(widths[:-1]), LEAST_MESSAGE)
    for line, style in [
        (HEADINGS, "bold"),
        *((c, "dim" if r["handled"] else "") for c, r in zip(cells, rows, strict=True)),
    ]:
        padded = [cell.ljust(width) for cell, width in zip(line[:-1], widths, strict=False)]
        console.print(Text(GAP.join([*padded, shortened(line[-1], left)]), style=style), soft_wrap=True)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    source = row["source"]
    # The first part of a topic's name is that of the deployment, the same in every line.
    place = f"{source['topic'].rpartition('.')[2]}/{source['partition']}/{source['offset']}" if source else "?"
    return (
        row["id"],
        visible(row["time"][:19].replace("T", " ")),
        shortened(row["kind"], 22),
        shortened(place, 24),
        "?" if row["attempts"] is None else str(row["attempts"]),
        shortened(row["event_id"], 24),
        f"{shortened(row['field'], 40)}: {row['message']}" if row["field"] else row["message"],
    )


async def show_one(kafka: KafkaSettings, letter_id: LetterId, *, as_json: bool, raw: bool) -> None:
    """Print one letter: its headers and its value.

    Raises:
        ConfigError: there is no such letter.
        UnavailableError: Kafka does not answer, or the topic does not exist.
    """
    async with LetterReader(kafka) as reader, MarkBook(kafka) as book:
        letter = await reader.letter(letter_id)
        if letter is None:
            raise ConfigError("ID", no_such_letter(letter_id, reader))
        handled = (await book.read(reader.windows))[letter_id.partition].handled(letter_id.offset)
    if raw:
        sys.stdout.buffer.write(letter.value)
        sys.stdout.buffer.flush()
    elif as_json:
        whole = {
            **summary(letter, handled=handled),
            "key_base64": None if letter.key is None else base64.b64encode(letter.key).decode(),
            "headers": [[name, (value or b"").decode("utf-8", "replace")] for name, value in letter.headers],
            "value_base64": base64.b64encode(letter.value).decode(),
        }
        sys.stdout.write(json.dumps(whole) + "\n")
    else:
        _print_one(letter, handled=handled)


def no_such_letter(letter_id: LetterId, reader: LetterReader) -> str:
    """Return why there is no such letter."""
    window = reader.windows.get(letter_id.partition)
    if window is None:
        return f"{letter_id}: the dead letters have partitions 0 to {len(reader.windows) - 1}"
    first, end = window
    return f"{letter_id}: no letter there; partition {letter_id.partition} holds offsets {first} to {end - 1}"


def _print_one(letter: Letter, *, handled: bool) -> None:
    write = sys.stdout.write
    write(f"{letter.id}  {_iso(letter.at_ms)}  {visible(letter.kind)}  {'handled' if handled else 'open'}\n")
    write(f"key: {_printable(letter.key)}\n")
    for name, value in letter.headers:
        write(f"{visible(name)}: {_printable(value)}\n")
    write("\n")
    text = letter.value.decode("utf-8", "backslashreplace")
    for line in text[:SHOWN_CHARS].split("\n"):
        write(visible(line) + "\n")
    if len(text) > SHOWN_CHARS:
        write(f"… {len(text) - SHOWN_CHARS} more characters; --raw writes all {len(letter.value)} bytes\n")


def _printable(value: bytes | None) -> str:
    if value is None:
        return "(none)"
    text = value.decode("utf-8", "backslashreplace")
    return visible(text[:SHOWN_CHARS]) + ("…" if len(text) > SHOWN_CHARS else "")


def _iso(at_ms: int) -> str:
    # Not fromtimestamp(): a broker keeps whatever time a producer made up, and years past 9999 are an error there.
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
