"""EDGAR's clock: wall time of the US east coast without a zone, turned into nanoseconds since the epoch."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

EASTERN = ZoneInfo("America/New_York")
"""Source: ``ACCEPTANCE-DATETIME`` of a submission header equals the Eastern time that the filing's index page shows."""
NANOSECONDS = 1_000_000_000

_COMPACT = re.compile(r"\d{14}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def acceptance_ns(stamp: str) -> int:
    """Return a header's ``YYYYMMDDHHMMSS`` as nanoseconds since the epoch; 0 when it is no such time.

    An hour that the end of daylight saving repeats is read as the later one: nothing may look known before it was.
    """
    stamp = stamp.strip()
    if not _COMPACT.fullmatch(stamp):
        return 0
    try:
        local = datetime.strptime(stamp, "%Y%m%d%H%M%S").replace(tzinfo=EASTERN)
    except ValueError:
        return 0
    return to_ns(local.replace(fold=1) if _repeated(local) else local)


def with_offset_ns(stamp: str) -> int:
    """Return an ISO 8601 time that states its offset as nanoseconds since the epoch; 0 when it is not one."""
    try:
        parsed = datetime.fromisoformat(stamp.strip())
    except ValueError:
        return 0
    return to_ns(parsed) if parsed.tzinfo else 0


def to_ns(moment: datetime) -> int:
    """Return an aware time as nanoseconds since the epoch, without going through a float."""
    since = moment.astimezone(UTC) - _EPOCH
    return (since.days * 86_400 + since.seconds) * NANOSECONDS + since.microseconds * 1_000


def eastern_date(time_ns: int) -> date:
    """Return the day in Washington at that time."""
    return (_EPOCH + timedelta(microseconds=time_ns // 1_000)).astimezone(EASTERN).date()


def deadline_ns(day: date) -> int:
    """Return 17:30 in Washington on a day: what is accepted later carries the next business day's date."""
    return to_ns(datetime(day.year, day.month, day.day, 17, 30, tzinfo=EASTERN))


def compact_date(stamp: str) -> str:
    """Return ``YYYYMMDD`` as ``YYYY-MM-DD``; ``""`` when it is no date."""
    try:
        return datetime.strptime(stamp.strip(), "%Y%m%d").replace(tzinfo=UTC).date().isoformat()
    except ValueError:
        return ""


def _repeated(local: datetime) -> bool:
    first, second = local.replace(fold=0).utcoffset(), local.replace(fold=1).utcoffset()
    # Inside the spring gap the offsets differ the other way round; there fold 0 is the usual reading.
    return first is not None and second is not None and first > second
