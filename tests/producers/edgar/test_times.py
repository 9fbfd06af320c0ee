from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from producers.edgar.times import acceptance_ns, compact_date, deadline_ns, eastern_date, with_offset_ns


def _utc(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int:
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()) * 1_000_000_000


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("20240308120145", _utc(2024, 3, 8, 17, 1, 45)),  # Friday before the clocks change: UTC-5
        ("20240311120145", _utc(2024, 3, 11, 16, 1, 45)),  # Monday after: UTC-4
        ("20241101170000", _utc(2024, 11, 1, 21, 0, 0)),
        ("20241104170000", _utc(2024, 11, 4, 22, 0, 0)),
        ("20240310015959", _utc(2024, 3, 10, 6, 59, 59)),  # last second of winter time
        ("20240310030000", _utc(2024, 3, 10, 7, 0, 0)),  # the next one
    ],
)
def test_acceptance_is_eastern_time_with_daylight_saving(stamp: str, expected: int) -> None:
    """A header's wall time becomes UTC by the rule of its own day, to the second around the change."""
    assert acceptance_ns(stamp) == expected


def test_repeated_hour_is_read_as_the_later_one() -> None:
    """01:30 on the day summer time ends happened twice; the reading never makes a filing look known before it was."""
    assert acceptance_ns("20241103013000") == _utc(2024, 11, 3, 6, 30, 0)


def test_hour_that_never_was_stays_in_order() -> None:
    """02:30 on the day summer time begins does not exist; it is read as half an hour after the last winter minute."""
    assert acceptance_ns("20240310023000") == _utc(2024, 3, 10, 7, 30, 0)


@pytest.mark.parametrize("stamp", ["", "2024", "20241399120000", "2024030812014x", "20240308 12014"])
def test_what_is_no_acceptance_time_is_unknown(stamp: str) -> None:
    """A missing or broken stamp is 0, never a guess."""
    assert acceptance_ns(stamp) == 0


def test_time_with_offset() -> None:
    """A feed time with its offset is read; one without any is unknown."""
    assert with_offset_ns("2025-12-12T18:02:34-05:00") == _utc(2025, 12, 12, 23, 2, 34)
    assert with_offset_ns("2025-12-12T18:02:34") == 0


def test_days_are_those_of_washington() -> None:
    """Half past midnight UTC is still the day before in Washington, and its deadline is 17:30 there."""
    assert eastern_date(_utc(2026, 3, 3, 0, 30, 0)) == date(2026, 3, 2)
    assert deadline_ns(date(2026, 3, 2)) == _utc(2026, 3, 2, 22, 30, 0)


def test_compact_date() -> None:
    """A header's date is shown with dashes; what is none is empty."""
    assert compact_date("20250110") == "2025-01-10"
    assert compact_date("20251310") == ""
