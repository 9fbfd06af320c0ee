"""Texts and labels from a file of JSON lines; a line that is wrong is told apart and the rest goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from producers.lines import Line, LineReader
from schemas.codec import SHOWN_CHARS, decode_json, is_readable
from schemas.errors import ConfigError, DecodeError, ErrorKind, TapewireError

MOST_LINE_BYTES = 512 * 1024
"""As large as a record on a topic can be."""
MOST_TEXTS = 1_000_000
SYNONYMS = {"positive": "bullish", "negative": "bearish"}
"""What data sets of financial sentiment call the labels of the direction."""


class LineError(TapewireError):
    """A line of a file is not what it should be.

    Args:
        number: of the line, from 1.
        error: kind, field and reason.
    """

    def __init__(self, number: int, error: DecodeError) -> None:
        self.number = number
        self.error = error
        super().__init__(f"line {number}: {error}")


@dataclass(frozen=True, slots=True)
class Item:
    """One text.

    Args:
        number: of its line, from 1.
        text: what it says.
        label: the right one; empty when nobody asked for one.
    """

    number: int
    text: str
    label: str = ""


@dataclass(slots=True)
class TextFile:
    """What a file holds.

    Args:
        items: in the order of the lines.
        bad: lines that were passed over.
    """

    items: list[Item] = field(default_factory=list)
    bad: list[LineError] = field(default_factory=list)


class _Line(Struct):
    text: str
    label: str | None = None


class _Text(Struct):
    text: str


async def read_texts(path: Path, *, labelled: bool, limit: int = 0) -> TextFile:
    """Read ``{"text": …, "label": …}`` lines; empty ones are no lines, and further fields are ignored.

    Args:
        path: the file.
        labelled: every line must have a label; otherwise labels are not looked at.
        limit: most items; 0 means all.

    Raises:
        ConfigError: the file cannot be read, or holds nothing to go on with.
    """
    found = TextFile()
    async with LineReader(path, max_bytes=MOST_LINE_BYTES, stop=asyncio.Event()) as lines:
        async for line in lines:
            try:
                if line.size:
                    found.items.append(_item(line, labelled=labelled))
            except DecodeError as error:
                found.bad.append(LineError(line.number, error))
            if len(found.items) >= (limit or MOST_TEXTS):
                break
    check_usable(path, found)
    return found


def with_labels(file: TextFile, labels: Sequence[str]) -> TextFile:
    """Return the file with its labels in the head's own words; lines with others are bad ones from here on.

    Args:
        file: read with labels.
        labels: what a label may be, beside its synonym.
    """
    found = TextFile(bad=list(file.bad))
    for item in file.items:
        label = item.label if item.label in labels else SYNONYMS.get(item.label, item.label)
        if label in labels:
            found.items.append(Item(item.number, item.text, label))
            continue
        reason = f"{item.label[:SHOWN_CHARS]!r} is none of {', '.join(labels)}"
        found.bad.append(LineError(item.number, DecodeError(ErrorKind.UNKNOWN_LABEL, "label", reason)))
    found.bad.sort(key=lambda error: error.number)
    return found


def check_usable(path: Path, file: TextFile) -> None:
    """Check that there is anything to go on with.

    Raises:
        ConfigError: there is not; it tells the first bad line.
    """
    if not file.items:
        first = f", the first: {file.bad[0]}" if file.bad else ""
        raise ConfigError("--file", f"{path}: no usable line, {len(file.bad)} bad{first}")


def _item(line: Line, *, labelled: bool) -> Item:
    if line.size > MOST_LINE_BYTES:
        reason = f"{line.size} bytes, the limit is {MOST_LINE_BYTES}"
        raise DecodeError(ErrorKind.RECORD_TOO_LARGE, "", reason)
    # Without labels a line of another data set, where the label is a number, is as good as any.
    read = decode_json(line.data, _Line) if labelled else _Line(decode_json(line.data, _Text).text)
    if not is_readable(read.text):
        raise DecodeError(ErrorKind.EMPTY_TEXT, "text", "nothing to read in it")
    if not labelled:
        return Item(line.number, read.text)
    if read.label is None:
        raise DecodeError(ErrorKind.MISSING_FIELD, "label", "there is none")
    return Item(line.number, read.text, read.label)
