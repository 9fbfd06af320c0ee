"""Who killed a worker: only the request that was there every time, however many others were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.quarantine import MAX_DEATHS, blame
from scheduler.work import Work
from tests.scheduler import make


def test_alone_at_two_deaths() -> None:
    """A request that was the only one there both times is named at the second death."""
    work = make.work()
    assert blame([work]) is None
    assert blame([work]) is work
    assert work.deaths == MAX_DEATHS


def test_a_death_that_is_explained_counts_against_nobody_else() -> None:
    """What died beside a killer is as free of suspicion as before."""
    killer, other = make.work(), make.work()
    blame([killer])
    assert blame([killer, other]) is killer
    assert (other.deaths, other.suspect) == (0, False)


@given(st.integers(1, 40), st.integers(0, 39), st.integers(1, 3), st.randoms(use_true_random=False))
def test_only_the_killer_is_named(count: int, position: int, workers: int, rng: object) -> None:
    """One killer among any number of good requests costs at most three deaths, and no good request is named."""
    works = [make.work() for _ in range(count)]
    killer = works[position % count]
    waiting, deaths, named = list(works), 0, None
    while killer in waiting:
        rng.shuffle(waiting)  # type: ignore[attr-defined]  # hypothesis has no type for it
        suspects = [w for w in waiting if w.suspect]
        flying = [w for w in waiting if not w.suspect] + suspects[:1]
        if killer in flying:
            named = blame(flying)
            deaths += 1
            assert named in (None, killer)
            if named is killer:
                waiting.remove(killer)
        else:
            waiting = [w for w in waiting if w not in flying]
    assert named is killer
    assert deaths <= MAX_DEATHS + 1


def test_nothing_in_flight_names_nobody() -> None:
    """An idle worker's death accuses nothing."""
    lost: list[Work] = []
    assert blame(lost) is None
