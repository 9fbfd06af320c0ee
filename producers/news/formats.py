"""The formats in which news comes, told apart by content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from producers.errors import FeedError, FeedErrorKind
from producers.formats import DETECT_BYTES, Format, Item, ParseContext
from producers.news.feeds import feed_items, is_feed
from producers.news.item import Defaults, NewsItem, stateless_event
from producers.news.json_lines import Problem, is_json_lines, json_lines_items, read_lines
from producers.news.newsml_1 import is_newsml_1, newsml_1_items
from producers.news.newsml_g2 import is_newsml_g2, newsml_g2_items
from producers.news.ninjs import generation, json_object, ninjs_items
from producers.news.push import is_push, push_item
from producers.news.statements import is_statement, statement_items
from schemas.records import Nanoseconds

MAX_NEWS_BYTES = 8 * 1024 * 1024
"""Largest file, page or message that is read. As JSON Lines of short headlines it takes 4 s and 160 MB; longer ones are
for ``tapewire feed file``, which streams."""

Items = Callable[[bytes, Defaults, Nanoseconds], list[NewsItem]]


@dataclass(frozen=True, kw_only=True, slots=True)
class NewsFormat:
    """One format of news.

    Args:
        name: as shown to people and in JSON.
        detect: whether the first `producers.formats.DETECT_BYTES` of a file are of this format; never raises.
        items: the whole file to its items; raises `FeedError` or `DecodeError` for what cannot be items.
    """

    name: str
    detect: Callable[[bytes], bool]
    items: Items

    def as_format(self) -> Format:
        """Return this format for the registry: items become events without knowledge of other versions."""

        def parse(data: bytes, context: ParseContext) -> list[Item]:
            defaults = Defaults(unnamed=context.source or "unnamed", limits=context.limits)
            return [
                stateless_event(item, context.received_at_ns)
                for item in self.read(data, defaults, context.received_at_ns)
            ]

        return Format(name=self.name, detect=self.detect, parse=parse)

    def read(self, data: bytes, defaults: Defaults, received_at_ns: Nanoseconds) -> list[NewsItem]:
        """Return the items of a whole file.

        Raises:
            FeedError, DecodeError: as ``items``, and for a file that is too large.
        """
        if len(data) > MAX_NEWS_BYTES:
            raise FeedError(FeedErrorKind.TOO_LARGE, "", f"{len(data)} bytes, the limit is {MAX_NEWS_BYTES}")
        return self.items(data, defaults, received_at_ns)


def _is_generation(number: int, head: bytes) -> bool:
    return generation(head) == number


def _is_message(head: bytes) -> bool:
    """Tell a message of its own from JSON Lines, whose first line alone is one."""
    try:
        return is_push(json_object(head))
    except FeedError:
        return False


def _message_items(data: bytes, defaults: Defaults, received_at_ns: Nanoseconds) -> list[NewsItem]:
    return [push_item(json_object(data), defaults, received_at_ns)]


def _is_several_lines(head: bytes) -> bool:
    lines = [line for line in head.split(b"\n") if line.strip()]
    return len(lines) > 1 and is_json_lines(head)


NEWS_FORMATS = (
    NewsFormat(name="json-lines", detect=_is_several_lines, items=json_lines_items),
    *(
        NewsFormat(name=f"ninjs-{number}", detect=partial(_is_generation, number), items=ninjs_items)
        for number in (1, 2, 3)
    ),
    NewsFormat(name="newsml-g2", detect=is_newsml_g2, items=newsml_g2_items),
    NewsFormat(name="newsml-1", detect=is_newsml_1, items=newsml_1_items),
    NewsFormat(name="rss", detect=is_feed, items=feed_items),
    NewsFormat(name="news-message", detect=_is_message, items=_message_items),
    NewsFormat(name="statement", detect=is_statement, items=statement_items),
)
"""Every format, the more specific ones first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a file, page or message holds.

    Args:
        format: name of its format.
        items: in its order.
        problems: lines of JSON Lines that hold no item, with their numbers.
    """

    format: str
    items: list[NewsItem]
    problems: list[tuple[int, Problem]] = field(default_factory=list)


def read_news(data: bytes, defaults: Defaults, received_at_ns: Nanoseconds) -> Reading:
    """Return the items of a file or message of any of the formats; a bad line of JSON Lines leaves the others.

    Raises:
        FeedError: it is of none of the formats, or nothing in it can be read.
        DecodeError: the event of ours that it is does not hold what its schema says.
    """
    if not data.strip():
        raise FeedError(FeedErrorKind.EMPTY, "", f"{len(data)} bytes, nothing in them")
    if len(data) > MAX_NEWS_BYTES:
        raise FeedError(FeedErrorKind.TOO_LARGE, "", f"{len(data)} bytes, the limit is {MAX_NEWS_BYTES}")
    head = data[:DETECT_BYTES]
    for candidate in NEWS_FORMATS:
        if not candidate.detect(head):
            continue
        if candidate.items is json_lines_items:
            items, problems = read_lines(data, defaults, received_at_ns)
            return Reading(format=candidate.name, items=items, problems=problems)
        return Reading(format=candidate.name, items=candidate.items(data, defaults, received_at_ns))
    raise FeedError(FeedErrorKind.UNKNOWN_FORMAT, "", "the content is of no news format that is read here")
