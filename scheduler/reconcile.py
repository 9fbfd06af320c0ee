"""What a worker has, against what its scheduler thinks it has: finds what a broken connection swallowed.

A connection that breaks while both sides live loses what was under way in either direction: requests that never
arrive, results that never come back, aborts that leave a request running for nobody. ZeroMQ connects again and says
nothing about it. So a worker lists what it has in each heartbeat, after everything that it has reported before.
"""

from __future__ import annotations

from collections.abc import Collection

MISSES = 3
"""Heartbeats in a row that do not list a request before it counts as lost. The first may have left before the request
arrived; the two after it cannot have."""


class Reconciler:
    """Compares the two lists for one worker."""

    def __init__(self) -> None:
        self._missed: dict[int, int] = {}

    def compare(self, here: Collection[int], listed: Collection[int]) -> tuple[list[int], list[int]]:
        """Compare the request ids that we think are there with those that a heartbeat lists.

        Returns:
            Those that are lost and must run again, and those that the worker runs for nobody. An abort for either is
            right: should a lost request arrive after all, the abort comes behind it.
        """
        known = set(listed)
        self._missed = {one: self._missed.get(one, 0) + 1 for one in here if one not in known}
        lost = [one for one, times in self._missed.items() if times >= MISSES]
        for one in lost:
            del self._missed[one]
        return lost, sorted(known.difference(here))
