"""When an engine counts as stuck, on a clock of the test's own."""

from __future__ import annotations

from workers.stall import StallWatch


def test_time_without_a_step_adds_up_while_there_are_requests() -> None:
    """Every look at an engine with requests and an old number of steps adds the time since the last look."""
    watch = StallWatch(most_between=1.0)
    assert [watch.look(now, 3, 7) for now in (0.0, 0.5, 1.0, 1.75)] == [0.0, 0.5, 1.0, 1.75]


def test_a_step_starts_anew() -> None:
    """One step is progress, however late it comes."""
    watch = StallWatch(most_between=1.0)
    watch.look(0.0, 1, 1)
    assert [watch.look(now, 1, steps) for now, steps in ((0.5, 1), (1.0, 2), (1.5, 2))] == [0.5, 0.0, 0.5]


def test_an_engine_with_nothing_to_do_is_not_stuck() -> None:
    """Hours without a request add nothing."""
    watch = StallWatch(most_between=1.0)
    assert [watch.look(float(now), 0, 1) for now in range(5)] == [0.0] * 5


def test_requests_that_are_taken_back_prove_nothing() -> None:
    """A stuck engine whose requests expire is empty between them, and the time with requests adds up all the same."""
    watch = StallWatch(most_between=1.0)
    watch.look(0.0, 0, 1)
    assert [watch.look(float(now), now % 2, 1) for now in range(1, 6)] == [1.0, 1.0, 2.0, 2.0, 3.0]


def test_our_own_pause_does_not_count() -> None:
    """A worker that was stopped itself for a minute has not seen a minute without steps."""
    watch = StallWatch(most_between=1.0)
    watch.look(0.0, 1, 1)
    assert watch.look(60.0, 1, 1) == 1.0
