from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.ledger import Outcome, account
from tests.chaos.make import NEWS, expired, signal, source

INPUTS = {(NEWS, 0): [0, 1, 2, 4, 5]}
"""Offset 3 is a hole, as a transaction's marker leaves one."""


def complete() -> list[Outcome]:
    """Return one outcome for every input."""
    return [signal(offset, offset) for offset in INPUTS[NEWS, 0]]


def test_a_complete_run_has_nothing_to_report() -> None:
    """Every offset with one outcome: nothing is lost, double or strange, and a hole is no loss."""
    ledger = account(INPUTS, complete())
    assert (ledger.events, ledger.outcomes) == (5, {"signal": 5})
    assert not (ledger.lost)
    assert not (ledger.duplicates)
    assert not (ledger.conflicts)
    assert not (ledger.phantoms)


@given(st.sampled_from([0, 1, 2, 4, 5]))
def test_a_lost_offset_is_found_wherever_it_is(lost: int) -> None:
    """An input without any outcome is lost, at the beginning, in the middle and at the end."""
    ledger = account(INPUTS, [one for one in complete() if one.source.offset != lost])
    assert ledger.lost == [source(lost)]


def test_a_partition_without_any_outcome_is_lost_whole() -> None:
    """Inputs are counted from the topics, so a partition that nobody read is seen."""
    ledger = account({**INPUTS, (NEWS, 1): [0, 1]}, complete())
    assert ledger.lost == [source(0, 1), source(1, 1)]


def test_the_same_signal_twice_is_a_duplicate() -> None:
    """A repeated signal id counts once for each repeat, with the outcome just before it."""
    again = [signal(2, 9), signal(2, 12)]
    ledger = account(INPUTS, [*again, *complete()])
    assert [repeat.again for repeat in ledger.duplicates] == again
    assert [repeat.first for repeat in ledger.duplicates] == [signal(2, 2), again[0]]
    assert not ledger.conflicts


def test_an_expired_record_twice_is_a_duplicate() -> None:
    """Records without an id of their own are told by their source."""
    ledger = account(INPUTS, [*complete()[1:], expired(0, 1), expired(0, 2)])
    assert len(ledger.duplicates) == 1


def test_a_signal_and_an_expired_record_are_a_conflict() -> None:
    """Two ends of one event that differ are no duplicate: a consumer cannot drop one of them by its id."""
    ledger = account(INPUTS, [*complete(), expired(4, 8)])
    assert [(r.first.kind, r.again.kind) for r in ledger.conflicts] == [("signal", "expired")]
    assert not ledger.duplicates


def test_two_signal_ids_of_one_event_are_a_conflict() -> None:
    """One event has one outcome id."""
    assert len(account(INPUTS, [*complete(), signal(4, 8, id="another")]).conflicts) == 1


def test_a_partial_signal_and_the_whole_one_are_neither() -> None:
    """A filing may give a signal of what was read so far; the whole one with an id of its own is the outcome."""
    partial = signal(4, 3, id="partial", partial=True)
    ledger = account(INPUTS, [partial, *complete()])
    assert not (ledger.duplicates)
    assert not (ledger.conflicts)
    assert not (ledger.lost)
    assert ledger.partial_only == 0


def test_a_partial_signal_alone_is_counted_apart() -> None:
    """An event that never got more than a partial reading is not lost, and not passed over in silence."""
    outcomes = [one for one in complete() if one.source.offset != 4]
    ledger = account(INPUTS, [*outcomes, signal(4, 3, partial=True)])
    assert (ledger.partial_only, ledger.lost) == (1, [])


def test_an_outcome_of_no_input_is_a_phantom() -> None:
    """An outcome of a hole, or of another topic, is reported."""
    strangers = [signal(3, 3), signal(0, 3, partition=7)]
    assert account(INPUTS, [*complete(), *strangers]).phantoms == strangers


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=40), st.integers())
def test_nothing_is_counted_twice_or_left_out(drawn: list[tuple[int, int]], seed: int) -> None:
    """Events are lost or done, outcomes are first ones or repeats, in any order of reading."""
    outcomes = [signal(offset, at) for offset, at in drawn]
    random.Random(seed).shuffle(outcomes)
    ledger = account({(NEWS, 0): range(10)}, outcomes)
    assert len(ledger.lost) + len(ledger.completions) == ledger.events == 10
    assert len(ledger.completions) + len(ledger.duplicates) == len(outcomes)
    assert all(a.at_ms <= b.at_ms for a, b in pairwise(ledger.completions))
    most = Counter(offset for offset, _ in drawn)
    assert len(ledger.duplicates) == sum(n - 1 for n in most.values())
