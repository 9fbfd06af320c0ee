"""Noticing a standstill: of fetching and of completions, with the time passed in."""

from __future__ import annotations

from aiokafka import TopicPartition

from scheduler.watchdog import CompletionWatch, FetchWatch

P, Q = TopicPartition("news", 0), TopicPartition("news", 1)


def test_a_partition_that_is_behind_and_does_not_move_stands_still() -> None:
    """Only after the whole time, counted from when there was something to read, and only that partition."""
    watch = FetchWatch(10.0)
    assert watch.look(0.0, {P: 5, Q: 5}, {P: 5, Q: 5}) == []
    assert watch.look(100.0, {P: 5, Q: 5}, {P: 6, Q: 5}) == []
    assert watch.look(109.9, {P: 5, Q: 5}, {P: 9, Q: 5}) == []
    assert watch.look(110.0, {P: 5, Q: 5}, {P: 9, Q: 6}) == [P]


def test_any_progress_starts_the_time_again() -> None:
    """A partition that is slow, however far behind, is not one that stands still."""
    watch = FetchWatch(10.0)
    for step in range(20):
        assert watch.look(step * 9.0, {P: step}, {P: 1000}) == []


def test_what_is_paused_or_unanswered_is_not_judged() -> None:
    """A partition without room is not looked at, and when it is again its time begins anew; so with a silent Kafka."""
    watch = FetchWatch(10.0)
    watch.look(0.0, {P: 5}, {P: 9})
    assert watch.look(20.0, {}, {P: 9}) == []
    assert watch.look(21.0, {P: 5}, {P: 9}) == []
    assert watch.look(22.0, {P: 5}, {}) == []
    assert watch.look(40.0, {P: 5}, {P: 9}) == []
    assert watch.look(50.0, {P: 5}, {P: 9}) == [P]


def test_a_client_that_does_not_know_where_to_read_stands_still() -> None:
    """No position for the whole time is no progress either."""
    watch = FetchWatch(10.0)
    watch.look(0.0, {P: None}, {P: 0})
    assert watch.look(10.0, {P: None}, {P: 0}) == [P]
    assert watch.look(11.0, {P: 0}, {P: 0}) == []


def test_work_in_flight_of_which_none_ends_is_stalled_until_one_does() -> None:
    """Measured in completions (parallel-consumer#857); each change is told once."""
    watch = CompletionWatch(10.0)
    assert not watch.look(0.0, 3, 7)
    assert not watch.look(9.9, 4, 7)
    assert watch.look(10.0, 4, 7)
    assert watch.stalled
    assert not watch.look(11.0, 4, 7)
    assert watch.look(12.0, 4, 8)
    assert not watch.stalled


def test_nothing_in_flight_is_never_stalled() -> None:
    """An idle scheduler is idle, and what comes after an idle hour has its whole time."""
    watch = CompletionWatch(10.0)
    watch.look(0.0, 0, 7)
    assert not watch.look(3600.0, 0, 7)
    assert not watch.look(3609.9, 1, 7)
    assert not watch.stalled
    assert watch.look(3610.0, 1, 7)
