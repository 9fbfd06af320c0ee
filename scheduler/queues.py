"""Class queues: earliest deadline first, O(log n) to add and to take."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from scheduler.work import State, Work

GRAIN_NS = 10_000_000
"""Deadlines within the same ten milliseconds are one burst. Inside it the shortest goes first, which gives the most
answers on time; no other order inside a burst could be told apart by anyone who waits for it."""
FEW = 64
"""Pieces of work that may stay in memory though they do not wait any more."""


class DeadlineQueue:
    """The work of one service class, earliest deadline first; inside a burst the shortest, then in order of arrival.

    Work that failed before comes after all other, whatever its deadline: its old deadline would put it first, and a
    request that fails again and again would delay those that do not.

    Work that expired or was dropped while it waited stays in the heap until it surfaces, or until such work is most of
    what is there: removing each at once would cost O(n).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[bool, int, int, int, Work]] = []
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __iter__(self) -> Iterator[Work]:
        """Iterate over what waits, in no particular order."""
        return (entry[-1] for entry in self._heap if entry[-1].state is State.QUEUED)

    def push(self, work: Work) -> None:
        """Add work whose state is ``QUEUED``."""
        entry = (work.behind, work.deadline_ns // GRAIN_NS, work.token_count, work.sequence, work)
        heapq.heappush(self._heap, entry)
        self._waiting += 1

    def peek(self) -> Work | None:
        """Return the work with the earliest deadline without taking it."""
        heap = self._heap
        while heap:
            work = heap[0][-1]
            if work.state is State.QUEUED:
                return work
            heapq.heappop(heap)
        return None

    def pop(self) -> Work:
        """Take the work that `peek` returns; its state is the caller's to set."""
        work = self.peek()
        if work is None:
            raise IndexError("the queue is empty")
        heapq.heappop(self._heap)
        self._waiting -= 1
        return work

    def discard(self, work: Work, state: State) -> None:
        """Take work out of the middle, giving it the state that says why."""
        work.state = state
        self._waiting -= 1
        if len(self._heap) > 2 * self._waiting + FEW:
            self._heap = [entry for entry in self._heap if entry[-1].state is State.QUEUED]
            heapq.heapify(self._heap)
