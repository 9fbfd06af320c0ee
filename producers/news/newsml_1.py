"""Reads NewsML 1.x as press-release wires send it (Business Wire): one story per language component."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from producers.errors import FeedError, FeedErrorKind
from producers.news.item import Defaults, ItemBuilder, NewsItem
from producers.news.markup import element_text, html_text, root_name, xml_root
from schemas.enums import NewsStatus
from schemas.instruments import instrument
from schemas.records import Nanoseconds

_STATUS = {
    "": NewsStatus.USABLE,
    "usable": NewsStatus.USABLE,
    "embargoed": NewsStatus.USABLE,
    "withheld": NewsStatus.KILLED,  # as in `producers.news.ninjs`
    "canceled": NewsStatus.KILLED,
    "cancelled": NewsStatus.KILLED,
    "killed": NewsStatus.KILLED,
}
_KILLS = frozenset({"kill", "cancel", "delete", "withdraw"})
_CORRECTIONS = frozenset({"correction", "corrected", "rectify"})
_BODY_ROLES = ("body", "main")
_STAMP = re.compile(r"(\d{8}T\d{6})(Z|[+-]\d{4})?")


def is_newsml_1(head: bytes) -> bool:
    """Return whether a file starts as NewsML 1.x."""
    return root_name(head) == "NewsML"


def newsml_1_items(data: bytes, defaults: Defaults, received_at_ns: Nanoseconds) -> list[NewsItem]:
    """Read all items of a NewsML 1.x document.

    Raises:
        FeedError: it is not well-formed, or none of its items can be read.
    """
    root = xml_root(data)
    items: list[NewsItem] = []
    first: FeedError | None = None
    for element in root.iter("NewsItem"):
        stories = list(_stories(element))
        for story in stories:
            try:
                items.append(_item(element, story, defaults, received_at_ns, alone=len(stories) == 1))
            except FeedError as error:
                first = first or error
    if not items:
        raise first or FeedError(FeedErrorKind.NO_TEXT, "NewsItem", "a NewsML document without a news item")
    return items


def _stories(element: Any) -> Iterator[Any]:
    """Yield the components that have a headline and texts of their own, one for each language of the release."""
    top = element.find("NewsComponent")
    if top is None:
        yield element  # a kill notice may have no content at all
        return
    found = [c for c in top.iterfind("NewsComponent") if c.find("NewsLines/HeadLine") is not None]
    yield from found or [top]


def _item(element: Any, story: Any, defaults: Defaults, received_at_ns: Nanoseconds, *, alone: bool) -> NewsItem:
    item = ItemBuilder(defaults, received_at_ns)
    identifier = element.find("Identification/NewsIdentifier")
    management = element.find("NewsManagement")
    if identifier is None or management is None:
        missing = "Identification.NewsIdentifier" if identifier is None else "NewsManagement"
        raise FeedError(FeedErrorKind.MISSING_FIELD, missing, "a news item without it cannot be told from others")
    _take_status(item, management)
    item.set_published(_stamp(_text(management.find("ThisRevisionCreated"))))
    item.revised_at_ns = item.published_at_ns
    _take_embargo(item, management)
    item.set_urgency(_name(management.find("Urgency")))
    revision = identifier.find("RevisionId")
    if revision is not None:
        item.set_version(_text(revision))
        item.previous = int(previous) if (previous := revision.get("PreviousRevision") or "").isdecimal() else 0
    language = _name(story.find("DescriptiveMetadata/Language")) or _name(element.find(".//Language"))
    item.set_language(language)
    item.set_headline(_text(story.find("NewsLines/HeadLine")))
    item.set_body(_body(story))
    for metadata in element.iter("Metadata"):
        _take_securities(item, metadata)
    news_id = _text(identifier.find("NewsItemId"))
    name = news_id if alone or not language else f"{news_id}.{language}"
    return item.build(source=_text(identifier.find("ProviderId")), story=name if news_id else "")


def _take_status(item: ItemBuilder, management: Any) -> None:
    status = _name(management.find("Status")).lower()
    if status not in _STATUS:
        reason = f"{status[:40]!a} is no status"
        raise FeedError(FeedErrorKind.INVALID_VALUE, "NewsManagement.Status", reason)
    item.status = _STATUS[status]
    if status == "withheld":
        item.note("status", "withheld")
    instructions = {_name(found).lower() for found in management.iterfind("Instruction")}
    if instructions & _KILLS:
        item.status = NewsStatus.KILLED
    elif item.status is NewsStatus.USABLE and instructions & _CORRECTIONS:
        item.status = NewsStatus.CORRECTED


def _take_embargo(item: ItemBuilder, management: Any) -> None:
    """An embargo is a status that will change into usable at a time; one without a time never ends by itself."""
    if _name(management.find("Status")).lower() != "embargoed":
        return
    change = management.find("StatusWillChange")
    until = _text(change.find("DateAndTime")) if change is not None else ""
    if not until:
        reason = "embargoed, and nothing says until when"
        raise FeedError(FeedErrorKind.AMBIGUOUS_TIME, "NewsManagement.StatusWillChange", reason)
    item.set_embargo(_stamp(until), "NewsManagement.StatusWillChange")


def _take_securities(item: ItemBuilder, metadata: Any) -> None:
    if _name(metadata.find("MetadataType")) != "Securities Identifier":
        return
    values = {_name(found): found.get("Value") or "" for found in metadata.iterfind("Property")}
    item.add_instrument(instrument(values.get("Ticker Symbol", ""), values.get("Exchange", "")))


def _body(story: Any) -> str:
    """Return the text of the components whose role is the body; of all that have text when no role says so."""
    by_role: dict[str, list[str]] = {}
    for component in story.iter("NewsComponent"):
        content = component.find("ContentItem/DataContent")
        if content is None:
            continue
        text = element_text(content) if len(content) else html_text(content.text or "").strip()
        if text:
            by_role.setdefault(_name(component.find("Role")).lower(), []).append(text)
    for role in (*_BODY_ROLES, ""):
        if role in by_role:
            return "\n\n".join(by_role[role])
    return ""


def _stamp(text: str) -> str:
    """Return NewsML's ``20130516T040100+0000`` in the form that `read_time` takes; other forms as they are."""
    found = _STAMP.fullmatch(text)
    return f"{found[1]}{found[2] or ''}" if found else text


def _name(element: Any) -> str:
    return "" if element is None else (element.get("FormalName") or "").strip()


def _text(element: Any) -> str:
    return "" if element is None else element_text(element)
