"""Decoding answers from recorded engine outputs: distributions, and every fault with its kind."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from schemas.enums import Direction
from schemas.errors import ErrorKind
from workers.answers import answer_of, label_distributions, object_distributions
from workers.calibration import Calibration, HeadCalibration
from workers.engine import RequestError
from workers.prompts import load_tokenizer
from workers.sim_engine import TOKENIZER

HEADS = {"direction": {"bullish": 11, "bearish": 12, "neutral": 13}, "relevance": {"high": 21, "low": 22}}
TOKENS = [12, 21]
SCORES = [
    # What vLLM gives: every label of the extractor at every step, whichever head has its turn.
    {11: math.log(0.1), 12: math.log(0.2), 13: math.log(0.1), 21: -9.0, 22: -11.0},
    {11: -8.0, 12: -9.0, 13: -12.0, 21: math.log(0.3), 22: math.log(0.1)},
]
VALUES = {"direction": ["bullish", "bearish", "neutral"], "event_type": ["earnings", "other"]}
GOOD = '{"direction":"bearish","event_type":"earnings"}'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Load a real byte-level BPE."""
    return load_tokenizer(TOKENIZER.read_bytes(), "sim")


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text, special tokens in it as control tokens."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_every_head_is_decoded_at_its_own_step() -> None:
    """Each head's distribution comes from its step and its labels alone, shared out in proportion."""
    raw = label_distributions(TOKENS, SCORES, HEADS)
    assert raw["direction"] == pytest.approx({"bullish": 0.25, "bearish": 0.5, "neutral": 0.25})
    assert raw["relevance"] == pytest.approx({"high": 0.75, "low": 0.25})


@given(scores=st.lists(st.floats(-1000, 0), min_size=3, max_size=3))
def test_label_distribution(scores: list[float]) -> None:
    """Any finite log probabilities give a distribution that sums to 1 and keeps their order."""
    heads = {"direction": HEADS["direction"]}
    raw = label_distributions([11], [dict(zip((11, 12, 13), scores, strict=True))], heads)["direction"]
    assert math.isclose(sum(raw.values()), 1.0)
    best = ("bullish", "bearish", "neutral")[scores.index(max(scores))]
    assert raw[best] == max(raw.values())


def changed(step: int, token: int, score: float | None) -> list[dict[int, float]]:
    """Return the recorded scores with one of them replaced or taken out."""
    scores = [dict(each) for each in SCORES]
    if score is None:
        del scores[step][token]
    else:
        scores[step][token] = score
    return scores


@pytest.mark.parametrize(
    ("tokens", "scores", "kind", "retryable"),
    [
        ([], [], ErrorKind.BAD_ANSWER, True),
        ([12], SCORES[:1], ErrorKind.CUT_ANSWER, False),
        ([12, 13], SCORES, ErrorKind.UNKNOWN_LABEL, False),
        ([99, 21], SCORES, ErrorKind.UNKNOWN_LABEL, False),
        (TOKENS, SCORES[:1], ErrorKind.BAD_PROBABILITY, True),
        (TOKENS, changed(0, 12, math.nan), ErrorKind.BAD_PROBABILITY, True),
        (TOKENS, changed(1, 22, math.nan), ErrorKind.BAD_PROBABILITY, True),
        (TOKENS, changed(1, 21, math.inf), ErrorKind.BAD_PROBABILITY, True),
        (TOKENS, changed(0, 13, None), ErrorKind.BAD_PROBABILITY, True),
        (TOKENS, [dict.fromkeys(SCORES[0], -math.inf)] * 2, ErrorKind.BAD_PROBABILITY, True),
    ],
)
def test_labels_that_cannot_be_trusted(
    tokens: list[int], scores: Sequence[dict[int, float]], kind: ErrorKind, *, retryable: bool
) -> None:
    """Each fault of a label answer has its kind, and only what another run can mend is tried again."""
    with pytest.raises(RequestError) as caught:
        label_distributions(tokens, scores, HEADS)
    failure = caught.value.failure(5)
    assert (failure.request_id, failure.kind, failure.retryable) == (5, kind, retryable)


def test_a_label_may_be_impossible() -> None:
    """A label of probability zero is an answer like any other, as long as another label has some."""
    raw = label_distributions(TOKENS, changed(0, 13, -math.inf), HEADS)
    assert raw["direction"] == pytest.approx({"bullish": 1 / 3, "bearish": 2 / 3, "neutral": 0.0})


def test_json_probabilities_are_those_of_the_values(tokenizer: Tokenizer) -> None:
    """The probability of a value is the product over the tokens that spell it; the rest is for the other values."""
    ids = encode(tokenizer, GOOD)
    spans, position = [], 0
    for count in range(len(ids)):
        end = len(tokenizer.decode(ids[: count + 1]))
        spans.append((position, end))
        position = end
    start = GOOD.index("bearish")
    overlapping = [s < start + len("bearish") and e > start for s, e in spans]
    assert 0 < sum(overlapping) < len(ids)
    logprobs = [math.log(0.5) if hit else -20.0 for hit in overlapping]
    raw = object_distributions(ids, logprobs, tokenizer, VALUES)
    written = 0.5 ** sum(overlapping)
    rest = (1 - written) / 2
    assert raw["direction"] == pytest.approx({"bearish": written, "bullish": rest, "neutral": rest})
    assert raw["event_type"]["earnings"] < 1e-6
    assert sum(raw["event_type"].values()) == pytest.approx(1)


def test_the_end_of_the_sequence_does_not_count(tokenizer: Tokenizer) -> None:
    """A closing control token is no part of the text."""
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    ids = [*encode(tokenizer, GOOD), end]
    raw = object_distributions(ids, [0.0] * len(ids), tokenizer, VALUES)
    assert raw["direction"] == {"bearish": 1.0, "bullish": 0.0, "neutral": 0.0}


@pytest.mark.parametrize(
    ("text", "cut", "kind"),
    [
        (GOOD[:-1], True, ErrorKind.CUT_ANSWER),
        (GOOD[:20], True, ErrorKind.CUT_ANSWER),
        (GOOD[:20], False, ErrorKind.BAD_ANSWER),
        (GOOD + "}", False, ErrorKind.BAD_ANSWER),
        ('{"direction":"sideways","event_type":"other"}', False, ErrorKind.UNKNOWN_LABEL),
        ('{"direction":"bullish","event_type":"merger"}', False, ErrorKind.UNKNOWN_LABEL),
        ('{"direction":"bullish","event_type":7}', False, ErrorKind.BAD_ANSWER),
        ('{"direction":"bullish"}', False, ErrorKind.BAD_ANSWER),
        ('{"direction":"bullish","event_type":"other","note":"x"}', False, ErrorKind.BAD_ANSWER),
        ('["bullish"]', False, ErrorKind.BAD_ANSWER),
        ("\ufffd", False, ErrorKind.BAD_ANSWER),
    ],
)
def test_json_that_is_not_what_was_asked_for(tokenizer: Tokenizer, text: str, kind: ErrorKind, *, cut: bool) -> None:
    """Cut, foreign or embellished JSON has its kind, and running it again would not mend it."""
    ids = encode(tokenizer, text)
    with pytest.raises(RequestError) as caught:
        object_distributions(ids, [0.0] * len(ids), tokenizer, VALUES, cut=cut)
    failure = caught.value.failure(5)
    assert (failure.kind, failure.retryable) == (kind, False)


def test_an_empty_output_is_tried_again(tokenizer: Tokenizer) -> None:
    """An engine that ends a request without a token had trouble of its own."""
    with pytest.raises(RequestError) as caught:
        object_distributions([], [], tokenizer, VALUES)
    assert (caught.value.kind, caught.value.retryable) == (ErrorKind.BAD_ANSWER, True)


@pytest.mark.parametrize("logprob", [math.nan, math.inf])
def test_json_with_a_probability_that_is_no_number(tokenizer: Tokenizer, logprob: float) -> None:
    """Not-a-number from the engine is a bad probability, and worth another run."""
    ids = encode(tokenizer, GOOD)
    with pytest.raises(RequestError, match="no number") as caught:
        object_distributions(ids, [logprob] * len(ids), tokenizer, VALUES)
    assert (caught.value.kind, caught.value.retryable) == (ErrorKind.BAD_PROBABILITY, True)


def test_json_with_too_few_probabilities(tokenizer: Tokenizer) -> None:
    """Each token needs its own probability."""
    with pytest.raises(RequestError, match="probabilities") as caught:
        object_distributions(encode(tokenizer, GOOD), [0.0], tokenizer, VALUES)
    assert caught.value.kind is ErrorKind.BAD_PROBABILITY


RAW = {
    "direction": {"bullish": 0.6, "bearish": 0.3, "neutral": 0.1},
    "event_type": {"earnings": 0.2, "other": 0.8},
}


def test_an_answer_without_a_calibration() -> None:
    """What the model said stands in both places, and no calibration is claimed."""
    answer = answer_of(RAW, None)
    assert answer.direction is Direction.BULLISH
    assert answer.probabilities == {Direction(label): p for label, p in RAW["direction"].items()}
    assert (answer.heads, answer.raw, answer.calibration_id) == ({"event_type": RAW["event_type"]}, RAW, "")
    assert (answer.event_type, answer.event_type_probability) == ("other", 0.8)


def test_an_answer_goes_through_its_calibration() -> None:
    """Direction and heads are calibrated, the label follows the calibrated ones, and raw keeps the model's own."""
    priors = [math.log(0.6), math.log(0.1), math.log(0.3)]
    head = HeadCalibration(labels=["bullish", "bearish", "neutral"], log_priors=priors)
    calibration = Calibration(model_revision="m", prompt_version="p", heads={"direction": head})
    answer = answer_of(RAW, calibration)
    assert answer.direction is Direction.BEARISH
    assert answer.probabilities == pytest.approx({"bullish": 3 / 13, "bearish": 9 / 13, "neutral": 1 / 13})
    assert answer.raw == RAW
    assert answer.heads["event_type"] == RAW["event_type"]
    assert answer.calibration_id == calibration.id


def test_a_calibration_for_other_labels_is_a_bad_probability() -> None:
    """A distribution that its calibration cannot take gives no signal."""
    head = HeadCalibration(labels=["up", "down"], log_priors=[0.0, 0.0])
    calibration = Calibration(model_revision="m", prompt_version="p", heads={"direction": head})
    with pytest.raises(RequestError) as caught:
        answer_of(RAW, calibration)
    assert caught.value.kind is ErrorKind.BAD_PROBABILITY
