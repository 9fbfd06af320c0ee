"""The class queue: deadline order and removal from the middle."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.queues import GRAIN_NS, DeadlineQueue
from scheduler.work import State, Work
from tests.scheduler import make


def _queue(deadlines: list[int]) -> tuple[DeadlineQueue, list[Work]]:
    queue = DeadlineQueue()
    added = []
    for sequence, deadline in enumerate(deadlines):
        work = make.work(deadline_ns=deadline * GRAIN_NS)
        work.sequence = sequence
        queue.push(work)
        added.append(work)
    return queue, added


def _taken(queue: DeadlineQueue) -> list[Work]:
    taken = []
    while queue:
        work = queue.pop()
        work.state = State.IN_FLIGHT
        taken.append(work)
    return taken


@given(st.lists(st.integers(0, 5)))
def test_takes_the_earliest_deadline_and_ties_in_order_of_arrival(deadlines: list[int]) -> None:
    """Whatever the order of arrival, work leaves by deadline, and equal deadlines first in, first out."""
    queue, added = _queue(deadlines)
    assert _taken(queue) == sorted(added, key=lambda w: (w.deadline_ns, w.sequence))


def test_inside_a_burst_the_shortest_goes_first() -> None:
    """Deadlines within the same ten milliseconds are one burst; across bursts the deadline decides."""
    queue = DeadlineQueue()
    shapes = [(0, 50), (GRAIN_NS - 1, 20), (GRAIN_NS, 5), (3, 20)]
    for sequence, (deadline, tokens) in enumerate(shapes):
        work = make.work(deadline_ns=deadline, tokens=tokens)
        work.sequence = sequence
        queue.push(work)
    assert [w.sequence for w in _taken(queue)] == [1, 3, 0, 2]


@given(st.lists(st.integers(0, 5), min_size=1), st.randoms(use_true_random=False))
def test_what_was_discarded_never_comes_out(deadlines: list[int], rng: random.Random) -> None:
    """Work taken out of the middle is counted out at once and never surfaces again."""
    queue, added = _queue(deadlines)
    gone = rng.sample(added, rng.randint(0, len(added)))
    for work in gone:
        queue.discard(work, State.DROPPED)
    stays = [w for w in added if w not in gone]
    assert len(queue) == len(stays)
    assert sorted(w.sequence for w in queue) == sorted(w.sequence for w in stays)
    assert set(map(id, _taken(queue))) == set(map(id, stays))


def test_peek_takes_nothing() -> None:
    """Looking at the head leaves it there, and skips what was discarded before it."""
    queue, (first, second) = _queue([1, 2])
    assert queue.peek() is queue.peek() is first
    queue.discard(first, State.DONE)
    assert queue.peek() is second
    assert len(queue) == 1


def test_an_empty_queue_says_so() -> None:
    """Peeking gives None and popping fails loudly, before and after something was there."""
    queue, (only,) = _queue([1])
    queue.discard(only, State.DONE)
    assert queue.peek() is None
    assert not queue
    with pytest.raises(IndexError, match="empty"):
        queue.pop()
    with pytest.raises(IndexError, match="empty"):
        DeadlineQueue().pop()
