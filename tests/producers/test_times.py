"""Times from outside: zones, daylight saving, units, clocks that run ahead."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.times import ReadTime, bounded, read_time

NEW_YORK = ZoneInfo("America/New_York")


def ns(iso: str) -> int:
    """Nanoseconds of an ISO time with a zone and whole seconds."""
    return int(datetime.fromisoformat(iso).timestamp()) * 1_000_000_000


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("Fri, 24 Jul 2026 17:30:00 +0200", "2026-07-24T15:30:00+00:00"),
        ("Fri, 18 Sep 2026 15:00:00 GMT", "2026-09-18T15:00:00+00:00"),
        ("Fri, 18 Sep 2026 15:00:00 EST", "2026-09-18T20:00:00+00:00"),
        ("Fri, 18 Sep 2026 15:00:00 CEST", "2026-09-18T13:00:00+00:00"),
        ("Fri, 18 Sep 2026 15:00:00 -0000", "2026-09-18T15:00:00+00:00"),
        ("20130516T040100+0000", "2013-05-16T04:01:00+00:00"),
        ("2019-05-10T16:02:28+02:00", "2019-05-10T14:02:28+00:00"),
        ("2026-09-18 10:00:00 UTC", "2026-09-18T10:00:00+00:00"),
    ],
)
def test_times_with_a_zone_are_read(text: str, utc: str) -> None:
    """The spellings of RSS, NewsML and ninjs give the same instant as their UTC form."""
    assert read_time(text) == ReadTime(ns=ns(utc))


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("Fri, 18 Sep 2026 15:00:00", "without_zone=Fri, 18 Sep 2026 15:00:00"),
        ("2026-09-18T15:00:00", "without_zone=2026-09-18T15:00:00"),
        ("Fri, 18 Sep 2026 15:00:00 BST", "unknown_zone=BST"),
        ("2026-09-18", "unreadable=2026-09-18"),
        ("yesterday", "unreadable=yesterday"),
        ("1889-01-01T00:00:00Z", "out_of_range"),
    ],
)
def test_a_time_that_needs_a_guess_stays_unknown_and_says_why(text: str, note: str) -> None:
    """No zone, a zone name with two meanings, a date alone: the time is 0 and the note quotes it."""
    assert read_time(text) == ReadTime(ns=0, note=note)


def test_the_operators_zone_is_used_and_recorded() -> None:
    """A zone from the configuration applies to times without one, and the event says that it was applied."""
    assert read_time("2026-07-01T08:30:00", NEW_YORK) == ReadTime(
        ns=ns("2026-07-01T12:30:00+00:00"), note="zone_assumed=America/New_York"
    )
    assert read_time("2026-07-01T08:30:00+02:00", NEW_YORK).note == ""
    assert read_time("Fri, 18 Sep 2026 15:00:00 BST", NEW_YORK).ns == 0


@pytest.mark.parametrize(
    ("wall", "utc", "note"),
    [
        ("2026-11-01T00:59:59", "2026-11-01T04:59:59+00:00", ""),
        ("2026-11-01T01:30:00", "2026-11-01T05:30:00+00:00", " dst_ambiguous"),
        ("2026-11-01T02:00:00", "2026-11-01T07:00:00+00:00", ""),
        ("2026-03-08T01:59:59", "2026-03-08T06:59:59+00:00", ""),
        ("2026-03-08T02:30:00", "2026-03-08T07:30:00+00:00", " dst_gap"),
        ("2026-03-08T03:00:00", "2026-03-08T07:00:00+00:00", ""),
    ],
)
def test_the_edges_of_daylight_saving_are_read_right_or_noted(wall: str, utc: str, note: str) -> None:
    """The doubled hour of autumn and the missing one of spring are noted; the seconds beside them are exact."""
    assert read_time(wall, NEW_YORK) == ReadTime(ns=ns(utc), note=f"zone_assumed=America/New_York{note}")


@pytest.mark.parametrize("unit", [1, 1_000, 1_000_000, 1_000_000_000])
def test_numbers_are_read_in_their_unit(unit: int) -> None:
    """Seconds, milliseconds, microseconds and nanoseconds of the same instant are the same time."""
    assert read_time(1_789_743_600 * unit) == ReadTime(ns=ns("2026-09-18T15:00:00+00:00"))


def test_a_clock_ahead_is_bounded_and_noted() -> None:
    """A time from the future becomes receipt plus the tolerance, with how far ahead it was."""
    received = ns("2026-09-18T15:00:00+00:00")
    early = ReadTime(ns=received - 1)
    assert bounded(early, received, 2_000_000_000) == early
    far = ReadTime(ns=received + 3_600_000_000_000)
    assert bounded(far, received, 2_000_000_000) == ReadTime(ns=received + 2_000_000_000, note="ahead=3600.000s")


@given(st.one_of(st.text(max_size=60), st.floats(), st.integers(), st.datetimes().map(str), st.none(), st.booleans()))
def test_any_value_gives_a_time_in_range_or_none(value: object) -> None:
    """Whatever a source sends, reading it gives 0 or a time of this age, and never an exception."""
    for zone in (None, NEW_YORK):
        found = read_time(value, zone)
        assert found.ns == 0 or 2000 <= datetime.fromtimestamp(found.ns / 1e9, UTC).year <= 2200
