"""Decoding answers: distributions, products over the tokens of a value, and everything that cannot be trusted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from schemas.enums import Direction
from schemas.errors import ErrorKind
from workers.answers import json_answer, label_answer
from workers.engine import RequestError
from workers.prompts import load_tokenizer
from workers.sim_engine import TOKENIZER

LABELS = {Direction.BULLISH: 11, Direction.BEARISH: 12, Direction.NEUTRAL: 13}
EVENTS = ["earnings", "other"]
GOOD = '{"direction":"bearish","event_type":"earnings"}'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Load a real byte-level BPE."""
    return load_tokenizer(TOKENIZER.read_bytes(), "sim")


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text, special tokens in it as control tokens."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@given(scores=st.lists(st.floats(-1000, 0), min_size=3, max_size=3))
def test_label_distribution(scores: list[float]) -> None:
    """Any finite log probabilities give a distribution that sums to 1 and names its own maximum."""
    answer = label_answer(dict(zip(LABELS.values(), scores, strict=True)), LABELS)
    assert math.isclose(sum(answer.probabilities.values()), 1.0)
    assert answer.probabilities[answer.direction] == max(answer.probabilities.values())


def test_label_distribution_is_the_softmax() -> None:
    """Only the label tokens count: what other tokens would have got is shared out in proportion."""
    scores = {11: math.log(0.2), 12: math.log(0.1), 13: math.log(0.1), 99: math.log(0.6)}
    answer = label_answer(scores, LABELS)
    assert answer.direction is Direction.BULLISH
    assert math.isclose(answer.probabilities[Direction.BULLISH], 0.5)


@pytest.mark.parametrize(
    "scores", [{}, {11: -1.0, 12: -1.0}, {11: math.nan, 12: -1.0, 13: -1.0}, dict.fromkeys((11, 12, 13), -math.inf)]
)
def test_labels_without_probabilities(scores: dict[int, float]) -> None:
    """A label that is missing or has no number for a probability is a bad answer, never a made-up signal."""
    with pytest.raises(RequestError) as caught:
        label_answer(scores, LABELS)
    assert caught.value.kind is ErrorKind.BAD_ANSWER


def test_json_probabilities_are_those_of_the_values(tokenizer: Tokenizer) -> None:
    """The probability of a field is the product over the tokens that spell its value; other tokens do not count."""
    ids = encode(tokenizer, GOOD)
    spans, position = [], 0
    for count in range(len(ids)):
        end = len(tokenizer.decode(ids[: count + 1]))
        spans.append((position, end))
        position = end
    start = GOOD.index("bearish")
    overlapping = [s < start + len("bearish") and e > start for s, e in spans]
    assert 0 < sum(overlapping) < len(ids)
    answer = json_answer(ids, [math.log(0.5) if hit else -20.0 for hit in overlapping], tokenizer, EVENTS)
    assert answer.direction is Direction.BEARISH
    assert answer.event_type == "earnings"
    assert math.isclose(answer.probabilities[Direction.BEARISH], 0.5 ** sum(overlapping))
    assert answer.event_type_probability is not None
    assert answer.event_type_probability < 1e-6


def test_the_end_of_the_sequence_does_not_count(tokenizer: Tokenizer) -> None:
    """A closing control token is no part of the text."""
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    ids = [*encode(tokenizer, GOOD), end]
    answer = json_answer(ids, [0.0] * len(ids), tokenizer, EVENTS)
    assert answer.probabilities == {Direction.BEARISH: 1.0}


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD[:-1],
        GOOD[:20],
        GOOD + "}",
        '{"direction":"sideways","event_type":"other"}',
        '{"direction":"bullish","event_type":"merger"}',
        '{"direction":"bullish"}',
        '{"direction":"bullish","event_type":"other","note":"x"}',
        '["bullish"]',
        "\ufffd",
    ],
)
def test_json_that_is_not_what_was_asked_for(tokenizer: Tokenizer, text: str) -> None:
    """Cut, foreign or embellished JSON is a bad answer that running again will not mend."""
    ids = encode(tokenizer, text)
    with pytest.raises(RequestError) as caught:
        json_answer(ids, [0.0] * len(ids), tokenizer, EVENTS)
    failure = caught.value.failure(5)
    assert (failure.kind, failure.retryable) == (ErrorKind.BAD_ANSWER, False)


def test_json_with_a_probability_that_is_no_number(tokenizer: Tokenizer) -> None:
    """Not-a-number from the engine is a bad answer."""
    ids = encode(tokenizer, GOOD)
    with pytest.raises(RequestError, match="no number"):
        json_answer(ids, [math.nan] * len(ids), tokenizer, EVENTS)


def test_json_with_too_few_probabilities(tokenizer: Tokenizer) -> None:
    """Each token needs its own probability."""
    with pytest.raises(RequestError, match="probabilities"):
        json_answer(encode(tokenizer, GOOD), [0.0], tokenizer, EVENTS)
