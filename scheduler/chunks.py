"""Splits a long text into chunks of bounded tokens: between sections where it can, between sentences where it must."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scheduler.slabs import slabs
from scheduler.tokens import LongText, between_characters, last_sentence_end

_HEADING = re.compile(
    r"""
    ^[ \t]{0,60}
    (?: (?:PART|Part)[ \t]{1,4}[IVX]{1,4}\b                            # of an annual or quarterly report
      | (?:ITEM|Item)[sS]?[ \t]{1,4}[0-9]{1,2}(?:\.[0-9]{2})?[A-C]?\b   # of any report
      | (?=[^\n]{0,40}?[A-Z]{3}) [^a-z\n|$%]{4,100} $                   # a line in capitals
    )
    """,
    re.MULTILINE | re.VERBOSE,
)
_BLOCK_END = re.compile(r"""[.!?:;]["'\u201d\u2019)\]]{0,3}[ \t]{0,8}\n\s*|\n[ \t]*\n\s*""")
"""A blank line, or a line that ends as a sentence does: feeds write a paragraph as one line, without blank ones."""
HEADING_CHARS = 120
"""A longer line that begins with an item's number holds the item's text too."""
_LEAST_FULL = 0.5
"""A cut inside a section looks for a sentence in the last half of the chunk."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a text.

    Args:
        start, end: its characters, end exclusive.
        tokens: packed token ids, a slice of the text's one encoding.
        count: number of those.
        own: of those, how many are not in the chunk before as well.
    """

    start: int
    end: int
    tokens: bytes
    count: int
    own: int


def split(
    text: str, encoded: LongText, most: int, overlap: int, pause: Callable[[], None] | None = None
) -> list[Chunk]:
    """Split a text; together the chunks hold every token of it, in order.

    A section (what begins with a heading, an item's line or after a blank line) that fits into a chunk is never cut.
    One that does not is cut after a sentence, or a word, or anywhere between two characters, and the chunk after the
    cut begins with the last tokens of the one before.

    Args:
        text: any text.
        encoded: the same text under the tokenizer.
        most: tokens of a chunk, at least 1.
        overlap: tokens that two chunks share at a cut; at most half of a chunk counts.
        pause: called between pieces of work of less than a millisecond.
    """
    if len(encoded) <= most:
        return [Chunk(0, len(text), encoded.ids.tobytes(), len(encoded), len(encoded))] if encoded else []
    overlap = min(overlap, most // 2)
    places = _Boundaries.of(text, encoded, pause)
    chunks: list[Chunk] = []
    begin = fresh = 0
    while fresh < len(encoded):
        end, cut = _next_end(text, encoded, places, begin, fresh, most)
        start = encoded.starts[begin] if begin else 0
        # What the tokenizer drops (controls, for some models) belongs to the chunk before it.
        stop = max(encoded.starts[end], encoded.ends[end - 1]) if end < len(encoded) else len(text)
        chunks.append(Chunk(start, stop, encoded.ids[begin:end].tobytes(), end - begin, end - fresh))
        fresh = begin = end
        if cut and end < len(encoded):
            begin = between_characters(encoded.starts, encoded.ends, end - overlap)
            if end - begin > most // 2:  # one character of many tokens must not fill a tiny chunk for ever
                begin = end
    return chunks


@dataclass(frozen=True, slots=True)
class _Boundaries:
    """Where sections begin, as token indices.

    Args:
        headings: those that have a heading.
        sections: all of them; the last entry is the number of tokens.
    """

    headings: list[int]
    sections: list[int]

    @classmethod
    def of(cls, text: str, encoded: LongText, pause: Callable[[], None] | None) -> _Boundaries:
        headings, titles = _headings(text, pause)
        blocks = [m.end() for m in _matches(_BLOCK_END, text, pause) if m.start() not in titles]
        heading_tokens = [_token_at(encoded, place) for place in headings]
        tokens = {*heading_tokens, *(_token_at(encoded, place) for place in blocks)} - {0, len(encoded)}
        clean = [t for t in sorted(tokens) if between_characters(encoded.starts, encoded.ends, t) == t]
        return cls(sorted({*heading_tokens} & {*clean}), [*clean, len(encoded)])


def _headings(text: str, pause: Callable[[], None] | None) -> tuple[list[int], set[int]]:
    """Return where headings begin, one for several lines of them, and the ends of those lines."""
    begins: list[int] = []
    ends: set[int] = set()
    last_end = -1
    for match in _matches(_HEADING, text, pause):
        begin = match.start()
        end = text.find("\n", match.end())
        end = len(text) if end < 0 else end
        follows = last_end >= 0 and begin - last_end <= HEADING_CHARS and not text[last_end:begin].strip()
        if not follows:
            begins.append(begin)
        if end - begin <= HEADING_CHARS:
            # The blank line under a heading does not part it from its text.
            last_end = begin + len(text[begin:end].rstrip())
            ends.update((last_end, end, last_end - 1))
        else:
            last_end = -1
    return begins, ends


def _matches(pattern: re.Pattern[str], text: str, pause: Callable[[], None] | None) -> Iterator[re.Match[str]]:
    for begin, end in slabs(text):
        yield from pattern.finditer(text, begin, end)
        if pause is not None:
            pause()


def _token_at(encoded: LongText, place: int) -> int:
    """Return the first token that reaches past a character: `` The`` where the place is that of ``The``."""
    return bisect_right(encoded.ends, place)


def _next_end(text: str, encoded: LongText, places: _Boundaries, begin: int, fresh: int, most: int) -> tuple[int, bool]:
    """Return where the chunk from token ``begin`` on ends, and whether that cuts a section.

    Tokens before ``fresh`` are in the chunk before as well.
    """
    limit = begin + most
    if limit >= len(encoded):
        return len(encoded), False
    half = begin + int(most * _LEAST_FULL)
    index = bisect_right(places.sections, limit) - 1
    last = places.sections[index] if index >= 0 else 0
    if last > fresh:
        fits = places.sections[index + 1] - last <= most
        if fits or last > half:
            heading = places.headings[i] if (i := bisect_right(places.headings, limit) - 1) >= 0 else 0
            return (heading if heading > max(half, fresh) else last), False
    return _inside(text, encoded, max(half, fresh), limit), True


def _inside(text: str, encoded: LongText, least: int, limit: int) -> int:
    """Return where to cut a section: after a sentence, a word or a character, later than ``least``."""
    first, last = encoded.ends[least - 1] if least else 0, encoded.ends[limit - 1]
    end = last_sentence_end(text, first, last)
    if end <= first:
        end = max(text.rfind(" ", first + 1, last), text.rfind("\n", first + 1, last))
    if end > first and (place := bisect_right(encoded.ends, end)) > least:
        clean = between_characters(encoded.starts, encoded.ends, place)
        if least < clean <= limit:
            return clean
    clean = between_characters(encoded.starts, encoded.ends, limit)
    return clean if clean > least else limit
