"""Reads NewsML-G2, the IPTC's news in XML: single news items and news messages that carry several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from producers.errors import FeedError, FeedErrorKind
from producers.news.item import Defaults, ItemBuilder, NewsItem, id_part
from producers.news.markup import element_text, html_text, root_name, xml_root
from producers.news.ninjs import authority
from schemas.enums import NewsStatus
from schemas.instruments import instrument
from schemas.records import Nanoseconds

NAR = "{http://iptc.org/std/nar/2006-10-01/}"
ROOTS = frozenset({f"{NAR}newsItem", f"{NAR}newsMessage", f"{NAR}packageItem"})

_STATUS = {
    "": NewsStatus.USABLE,
    "usable": NewsStatus.USABLE,
    "withheld": NewsStatus.KILLED,  # as in `producers.news.ninjs`
    "canceled": NewsStatus.KILLED,
    "cancelled": NewsStatus.KILLED,
}
_CORRECTION = "correction"
_TEXT_CLASSES = frozenset({"", "text", "composite"})


def is_newsml_g2(head: bytes) -> bool:
    """Return whether a file starts as NewsML-G2."""
    return root_name(head) in ROOTS


def newsml_g2_items(data: bytes, defaults: Defaults, received_at_ns: Nanoseconds) -> list[NewsItem]:
    """Read all text items of a NewsML-G2 document.

    Raises:
        FeedError: it is not well-formed, or none of its items is one of text that can be read.
    """
    root = xml_root(data)
    found = [root] if root.tag == f"{NAR}newsItem" else list(root.iter(f"{NAR}newsItem"))
    if not found:
        raise FeedError(FeedErrorKind.NO_TEXT, "newsItem", "a message or package without a news item of its own")
    items: list[NewsItem] = []
    first: FeedError | None = None
    for element in found:
        try:
            items.append(_item(element, defaults, received_at_ns))
        except FeedError as error:
            first = first or error
    if not items and first:
        raise first
    return items


def _item(element: Any, defaults: Defaults, received_at_ns: Nanoseconds) -> NewsItem:
    item = ItemBuilder(defaults, received_at_ns)
    meta = element.find(f"{NAR}itemMeta")
    content = element.find(f"{NAR}contentMeta")
    if meta is None:
        raise FeedError(FeedErrorKind.MISSING_FIELD, "itemMeta", "a news item without its management data")
    kind = _code(meta.find(f"{NAR}itemClass"))
    if kind not in _TEXT_CLASSES:
        raise FeedError(FeedErrorKind.NO_TEXT, "itemMeta.itemClass", f"{kind[:40]!a} is no text")
    status = _code(meta.find(f"{NAR}pubStatus"))
    if status not in _STATUS:
        raise FeedError(FeedErrorKind.INVALID_VALUE, "itemMeta.pubStatus", f"{status[:40]!a} is no status")
    item.status = _STATUS[status]
    if status == "withheld":
        item.note("status", "withheld")
    elif item.status is NewsStatus.USABLE and any(_code(s) == _CORRECTION for s in meta.iterfind(f"{NAR}signal")):
        item.status = NewsStatus.CORRECTED
    item.set_published(_text(meta.find(f"{NAR}versionCreated")))
    item.revised_at_ns = item.published_at_ns
    item.set_embargo(_text(meta.find(f"{NAR}embargoed")), "itemMeta.embargoed")
    item.set_version(element.get("version"))
    if content is not None:
        _take_content(item, content)
    item.set_body(_body(element, content))
    for holder in element.iter(f"{NAR}hasInstrument"):
        item.add_instrument(instrument(holder.get("symbol"), holder.get("market") or holder.get("marketlabel") or ""))
    guid = element.get("guid") or ""
    provider = meta.find(f"{NAR}provider")
    return item.build(source=_provider(provider) or authority(guid), story=guid)


def _take_content(item: ItemBuilder, content: Any) -> None:
    headline = next((found for tag in ("headline", "slugline") if (found := _text(content.find(NAR + tag)))), "")
    item.set_headline(headline)
    language = content.find(f"{NAR}language")
    item.set_language(language.get("tag") if language is not None else None)
    item.set_urgency(_text(content.find(f"{NAR}urgency")))


def _body(element: Any, content: Any) -> str:
    """Return the text of the first inline content that has some, else the description."""
    for inline in _inline(element):
        text = element_text(inline) if len(inline) else html_text(inline.text or "").strip()
        if text:
            return text
    return "" if content is None else _text(content.find(f"{NAR}description"))


def _inline(element: Any) -> Iterator[Any]:
    contents = element.find(f"{NAR}contentSet")
    if contents is None:
        return
    for inline in contents.iterfind(f"{NAR}inlineXML"):
        # NITF repeats headline and byline in its head; the story is the body's content.
        found = next((e for e in inline.iter() if isinstance(e.tag, str) and e.tag.endswith("body.content")), inline)
        yield found
    for inline in contents.iterfind(f"{NAR}inlineData"):
        if (inline.get("contenttype") or "text/plain").startswith("text/"):
            yield inline


def _code(element: Any) -> str:
    """Return the code of a qualified code (``stat:usable``) or the end of its URI."""
    if element is None:
        return ""
    code = element.get("qcode") or element.get("uri") or element.get("literal") or ""
    return str(code).rstrip("/").replace("/", ":").rpartition(":")[2].lower()


def _text(element: Any) -> str:
    return "" if element is None else element_text(element)


def _provider(element: Any) -> str:
    if element is None:
        return ""
    uri = element.get("uri") or ""
    return authority(uri) or id_part(element.get("literal") or "") or _code(element)
