"""Cuts lines into parts of bounded size, between blocks where it can, between sentences or words where it must."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_SENTENCE_END = re.compile(r"[.!?][\"')\u201d\u2019]*\s|;\s|\n")


def cut(lines: Sequence[str], most: int) -> Iterator[str]:
    """Yield texts of at most ``most`` characters that together hold every line in order.

    Args:
        lines: blocks; joined by line feeds inside a part.
        most: characters of a part, at least 1.
    """
    waiting: list[str] = []
    size = 0
    for line in lines:
        for piece in _pieces(line, most):
            if waiting and size + 1 + len(piece) > most:
                yield "\n".join(waiting)
                waiting, size = [], 0
            size += len(piece) + bool(waiting)
            waiting.append(piece)
    if waiting:
        yield "\n".join(waiting)


def _pieces(line: str, most: int) -> Iterator[str]:
    while len(line) > most:
        at = _break_before(line, most)
        yield line[:at].rstrip()
        line = line[at:].lstrip()
    if line:
        yield line


def _break_before(line: str, most: int) -> int:
    """Return where to cut: after the last sentence that ends in the second half, else after the last word."""
    half = most // 2
    ends = [match.end() for match in _SENTENCE_END.finditer(line, half, most)]
    if ends:
        return ends[-1]
    space = line.rfind(" ", max(half, 1), most)
    return space if space > 0 else most
