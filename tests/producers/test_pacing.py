from __future__ import annotations

import asyncio
from itertools import pairwise

from producers.pacing import BURST, HostPacer


class FakeTime:
    """A clock that sleeping moves: every sleeper wakes in the order of its time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Move the clock on."""
        until = self.now + seconds
        await asyncio.sleep(0)
        self.now = max(self.now, until)


async def test_no_second_sees_more_than_rate_and_burst() -> None:
    """Twenty requests of one task at 8 a second: two at once, the rest an eighth of a second apart."""
    clock = FakeTime()
    pacer = HostPacer(clock=clock, sleep=clock.sleep)
    times = []
    for _ in range(20):
        await pacer.turn("host", 8.0)
        times.append(clock.now)
    assert times[:BURST] == [0.0] * BURST
    assert all(round(after - before, 6) == 0.125 for before, after in pairwise(times[BURST - 1 :]))
    assert max(sum(1 for t in times if start <= t < start + 1) for start in times) <= 8 + BURST


async def test_tasks_share_the_pace_of_a_host_and_not_of_others() -> None:
    """Five tasks at one host take turns; another host has a bucket of its own."""
    clock = FakeTime()
    pacer = HostPacer(clock=clock, sleep=clock.sleep)
    times: list[float] = []

    async def ask() -> None:
        await pacer.turn("host", 8.0)
        times.append(clock.now)

    await asyncio.gather(*(ask() for _ in range(5)))
    assert sorted(times) == [0.0, 0.0, 0.125, 0.25, 0.375]
    before = clock.now
    await pacer.turn("other", 8.0)
    assert clock.now == before


async def test_pause_holds_everybody_back() -> None:
    """After a pause began nobody gets a turn before its end, also who was waiting for one already."""
    clock = FakeTime()
    pacer = HostPacer(clock=clock, sleep=clock.sleep)
    await pacer.turn("host", 1.0)
    await pacer.turn("host", 1.0)
    waiting = asyncio.create_task(pacer.turn("host", 1.0))
    await asyncio.sleep(0)
    pacer.pause("host", 600.0)
    assert pacer.paused_for("host") == 600.0
    await waiting
    assert clock.now >= 600.0
    assert pacer.paused_for("host") == 0.0


async def test_shorter_pause_does_not_end_a_longer_one() -> None:
    """A second, shorter pause leaves the first as it is."""
    clock = FakeTime()
    pacer = HostPacer(clock=clock, sleep=clock.sleep)
    pacer.pause("host", 600.0)
    pacer.pause("host", 5.0)
    assert pacer.paused_for("host") == 600.0


async def test_slowest_rate_counts() -> None:
    """Two clients that differ about one host's rate both keep the lower one."""
    clock = FakeTime()
    pacer = HostPacer(clock=clock, sleep=clock.sleep)
    await pacer.turn("host", 1.0)
    await pacer.turn("host", 8.0)
    await pacer.turn("host", 8.0)
    assert clock.now == 1.0
