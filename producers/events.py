"""Turns a line into an event, gives events fresh times, and makes their ids unique for repeats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from schemas.codec import DEFAULT_LIMITS, Limits, decode_filing, decode_json, decode_news
from schemas.errors import ConfigError, DecodeError, ErrorKind
from schemas.records import Event, NewsEvent

ID_CHARS = 256
"""Longest id of a record (`schemas.records.Id`), in characters."""

_SUFFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")


class _Kind(Struct):
    headline: Raw | UnsetType = UNSET
    accession: Raw | UnsetType = UNSET
    text: Raw | UnsetType = UNSET


def decode_event(raw: bytes, limits: Limits = DEFAULT_LIMITS) -> Event:
    """Decode a news or a filing event, told apart by its fields: only news has a headline, only filings an accession.

    Raises:
        DecodeError: it is neither or both, or not what its schema says.
    """
    if len(raw) > limits.record_bytes:
        raise DecodeError(ErrorKind.RECORD_TOO_LARGE, "", f"{len(raw)} bytes, the limit is {limits.record_bytes}")
    kind = decode_json(raw, _Kind)
    has_headline = kind.headline is not UNSET
    if has_headline and kind.accession is not UNSET:
        reason = "a record with a headline is news, one with an accession is a filing; this one has both"
        raise DecodeError(ErrorKind.INVALID_VALUE, "accession", reason)
    if has_headline:
        return decode_news(raw, limits)
    if kind.accession is not UNSET or kind.text is not UNSET:
        return decode_filing(raw, limits)
    reason = "neither a news event (headline) nor a filing event (accession, text)"
    raise DecodeError(ErrorKind.MISSING_FIELD, "headline", reason)


def restamped(event: Event, now_ns: int) -> Event:
    """Return the event as if received now; its other times keep their distance to the time of receipt.

    Args:
        event: as it was recorded.
        now_ns: nanoseconds since the epoch.
    """
    shift = now_ns - event.received_at_ns
    if isinstance(event, NewsEvent):
        return msgspec.structs.replace(
            event,
            received_at_ns=now_ns,
            published_at_ns=_shifted(event.published_at_ns, shift),
            embargo_until_ns=_shifted(event.embargo_until_ns, shift),
        )
    return msgspec.structs.replace(event, received_at_ns=now_ns, accepted_at_ns=_shifted(event.accepted_at_ns, shift))


def check_suffix(suffix: str) -> str:
    """Return the id suffix if it can be part of an id.

    Raises:
        ConfigError: it has characters that would break an id apart.
    """
    if suffix and not _SUFFIX.fullmatch(suffix):
        raise ConfigError("id_suffix", "at most 64 letters, digits, dots, dashes and underscores")
    return suffix


def with_suffix(event: Event, suffix: str) -> Event:
    """Return the event under another story or accession, so that feeding it again is no duplicate.

    ``wire:story-7:2`` becomes ``wire:story-7-SUFFIX:2``; what it supersedes changes alike.

    Raises:
        DecodeError: the id would be longer than an id may be.
    """
    if not suffix:
        return event
    if isinstance(event, NewsEvent):
        changed: Event = msgspec.structs.replace(
            event,
            event_id=_story_with(event.event_id, suffix),
            supersedes=_story_with(event.supersedes, suffix) if event.supersedes else event.supersedes,
        )
    else:
        accession, colon, rest = event.event_id.partition(":")
        changed = msgspec.structs.replace(
            event, event_id=f"{accession}-{suffix}{colon}{rest}", accession=f"{event.accession}-{suffix}"
        )
    if len(changed.event_id) > ID_CHARS:
        reason = f"longer than {ID_CHARS} characters with the suffix {suffix}"
        raise DecodeError(ErrorKind.INVALID_VALUE, "event_id", reason)
    return changed


def repeated(events: Sequence[Event], count: int, run: str = "r") -> Iterator[Event]:
    """Yield ``count`` events by going round ``events``; from the second round on, ids carry ``run`` and its number.

    Raises:
        ValueError: there is nothing to go round.
    """
    if count and not events:
        raise ValueError("no events to repeat")
    for index in range(count):
        round_number, position = divmod(index, len(events))
        yield with_suffix(events[position], f"{run}{round_number}" if round_number else "")


def _story_with(event_id: str, suffix: str) -> str:
    story, colon, version = event_id.rpartition(":")
    return f"{story}-{suffix}{colon}{version}" if colon else f"{event_id}-{suffix}"


def _shifted(time_ns: int, shift: int) -> int:
    return time_ns + shift if time_ns else 0
