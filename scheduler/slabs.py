"""Cuts a long text where it may be cut, so that no single call over it holds the interpreter lock for long."""

from __future__ import annotations

import time
from collections.abc import Iterator

SLAB_CHARS = 16_000
"""A regular expression over this many characters takes about half a millisecond, and a headline's event loop waits no
longer than that for the interpreter lock."""
_BREATH_SECONDS = 0.0002
"""Long enough for a waiting thread to wake and take the lock; sleeping for nothing lets it go and takes it again."""


def slabs(text: str, size: int = SLAB_CHARS) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a text's slabs, in order and without gaps, each ended by a line or a word where it can be."""
    begin = 0
    while len(text) - begin > size:
        end = begin + size
        for mark in ("\n", " "):
            place = text.rfind(mark, begin + size // 2, end)
            if place > 0:
                end = place + 1
                break
        yield begin, end
        begin = end
    if begin < len(text):
        yield begin, len(text)


def breathe() -> None:
    """Let another thread have the interpreter lock, if one waits for it."""
    time.sleep(_BREATH_SECONDS)
