"""Failed work between two attempts: a heap by due time. Pure: the time is the caller's, nothing is random."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from scheduler.work import State, Work

MILLISECOND = 1_000_000
FEW = 64
"""Pieces of work that may stay in memory though they do not wait here any more."""


class Retries:
    """Work that failed in a way that another attempt may mend, until its pause is over.

    Waiting here changes nothing about the work: its deadline and its toxic age stay what they were (llm-d-async#391:
    a deadline that every retry moved let old requests live for ever). It holds no slot and no budget of a worker
    (llm-d-async#311), only its own memory, which counts against the room of its topic as before.

    Like in a class queue, work that leaves from the middle stays in the heap until it surfaces.

    Args:
        first_ms: pause before the second attempt, in milliseconds; each further one is twice as long.
        most_ms: the longest pause.
    """

    def __init__(self, first_ms: float, most_ms: float) -> None:
        self._first_ns = int(first_ms * MILLISECOND)
        self._most_ns = int(most_ms * MILLISECOND)
        self._heap: list[tuple[int, int, Work]] = []
        self._waiting = 0
        self._sequence = 0
        self._now_ns = 0

    def __len__(self) -> int:
        return self._waiting

    def pause_ns(self, work: Work, now_ns: int) -> int:
        """Return how long work that has just failed waits.

        Work with a toxic age waits at most half of what is left of it: a headline that is worth nothing after 250 ms
        would never see a second attempt after a pause made for filings.
        """
        doubled = self._first_ns << min(max(work.refusals - 1, 0), 62)
        pause = min(doubled, self._most_ns)
        return min(pause, max(0, work.toxic_ns - now_ns) // 2) if work.toxic_ns else pause

    def add(self, work: Work, now_ns: int) -> None:
        """Take work that has just failed; ``work.refusals`` counts its failures, this one included."""
        self._follow(now_ns)
        work.state = State.RETRYING
        self._sequence += 1
        heapq.heappush(self._heap, (now_ns + self.pause_ns(work, now_ns), self._sequence, work))
        self._waiting += 1

    def next_due_ns(self) -> int | None:
        """Return when the next pause is over, or None when nothing waits."""
        heap = self._heap
        while heap and heap[0][2].state is not State.RETRYING:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now_ns: int) -> list[Work]:
        """Take what has waited long enough, first come first; its state is the caller's to set."""
        self._follow(now_ns)
        taken: list[Work] = []
        while (due_ns := self.next_due_ns()) is not None and due_ns <= now_ns:
            taken.append(heapq.heappop(self._heap)[2])
            self._waiting -= 1
            taken[-1].state = State.DONE  # unless it is queued again
        return taken

    def discard(self, work: Work, state: State) -> None:
        """Take work out of the middle, giving it the state that says why."""
        work.state = state
        self._waiting -= 1
        if len(self._heap) > 2 * self._waiting + FEW:
            self._heap = [entry for entry in self._heap if entry[2].state is State.RETRYING]
            heapq.heapify(self._heap)

    def drop(self, gone: Callable[[Work], bool]) -> list[Work]:
        """Drop the work that ``gone`` says belongs elsewhere now, and return it."""
        dropped = [entry[2] for entry in self._heap if entry[2].state is State.RETRYING and gone(entry[2])]
        for work in dropped:
            self.discard(work, State.DROPPED)
        return dropped

    def _follow(self, now_ns: int) -> None:
        """Move all due times along when the clock was set back: a pause of a second must not become one of an hour."""
        back = self._now_ns - now_ns
        if back > 0:
            # A uniform shift keeps the order of the heap.
            self._heap = [(due_ns - back, sequence, work) for due_ns, sequence, work in self._heap]
        self._now_ns = now_ns
