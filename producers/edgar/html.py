"""HTML and inline XBRL to lines of text, in one pass over lxml's parser events, without ever building a tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lxml import etree

from producers.edgar.tables import COLUMNS_MOST, ROWSPAN_MOST, Cell, linearise

FEED_BYTES = 256 * 1024
"""Bytes handed to the parser at a time."""
TABLE_DEPTH_MOST = 32
"""Tables nested deeper than this add no row or column of their own; their text stays."""

_SKIPPED = frozenset({"script", "style", "head", "title", "ix:header", "ix:hidden", "noscript", "template", "svg"})
_BLOCKS = frozenset(
    {
        "address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "dir", "div", "dl", "dt",
        "fieldset", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "html", "li",
        "main", "menu", "nav", "ol", "p", "page", "pre", "section", "table", "tbody", "td", "tfoot", "th", "thead",
        "tr", "ul",
    }
)  # fmt: skip
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_FACTS = {
    "dei:tradingsymbol": "symbol",
    "dei:documenttype": "form",
    "dei:entitycentralindexkey": "cik",
    "dei:entityregistrantname": "company",
    "dei:amendmentflag": "amendment",
}
FACTS_MOST = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class HtmlText:
    """What is to be read in an HTML document.

    Args:
        lines: one block (paragraph, heading, table row) a line, in order.
        facts: cover facts of inline XBRL, also hidden ones: ``symbol``, ``form``, ``cik``, ``company``, ``amendment``.
    """

    lines: list[str]
    facts: dict[str, list[str]]


def html_lines(document: str) -> HtmlText:
    """Return the text of an HTML or XHTML document, however malformed."""
    target = _Target()
    # The parser's own guards are off because a filing may have a text node of 10 MB; nothing here recurses.
    parser = etree.HTMLParser(target=target, huge_tree=True, remove_comments=True, remove_pis=True, encoding="utf-8")
    data = document.replace("\x00", "").encode("utf-8", "replace")
    try:
        for start in range(0, len(data), FEED_BYTES):
            parser.feed(data[start : start + FEED_BYTES])
        parser.close()
    except (etree.LxmlError, AssertionError):
        # Nothing but blanks and comments: the parser has no document to close. What came before stays.
        target.finish()
    return HtmlText(lines=target.lines, facts=target.facts)


@dataclass(slots=True)
class _Table:
    """A table that is open, and the text that surrounds it."""

    outer_lines: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    spans: tuple[int, int, bool] | None = None


class _Target:
    """Receives lxml's parser events; ``lines`` and ``facts`` are the result.

    ``_into`` is the list that finished lines go to: the document's, or the one of the open cell.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.facts: dict[str, list[str]] = {}
        self._into = self.lines
        self._pieces: list[str] = []
        self._tables: list[_Table] = []
        self._too_deep = 0
        self._hidden = 0
        self._pre = 0
        self._fact: tuple[str, str, list[str]] | None = None

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Open an element."""
        if tag == "ix:nonnumeric" and self._fact is None:
            name = _FACTS.get(attributes.get("name", "").lower())
            if name:
                self._fact = (tag, name, [])
        if self._hidden:
            self._hidden += 1
            return
        if tag in _SKIPPED:
            self._hidden = 1
            return
        style = attributes.get("style")
        if style and ("none" in style or "hidden" in style or "NONE" in style) and _HIDDEN.search(style):
            self._hidden = 1
            return
        if tag not in _BLOCKS:
            return
        self._break()
        if tag in ("td", "th"):
            self._open_cell(tag, attributes)
        elif tag == "tr":
            self._open_row()
        elif tag == "table":
            self._open_table()
        elif tag == "pre":
            self._pre += 1

    def end(self, tag: str) -> None:
        """Close an element."""
        if self._fact is not None and tag == self._fact[0]:
            self._close_fact()
        if self._hidden:
            self._hidden -= 1
            return
        if tag not in _BLOCKS:
            return
        self._break()
        if tag in ("td", "th"):
            self._close_cell()
        elif tag == "table":
            self._close_table()
        elif tag == "pre" and self._pre:
            self._pre -= 1

    def data(self, text: str) -> None:
        """Take character data."""
        if self._fact is not None:
            self._fact[2].append(text)
        if self._hidden:
            return
        self._pieces.append(text)

    def comment(self, text: str) -> None:
        """Pass a comment over."""

    def close(self) -> None:
        """End the document; called by lxml."""
        self.finish()

    def finish(self) -> None:
        """Take over what is still open: a cut document keeps what it had."""
        self._break()
        while self._tables:
            self._close_table()

    def _break(self) -> None:
        """End the line."""
        if not self._pieces:
            return
        text = "".join(self._pieces)
        self._pieces.clear()
        if self._pre:
            self._into.extend(line.rstrip() for line in text.splitlines() if line.strip())
        elif text := " ".join(text.split()):
            self._into.append(text)

    def _open_table(self) -> None:
        if len(self._tables) >= TABLE_DEPTH_MOST:
            self._too_deep += 1
            return
        table = _Table(outer_lines=self._into)
        self._tables.append(table)
        self._into = table.stray

    def _open_row(self) -> None:
        if self._tables and not self._too_deep:
            self._close_cell()
            self._tables[-1].rows.append([])

    def _open_cell(self, tag: str, attributes: Mapping[str, str]) -> None:
        if not self._tables or self._too_deep:
            return
        self._close_cell()
        table = self._tables[-1]
        table.spans = (
            _span(attributes.get("colspan"), COLUMNS_MOST),
            _span(attributes.get("rowspan"), ROWSPAN_MOST),
            tag == "th",
        )
        self._into = []

    def _close_cell(self) -> None:
        if not self._tables or self._too_deep:
            return
        table = self._tables[-1]
        if table.spans is None:
            return
        colspan, rowspan, is_header = table.spans
        table.spans = None
        if not table.rows:
            table.rows.append([])
        table.rows[-1].append(Cell(self._into, colspan, rowspan, is_header))
        self._into = table.stray

    def _close_table(self) -> None:
        if self._too_deep:
            self._too_deep -= 1
            return
        if not self._tables:
            return
        self._close_cell()
        table = self._tables.pop()
        self._into = table.outer_lines
        self._into.extend(table.stray)
        self._into.extend(linearise(table.rows))

    def _close_fact(self) -> None:
        if self._fact is None:
            return
        _, name, pieces = self._fact
        self._fact = None
        value = " ".join("".join(pieces).split())[:256]
        found = self.facts.setdefault(name, [])
        if value and value not in found and len(found) < FACTS_MOST:
            found.append(value)


def _span(value: str | None, most: int) -> int:
    """Return a span within its bounds; anything that is no number counts as 1, as browsers do."""
    value = (value or "").strip()
    if not (value.isascii() and value.isdigit()):
        return 1
    return min(int(value[:6]), most) or 1
