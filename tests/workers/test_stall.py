"""When an engine counts as stuck, on a clock of the test's own."""

from __future__ import annotations

from workers.stall import StallWatch


def test_time_without_a_step_adds_up_while_there_are_requests() -> None:
    """Every look at an engine with requests and an old number of steps adds the time since the last look."""
    watch = StallWatch(most_between=1.0)
    assert [watch.look(now, 3, 7) for now in (0.0, 0.5, 1.0, 1.75)] == [0.0, 0.5, 1.0, 1.75]


def test_a_step_or_an_empty_engine_starts_anew() -> None:
    """One step is progress however late, and an engine with nothing to do is never stuck."""
    watch = StallWatch(most_between=1.0)
    watch.look(0.0, 1, 1)
    assert watch.look(0.5, 1, 1) == 0.5
    assert watch.look(1.0, 1, 2) == 0.0
    assert watch.look(1.5, 1, 2) == 0.5
    assert watch.look(2.0, 0, 2) == 0.0
    assert watch.look(2.5, 1, 2) == 0.5


def test_our_own_pause_does_not_count() -> None:
    """A worker that was stopped itself for a minute has not seen a minute without steps."""
    watch = StallWatch(most_between=1.0)
    watch.look(0.0, 1, 1)
    assert watch.look(60.0, 1, 1) == 1.0
