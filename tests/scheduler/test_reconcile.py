"""Two lists of requests, the scheduler's and the worker's, and what follows where they differ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.reconcile import MISSES, Reconciler


def test_a_request_that_is_not_listed_again_and_again_is_lost() -> None:
    """One heartbeat may have left before the request came; the third in a row without it means that it never did."""
    reconciler = Reconciler()
    for _ in range(MISSES - 1):
        assert reconciler.compare([1, 2], [1]) == ([], [])
    assert reconciler.compare([1, 2], [1]) == ([2], [])


def test_a_request_that_is_listed_once_starts_anew() -> None:
    """What was missed and then seen has arrived: the misses before it do not count."""
    reconciler = Reconciler()
    for listed in ([], [], [1], [], []):
        assert reconciler.compare([1], listed) == ([], [])
    assert reconciler.compare([1], []) == ([1], [])


def test_what_runs_for_nobody_is_told_at_once() -> None:
    """A request that the scheduler does not have there takes a slot in vain: an abort cannot be wrong."""
    assert Reconciler().compare([1], [3, 1, 2]) == ([], [2, 3])


@given(st.lists(st.tuples(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5))), max_size=20))
def test_nothing_is_remembered_of_what_is_not_here(history: list[tuple[set[int], set[int]]]) -> None:
    """After any history only requests that are here and unlisted are remembered, none missed as often as it takes."""
    reconciler = Reconciler()
    for here, listed in history:
        lost, unwanted = reconciler.compare(here, listed)
        assert set(lost) <= here - listed
        assert set(unwanted) == listed - here
        assert reconciler._missed.keys() == here - listed - set(lost)
        assert all(times < MISSES for times in reconciler._missed.values())
