"""One item of a news source in one shape, whatever it came in, and the event it becomes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct

from producers.clean import Cleaned, clean, clean_line
from producers.errors import FeedError, FeedErrorKind
from producers.times import SECOND, ReadTime, bounded, read_time
from schemas.codec import DEFAULT_LIMITS, Limits, encode_json
from schemas.enums import NewsStatus
from schemas.records import Nanoseconds, NewsEvent

HEADLINE_FROM_BODY_CHARS = 300
"""A story without a headline is known by the start of its body."""
SOURCE_CHARS = 64
STORY_CHARS = 160
"""A longer part of an id is cut and ends in a hash of the whole, so that it stays an id of its own. Both parts, the
version and two colons fit into an id (`producers.events.ID_CHARS`)."""
LABEL_CHARS = 256
MAX_INSTRUMENTS = 64
MAX_VERSION = 2**31 - 1
RECORD_MARGIN_BYTES = 32 * 1024
"""Kept free under the record limit for what is added after the text is cut: chain, duplicate mark, notes."""
CLOCK_AHEAD_NS = 2 * SECOND
"""How far a source's clock may run ahead of ours before its time is bounded."""

_BLANK = re.compile(r"\s+")
_CUT = re.compile(r"\s+\S*$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What the operator says about a source, for what its items leave out.

    Args:
        source: name of the source; wins over what the items say, so that no sender can pass for another.
        unnamed: source of items that name none, where ``source`` is empty.
        zone: of times without one; without it they stay unknown.
        language, urgency: where an item has none.
        clock_ahead_ns: how far the source's clock may run ahead, in nanoseconds.
    """

    source: str = ""
    unnamed: str = "unnamed"
    zone: ZoneInfo | None = None
    language: str = ""
    urgency: int = 0
    clock_ahead_ns: Nanoseconds = CLOCK_AHEAD_NS
    limits: Limits = DEFAULT_LIMITS


NO_DEFAULTS = Defaults()


class NewsItem(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One version of one story, as a parser reads it: clean, bounded and without state.

    Args:
        source: name of the wire.
        story: id of the story at its source, the same for all its versions.
        status: what the source says: usable, corrected or killed.
        declared: the source's own version number; 0 when it has none.
        previous: the source's own number of the version before this one; 0 when it says nothing.
        revised_at_ns: when this version was made, as the source says; orders versions without numbers. 0: unknown.
        statement: name of the series in which this is the next statement (``fed-statement``); ``""`` for other news.
        notes: see `schemas.records.NewsEvent`.
    """

    source: str
    story: str
    headline: str
    body: str = ""
    status: NewsStatus = NewsStatus.USABLE
    declared: int = 0
    previous: int = 0
    revised_at_ns: Nanoseconds = 0
    published_at_ns: Nanoseconds = 0
    embargo_until_ns: Nanoseconds = 0
    language: str = "en"
    urgency: int = 0
    instruments: list[str] = []
    url: str = ""
    statement: str = ""
    notes: list[str] = []

    @property
    def key(self) -> str:
        """Source and story: the Kafka key, and the event id without its version."""
        return f"{self.source}:{self.story}"


class ItemBuilder:
    """Collects the fields of one item, cleaning each and noting what was changed.

    Args:
        defaults: what the operator says about the source.
        received_at_ns: when the bytes were here; bounds the times.
    """

    def __init__(self, defaults: Defaults, received_at_ns: Nanoseconds) -> None:
        self._defaults = defaults
        self._received = received_at_ns
        self._notes: list[str] = []
        self._instruments: dict[str, None] = {}
        self.headline = ""
        self.body = ""
        self.status = NewsStatus.USABLE
        self.declared = 0
        self.previous = 0
        self.published_at_ns = 0
        self.revised_at_ns = 0
        self.embargo_until_ns = 0
        self.language = defaults.language or "en"
        self.urgency = defaults.urgency
        self.url = ""
        self.statement = ""

    def note(self, field: str, *changes: str) -> None:
        """Note what was changed in a field, or what is to be known about it."""
        self._notes += [f"{field}: {change}"[:LABEL_CHARS] for change in changes if change]

    def set_headline(self, text: str) -> None:
        """Take the headline, on one line."""
        self.headline = self._cleaned("headline", clean_line(text))

    def set_body(self, text: str) -> None:
        """Take the body; paragraphs are kept."""
        self.body = self._cleaned("body", clean(text))

    def set_published(self, value: object) -> None:
        """Take the source's time of publication."""
        self.published_at_ns = self._time("published", value)

    def set_revised(self, value: object) -> None:
        """Take the time of this version."""
        self.revised_at_ns = self._time("revised", value)

    def set_embargo(self, value: object, field: str) -> None:
        """Take the time before which the item must not be used.

        Raises:
            FeedError: it cannot be known when that is; an embargo is never guessed.
        """
        if value is None or value == "":
            return
        time = read_time(value, self._defaults.zone)
        if not time.ns:
            reason = f"an embargo needs a time with a zone ({time.note or 'empty'})"
            raise FeedError(FeedErrorKind.AMBIGUOUS_TIME, field, reason)
        self.note("embargo", time.note)
        self.embargo_until_ns = time.ns

    def set_language(self, value: str | None) -> None:
        """Take the language, unless there is none."""
        if value and (language := clean_line(value).text[:LABEL_CHARS]):
            self.language = language

    def set_urgency(self, value: object) -> None:
        """Take the IPTC urgency 1 to 9; anything else is noted and left out."""
        if value is None or value == "":
            return
        digits = str(value).strip()
        if len(digits) == 1 and digits in "123456789":
            self.urgency = int(digits)
        else:
            self.note("urgency", f"unreadable={digits[:20]!a}")

    def set_version(self, value: object) -> None:
        """Take the source's own version number, unless it is none."""
        self.declared = version_number(value)

    def add_instrument(self, symbol: str) -> None:
        """Add an instrument, once."""
        if symbol and len(self._instruments) < MAX_INSTRUMENTS:
            self._instruments[symbol] = None

    def build(self, *, source: str, story: str) -> NewsItem:
        """Return the item.

        Args:
            source: as the item names it; the operator's name wins.
            story: id at the source.

        Raises:
            FeedError: it has no id, or no text while it is not killed.
        """
        name = id_part(self._defaults.source or source or self._defaults.unnamed, SOURCE_CHARS) or "unnamed"
        own = id_part(story)
        if not own:
            raise FeedError(FeedErrorKind.MISSING_FIELD, "id", "nothing tells this story from others")
        killed = self.status is NewsStatus.KILLED
        if not self.headline and self.body and not killed:
            self.headline = _start_of(self.body)
            self.note("headline", "taken_from_body")
        if not self.headline and not killed:
            raise FeedError(FeedErrorKind.NO_TEXT, "headline", "neither a headline nor a body to read")
        limits = self._defaults.limits
        if len(self.headline) > limits.headline_chars:
            self.note("headline", f"cut_from={len(self.headline)}")
            self.headline = self.headline[: limits.headline_chars]
        return NewsItem(
            source=name,
            story=own,
            headline=self.headline,
            body=self._fitted_body(limits),
            status=self.status,
            declared=self.declared,
            previous=self.previous,
            revised_at_ns=self.revised_at_ns,
            published_at_ns=self.published_at_ns,
            embargo_until_ns=self.embargo_until_ns,
            language=self.language,
            urgency=self.urgency,
            instruments=list(self._instruments),
            url=clean_line(self.url).text[:2000],
            statement=self.statement,
            notes=self._notes,
        )

    def _cleaned(self, field: str, cleaned: Cleaned) -> str:
        self.note(field, *cleaned.changes)
        return cleaned.text

    def _time(self, field: str, value: object) -> Nanoseconds:
        time: ReadTime = bounded(read_time(value, self._defaults.zone), self._received, self._defaults.clock_ahead_ns)
        self.note(field, time.note)
        return time.ns

    def _fitted_body(self, limits: Limits) -> str:
        """Return the body, cut where it would not fit into a record."""
        body = self.body[: limits.text_chars]
        room = limits.record_bytes - RECORD_MARGIN_BYTES - len(encode_json(self.headline))
        while body and (size := len(encode_json(body))) > room:
            body = body[: max(0, min(len(body) - 1, len(body) * room // size))]
        if len(body) < len(self.body):
            self.note("body", f"cut_from={len(self.body)}")
        return body


def stateless_event(item: NewsItem, received_at_ns: Nanoseconds) -> NewsEvent:
    """Return the event of an item as it is when nothing is known about the story's other versions."""
    version = item.declared or 1
    previous = f"{item.key}:{item.previous}" if item.previous else None
    return to_event(item, received_at_ns, version=version, supersedes=previous, status=item.status)


def to_event(
    item: NewsItem, received_at_ns: Nanoseconds, *, version: int, supersedes: str | None, status: NewsStatus
) -> NewsEvent:
    """Return the event of an item at its place in the story's chain."""
    return NewsEvent(
        event_id=f"{item.key}:{version}",
        source=item.source,
        headline=item.headline,
        body=item.body,
        received_at_ns=received_at_ns,
        published_at_ns=item.published_at_ns,
        version=version,
        language=item.language,
        instruments=item.instruments,
        urgency=item.urgency,
        status=status,
        supersedes=supersedes,
        embargo_until_ns=item.embargo_until_ns,
        notes=item.notes,
        url=item.url,
    )


def id_part(text: str, most: int = STORY_CHARS) -> str:
    """Return text as a part of an event id: no blanks, no controls, at most so many characters."""
    part = _BLANK.sub("_", clean_line(text).text)
    if len(part) <= most:
        return part
    return f"{part[: most - 33]}~{sha256(part.encode()).hexdigest()[:32]}"


def version_number(value: object) -> int:
    """Return a source's version number, or 0 when it is none (``2.1``, ``final``, 0)."""
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        return 0
    return int(text) if int(text) < MAX_VERSION else 0


def replaced(item: NewsItem, **changes: object) -> NewsItem:
    """Return the item with other values."""
    return msgspec.structs.replace(item, **changes)


def _start_of(body: str) -> str:
    line = body.split("\n", 1)[0]
    if len(line) <= HEADLINE_FROM_BODY_CHARS:
        return line
    return _CUT.sub("", line[:HEADLINE_FROM_BODY_CHARS]) or line[:HEADLINE_FROM_BODY_CHARS]
