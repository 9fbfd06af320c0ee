"""Finds the section boundaries of annual, quarterly and current reports among the lines of a document."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from producers.edgar.items import heading_of, is_8k

SECTIONS_MOST = 500
TITLE_CHARS = 160
HEADING_CHARS = 300
COVER = "Cover page"
SIGNATURES = "Signatures"
EXHIBIT_INDEX = "Exhibit index"

_ITEMISED = re.compile(r"10-?[KQ](?:SB|405|T)?(?:40)?(?:/A)?", re.IGNORECASE)
_PART = re.compile(r"\W{0,4}PART\s+(IV|I{1,3})\b(?![a-z])\s*[-:.\u2013\u2014|]*\s*(.{0,100})$", re.IGNORECASE)
_ITEM = re.compile(
    r"\W{0,8}(?:PART\s+(IV|I{1,3})\W{1,6})?ITEMS?\s*[-:\u2013\u2014#|]?\s*(\d{1,2}[A-C]?)\b\s*(?:\([a-z]\))?"
    r"\s*[-:.\u2013\u2014|)]*\s*(.*)",
    re.IGNORECASE | re.DOTALL,
)
_SENTENCE = re.compile(
    r"(?:of|in|to|above|below|shall|is|are|was|were|hereof|under|and\s+items?|through|which|as)\b|[,;]|\d",
    re.IGNORECASE,
)
"""What follows an item's number inside a sentence, and never in a heading."""
_SIGNATURES = re.compile(r"\W{0,8}signatures?\W{0,8}", re.IGNORECASE)
_EXHIBIT_INDEX = re.compile(r"\W{0,8}(?:exhibit\s+index|index\s+to\s+exhibits)\W{0,8}", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A run of lines with a name.

    Args:
        name: heading as it is shown; ``""`` where the document has no sections.
        item: 8-K item code; ``""`` elsewhere.
        start, end: lines ``start`` to ``end`` (exclusive).
    """

    name: str
    start: int
    end: int
    item: str = ""


@dataclass(frozen=True, slots=True)
class _Boundary:
    key: str
    name: str
    line: int
    item: str = ""


def sections(form: str, lines: Sequence[str], *, decimal: bool | None = None) -> list[Section]:
    """Cut a document's lines into sections that cover every line once, in order.

    Args:
        form: form type; forms without numbered items are one section.
        lines: the document.
        decimal: for 8-K, whether it is of the time of decimal items; None when that is unknown.
    """
    if not lines:
        return []
    find: Callable[[Sequence[str]], list[_Boundary]]
    if is_8k(form):
        find = _Current(decimal)
    elif _ITEMISED.fullmatch(form.replace(" ", "")):
        find = _periodic
    else:
        return [Section(name="", start=0, end=len(lines))]
    return _covering(_without_contents(find(lines), lines), len(lines))


class _Current:
    """Boundaries of an 8-K."""

    def __init__(self, decimal: bool | None) -> None:
        self._decimal = decimal

    def __call__(self, lines: Sequence[str]) -> list[_Boundary]:
        found: list[_Boundary] = []
        for number, line in enumerate(lines):
            if heading := heading_of(line, decimal=self._decimal):
                code, title = heading
                name = _name(f"Item {code}", title or _following(lines, number))
                found.append(_Boundary(code, name, number, code))
            elif found and (special := _special(line)):
                found.append(_Boundary(special, special, number))
        # One filing counts its items one way; a stray whole number among decimals is no item of it.
        if any("." in boundary.item for boundary in found):
            found = [boundary for boundary in found if "." in boundary.item or not boundary.item]
        return found


def _periodic(lines: Sequence[str]) -> list[_Boundary]:
    """Boundaries of a 10-K or 10-Q: items inside their parts."""
    found: list[_Boundary] = []
    part = ""
    for number, line in enumerate(lines):
        if len(line) > HEADING_CHARS:
            continue
        if match := _PART.fullmatch(line):
            part = match[1].upper()
            if "item" not in match[2].lower():
                continue
        if item := _ITEM.fullmatch(line):
            inside, code, title = item.groups()
            if _SENTENCE.match(title):
                continue
            part = inside.upper() if inside else part
            prefix = f"Part {part}, Item {code.upper()}" if part else f"Item {code.upper()}"
            found.append(_Boundary(prefix, _name(prefix, title or _following(lines, number)), number))
        elif found and (special := _special(line)):
            found.append(_Boundary(special, special, number))
    return found


def _special(line: str) -> str:
    if _SIGNATURES.fullmatch(line):
        return SIGNATURES
    return EXHIBIT_INDEX if _EXHIBIT_INDEX.fullmatch(line) else ""


def _following(lines: Sequence[str], number: int) -> str:
    """Return the title that stands on the line below its number."""
    below = next((line for line in lines[number + 1 : number + 4] if line.strip()), "")
    return below if len(below) <= TITLE_CHARS and not below.rstrip().endswith((".", ";", ",")) else ""


def _name(prefix: str, title: str) -> str:
    title = " ".join(title.split()).strip(" |.-\u2013\u2014:")
    return f"{prefix} {title[:TITLE_CHARS]}".strip()


def _without_contents(found: list[_Boundary], lines: Sequence[str]) -> list[_Boundary]:
    """Of the boundaries with the same key keep the last one that has at least half the text of the longest.

    The others stand in a table of contents, where an entry can be as long as a section that says "None.", or in an
    index at the end.
    """
    sizes: list[int] = []
    for index, boundary in enumerate(found):
        end = found[index + 1].line if index + 1 < len(found) else len(lines)
        sizes.append(sum(len(line) for line in lines[boundary.line : end]))
    longest: dict[str, int] = {}
    for boundary, size in zip(found, sizes, strict=True):
        longest[boundary.key] = max(size, longest.get(boundary.key, 0))
    best = {b.key: i for i, b in enumerate(found) if 2 * sizes[i] >= longest[b.key]}
    return [boundary for index, boundary in enumerate(found) if best[boundary.key] == index][:SECTIONS_MOST]


def _covering(found: list[_Boundary], count: int) -> list[Section]:
    if not found:
        return [Section(name="", start=0, end=count)]
    result = [Section(name=COVER, start=0, end=found[0].line)] if found[0].line else []
    for boundary in found:
        if result:
            result[-1] = replace(result[-1], end=boundary.line)
        result.append(Section(name=boundary.name, start=boundary.line, end=count, item=boundary.item))
    return result
