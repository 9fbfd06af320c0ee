"""Reads ninjs, the IPTC's news in JSON, in its three generations: 1.x, 2.x and 3.x."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

import msgspec

from producers.errors import FeedError, FeedErrorKind
from producers.news.item import Defaults, ItemBuilder, NewsItem
from producers.news.markup import html_text
from schemas.enums import NewsStatus
from schemas.instruments import instrument
from schemas.records import Nanoseconds

MAIN_ROLES = ("main", "headline", "title", "")
TEXT_ROLES = ("text", "main", "body", "plain", "")
"""Roles of a body that hold plain text, best first; then come those with markup."""

_OWN_KEY = re.compile(
    rb'"(?:versioncreated|versionCreated|pubstatus|pubStatus|headlines|representationtype|body_[a-z0-9]+)"\s*:'
)
_URI = re.compile(rb'"uri"\s*:')
_THIRD = re.compile(rb'"(?:versionCreated|pubStatus|firstCreated|contentType|copyrightHolder|altIds)"\s*:')
_SECOND = re.compile(rb'"(?:headlines|bodies|descriptions|contenttype)"\s*:\s*\S')
_URN = re.compile(r"(?i)(?:urn:newsml|tag):([^:,]+)[:,]")

_STATUS = {
    "": NewsStatus.USABLE,
    "usable": NewsStatus.USABLE,
    # Not to be used for now: what was sent has to be taken back, and it may come again.
    "withheld": NewsStatus.KILLED,
    "canceled": NewsStatus.KILLED,
    "cancelled": NewsStatus.KILLED,
}

Object = dict[str, Any]


def generation(head: bytes) -> int:
    """Return 1, 2 or 3 when the start of a file looks like ninjs of that generation, else 0."""
    if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") or not _URI.search(head) or not _OWN_KEY.search(head):
        return 0
    if _THIRD.search(head):
        return 3
    return 2 if _SECOND.search(head) else 1


def is_ninjs(value: Object) -> bool:
    """Return whether a JSON object is a ninjs item."""
    own = {"versioncreated", "versionCreated", "pubstatus", "pubStatus", "headlines", "representationtype"}
    return "uri" in value and (not own.isdisjoint(value) or any(key.startswith("body_") for key in value))


def ninjs_items(data: bytes, defaults: Defaults, received_at_ns: Nanoseconds) -> list[NewsItem]:
    """Read a file with one ninjs item.

    Raises:
        FeedError: it is no JSON object, lacks its id or its text, or has a value that cannot be.
    """
    return [ninjs_item(json_object(data), defaults, received_at_ns)]


def json_object(data: bytes) -> Object:
    """Decode a JSON object.

    Raises:
        FeedError: it is none.
    """
    try:
        value = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise FeedError(FeedErrorKind.MALFORMED, "", f"not JSON: {reason}") from None
    if not isinstance(value, dict):
        raise FeedError(FeedErrorKind.MALFORMED, "", "a JSON object is needed")
    return value


def ninjs_item(value: Object, defaults: Defaults, received_at_ns: Nanoseconds) -> NewsItem:
    """Read one ninjs item of any generation.

    Raises:
        FeedError: as `ninjs_items`.
    """
    item = ItemBuilder(defaults, received_at_ns)
    uri = _string(value, "uri")
    created = _string(value, "versioncreated") or _string(value, "versionCreated")
    status = (_string(value, "pubstatus") or _string(value, "pubStatus")).lower()
    if status not in _STATUS:
        raise FeedError(FeedErrorKind.INVALID_VALUE, "pubstatus", f"{status[:40]!a} is no ninjs status")
    item.status = _STATUS[status]
    if status == "withheld":
        item.note("status", "withheld")
    item.set_headline(html_text(_headline(value)))
    item.set_body(_body(value))
    item.set_version(value.get("version"))
    item.set_published(created)
    item.revised_at_ns = item.published_at_ns
    item.set_embargo(_string(value, "embargoed") or _string(value, "embargoedUntil"), "embargoed")
    item.set_language(_string(value, "language"))
    item.set_urgency(value.get("urgency"))
    if uri.startswith(("http://", "https://")):
        item.url = uri
    for symbol in _symbols(value):
        item.add_instrument(symbol)
    holder = _string(value, "copyrightholder") or _string(value, "copyrightHolder")
    return item.build(source=holder or authority(uri), story=uri)


def authority(uri: str) -> str:
    """Return who a URI belongs to: the host of a URL, the provider of a NewsML URN."""
    if found := _URN.match(uri):
        return found[1].lower()
    try:
        host = urlsplit(uri).hostname or ""
    except ValueError:
        return ""
    return host.removeprefix("www.")


def _string(value: Object, key: str) -> str:
    found = value.get(key)
    return found if isinstance(found, str) else ""


def _entries(value: Object, key: str) -> list[Object]:
    found = value.get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _headline(value: Object) -> str:
    if headline := _string(value, "headline"):
        return headline
    by_role = {_string(entry, "role"): _string(entry, "value") for entry in reversed(_entries(value, "headlines"))}
    for role in MAIN_ROLES:
        if by_role.get(role):
            return by_role[role]
    return next((text for text in by_role.values() if text), _string(value, "title"))


def _body(value: Object) -> str:
    """Return the fullest plain reading of the item: a text body, else one with markup, else its description."""
    if text := _string(value, "body_text"):
        return text
    for key in ("body_xhtml", "body_html", "body_html5"):
        if markup := _string(value, key):
            return html_text(markup)
    bodies = _entries(value, "bodies")
    for kind in ("plain", "html"):
        for entry in bodies:
            text = _string(entry, "value")
            media = (_string(entry, "contenttype") or _string(entry, "contentType")).lower()
            if text and _kind(media, _string(entry, "role").lower()) == kind:
                return text if kind == "plain" else html_text(text)
    if text := _string(value, "description_text"):
        return text
    return next((html_text(_string(entry, "value")) for entry in _entries(value, "descriptions")), "")


def _kind(media: str, role: str) -> str:
    if "html" in media or "html" in role:
        return "html"
    return "plain" if media.startswith("text/plain") or role in TEXT_ROLES else "other"


def _symbols(value: Object) -> list[str]:
    """Return the instruments that subjects and organisations name with a ticker."""
    found = []
    for group in ("organisation", "organisations", "subject", "subjects", "entities"):
        for entry in _entries(value, group):
            for key in ("symbols", "hasinstruments", "hasInstruments"):
                for symbol in _entries(entry, key):
                    ticker = _string(symbol, "ticker") or _string(symbol, "symbol")
                    market = _string(symbol, "exchange") or _string(symbol, "market")
                    found.append(instrument(ticker, market))
    return found
