"""Turns a table into lines in which every number stands with the names of its row and its column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

COLUMNS_MOST = 400
"""Bound on the grid: filers' tables have up to some ninety grid columns, a hostile ``colspan`` asks for millions."""
ROWSPAN_MOST = 200
CARRIED_MOST = 100_000
"""Repetitions of spanning cells in one table; past them a span counts as one row."""
HEADER_ROWS_MOST = 6
"""Rows straight above figures that can name their columns; a table of contents or of words has hundreds."""

_VALUE = re.compile(
    r"(?:US|C|A|NZ|HK)?[$\u20ac\u00a3\u00a5]?\s*[-+(\u2013\u2014]?\s*[$\u20ac\u00a3\u00a5]?\s*"
    r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)\s*[%x\u00d7]?\s*\)?\s*%?(?:\s*(?:pts?|bps|basis points))?"
    r"|[-\u2013\u2014]{1,3}%?|n/?[am]\.?|nm|\*",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"\d")
_YEAR = re.compile(r"(?:19|20)\d\d(?:\s*\(\d\))?")
_OPENING = frozenset({"$", "US$", "C$", "\u20ac", "\u00a3", "\u00a5", "(", "$(", "($"})
_CLOSING = frozenset({")", "%", ")%", "%)", "x", "\u00a2"})
_BULLETS = frozenset("\u2022\u00b7\u25cf\u25cb\u25aa\u25a0\u2013\u2014-*o\u00a7\u00d8\u2610\u2612\u00fd\u00fe\u00a8")


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell as it was written.

    Args:
        lines: its text, one block a line.
        colspan: grid columns that it covers, at least 1.
        rowspan: rows that it covers, at least 1.
        is_header: a ``th``.
    """

    lines: Sequence[str]
    colspan: int = 1
    rowspan: int = 1
    is_header: bool = False


@dataclass(slots=True)
class _Placed:
    """A cell in the grid: its text and the columns ``start`` to ``end`` (exclusive)."""

    text: str
    start: int
    end: int
    is_header: bool
    lines: Sequence[str]

    @property
    def is_value(self) -> bool:
        return bool(_VALUE.fullmatch(self.text))


@dataclass(slots=True)
class _Names:
    """The column names in force, and which of them a figure has used."""

    cells: list[_Placed] = field(default_factory=list)
    by_column: list[list[str]] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    line: int = 0

    def of(self, start: int, end: int) -> str:
        """Return the names of the columns from ``start`` to ``end`` (exclusive)."""
        self.used.update(range(start, end))
        return " ".join(dict.fromkeys(name for names in self.by_column[start:end] for name in names))

    def unused(self) -> list[str]:
        """Return the names that stood over no figure."""
        return [cell.text for cell in self.cells if self.used.isdisjoint(range(cell.start, cell.end))]


def linearise(rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Return the lines of a table.

    A table with numbers gives one line per row, ``row name: column name value; …``; one that only lays text out
    gives its text row by row.
    """
    grid = [_joined(row) for row in _placed(rows)]
    grid = [row for row in grid if row]
    if not any(_has_data(row) for row in grid):
        return [line for row in grid for line in _plain(row)]
    lines: list[str] = []
    names = _Names()
    waiting: list[list[_Placed]] = []
    seen_data = False
    for row in grid:
        if not _has_data(row):
            waiting.append(row)
            continue
        if headers := _settle(waiting, lines, seen_data=seen_data):
            _keep_unused(names, lines)
            names = _Names(headers, _column_names(headers), line=len(lines))
        waiting = []
        seen_data = True
        lines.append(_named(row, names))
    _keep_unused(names, lines)
    for row in waiting:
        lines.extend(_plain(row))
    return [line for line in lines if line]


def _keep_unused(names: _Names, lines: list[str]) -> None:
    """Put names that no figure used on a line of their own, where they stood: nothing of a table is lost."""
    if unused := names.unused():
        lines.insert(names.line, " | ".join(dict.fromkeys(unused)))


def _placed(rows: Sequence[Sequence[Cell]]) -> list[list[_Placed]]:
    """Put the cells into grid columns, carrying those that span rows."""
    grid: list[list[_Placed]] = []
    carried: dict[int, tuple[int, _Placed]] = {}
    repeated = 0
    for row in rows:
        repeated += len(carried)
        if repeated > CARRIED_MOST:
            carried = {}
        placed: list[_Placed] = []
        column = 0
        following: dict[int, tuple[int, _Placed]] = {}
        for start, (left, spanning) in carried.items():
            placed.append(spanning)
            if left > 1:
                following[start] = (left - 1, spanning)
        for cell in row:
            while held := carried.get(column):
                column = held[1].end
            if column >= COLUMNS_MOST:
                break
            end = min(column + max(cell.colspan, 1), COLUMNS_MOST)
            here = _Placed(" ".join(cell.lines), column, end, cell.is_header, cell.lines)
            placed.append(here)
            if cell.rowspan > 1 and here.text:
                following[column] = (min(cell.rowspan, ROWSPAN_MOST) - 1, here)
            column = end
        carried = following
        placed.sort(key=lambda one: one.start)
        grid.append(placed)
    return grid


def _joined(row: list[_Placed]) -> list[_Placed]:
    """Drop empty cells and join currency signs, brackets and percent signs to their numbers."""
    joined: list[_Placed] = []
    opening: _Placed | None = None
    for cell in row:
        if not cell.text:
            continue
        if cell.text in _OPENING:
            opening = cell
            continue
        if opening is not None:
            cell = _Placed(f"{opening.text}{cell.text}", opening.start, cell.end, cell.is_header, cell.lines)
            opening = None
        elif cell.text in _CLOSING and joined and _DIGIT.search(joined[-1].text):
            last = joined[-1]
            joined[-1] = _Placed(f"{last.text}{cell.text}", last.start, cell.end, last.is_header, last.lines)
            continue
        joined.append(cell)
    if opening is not None:
        joined.append(opening)
    return joined


def _has_data(row: list[_Placed]) -> bool:
    """Whether a row states figures: a number beside a name, and not only years, which name columns."""
    if len(row) < 2:
        return False
    # A number that only opens the row counts its lines, as on the cover of a 13G; it is no figure.
    values = [cell for cell in row[1:] if cell.is_value]
    figures = [cell for cell in values if _DIGIT.search(cell.text)]
    if figures and all(_YEAR.fullmatch(cell.text) for cell in figures):
        return False
    return bool(figures) or (len(values) > 1 and not row[0].is_value)


def _settle(waiting: list[list[_Placed]], lines: list[str], *, seen_data: bool) -> list[_Placed]:
    """Return the cells of the rows before a row of figures that name its columns; the other rows become lines."""
    headers: list[_Placed] = []
    for place, row in enumerate(waiting, start=1):
        first = row[0]
        near = len(waiting) - place < HEADER_ROWS_MOST
        names_columns = near and (len(row) > 1 or first.start > 0)
        if seen_data and names_columns and first.start == 0 and not first.is_header and not _only_years(row[1:]):
            names_columns = False
        if names_columns:
            headers.extend(row)
        else:
            lines.extend(_plain(row))
    return headers


def _only_years(row: list[_Placed]) -> bool:
    return bool(row) and all(_YEAR.fullmatch(cell.text) for cell in row)


def _column_names(headers: list[_Placed]) -> list[list[str]]:
    columns: list[list[str]] = [[] for _ in range(max(cell.end for cell in headers))]
    for cell in headers:
        for column in range(cell.start, cell.end):
            if cell.text not in columns[column]:
                columns[column].append(cell.text)
    return columns


def _named(row: list[_Placed], names: _Names) -> str:
    """Return ``row name: column name value; …``."""
    label: list[str] = []
    rest = row
    while rest and not rest[0].is_value and len(rest) > 1:
        label.append(rest[0].text)
        rest = rest[1:]
        if rest[0].is_value:
            break
    values = []
    for cell in rest:
        name = names.of(cell.start, cell.end)
        values.append(f"{name} {cell.text}" if name else cell.text)
    figures = "; ".join(values)
    return f"{' '.join(label).rstrip(':')}: {figures}" if label else figures


def _plain(row: list[_Placed]) -> list[str]:
    """Return a row of text: one cell as it is, a bullet with its text, several cells side by side."""
    if len(row) == 1:
        return list(row[0].lines)
    if row[0].text in _BULLETS:
        return [" ".join(cell.text for cell in row)]
    pieces: list[str] = []
    for before, cell in pairwise([None, *row]):
        # A cell that spans rows is repeated in each of them; side by side it says nothing twice.
        if cell is not None and (before is None or before.text != cell.text):
            pieces.append(cell.text)
    return [" | ".join(pieces)]
