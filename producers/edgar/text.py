"""A document's bytes to clean lines of text: encodings, HTML or plain text of every era."""

from __future__ import annotations

import re
from dataclasses import dataclass

from producers.clean import clean, clean_line
from producers.edgar.html import html_lines

_HTML = re.compile(
    rb"<(?:!doctype\s+html|html|head|body|title|div|p|font|span|center|br|hr|td|tr|b|i|u|h[1-6])\b[^>]{0,2000}>",
    re.IGNORECASE,
)
LABEL_CHARS = 256
_HTML_WITHIN = 16 * 1024
"""HTML shows itself in its first lines; an old plain text may quote a ``<B>`` much later."""
_XML = re.compile(rb"\s*(?:<\?xml\b[^>]*\?>\s*)?(?>(?:<!--.*?-->\s*)*)<(?!\?xml)([A-Za-z_][\w.-]*:?[\w.-]*)", re.DOTALL)
_TEXT_TAGS = re.compile(r"</?(?:PAGE|TABLE|CAPTION|S|C|FN|F\d+|TEXT|MULTIPLIER|PRE)>[ \t]*", re.IGNORECASE)
_RULE = re.compile(r"[\s=_*.~-]*")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentText:
    """The text of one document.

    Args:
        lines: blocks of text in order, none of them blank.
        facts: cover facts of inline XBRL (`producers.edgar.html.HtmlText`).
        changes: what cleaning changed (`producers.clean.Cleaned`), each once.
    """

    lines: list[str]
    facts: dict[str, list[str]]
    changes: tuple[str, ...] = ()


def decoded(body: bytes) -> str:
    """Decode a document: UTF-8 where it is that, Windows-1252 otherwise, which filers' tools write under any name."""
    for mark, encoding in ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def label(text: str) -> str:
    """Return a name or a title as a record can carry it: clean, on one line, and bounded."""
    return clean_line(text).text[:LABEL_CHARS].rstrip()


def is_html(body: bytes) -> bool:
    """Whether a document is HTML rather than plain text."""
    return bool(_HTML.search(body[:_HTML_WITHIN]))


def root_of_xml(body: bytes) -> str:
    """Return the local name of the first element of an XML document; ``""`` when it does not begin as one."""
    found = _XML.match(body[:_HTML_WITHIN])
    return found[1].decode("ascii").rpartition(":")[2] if found else ""


def text_of(body: bytes) -> DocumentText:
    """Return the text of an HTML or a plain document."""
    text = decoded(body)
    if is_html(body):
        found = html_lines(text)
        return _cleaned(found.lines, found.facts)
    return _cleaned(_plain_lines(text), {})


def _plain_lines(text: str) -> list[str]:
    """Return the lines of a plain text without page and table marks; inner blanks stay, they align its tables."""
    return [line.rstrip().expandtabs(4) for line in _TEXT_TAGS.sub("", text).splitlines()]


def _cleaned(lines: list[str], facts: dict[str, list[str]]) -> DocumentText:
    """Drop blank lines and rules; repair what is not plain ASCII, line by line."""
    kept: list[str] = []
    changes: list[str] = []
    for line in lines:
        if line.isascii():
            line = _CONTROLS.sub("", line)
        else:
            cleaned = clean(line)
            line = cleaned.text
            changes.extend(cleaned.changes)
        if not _RULE.fullmatch(line):
            kept.append(line)
    return DocumentText(lines=kept, facts=facts, changes=_summed(changes))


def _summed(changes: list[str]) -> tuple[str, ...]:
    """Add up ``controls=1``, ``controls=2`` to ``controls=3``."""
    counts: dict[str, int] = {}
    for change in changes:
        name, equals, count = change.partition("=")
        counts[name] = counts.get(name, 0) + (int(count) if equals else 0)
    return tuple(f"{name}={count}" if count else name for name, count in counts.items())
