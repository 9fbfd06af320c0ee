from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode_filing, decode_news
from schemas.errors import DecodeError
from tests.chaos.__main__ import options_of, parse
from tests.chaos.events import FLASH_SOURCE, malformed, stream
from tests.chaos.plan import (
    FLOOD_WINDOW_SECONDS,
    GROUP_FAULTS,
    MOST_MALFORMED,
    REST_SECONDS,
    WARM_UP_SECONDS,
    Fault,
    FaultKind,
    Options,
    make_plan,
)

SEEDS = st.integers(min_value=0, max_value=2**32)


@given(SEEDS, st.integers(min_value=1, max_value=40))
def test_a_seed_gives_the_same_plan_again(seed: int, minutes: int) -> None:
    """The plan is a pure function of the options, so a seed repeats a run."""
    options = Options(seed=seed, seconds=minutes * 60.0)
    assert make_plan(options) == make_plan(options)


def test_another_seed_gives_another_plan() -> None:
    """The seed is used: two seeds differ in kinds, times and targets."""
    one, two = (make_plan(Options(seed=seed, seconds=600)) for seed in (1, 2))
    assert [f.kind for f in one] != [f.kind for f in two]


@given(SEEDS)
def test_twenty_five_minutes_hold_two_hundred_faults_of_every_kind(seed: int) -> None:
    """The bar of two hundred faults fits into a run of a length that one waits for, and no kind is left out."""
    kinds = Counter(fault.kind for fault in make_plan(Options(seed=seed, seconds=25 * 60)))
    assert kinds.total() >= 200
    assert set(kinds) == set(FaultKind)


@given(SEEDS, st.sampled_from([60.0, 300.0, 1500.0]))
def test_faults_of_a_lane_follow_one_another(seed: int, seconds: float) -> None:
    """Of the faults that move partitions there is one at a time, and all lie inside the run with time to heal."""
    for lane in (True, False):
        faults = [f for f in make_plan(Options(seed=seed, seconds=seconds)) if (f.kind in GROUP_FAULTS) is lane]
        for before, after in itertools.pairwise(faults):
            assert before.at + before.seconds < after.at
        assert all(f.at >= WARM_UP_SECONDS and f.at + f.seconds <= seconds - REST_SECONDS for f in faults)


@given(SEEDS, st.sampled_from([(FaultKind.MALFORMED_FLOOD,), tuple(FaultKind)]))
def test_floods_stay_below_the_dead_letter_limit(seed: int, kinds: tuple[FaultKind, ...]) -> None:
    """No window of the limit holds so many malformed records that intake would stop, even with nothing but floods."""
    plan = make_plan(Options(seed=seed, seconds=900, faults=kinds))
    floods = [fault for fault in plan if fault.kind is FaultKind.MALFORMED_FLOOD]
    for flood in floods:
        window = [f.amount for f in floods if flood.at - FLOOD_WINDOW_SECONDS < f.at <= flood.at]
        assert sum(window) <= MOST_MALFORMED


@pytest.mark.parametrize("kind", list(FaultKind))
def test_one_kind_alone_can_be_asked_for(kind: FaultKind) -> None:
    """--faults narrows a run down to what is being looked at."""
    plan = make_plan(Options(seed=1, seconds=120, faults=(kind,)))
    assert plan
    assert {fault.kind for fault in plan} == {kind}


def test_leaving_local_faults_out_does_not_move_the_group_faults() -> None:
    """A lane has randomness of its own, so a run can be narrowed down without losing what it showed."""

    def group(faults: tuple[FaultKind, ...]) -> list[tuple[FaultKind, float, str]]:
        plan: list[Fault] = make_plan(Options(seed=9, seconds=300, faults=faults))
        return [(f.kind, f.at, f.target) for f in plan if f.kind in GROUP_FAULTS]

    assert group(GROUP_FAULTS) == group(tuple(FaultKind))


def test_the_command_line_of_a_run_means_the_same_run() -> None:
    """What the report prints as the way to repeat a run leads to equal options."""
    for options in (
        Options(seed=7, seconds=90, rate=250, nodes=3, faults=(FaultKind.WORKER_KILL,), delivery="transactional"),
        Options(seed=7, seconds=86_400, rate=0, events=1000, faults=()),
        Options(seed=8, seconds=1800),
    ):
        assert options_of(parse(options.command().split()[3:])) == options


@given(SEEDS)
def test_a_seed_gives_the_same_events_again(seed: int) -> None:
    """The event stream is a pure function of the seed."""
    one, two = stream(seed), stream(seed)
    assert [next(one) for _ in range(50)] == [next(two) for _ in range(50)]


def test_events_are_valid_and_unique_and_of_all_sorts() -> None:
    """A thousand events decode, have ids of their own, and hold toxic headlines and filings in several parts."""
    source = stream(1)
    made = [next(source) for _ in range(1000)]
    assert len({one.event.event_id for one in made}) == len(made)
    news = [decode_news(one.value(1_800_000_000_000_000_000)) for one in made if not one.filing]
    filings = [decode_filing(one.value(1_800_000_000_000_000_000)) for one in made if one.filing]
    times = {event.received_at_ns for event in news} | {event.received_at_ns for event in filings}
    assert times == {1_800_000_000_000_000_000}
    assert any(event.source == FLASH_SOURCE for event in news)
    assert {event.parts for event in filings} == {1, 2, 3}


@given(SEEDS)
def test_no_malformed_record_can_be_read(seed: int) -> None:
    """Every record of a flood ends as a dead letter."""
    records = malformed(seed, 1, 20)
    assert len(set(records)) == len(records)
    for record in records:
        with pytest.raises(DecodeError):
            decode_news(record)
