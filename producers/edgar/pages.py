"""Recognises the HTML pages that SEC sends in place of data, so that none is ever read as data or as an end of it."""

from __future__ import annotations

import re
from enum import StrEnum

from producers.errors import FeedError, FeedErrorKind
from producers.formats import Listed, ParseContext
from producers.http import Judge, Refusal


class SecPage(StrEnum):
    """What a page says."""

    RATE_LIMIT = "rate_limit"
    UNDECLARED = "undeclared_tool"
    UNAVAILABLE = "unavailable"
    """Maintenance, and also any page past the end of the current feed: the two cannot be told apart."""
    OTHER = "other_page"


REASONS = {
    SecPage.RATE_LIMIT: "SEC's rate limit page: more than 10 requests a second came from this address",
    SecPage.UNDECLARED: "SEC's page for undeclared automated tools: set edgar.user_agent to a name and a contact",
    SecPage.UNAVAILABLE: "SEC's page for maintenance, which it also sends past the end of the current feed",
    SecPage.OTHER: "an HTML page where data was asked for",
}

_FLAGS = re.IGNORECASE | re.DOTALL
_HTML = re.compile(rb"\s*(?:<\?xml[^>]*\?>\s*)?(?>(?:<!--.*?-->\s*)*)<(?:!doctype\s+html|html)\b", _FLAGS)
_MARKS = (
    (SecPage.RATE_LIMIT, re.compile(rb"request rate threshold exceeded|exceeded the sec.{1,12}traffic limit", _FLAGS)),
    (
        SecPage.UNDECLARED,
        re.compile(rb"undeclared automated tool|declare your traffic by updating your user agent", _FLAGS),
    ),
    (SecPage.UNAVAILABLE, re.compile(rb"sec\.gov \| file unavailable|this page is temporarily unavailable", _FLAGS)),
)
_SEC_TITLE = re.compile(rb"<title>\s*sec\.gov \|", _FLAGS)


def is_html_page(body: bytes) -> bool:
    """Whether a body is an HTML page."""
    return bool(_HTML.match(body[: 64 * 1024].removeprefix(b"\xef\xbb\xbf")))


def sec_page(body: bytes) -> SecPage | None:
    """Return what an HTML page of SEC's web server says; None when the body is no such page."""
    if not is_html_page(body):
        return None
    head = body[: 16 * 1024]
    for page, mark in _MARKS:
        if mark.search(head):
            return page
    return SecPage.OTHER if _SEC_TITLE.search(head) else None


def detect_page(head: bytes) -> bool:
    """Whether a file is an error page of SEC's web server, and no filing that mentions one."""
    return sec_page(head) is not None and b"<ix:header" not in head


def reject_page(body: bytes, _: ParseContext) -> list[Listed]:
    """Reject an error page.

    Raises:
        FeedError: always, with what the page says.
    """
    raise FeedError(FeedErrorKind.ERROR_PAGE, "", REASONS[sec_page(body) or SecPage.OTHER])


def judge(pause_seconds: float) -> Judge:
    """Return what tells `HttpClient` that SEC asks us to keep away.

    Args:
        pause_seconds: how long; the rate limit page says ten minutes, and longer for whoever goes on asking.
    """

    def look(status: int, body: bytes) -> Refusal | None:
        page = sec_page(body)
        if page in (SecPage.RATE_LIMIT, SecPage.UNDECLARED):
            return Refusal(seconds=pause_seconds, reason=REASONS[page])
        if status == 429:
            return Refusal(seconds=pause_seconds, reason="HTTP 429")
        return None

    return look
