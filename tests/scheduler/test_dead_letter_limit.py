"""The limit on dead letters: when it stops them, what it counts, and what it tells."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.dead_letter_limit import GRAINS, TELL_SECONDS, DeadLetterLimit
from schemas.settings import DeadLetterSettings


def _limit(**changed: float) -> DeadLetterLimit:
    values: dict[str, float] = {"window_seconds": 60, "least": 10, "per_minute": 100, "ratio": 0.5}
    return DeadLetterLimit(DeadLetterSettings(**(values | changed)))


def test_a_bad_deploy_stops_at_the_least() -> None:
    """When everything dies, the dead letter that reaches the least number is the first that is held."""
    limit = _limit()
    assert [limit.admits("bad_answer", 5.0) for _ in range(12)] == [True] * 9 + [False] * 3
    assert limit.tripped
    assert limit.held == 3


def test_few_dead_letters_never_stop_anything() -> None:
    """Below the least number neither share nor rate counts."""
    limit = _limit(per_minute=1)
    assert all(limit.admits("not_json", 0.0) for _ in range(9))
    assert not limit.tripped


def test_the_ratio_is_of_all_outcomes() -> None:
    """As many good outcomes as bad ones are allowed at a ratio of a half, one bad one more is not."""
    limit = _limit(per_minute=10_000)
    for _ in range(50):
        limit.ended(1.0)
    assert all(limit.admits("not_json", 1.0) for _ in range(50))
    assert not limit.admits("not_json", 1.0)
    assert "51 of 101" in limit.reason


@pytest.mark.parametrize("window", [6, 60, 600])
def test_the_rate_is_per_minute_whatever_the_window(window: float) -> None:
    """A long window allows as many dead letters per minute as a short one."""
    limit = _limit(window_seconds=window, per_minute=100, least=1)
    for _ in range(100_000):
        limit.ended(0.0)
    allowed = int(100 * window / 60)
    assert sum(limit.admits("not_json", 0.0) for _ in range(allowed + 5)) == allowed
    assert "per_minute" in limit.reason


@given(
    st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=200),
    st.integers(1, 20),
    st.sampled_from([0.1, 0.5, 0.9, 1.0]),
)
def test_it_counts_what_the_window_holds(history: list[tuple[float, bool]], least: int, ratio: float) -> None:
    """Over any history the decision is that of a plain count over the last window, to the grain."""
    limit = _limit(least=least, ratio=ratio, per_minute=1_000_000)
    grain = 60 / GRAINS
    now, seen = 0.0, deque[tuple[int, bool]]()
    for passed, dead in history:
        now += passed
        number = int(now / grain)
        seen.append((number, dead))
        while seen[0][0] <= number - GRAINS:
            seen.popleft()
        bad = sum(d for _, d in seen)
        if not dead:
            limit.ended(now)
            continue
        expected = not (bad >= least and bad > ratio * len(seen))
        assert limit.admits("not_json", now) == expected
        if not expected:
            return
    assert not limit.tripped


def test_once_stopped_it_stays_stopped() -> None:
    """Neither time nor good outcomes let dead letters through again: a restart does, on purpose."""
    limit = _limit()
    for _ in range(10):
        limit.admits("not_json", 0.0)
    for _ in range(1000):
        limit.ended(1e6)
    assert not limit.admits("not_json", 1e6)


def test_it_tells_at_once_and_then_now_and_then() -> None:
    """The operator hears how many of which kind and what to do, once at the stop and every half minute after it."""
    limit = _limit()
    assert limit.notice(0.0) is None
    for _ in range(3):
        limit.admits("not_json", 0.0)
    for _ in range(9):
        limit.admits("bad_answer", 0.0)
    notice = limit.notice(0.0)
    assert notice is not None
    assert (notice.kinds, notice.held) == ({"bad_answer": 7, "not_json": 3}, 3)
    assert "restart" in notice.mend
    limit.admits("not_json", 1.0)
    assert limit.notice(TELL_SECONDS - 1) is None
    again = limit.notice(TELL_SECONDS)
    assert again is not None
    assert (again.kinds, again.held) == ({"bad_answer": 7, "not_json": 3}, 4)


def test_memory_is_that_of_the_window() -> None:
    """A year of outcomes keeps no more than one entry per grain."""
    limit = _limit()
    for minute in range(100_000):
        limit.ended(minute * 7.3)
    assert len(limit._grains) <= GRAINS
