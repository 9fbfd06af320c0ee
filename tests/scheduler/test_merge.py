"""Merging the answers about a filing's pieces: order does not matter, sure pieces count, nothing is made up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.merge import MOST_EVIDENCE, Reading, confidence, merge
from schemas.enums import Direction
from schemas.frames import Answer

BULLISH, BEARISH, NEUTRAL = Direction.BULLISH, Direction.BEARISH, Direction.NEUTRAL
EVEN = {BULLISH: 1 / 3, BEARISH: 1 / 3, NEUTRAL: 1 / 3}


def _answer(bullish: float, bearish: float, neutral: float | None = None, **heads: dict[str, float]) -> Answer:
    spread = {BULLISH: bullish, BEARISH: bearish, NEUTRAL: 1 - bullish - bearish if neutral is None else neutral}
    return Answer(direction=max(spread, key=lambda d: spread[d]), probabilities=spread, heads=heads)


def _reading(answer: Answer, *, part: int = 1, chunk: int = 0, tokens: int = 100) -> Reading:
    return Reading(part, chunk, tokens, answer)


shares = st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(lambda v: [x / sum(v) for x in v])
readings = st.lists(
    st.builds(lambda s, t, e: (s, t, e), shares, st.integers(1, 2000), st.sampled_from(["merger", "other", "results"])),
    min_size=1,
    max_size=12,
).map(
    lambda rows: [
        _reading(_answer(*s, event_type={e: 0.9, "rest": 0.1}), part=1 + n // 4, chunk=n % 4, tokens=t)
        for n, (s, t, e) in enumerate(rows)
    ]
)


@given(readings, st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(pieces: list[Reading], order: random.Random) -> None:
    """Workers answer in any order; a filing that is read twice must give the same signal to the last bit."""
    shuffled = list(pieces)
    order.shuffle(shuffled)
    assert merge(shuffled) == merge(pieces)


@given(readings)
def test_a_merged_distribution_is_one_and_within_its_pieces(pieces: list[Reading]) -> None:
    """It sums to 1, and no label is more or less probable than in every single piece."""
    merged = merge(pieces).probabilities
    assert sum(merged.values()) == pytest.approx(1)
    for direction in Direction:
        given_ = [piece.answer.probabilities[direction] for piece in pieces]
        assert min(given_) - 1e-9 <= merged[direction] <= max(given_) + 1e-9


def test_one_piece_keeps_its_answer_to_the_last_bit() -> None:
    """A short filing's signal is what the model said, also where an answer names one direction alone."""
    answer = Answer(direction=BEARISH, probabilities={BEARISH: 0.3}, event_type="results", event_type_probability=0.7)
    merged = merge([_reading(answer)])
    assert (merged.direction, merged.probabilities) == (BEARISH, {BEARISH: 0.3})
    assert [(e.event_type, e.probability, e.pieces) for e in merged.events] == [("results", 0.7, [(1, 0)])]


def test_sure_pieces_outweigh_undecided_ones_and_long_ones_short_ones() -> None:
    """Pages on which the model shrugs do not pull a clear one to the middle; a page outweighs a line."""
    clear, shrug = _answer(0.9, 0.05), Answer(direction=NEUTRAL, probabilities=EVEN)
    merged = merge([_reading(clear), *(_reading(shrug, chunk=n) for n in range(1, 10))])
    assert merged.probabilities[BULLISH] == pytest.approx(0.9)
    page, line = _reading(_answer(0.9, 0.05), tokens=1000), _reading(_answer(0.05, 0.9), chunk=1, tokens=10)
    assert merge([page, line]).direction is BULLISH


def test_only_undecided_pieces_count_by_their_tokens() -> None:
    """Where nothing is sure at all, the mean is still defined."""
    shrug = Answer(direction=NEUTRAL, probabilities=EVEN)
    merged = merge([_reading(shrug), _reading(shrug, chunk=1)])
    assert merged.probabilities == pytest.approx(EVEN)


def test_confidence_is_one_for_certain_and_zero_for_even() -> None:
    """What an answer leaves out counts as even over the labels that it does not name."""
    assert confidence({"a": 1.0, "b": 0.0}, 2) == 1
    assert confidence({"a": 0.5, "b": 0.5}, 2) == 0
    assert confidence({"a": 1 / 3}, 3) == pytest.approx(0)
    assert 0 < confidence({"a": 0.8}, 3) < confidence({"a": 0.8, "b": 0.2}, 3) < 1


def test_events_are_the_union_with_their_pieces() -> None:
    """Each event type has its highest probability and the surest pieces; silence is none unless it is all there is."""

    def piece(label: str, probability: float, chunk: int) -> Reading:
        return _reading(_answer(0.2, 0.2, event_type={label: probability, "rest": 1 - probability}), chunk=chunk)

    pieces = [piece("merger", 0.6, 0), piece("merger", 0.9, 1), piece("results", 0.8, 2), piece("other", 0.95, 3)]
    merged = merge(pieces)
    assert [(e.event_type, e.probability, e.pieces) for e in merged.events] == [
        ("merger", 0.9, [(1, 1), (1, 0)]),
        ("results", 0.8, [(1, 2)]),
    ]
    assert [e.event_type for e in merge(pieces[3:]).events] == ["other"]
    many = merge([piece("merger", 0.6, n) for n in range(50)])
    assert len(many.events[0].pieces) == MOST_EVIDENCE


def test_one_page_with_guidance_is_not_outvoted_by_silent_ones() -> None:
    """Ninety pages that say nothing of guidance do not hide the one that raises it."""
    silent = [_reading(_answer(0.2, 0.2, guidance={"raised": 0.02, "none": 0.98}), chunk=n) for n in range(90)]
    raised = _reading(_answer(0.8, 0.1, guidance={"raised": 0.9, "none": 0.1}), part=2)
    assert merge([*silent, raised]).guidance == "raised"
    assert merge(silent).guidance == "none"
    assert merge([_reading(_answer(0.8, 0.1))]).guidance is None


def test_pieces_that_contradict_each_other_are_reported() -> None:
    """Two sure pieces with opposite directions, or guidance both raised and cut, are named with their parts."""
    up = _reading(_answer(0.8, 0.1, guidance={"raised": 0.7, "cut": 0.3}), part=1)
    down = _reading(_answer(0.1, 0.85, guidance={"raised": 0.1, "cut": 0.9}), part=3)
    unsure = _reading(_answer(0.1, 0.5), part=2)
    assert merge([up, down, unsure]).conflicts == [
        "direction: bearish 0.85 in part 3, bullish 0.80 in part 1",
        "guidance: cut 0.90 in part 3, raised 0.70 in part 1",
    ]
    assert merge([up, unsure]).conflicts == []
    assert merge([up, _reading(_answer(0.05, 0.05), part=2)]).conflicts == []


def test_pieces_with_other_heads_merge_too() -> None:
    """Parts of different classes may be asked different things: a head is merged over the pieces that have it."""
    headline = _reading(_answer(0.7, 0.1, relevance={"high": 0.9, "low": 0.1}), part=1)
    filing = _reading(_answer(0.5, 0.3, guidance={"raised": 0.8, "none": 0.2}), part=2)
    merged = merge([headline, filing])
    assert merged.heads == {"relevance": {"high": 0.9, "low": 0.1}, "guidance": {"raised": 0.8, "none": 0.2}}
