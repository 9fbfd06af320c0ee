"""Reads the messages of vendors that push: created, updated and deleted stories as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from producers.errors import FeedError, FeedErrorKind
from producers.news.item import Defaults, ItemBuilder, NewsItem
from producers.news.markup import html_text
from producers.news.ninjs import authority, is_ninjs, ninjs_item
from schemas.codec import decode_news, encode_json
from schemas.enums import NewsStatus
from schemas.instruments import instrument
from schemas.records import Nanoseconds, NewsEvent

ACTIONS = {
    "created": NewsStatus.USABLE,
    "create": NewsStatus.USABLE,
    "updated": NewsStatus.USABLE,
    "update": NewsStatus.USABLE,
    "corrected": NewsStatus.CORRECTED,
    "correction": NewsStatus.CORRECTED,
    "deleted": NewsStatus.KILLED,
    "delete": NewsStatus.KILLED,
    "removed": NewsStatus.KILLED,
    "killed": NewsStatus.KILLED,
    "retracted": NewsStatus.KILLED,
}

Object = dict[str, Any]

_IDS = ("story", "story_id", "id", "guid", "uri")
_HEADLINES = ("headline", "title")
_BODIES = ("body", "text", "content", "teaser", "summary", "description")
_CREATED = ("created", "created_at", "published", "published_at")
_UPDATED = ("updated", "updated_at", "revised", "modified", "timestamp")
_INSTRUMENTS = ("instruments", "stocks", "securities", "tickers", "symbols")


def push_item(message: Object, defaults: Defaults, received_at_ns: Nanoseconds) -> NewsItem:
    """Read one message: an event of ours, a ninjs item, an envelope with ``data.action``, or a flat object.

    Raises:
        FeedError: it has no action that is known, no id or no text.
        DecodeError: it is an event of ours with a field that is wrong.
    """
    if "event_id" in message:
        return _own(message)
    if is_ninjs(message):
        return ninjs_item(message, defaults, received_at_ns)
    data = message.get("data")
    envelope: Object = data if isinstance(data, dict) and ("action" in data or "content" in data) else message
    content = envelope.get("content")
    story: Object = content if isinstance(content, dict) else envelope
    return _item(envelope, story, defaults, received_at_ns)


def _item(envelope: Object, story: Object, defaults: Defaults, received_at_ns: Nanoseconds) -> NewsItem:
    item = ItemBuilder(defaults, received_at_ns)
    action = str(envelope.get("action", "created")).lower()
    if action not in ACTIONS:
        known = ", ".join(sorted(ACTIONS))
        raise FeedError(FeedErrorKind.INVALID_VALUE, "action", f"{action[:40]!a} is none of {known}")
    item.status = ACTIONS[action]
    item.set_headline(html_text(_first(story, _HEADLINES)))
    item.set_body(html_text(_first(story, _BODIES)))
    item.set_version(story.get("version", story.get("revision_id")))
    updated = _value(story, _UPDATED) or _value(envelope, _UPDATED)
    item.set_published(_value(story, _CREATED) or updated)
    item.set_revised(updated or _value(story, _CREATED))
    item.set_embargo(story.get("embargo", story.get("embargoed")), "embargo")
    item.set_language(_first(story, ("language",)))
    item.set_urgency(story.get("urgency"))
    item.url = _first(story, ("url", "link"))
    for symbol in _instruments(story):
        item.add_instrument(symbol)
    # An envelope's own id names the message; the story's id is the one in its content.
    own = _value(story, _IDS) or _value(envelope, _IDS)
    return item.build(source=_first(story, ("source",)) or authority(item.url), story=str(own or ""))


def is_push(message: Object) -> bool:
    """Return whether a JSON object is a message that `push_item` reads."""
    if "event_id" in message or is_ninjs(message):
        return "headline" in message or "event_id" not in message
    data = message.get("data")
    if isinstance(data, dict) and "action" in data:
        return True
    return any(key in message for key in _IDS) and any(key in message for key in (*_HEADLINES, "action"))


def _own(message: Object) -> NewsItem:
    """Take an event of ours apart, so that it joins its story's chain like any other item."""
    if "accession" in message:
        raise FeedError(
            FeedErrorKind.INVALID_VALUE, "accession", "a filing event; `tapewire feed file` publishes those"
        )
    event: NewsEvent = decode_news(encode_json(message))
    source, colon, story = event.key.partition(":")
    if not colon or source != event.source:
        source, story = event.source, event.key
    return NewsItem(
        source=source,
        story=story,
        headline=event.headline,
        body=event.body,
        status=event.status,
        declared=event.version,
        revised_at_ns=event.published_at_ns,
        published_at_ns=event.published_at_ns,
        embargo_until_ns=event.embargo_until_ns,
        language=event.language,
        urgency=event.urgency,
        instruments=event.instruments,
        url=event.url,
        notes=event.notes,
    )


def _first(values: Object, keys: tuple[str, ...]) -> str:
    return next((found for key in keys if isinstance(found := values.get(key), str) and found.strip()), "")


def _value(values: Object, keys: tuple[str, ...]) -> str | int | float | None:
    """Return the first value that can be an id or a time."""
    for key in keys:
        found = values.get(key)
        if isinstance(found, str | int | float) and not isinstance(found, bool) and found != "":
            return found
    return None


def _instruments(story: Object) -> Iterator[str]:
    for key in _INSTRUMENTS:
        entries = story.get(key)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                symbol = _first(entry, ("symbol", "ticker", "name"))
                yield instrument(symbol, _first(entry, ("exchange", "market")))
            else:
                yield instrument(entry)
