"""Reads XML and HTML of news with lxml, safely: no entities, no network, bounded depth; and turns it into text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from lxml import etree

from producers.errors import FeedError, FeedErrorKind

ROOT_BYTES = 8192
"""Enough of a document to see its root element past a licence comment."""

_HTML_SIGN = re.compile(r"<[a-zA-Z/!]|&[a-zA-Z#]")
_DROPPED = frozenset({"script", "style", "head", "template", "noscript", "svg", "iframe", "object", "nav", "form"})
_BLOCKS = frozenset(
    {
        "address", "article", "aside", "blockquote", "body.content", "body.head", "br", "caption", "center", "dd",
        "div", "dl", "dt", "figcaption", "figure", "footer", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hedline",
        "hl1", "hl2", "hr", "li", "main", "ol", "p", "pre", "section", "table", "tbody", "thead", "tr", "ul",
    }
)  # fmt: skip
_PARAGRAPHS = frozenset({"p", "h1", "h2", "h3", "h4", "h5", "h6", "table", "blockquote", "hl1", "hl2"})
_CELLS = frozenset({"td", "th"})
_SPACES = re.compile(r"[ \t\r\f\v\xa0]*\n[ \t\r\f\v\xa0]*|[ \t\r\f\v\xa0]+")


def xml_root(data: bytes) -> Any:
    """Parse an XML document; returns its root element.

    Raises:
        FeedError: it is not well-formed, has a document type with entities, or is nested deeper than libxml2 allows.
    """
    try:
        root = etree.fromstring(data.strip(), _parser())
    except (etree.XMLSyntaxError, ValueError) as error:  # ValueError: a declared encoding that does not exist
        raise FeedError(FeedErrorKind.MALFORMED, "", f"not well-formed XML: {error}"[:300]) from None
    if root is None:
        raise FeedError(FeedErrorKind.MALFORMED, "", "an XML document without an element")
    return root


def _parser() -> Any:
    # One parser per document: a parser that failed once may keep its error log.
    return etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_pis=True, remove_comments=True
    )


@lru_cache(maxsize=4)
def root_name(head: bytes) -> str:
    """Return the name of a document's root element as ``{namespace}local``, or ``""`` when this is no XML.

    Args:
        head: start of the document; it may end anywhere.
    """
    start = head[:ROOT_BYTES].lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start.startswith((b"<", b"\xff\xfe", b"\xfe\xff")):
        return ""
    parser: Any = etree.XMLPullParser(events=("start",), resolve_entities=False, no_network=True, recover=True)
    try:
        parser.feed(start)
        for _, element in parser.read_events():
            return str(element.tag)
    except (etree.XMLSyntaxError, ValueError):
        pass
    return ""


def local_name(tag: object) -> str:
    """Return an element's name without its namespace, in lower case; ``""`` for comments and instructions."""
    return tag.rpartition("}")[2].lower() if isinstance(tag, str) else ""


def html_text(markup: str) -> str:
    """Return the text of an HTML fragment or document; text without any markup comes back as it is."""
    if not _HTML_SIGN.search(markup):
        return markup
    # Bytes with a fixed encoding: a declaration inside the markup must not have a say. NUL ends the parser's input.
    raw = markup.encode("utf-8", "ignore").replace(b"\x00", b"")
    parser: Any = etree.HTMLParser(encoding="utf-8", no_network=True, remove_comments=True, remove_pis=True)
    try:
        root = etree.fromstring(raw, parser)
    except (etree.XMLSyntaxError, ValueError):
        return ""
    return "" if root is None else element_text(root)


def element_text(root: Any) -> str:
    """Return the text below an element: blocks on lines of their own, cells of a row with bars between them."""
    pieces: list[str] = []
    skipped = 0
    # iterwalk keeps its own stack: markup may be nested deeper than Python's.
    for event, element in etree.iterwalk(root, events=("start", "end")):
        name = local_name(element.tag)
        if event == "start":
            skipped += name in _DROPPED
            if not skipped:
                pieces.append(_before(name, pieces))
                pieces.append(_SPACES.sub(" ", element.text or ""))
            continue
        if not skipped:
            pieces.append(_after(name, pieces))
        skipped -= name in _DROPPED
        if not skipped and element is not root:
            pieces.append(_SPACES.sub(" ", element.tail or ""))
    lines = (line.strip() for line in "".join(pieces).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _before(name: str, pieces: list[str]) -> str:
    if name in _CELLS:
        return "" if _at_line_start(pieces) else " | "
    if name in _PARAGRAPHS:
        return "\n\n"
    if name == "li":
        return "- " if _at_line_start(pieces) else "\n- "
    return "" if name not in _BLOCKS or (name != "br" and _at_line_start(pieces)) else "\n"


def _after(name: str, pieces: list[str]) -> str:
    if name in _PARAGRAPHS:
        return "\n\n"
    return "" if name not in _BLOCKS or name == "br" or _at_line_start(pieces) else "\n"


def _at_line_start(pieces: list[str]) -> bool:
    last = next((piece for piece in reversed(pieces) if piece.strip(" ")), "\n")
    return last.endswith("\n")
