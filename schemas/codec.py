"""Bytes to records and back, with every way a record can be wrong turned into one typed `DecodeError`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, get_type_hints
from unicodedata import category

import msgspec

from schemas.enums import NewsStatus
from schemas.errors import DecodeError, ErrorKind
from schemas.records import SUPPORTED_SCHEMA_VERSIONS, FilingEvent, Id, NewsEvent

NANOSECONDS_2000 = 946_684_800_000_000_000
NANOSECONDS_2200 = 7_258_118_400_000_000_000
"""Times outside these years are a wrong unit (seconds, milliseconds), not an old or a future event."""

UNREADABLE_CATEGORIES = frozenset({"Cc", "Cf", "Mn", "Zl", "Zp", "Zs"})
"""Unicode categories that leave nothing to read by themselves: controls, formats (zero-width, BOM, direction marks),
combining marks without a base, separators."""
BLANKS = frozenset("\u2800\u3164\uffa0\u115f\u1160")
"""Characters of other categories that show as nothing: the Braille blank and the Hangul fillers."""

SHOWN_CHARS = 40
"""Characters of a wrong value that an error message quotes; the rest of it may be as long as the record."""

_AT = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_ENUM = re.compile(r"Invalid enum value '(?P<value>.*)'", re.DOTALL)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ID_FIELDS: dict[type, tuple[str, ...]] = {
    record: tuple(
        name for name, hint in get_type_hints(record, include_extras=True).items() if hint in (Id, list[Id], Id | None)
    )
    for record in (NewsEvent, FilingEvent)
}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds on one input record.

    Args:
        record_bytes: whole record value, in bytes.
        headline_chars: a headline, in characters.
        text_chars: a body or a filing part, in characters.
    """

    record_bytes: int = 512 * 1024
    headline_chars: int = 20_000
    text_chars: int = 400_000


DEFAULT_LIMITS = Limits()

encode_json: Callable[[object], bytes] = msgspec.json.Encoder().encode
"""Any record to the bytes that go on a topic."""

_news = msgspec.json.Decoder(NewsEvent)
_filing = msgspec.json.Decoder(FilingEvent)


class _VersionOnly(msgspec.Struct):
    schema_version: int = 1


_version = msgspec.json.Decoder(_VersionOnly)

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bad bytes; a few kilobytes of brackets inside an ignored field give the last one."""


def decode_json(raw: bytes, record: type[T]) -> T:
    """Decode one output record (signal, expired, stamp entry) from JSON.

    Raises:
        DecodeError: the bytes are not such a record.
    """
    try:
        return msgspec.json.decode(raw, type=record)
    except _UNDECODABLE as error:
        raise _typed(raw, error) from None


def decode_news(raw: bytes, limits: Limits = DEFAULT_LIMITS) -> NewsEvent:
    """Decode one record of the news topic.

    Raises:
        DecodeError: with the kind and the field, whatever is wrong with the bytes.
    """
    event = _decode(raw, _news, limits)
    _check_time("received_at_ns", event.received_at_ns, required=True)
    _check_time("published_at_ns", event.published_at_ns, required=False)
    _check_time("embargo_until_ns", event.embargo_until_ns, required=False)
    if event.status is not NewsStatus.KILLED:
        _check_text("headline", event.headline, limits.headline_chars)
    elif len(event.headline) > limits.headline_chars:
        raise _too_long("headline", event.headline, limits.headline_chars)
    if len(event.body) > limits.text_chars:
        raise _too_long("body", event.body, limits.text_chars)
    return event


def decode_filing(raw: bytes, limits: Limits = DEFAULT_LIMITS) -> FilingEvent:
    """Decode one record of the filings topic.

    Raises:
        DecodeError: with the kind and the field, whatever is wrong with the bytes.
    """
    event = _decode(raw, _filing, limits)
    _check_time("received_at_ns", event.received_at_ns, required=True)
    _check_time("accepted_at_ns", event.accepted_at_ns, required=False)
    _check_text("text", event.text, limits.text_chars)
    if event.part > event.parts:
        raise DecodeError(ErrorKind.INVALID_VALUE, "part", f"part {event.part} of {event.parts}")
    return event


def _decode(raw: bytes, decoder: msgspec.json.Decoder[T], limits: Limits) -> T:
    if len(raw) > limits.record_bytes:
        reason = f"{len(raw)} bytes, the limit is {limits.record_bytes}"
        raise DecodeError(ErrorKind.RECORD_TOO_LARGE, "", reason)
    try:
        event = decoder.decode(raw)
    except _UNDECODABLE as error:
        raise _typed(raw, error) from None
    version = event.schema_version  # type: ignore[attr-defined]  # both event types have it
    if version not in SUPPORTED_SCHEMA_VERSIONS:
        raise _unknown_version(version)
    if b"\\" in raw or b"\x7f" in raw:  # JSON has no other way to write a control character
        _check_ids(event)
    return event


def _check_ids(event: object) -> None:
    """Refuse ids with control characters."""
    for field in _ID_FIELDS[type(event)]:
        value = getattr(event, field)
        for index, one in enumerate(value if isinstance(value, list) else [value]):
            if one is not None and _CONTROL.search(one):
                path = f"{field}[{index}]" if isinstance(value, list) else field
                raise DecodeError(ErrorKind.INVALID_VALUE, path, "has a control character in it")


def _typed(raw: bytes, error: Exception) -> DecodeError:
    """Name the kind and the field behind msgspec's message."""
    if isinstance(error, RecursionError):
        return DecodeError(ErrorKind.NOT_JSON, "", "arrays or objects nested too deep")
    if not isinstance(error, msgspec.ValidationError):
        try:
            raw.decode("utf-8")
        except UnicodeDecodeError as bad:
            return DecodeError(ErrorKind.NOT_UTF8, "", f"byte {bad.start} is not UTF-8")
        return DecodeError(ErrorKind.NOT_JSON, "", str(error) or "no JSON value")
    # A newer version may well have changed a field's type: say "unknown version", not "wrong type".
    try:
        version = _version.decode(raw).schema_version
    except _UNDECODABLE:
        version = 1
    if version not in SUPPORTED_SCHEMA_VERSIONS:
        return _unknown_version(version)
    message = str(error)
    at = _AT.search(message)
    path = at["path"] if at else ""
    reason = _AT.sub("", message)
    # Match whole messages: a wrong enum value is quoted in its message and may imitate any other.
    if missing := _MISSING.fullmatch(reason):
        field = f"{path}.{missing['field']}" if path else missing["field"]
        return DecodeError(ErrorKind.MISSING_FIELD, field, reason)
    if enum := _ENUM.fullmatch(reason):
        reason = f"{_shown(enum['value'])!a} is not one of the values it can have"
        return DecodeError(ErrorKind.INVALID_VALUE, path, reason)
    wrong_type = reason.startswith("Expected ") and ", got `" in reason
    return DecodeError(ErrorKind.WRONG_TYPE if wrong_type else ErrorKind.INVALID_VALUE, path, reason)


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def _unknown_version(version: int) -> DecodeError:
    known = ", ".join(str(v) for v in sorted(SUPPORTED_SCHEMA_VERSIONS))
    reason = f"version {_shown(version)} is not one this scheduler reads ({known})"
    return DecodeError(ErrorKind.UNKNOWN_SCHEMA_VERSION, "schema_version", reason)


def is_readable(text: str) -> bool:
    """Whether there is anything to read in a text: one character that shows."""
    if text and text[0].isascii() and text[0].isalnum():  # as good as always, and a tenth of the cost
        return True
    return any(category(char) not in UNREADABLE_CATEGORIES and char not in BLANKS for char in text)


def _check_text(field: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise _too_long(field, text, limit)
    if not is_readable(text):
        raise DecodeError(ErrorKind.EMPTY_TEXT, field, "nothing to read in it")


def _too_long(field: str, text: str, limit: int) -> DecodeError:
    return DecodeError(ErrorKind.TEXT_TOO_LONG, field, f"{len(text)} characters, the limit is {limit}")


def _check_time(field: str, value: int, *, required: bool) -> None:
    if value == 0 and not required:
        return
    if not NANOSECONDS_2000 <= value <= NANOSECONDS_2200:
        reason = f"{_shown(value)} is not a time in nanoseconds since 1970 (years 2000 to 2200)"
        raise DecodeError(ErrorKind.INVALID_VALUE, field, reason)
