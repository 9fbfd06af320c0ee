"""What the model said, turned into a direction with probabilities; anything that cannot be trusted is an error."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct
from tokenizers import Tokenizer

from schemas.enums import Direction
from schemas.errors import ErrorKind
from schemas.frames import Answer
from workers.engine import RequestError


class _Object(Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON answer."""

    direction: Direction
    event_type: str


_object = msgspec.json.Decoder(_Object)


def label_answer(logprobs: Mapping[int, float], labels: Mapping[Direction, int]) -> Answer:
    """Decode an answer of one label token.

    Args:
        logprobs: natural logarithm of the probability of each label token among all tokens.
        labels: token id per direction.

    Returns:
        the distribution over the labels alone, which sums to 1: whatever the model would have given to other
        tokens says nothing about the direction.

    Raises:
        RequestError: a label has no log probability, or one that is no number.
    """
    scores = {direction: logprobs.get(token_id, math.nan) for direction, token_id in labels.items()}
    top = max(scores.values())
    weights = {direction: math.exp(score - top) for direction, score in scores.items()}
    total = sum(weights.values())
    if not math.isfinite(total):
        raise RequestError(ErrorKind.BAD_ANSWER, "the label tokens have no finite probabilities")
    probabilities = {direction: weight / total for direction, weight in weights.items()}
    return Answer(direction=max(probabilities, key=probabilities.__getitem__), probabilities=probabilities)


def json_answer(
    token_ids: Sequence[int], logprobs: Sequence[float], tokenizer: Tokenizer, event_types: Sequence[str]
) -> Answer:
    """Decode an answer that is a small JSON object.

    Args:
        token_ids: the output.
        logprobs: natural logarithm of each output token's probability under the grammar.
        tokenizer: the model's.
        event_types: values that ``event_type`` may have.

    Returns:
        the chosen direction and event type; the probability of each is the product over the tokens that spell it.

    Raises:
        RequestError: the output is cut short, not that object, or has a probability that is no number.
    """
    if len(token_ids) != len(logprobs):
        raise RequestError(ErrorKind.BAD_ANSWER, f"{len(token_ids)} tokens came with {len(logprobs)} probabilities")
    ids = list(token_ids)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    try:
        value = _object.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise RequestError(ErrorKind.BAD_ANSWER, f"the answer is not the object that was asked for: {error}") from None
    if value.event_type not in event_types:
        raise RequestError(ErrorKind.BAD_ANSWER, "event_type is not one of those that were asked for")
    ends = [len(tokenizer.decode(ids[: count + 1], skip_special_tokens=True)) for count in range(len(ids))]
    return Answer(
        direction=value.direction,
        probabilities={value.direction: _probability("direction", text, ends, logprobs)},
        event_type=value.event_type,
        event_type_probability=_probability("event_type", text, ends, logprobs),
    )


def _probability(field: str, text: str, ends: Sequence[int], logprobs: Sequence[float]) -> float:
    """Multiply the probabilities of the tokens that overlap a field's value."""
    found = re.search(rf'"{field}"\s*:\s*"([^"]*)"', text)
    if found is None:
        raise RequestError(ErrorKind.BAD_ANSWER, f"{field} is not spelled out in the answer")
    start, end = found.span(1)
    starts = [0, *ends[:-1]]
    total = sum(
        logprob
        for logprob, token_start, token_end in zip(logprobs, starts, ends, strict=True)
        if token_start < end and token_end > start and token_end > token_start
    )
    probability = math.exp(min(total, 0.0)) if not math.isnan(total) else math.nan
    if math.isnan(probability):
        raise RequestError(ErrorKind.BAD_ANSWER, f"the probability of {field} is no number")
    return probability
