"""Reads the times that sources write, without guessing: an unknown zone leaves the time unknown and says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from zoneinfo import ZoneInfo

from schemas.codec import NANOSECONDS_2000, NANOSECONDS_2200
from schemas.records import Nanoseconds

WITHOUT_ZONE = "without_zone"
UNKNOWN_ZONE = "unknown_zone"
UNREADABLE = "unreadable"
OUT_OF_RANGE = "out_of_range"
AHEAD = "ahead"
ZONE_ASSUMED = "zone_assumed"
DST_AMBIGUOUS = "dst_ambiguous"
DST_GAP = "dst_gap"

SHOWN_CHARS = 40
"""Characters of a time that we could not read which a note quotes."""

SECOND = 1_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = (SECOND, 1_000_000, 1_000, 1)
_ISO_DATE = re.compile(r"\d{4}-?\d\d-?\d\d")
_ISO_DATE_ONLY = re.compile(r"\d{4}-\d\d(-\d\d)?|\d{8}")
_ZONE_NAME = re.compile(r":\d\d\s+(?P<name>[A-Za-z]{1,5})$")
_ZONES = {"CET": 1, "CEST": 2, "JST": 9}
"""Hours east of UTC of zone names that RFC 2822 does not know and that mean one thing only, unlike BST or IST."""
_FINER_THAN_MICROSECONDS = re.compile(r"(\.\d{6})\d+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadTime:
    """A time and what is to be known about it.

    Args:
        ns: nanoseconds since the epoch, UTC; 0 when the time is unknown.
        note: ``""``, or why the time is unknown or what had to be assumed.
    """

    ns: Nanoseconds
    note: str = ""


UNKNOWN = ReadTime(ns=0)


def read_time(value: object, zone: ZoneInfo | None = None) -> ReadTime:
    """Read an ISO 8601 or RFC 2822 time, or a number since the epoch.

    Args:
        value: as the source wrote it; None and ``""`` are an unknown time without a note. A number is taken for
            seconds, milliseconds, microseconds or nanoseconds: inside the years 2000 to 2200 only one of them fits.
        zone: what the operator says about times of this source that have no zone. Without it they stay unknown.
    """
    if value is None or value == "" or isinstance(value, bool):
        return UNKNOWN
    if isinstance(value, int | float):
        return _from_number(value)
    text = str(value).strip()
    if not text:
        return UNKNOWN
    try:
        moment = _moment(text)
    except (ValueError, OverflowError, IndexError, TypeError):  # the last two are how email.utils fails on some input
        moment = None
    if moment is None:
        return ReadTime(ns=0, note=f"{UNREADABLE}={text[:SHOWN_CHARS]}")
    if moment.tzinfo is not None:
        return _in_range(_to_ns(moment))
    if named := _ZONE_NAME.search(text):
        return ReadTime(ns=0, note=f"{UNKNOWN_ZONE}={named['name']}")
    if zone is None:
        return ReadTime(ns=0, note=f"{WITHOUT_ZONE}={text[:SHOWN_CHARS]}")
    return localised(moment, zone)


def localised(naive: datetime, zone: ZoneInfo) -> ReadTime:
    """Read a wall-clock time of a zone; what daylight saving makes unclear is noted, and the earlier reading taken."""
    early, late = (naive.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    note = f"{ZONE_ASSUMED}={zone.key}"
    try:
        first, second = early.utcoffset(), late.utcoffset()
        ns = _to_ns(early)
    except OverflowError:
        return ReadTime(ns=0, note=OUT_OF_RANGE)
    if first != second and first is not None and second is not None:
        # In autumn the hour comes twice and the first one has the larger offset; in spring it is left out.
        note = f"{note} {DST_AMBIGUOUS if first > second else DST_GAP}"
    found = _in_range(ns)
    return ReadTime(ns=found.ns, note=found.note or note)


def bounded(time: ReadTime, received_at_ns: Nanoseconds, ahead_ns: int) -> ReadTime:
    """Return the time, but no later than ``received_at_ns + ahead_ns``, with a note when that changes it.

    A source's clock may run ahead, and a typing mistake in a date must not look like news from next year.
    """
    latest = received_at_ns + ahead_ns
    if time.ns <= latest:
        return time
    seconds = (time.ns - received_at_ns) / SECOND
    return ReadTime(ns=latest, note=f"{AHEAD}={seconds:.3f}s")


def _from_number(value: float) -> ReadTime:
    for unit in _UNITS:
        try:
            ns = int(value * unit)
        except (ValueError, OverflowError):  # NaN, infinity
            break
        if NANOSECONDS_2000 <= ns <= NANOSECONDS_2200:
            return ReadTime(ns=ns)
    return ReadTime(ns=0, note=OUT_OF_RANGE)


def _moment(text: str) -> datetime | None:
    """Return the moment, naive when the text has no zone; None when it is no time (a date alone is none either)."""
    if _ISO_DATE_ONLY.fullmatch(text):
        return None
    if _ISO_DATE.match(text):
        return datetime.fromisoformat(_FINER_THAN_MICROSECONDS.sub(r"\1", text.replace(" UTC", "Z")))
    if ":" not in text:
        return None
    moment = parsedate_to_datetime(text)
    if moment.tzinfo is not None:
        return moment
    if text.endswith("-0000"):  # RFC 5322, 3.3: UTC, and the writer's own zone unknown
        return moment.replace(tzinfo=UTC)
    named = _ZONE_NAME.search(text)
    hours = _ZONES.get(named["name"].upper()) if named else None
    return moment if hours is None else moment.replace(tzinfo=UTC) - timedelta(hours=hours)


def _in_range(ns: int) -> ReadTime:
    return ReadTime(ns=ns) if NANOSECONDS_2000 <= ns <= NANOSECONDS_2200 else ReadTime(ns=0, note=OUT_OF_RANGE)


def _to_ns(moment: datetime) -> int:
    delta = moment - _EPOCH
    return ((delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds) * 1000
