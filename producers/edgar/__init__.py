"""SEC EDGAR: the current feed, submissions of every era, and their text in parts that a model can read."""

from __future__ import annotations

from collections.abc import Sequence

from producers.edgar import listing, pages, sgml
from producers.edgar.filing import XML_ROOTS, parse_document, parse_filing, sec_markers, sec_text
from producers.edgar.text import is_html, root_of_xml
from producers.formats import Format, Listed, ParseContext
from schemas.records import FilingEvent


def _submission(data: bytes, context: ParseContext) -> list[FilingEvent]:
    return parse_filing(data, context).events(context)


def _document(data: bytes, context: ParseContext) -> list[FilingEvent]:
    return parse_document(data, context).events(context)


def _current(data: bytes, _: ParseContext) -> list[Listed]:
    return listing.parse_current(data).listed


def _index(data: bytes, _: ParseContext) -> list[Listed]:
    return listing.parse_index(data)


def _is_html_document(head: bytes) -> bool:
    return is_html(head) and sec_markers(head)


FORMATS: Sequence[Format] = (
    Format(name="edgar-submission", detect=sgml.looks_like, parse=_submission),
    Format(name="edgar-current-feed", detect=listing.detect_current, parse=_current),
    Format(name="edgar-index", detect=listing.detect_index, parse=_index),
    Format(name="edgar-company-submissions", detect=listing.detect_submissions, parse=listing.listed_submissions),
    Format(name="edgar-tickers", detect=listing.detect_tickers, parse=listing.reject_tickers),
    Format(name="edgar-xml-form", detect=lambda head: root_of_xml(head) in XML_ROOTS, parse=_document),
    Format(name="sec-error-page", detect=pages.detect_page, parse=pages.reject_page),
    Format(name="edgar-html-document", detect=_is_html_document, parse=_document),
    Format(name="edgar-text-document", detect=sec_text, parse=_document),
)
"""The formats of this package, the more specific ones first."""
