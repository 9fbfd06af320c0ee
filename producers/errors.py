"""Errors of the producers."""

from __future__ import annotations

from enum import StrEnum

from schemas.errors import TapewireError


class PublishError(TapewireError):
    """Kafka is there and refuses a record.

    Args:
        topic: where the record was to go.
        reason: why, in the words of the client or the broker.
        records: how many records of that topic were refused so far.
    """

    def __init__(self, topic: str, reason: str, records: int = 1) -> None:
        self.topic = topic
        self.reason = reason
        self.records = records
        noun = "record" if records == 1 else "records"
        super().__init__(f"{records} {noun} refused by topic {topic}: {reason}")


class FeedErrorKind(StrEnum):
    """Why input of a feed gave no events."""

    EMPTY = "empty"
    """No bytes, or nothing to read in them."""
    UNKNOWN_FORMAT = "unknown_format"
    """No format of ours recognises the content."""
    ERROR_PAGE = "error_page"
    """An HTML page that says why there is no data, where data was asked for."""
    REFERENCE_DATA = "reference_data"
    """Recognised, but a table or a list without any text to make an event of."""
    MALFORMED = "malformed"
    """The format is known and its rules are broken."""
    MISSING_FIELD = "missing_field"
    INVALID_VALUE = "invalid_value"
    AMBIGUOUS_TIME = "ambiguous_time"
    """A time without a zone, where guessing one would be a guess."""
    NO_TEXT = "no_text"
    """Well-formed, with no text to classify (an attachment, a picture, an empty document)."""
    TOO_LARGE = "too_large"
    UNREADABLE = "unreadable"
    """The operating system does not let us read it."""


class FeedError(TapewireError):
    """One file, page or item of a feed gives no event.

    Args:
        kind: the typed reason.
        field: path of the field at fault in the source's own names, or ``""`` when the whole input is at fault.
        reason: one sentence for a person.
    """

    def __init__(self, kind: FeedErrorKind, field: str, reason: str) -> None:
        self.kind = kind
        self.field = field
        self.reason = reason
        where = f"field {field!r}" if field else "input"
        super().__init__(f"{kind.value}: {where}: {reason}")


class FetchErrorKind(StrEnum):
    """Why a resource could not be fetched."""

    REFUSED = "refused"
    """The host asks us to keep away for a while (rate limit, undeclared tool)."""
    MISSING = "missing"
    """404 or 410."""
    UNAVAILABLE = "unavailable"
    """No connection, a time-out, a cut response or a 5xx status, on every attempt."""
    UNEXPECTED = "unexpected"
    """Any other status, or a redirect that leads nowhere we go."""
    TOO_LARGE = "too_large"


class FetchError(TapewireError):
    """A resource could not be fetched.

    Args:
        kind: the typed reason.
        url: what was asked for.
        reason: one sentence for a person.
        status: HTTP status of the last answer; 0 when there was none.
        body: start of the last answer, for callers that know the host's error pages.
    """

    def __init__(self, kind: FetchErrorKind, url: str, reason: str, *, status: int = 0, body: bytes = b"") -> None:
        self.kind = kind
        self.url = url
        self.reason = reason
        self.status = status
        self.body = body
        super().__init__(f"{kind.value}: {url}: {reason}")
