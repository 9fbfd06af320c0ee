from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from producers.edgar.progress import UNWANTED_MOST, Progress
from producers.edgar.waiting import Rank, WaitingFilings
from producers.formats import Listed


def _listed(name: str) -> Listed:
    return Listed(accession=name, form="8-K", ciks=["0000000001"])


def test_a_moment_is_covered_when_its_filings_are_done() -> None:
    """What was listed before a moment must be settled before the moment counts; what comes later does not matter."""
    progress = Progress(lambda _: False, 0)
    progress.start("a")
    progress.reach(10)
    progress.start("b")
    progress.reach(20)
    assert progress.covered_now() == 0
    assert progress.settle("b") == 0
    assert progress.settle("a") == 20


def test_a_moment_without_filings_is_covered_at_once() -> None:
    """Nothing on its way, nothing to wait for; the same moment is not reported twice."""
    progress = Progress(lambda _: False, 0)
    progress.reach(10)
    assert progress.covered_now() == 10
    assert progress.covered_now() == 0


def test_known_filings() -> None:
    """Published, on its way, given up and unwanted filings need nothing more."""
    progress = Progress(lambda accession: accession == "published", 0)
    progress.start("pending")
    progress.start("hopeless")
    progress.settle("hopeless", given_up=True)
    progress.skip("unwanted")
    assert [progress.known(name) for name in ("published", "pending", "hopeless", "unwanted", "new")] == [True] * 4 + [
        False
    ]


def test_unwanted_filings_are_remembered_within_bounds() -> None:
    """The oldest of too many unwanted filings is forgotten."""
    progress = Progress(lambda _: False, 0)
    for number in range(UNWANTED_MOST + 1):
        progress.skip(str(number))
    assert not progress.known("0")
    assert progress.known("1")


@given(st.lists(st.tuples(st.sampled_from(["start", "settle", "reach"]), st.integers(0, 5)), max_size=60))
def test_nothing_unsettled_is_ever_covered(steps: list[tuple[str, int]]) -> None:
    """Whatever the order of events, a covered moment has no filing left that was listed before it."""
    progress = Progress(lambda _: False, 0)
    listed: dict[str, int] = {}
    moment = covered = 0
    for action, number in steps:
        name = str(number)
        if action == "start":
            progress.start(name)
            listed[name] = moment
        elif action == "reach":
            moment += 1
            progress.reach(moment)
            covered = max(covered, progress.covered_now())
        else:
            covered = max(covered, progress.settle(name))
            listed.pop(name, None)
        assert all(since >= covered for since in listed.values())


async def test_urgent_filings_come_first_and_the_backlog_last() -> None:
    """The order is rank, then arrival, whatever came first."""
    waiting = WaitingFilings(10)
    for name, rank in (("old", Rank.BACKLOG), ("four", Rank.LIVE), ("eight-k", Rank.URGENT), ("five", Rank.LIVE)):
        await waiting.put(_listed(name), rank, 0)
    assert [(await waiting.get()).listed.accession for _ in range(4)] == ["eight-k", "four", "five", "old"]


async def test_a_full_backlog_does_not_keep_live_filings_out() -> None:
    """The backlog waits for room of its own; a live filing goes through at once."""
    waiting = WaitingFilings(1)
    await waiting.put(_listed("old"), Rank.BACKLOG, 0)
    blocked = asyncio.create_task(waiting.put(_listed("older"), Rank.BACKLOG, 0))
    await asyncio.sleep(0)
    await waiting.put(_listed("live"), Rank.LIVE, 0)
    assert not blocked.done()
    assert (await waiting.get()).listed.accession == "live"
    assert (await waiting.get()).listed.accession == "old"
    await blocked
    assert (await waiting.get()).listed.accession == "older"
