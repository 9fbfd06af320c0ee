"""What the model said, turned into distributions over labels; anything that cannot be trusted is a typed error.

Whether another run can help is decided here, per fault. At temperature 0 the same prompt gives the same tokens, so an
answer that is cut, malformed or outside its labels would only come back. Probabilities that are no numbers come from
the arithmetic of one batch on one machine, and an empty output from the engine's own trouble: those are tried again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import msgspec
from tokenizers import Tokenizer

from schemas.enums import Direction
from schemas.errors import ErrorKind
from schemas.frames import Answer
from workers.calibration import Calibration, CalibrationError, apply
from workers.engine import RequestError
from workers.extractor_files import DIRECTION, EVENT_TYPE

Distributions = dict[str, dict[str, float]]
"""Per head, the probability of each label."""

_object = msgspec.json.Decoder(dict[str, str])


def label_distributions(
    token_ids: Sequence[int], logprobs: Sequence[Mapping[int, float]], heads: Mapping[str, Mapping[str, int]]
) -> Distributions:
    """Decode an answer of one label token per head.

    Args:
        token_ids: the output.
        logprobs: per output token, the natural logarithm of the probability of each label token among all tokens.
        heads: per head, in the order of the answer, the token of each label.

    Returns:
        per head the distribution over its labels alone, which sums to 1: whatever the model would have given to other
        tokens says nothing about the label.

    Raises:
        RequestError: the output is empty or cut, has a token that is no label of its head, or a label has no
            probability.
    """
    if not token_ids:
        raise RequestError(ErrorKind.BAD_ANSWER, "the output is empty", retryable=True)
    if len(token_ids) < len(heads):
        raise RequestError(ErrorKind.CUT_ANSWER, f"{len(token_ids)} of {len(heads)} label tokens came")
    if len(logprobs) < len(heads):
        reason = f"{len(token_ids)} tokens came with {len(logprobs)} probabilities"
        raise RequestError(ErrorKind.BAD_PROBABILITY, reason, retryable=True)
    found: Distributions = {}
    for (head, labels), token_id, scores in zip(heads.items(), token_ids, logprobs, strict=False):
        if token_id not in labels.values():
            raise RequestError(ErrorKind.UNKNOWN_LABEL, f"token {token_id} is no label of the head {head}")
        found[head] = _softmax(head, {label: scores.get(label_id, math.nan) for label, label_id in labels.items()})
    return found


def object_distributions(
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    tokenizer: Tokenizer,
    heads: Mapping[str, Sequence[str]],
    *,
    cut: bool = False,
) -> Distributions:
    """Decode an answer that is a small JSON object.

    Args:
        token_ids: the output.
        logprobs: natural logarithm of each output token's probability.
        tokenizer: the model's.
        heads: per property the values that it may have.
        cut: the output limit ended the output.

    Returns:
        per property the probability of the value that was written, which is the product over the tokens that spell
        it; what is left is shared by the values that were not written, about which nothing is known.

    Raises:
        RequestError: the output is empty, cut, not that object, or has a probability that is no number.
    """
    if not token_ids:
        raise RequestError(ErrorKind.BAD_ANSWER, "the output is empty", retryable=True)
    if len(token_ids) != len(logprobs):
        reason = f"{len(token_ids)} tokens came with {len(logprobs)} probabilities"
        raise RequestError(ErrorKind.BAD_PROBABILITY, reason, retryable=True)
    ids = list(token_ids)
    text = tokenizer.decode(ids, skip_special_tokens=True)
    try:
        value = _object.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        if cut:
            raise RequestError(ErrorKind.CUT_ANSWER, f"the output limit of {len(ids)} tokens cut the answer") from None
        raise RequestError(ErrorKind.BAD_ANSWER, f"the answer is not the object that was asked for: {error}") from None
    if set(value) != set(heads):
        raise RequestError(ErrorKind.BAD_ANSWER, f"the answer has not exactly the properties {', '.join(heads)}")
    for head, label in value.items():
        if label not in heads[head]:
            raise RequestError(ErrorKind.UNKNOWN_LABEL, f"the value of {head} is not one of its labels")
    ends = [len(tokenizer.decode(ids[: count + 1], skip_special_tokens=True)) for count in range(len(ids))]
    found: Distributions = {}
    for head, labels in heads.items():
        written = _probability(head, text, ends, logprobs)
        rest = (1 - written) / (len(labels) - 1)
        found[head] = {label: written if label == value[head] else rest for label in labels}
    return found


def answer_of(raw: Distributions, calibration: Calibration | None) -> Answer:
    """Return the answer frame for distributions as the model gave them.

    Args:
        raw: per head; ``direction`` is among them.
        calibration: of this model and prompt, if there is one.

    Raises:
        RequestError: a distribution is not one that the calibration can take.
    """
    try:
        heads = apply(calibration, raw)
    except CalibrationError as error:
        raise RequestError(ErrorKind.BAD_PROBABILITY, str(error), retryable=True) from None
    probabilities = {Direction(label): probability for label, probability in heads.pop(DIRECTION).items()}
    event = _best(heads[EVENT_TYPE]) if EVENT_TYPE in heads else None
    return Answer(
        direction=max(probabilities, key=probabilities.__getitem__),
        probabilities=probabilities,
        event_type=event,
        event_type_probability=None if event is None else heads[EVENT_TYPE][event],
        heads=heads,
        raw=raw,
        calibration_id="" if calibration is None else calibration.id,
    )


def _best(distribution: Mapping[str, float]) -> str:
    return max(distribution, key=distribution.__getitem__)


def _softmax(head: str, scores: Mapping[str, float]) -> dict[str, float]:
    """Return the distribution over these scores; minus infinity is a probability of 0, unless all are."""
    top = max(scores.values())
    weights = {label: math.exp(score - top) if score < math.inf else math.nan for label, score in scores.items()}
    total = sum(weights.values())
    if not (math.isfinite(total) and math.isfinite(top)):
        reason = f"the labels of the head {head} have no finite probabilities"
        raise RequestError(ErrorKind.BAD_PROBABILITY, reason, retryable=True)
    return {label: weight / total for label, weight in weights.items()}


def _probability(field: str, text: str, ends: Sequence[int], logprobs: Sequence[float]) -> float:
    """Multiply the probabilities of the tokens that overlap a field's value."""
    found = re.search(rf'"{re.escape(field)}"\s*:\s*"([^"]*)"', text)
    if found is None:
        raise RequestError(ErrorKind.BAD_ANSWER, f"{field} is not spelled out in the answer")
    start, end = found.span(1)
    starts = [0, *ends[:-1]]
    total = sum(
        logprob
        for logprob, token_start, token_end in zip(logprobs, starts, ends, strict=True)
        if token_start < end and token_end > start and token_end > token_start
    )
    # Plus infinity and NaN are no logarithms of a probability; a sum of floats may end a hair above zero.
    if not total < math.inf:
        raise RequestError(ErrorKind.BAD_PROBABILITY, f"the probability of {field} is no number", retryable=True)
    return math.exp(min(total, 0.0))
