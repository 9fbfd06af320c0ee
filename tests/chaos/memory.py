"""Resident memory of the processes under test over a run, and its slope by least squares."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.chaos.processes import Fleet

SAMPLE_SECONDS = 0.5
MEGABYTE = 1_000_000
WARM_UP_SHARE = 0.2
"""Start of a life that the slope leaves out: caches fill, and the interpreter's arenas grow to their working size."""
LEAST_SAMPLES = 20

_PAGE = os.sysconf("SC_PAGESIZE")


class Sample(NamedTuple):
    """One look at one process: events done by then in the whole run, and its resident memory in MB."""

    events: int
    rss_mb: float


class Memory:
    """Samples until cancelled.

    Args:
        fleet: whose processes.
        events: how many events are done.
    """

    def __init__(self, fleet: Fleet, events: Callable[[], int]) -> None:
        self._fleet = fleet
        self._events = events
        self.lives: defaultdict[tuple[str, str, int], list[Sample]] = defaultdict(list)
        """By kind, name and process id."""

    async def run(self) -> None:
        """Sample twice a second."""
        while True:
            for managed in self._fleet.all:
                if (pid := managed.pid) is not None and (rss := rss_mb(pid)) is not None:
                    self.lives[managed.kind, managed.name, pid].append(Sample(self._events(), rss))
            await asyncio.sleep(SAMPLE_SECONDS)

    def largest(self) -> dict[str, float]:
        """Return the largest sample of each kind of process, in MB."""
        found: dict[str, float] = {}
        for (kind, _, _), samples in self.lives.items():
            found[kind] = max(found.get(kind, 0.0), round(max(s.rss_mb for s in samples), 1))
        return found

    def slopes(self) -> dict[str, float]:
        """Return, per process, the slope of its longest life in MB per 100,000 events."""
        longest: dict[str, list[Sample]] = {}
        for (_, name, _), samples in self.lives.items():
            if len(samples) > len(longest.get(name, [])):
                longest[name] = samples
        found = {name: slope(samples) for name, samples in sorted(longest.items())}
        return {name: round(value, 2) for name, value in found.items() if value is not None}


def slope(samples: list[Sample]) -> float | None:
    """Return MB per 100,000 events by least squares, without the warm-up; none with too little to go by."""
    kept = samples[int(len(samples) * WARM_UP_SHARE) :]
    if len(kept) < LEAST_SAMPLES:
        return None
    mean_x = sum(s.events for s in kept) / len(kept)
    mean_y = sum(s.rss_mb for s in kept) / len(kept)
    spread = sum((s.events - mean_x) ** 2 for s in kept)
    if not spread:
        return None
    return sum((s.events - mean_x) * (s.rss_mb - mean_y) for s in kept) / spread * 100_000


def rss_mb(pid: int) -> float | None:
    """Return the resident memory of a process; none when it is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE / MEGABYTE
    return None
