"""Reads JSON Lines of news: on every line a message as vendors push it, a ninjs item or an event of ours."""

from __future__ import annotations

import msgspec

from producers.errors import FeedError, FeedErrorKind
from producers.news.item import Defaults, NewsItem
from producers.news.ninjs import json_object
from producers.news.push import is_push, push_item
from schemas.errors import DecodeError
from schemas.records import Nanoseconds

BOM = b"\xef\xbb\xbf"

Problem = FeedError | DecodeError


def is_json_lines(head: bytes) -> bool:
    """Return whether the first line of a file is a JSON object with news in it."""
    line = head.removeprefix(BOM).lstrip().split(b"\n", 1)[0]
    if not line.startswith(b"{"):
        return False
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(value, dict) and is_push(value) and "accession" not in value


def read_lines(
    data: bytes, defaults: Defaults, received_at_ns: Nanoseconds
) -> tuple[list[NewsItem], list[tuple[int, Problem]]]:
    """Return the items of all lines, and the lines that are none with what is wrong with them; numbers from 1."""
    items: list[NewsItem] = []
    problems: list[tuple[int, Problem]] = []
    for number, line in enumerate(data.removeprefix(BOM).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            items.append(_item_on(line, defaults, received_at_ns))
        except (FeedError, DecodeError) as error:
            problems.append((number, error))
    return items, problems


def json_lines_items(data: bytes, defaults: Defaults, received_at_ns: Nanoseconds) -> list[NewsItem]:
    """Read a whole file, all or nothing.

    Raises:
        FeedError, DecodeError: a line holds no item; the field begins with the number of the line.
    """
    items, problems = read_lines(data, defaults, received_at_ns)
    if not problems:
        return items
    number, error = problems[0]
    field = f"line[{number}]{'.' if error.field else ''}{error.field}"
    reason = f"{error.reason} ({len(problems)} of {len(items) + len(problems)} lines hold no item)"
    if isinstance(error, DecodeError):
        raise DecodeError(error.kind, field, reason)
    raise FeedError(error.kind, field, reason)


def _item_on(line: bytes, defaults: Defaults, received_at_ns: Nanoseconds) -> NewsItem:
    if len(line) > defaults.limits.record_bytes:
        reason = f"{len(line)} bytes, the limit is {defaults.limits.record_bytes}"
        raise FeedError(FeedErrorKind.TOO_LARGE, "", reason)
    return push_item(json_object(line), defaults, received_at_ns)
