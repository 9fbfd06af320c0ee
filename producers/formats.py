"""The registry of input formats: which one a file is, told by its content and never by its name, and what is in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from producers.errors import FeedError, FeedErrorKind
from schemas.codec import DEFAULT_LIMITS, Limits
from schemas.errors import DecodeError
from schemas.records import Event, Nanoseconds

DETECT_BYTES = 64 * 1024
"""How much of a file its detection sees: wrappers, declarations and headers of all formats end before that."""
MAX_FILE_BYTES = 256 * 1024 * 1024
PART_CHARS = 8_000
"""About 2,000 tokens of prose or 3,200 of figures: a part fits a model context of 4,096 with its prompt."""
PARTS_MOST = 1_000
"""A prospectus of 4 MB has about 100 parts; past this a filing is a data set in disguise."""


@dataclass(frozen=True, kw_only=True)
class ParseContext:
    """What a parser cannot know from the bytes alone.

    Args:
        received_at_ns: when the bytes were here; the events' event time.
        url: where they came from; ``""`` for a local file.
        source: name for events whose format does not name its wire itself.
        limits: bounds on records and texts.
        tickers: instruments per CIK, the CIK as ten digits.
        part_chars: most characters of one part of a filing.
        parts_most: most parts of one filing; what is past them is left out.
        encoding: what a transport header said about the bytes' encoding; ``""`` when nothing did.
    """

    received_at_ns: Nanoseconds
    url: str = ""
    source: str = ""
    limits: Limits = DEFAULT_LIMITS
    tickers: dict[str, list[str]] = field(default_factory=dict)
    part_chars: int = PART_CHARS
    parts_most: int = PARTS_MOST
    encoding: str = ""


class Listed(Struct, kw_only=True, frozen=True):
    """A filing that an index or a feed page names: to be fetched, no text yet.

    Args:
        accession: EDGAR accession number.
        form: as listed.
        ciks: every party it is listed under, ten digits each.
        company: name of the first of them.
        items: 8-K item codes, where the listing has them.
        updated_ns: the listing's own time; 0 when it has none, or none to trust.
        filed: date ``YYYY-MM-DD``.
        url: of the full submission; ``""`` when the listing does not say.
    """

    accession: str
    form: str
    ciks: list[str]
    company: str = ""
    items: list[str] = []
    updated_ns: Nanoseconds = 0
    filed: str = ""
    url: str = ""


Item = Event | Listed
Parse = Callable[[bytes, ParseContext], Sequence[Item]]


@dataclass(frozen=True, kw_only=True)
class Format:
    """One input format.

    Args:
        name: as shown to people and in JSON, for example ``ninjs-2.1`` or ``edgar-submission``.
        detect: whether the first `DETECT_BYTES` of a file are of this format; cheap, and never raises.
        parse: the whole file to its events; raises `FeedError` or `DecodeError` for what cannot be events.
    """

    name: str
    detect: Callable[[bytes], bool]
    parse: Parse


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """What a file holds.

    Args:
        format: name of its format; ``""`` when none recognised it.
        items: events and listed filings, in the file's order.
        rejected: why there are none; None when there are some.
    """

    format: str
    items: Sequence[Item] = ()
    rejected: FeedError | DecodeError | None = None


def all_formats() -> Iterator[Format]:
    """Yield every format, the more specific ones before those that would take almost anything."""
    # Imported here: the packages import this module for `Format`.
    from producers import edgar, news

    yield from edgar.FORMATS
    yield from news.FORMATS


def detect(data: bytes, formats: Iterable[Format] | None = None) -> Format:
    """Return the format of a file.

    Raises:
        FeedError: it is too large, empty, or of no known format.
    """
    if len(data) > MAX_FILE_BYTES:
        raise FeedError(FeedErrorKind.TOO_LARGE, "", f"{len(data)} bytes, the limit is {MAX_FILE_BYTES}")
    if not data.strip():
        raise FeedError(FeedErrorKind.EMPTY, "", f"{len(data)} bytes, nothing in them")
    head = data[:DETECT_BYTES]
    for candidate in formats or all_formats():
        if candidate.detect(head):
            return candidate
    raise FeedError(FeedErrorKind.UNKNOWN_FORMAT, "", "the content is of no format that is read here")


def parse(data: bytes, context: ParseContext | None = None, formats: Iterable[Format] | None = None) -> Parsed:
    """Tell the format of a file and parse it; whatever is wrong with it comes back as a typed rejection."""
    context = context or ParseContext(received_at_ns=time.time_ns())
    name = ""
    try:
        found = detect(data, formats)
        name = found.name
        items = found.parse(data, context)
    except (FeedError, DecodeError) as error:
        return Parsed(format=name, rejected=error)
    if not items:
        reason = "well-formed, with nothing in it to make an event of"
        return Parsed(format=name, rejected=FeedError(FeedErrorKind.NO_TEXT, "", reason))
    return Parsed(format=name, items=items)
