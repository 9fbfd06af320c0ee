"""Reads RSS and Atom pages: every entry an item, and the ones that cannot be read with the reason."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import feedparser

from producers.errors import FeedError, FeedErrorKind
from producers.news.item import Defaults, ItemBuilder, NewsItem
from producers.news.markup import html_text, root_name
from producers.news.ninjs import authority
from schemas.records import Nanoseconds

MAX_FEED_BYTES = 1024 * 1024
"""A page of a news feed has some dozen kilobytes; feedparser takes 2 to 3 s for a megabyte."""

ROOTS = frozenset(
    {
        "rss",
        "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}RDF",
        "{http://www.w3.org/2005/Atom}feed",
        "{http://purl.org/atom/ns#}feed",
    }
)
EDGAR_SIGN = b"sec.gov,2008:accession-number="

Entry = Mapping[str, Any]


def is_feed(head: bytes) -> bool:
    """Return whether a file starts as RSS or Atom; EDGAR's list of filings is none, it repeats filings."""
    return root_name(head) in ROOTS and EDGAR_SIGN not in head


def feed_items(data: bytes, defaults: Defaults, received_at_ns: Nanoseconds) -> list[NewsItem]:
    """Read all entries of a feed page, in its order.

    Raises:
        FeedError: it is no feed, it is too large, or none of its entries can be read.
    """
    if len(data) > MAX_FEED_BYTES:
        raise FeedError(FeedErrorKind.TOO_LARGE, "", f"{len(data)} bytes, the limit is {MAX_FEED_BYTES}")
    try:
        # A file object, because bytes that name a local file would be opened.
        page = feedparser.parse(io.BytesIO(data), sanitize_html=False, resolve_relative_uris=False)
    except Exception as error:  # noqa: BLE001 - feedparser's lenient parsers fail in ways of their own on hostile input
        raise FeedError(FeedErrorKind.MALFORMED, "", f"not a feed that can be read: {type(error).__name__}") from None
    if not page.get("version") and not page.entries:
        raise FeedError(FeedErrorKind.MALFORMED, "", "neither RSS nor Atom")
    channel: Entry = page.feed
    items: list[NewsItem] = []
    first: FeedError | None = None
    for number, entry in enumerate(page.entries, start=1):
        try:
            items.append(_item(entry, channel, defaults, received_at_ns))
        except FeedError as error:
            first = first or FeedError(error.kind, f"entry[{number}].{error.field}", error.reason)
    if not items:
        raise first or FeedError(FeedErrorKind.NO_TEXT, "", "a feed without entries")
    return items


def _item(entry: Entry, channel: Entry, defaults: Defaults, received_at_ns: Nanoseconds) -> NewsItem:
    item = ItemBuilder(defaults, received_at_ns)
    link = _string(entry, "link")
    item.url = link
    item.set_headline(html_text(_string(entry, "title")))
    body = _content(entry) or _string(entry, "summary")
    item.set_body(html_text(body))
    if item.body == item.headline:  # many feeds repeat the title as the description
        item.body = ""
    published, updated = _string(entry, "published"), _string(entry, "updated")
    item.set_published(published or updated)
    if updated and updated != published:
        item.set_revised(updated)
    else:
        item.revised_at_ns = item.published_at_ns
    if not defaults.language:
        item.set_language(_string(channel, "language"))
    return item.build(
        source=authority(_string(channel, "link") or link),
        story=_string(entry, "id") or link or f"{_string(entry, 'title')} {published}".strip(),
    )


def _content(entry: Entry) -> str:
    """Return the entry's full text, where the feed has one; the richest of several."""
    contents = entry.get("content")
    if not isinstance(contents, list):
        return ""
    return max((_string(part, "value") for part in contents if isinstance(part, Mapping)), key=len, default="")


def _string(values: Entry, key: str) -> str:
    # feedparser answers a missing "updated" with "published", and warns that it does; `in` asks it without that.
    if key not in values:
        return ""
    found = values[key]
    return found if isinstance(found, str) else ""
