"""Merges what a model said about the pieces of a filing into one reading, the same in any order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log

from schemas.enums import Direction
from schemas.frames import Answer

EVENT_TYPE = "event_type"
GUIDANCE = "guidance"
SILENT = frozenset({"none", "other", "no", "unclear", "not_mentioned"})
"""Labels with which a piece says that it has nothing to say. Most pages of a filing do, and must not outvote the one
that says something."""
SURE = 0.6
"""A piece contradicts another one when both give their label at least this probability."""
MOST_EVENTS = 16
MOST_EVIDENCE = 4
"""Pieces that are quoted for one event type, the surest first."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer to one piece.

    Args:
        part: number of the part that the piece is from.
        chunk: its place among the part's pieces.
        tokens: of the piece, without those that it shares with the piece before.
        answer: what the model said.
    """

    part: int
    chunk: int
    tokens: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that pieces of the filing report.

    Args:
        probability: highest over those pieces.
        pieces: part and chunk of those, the surest first, at most `MOST_EVIDENCE`.
    """

    event_type: str
    probability: float
    pieces: list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """One filing's reading; the fields are those of `schemas.records.Signal` and `schemas.records.FilingReading`."""

    direction: Direction
    probabilities: dict[Direction, float]
    events: list[Event]
    guidance: str | None
    heads: dict[str, dict[str, float]] = field(default_factory=dict)
    raw: dict[str, dict[str, float]] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)
    calibration_id: str = ""


def merge(readings: Iterable[Reading]) -> Merged:
    """Merge at least one reading.

    The distribution of a head is ``sum(w * p) / sum(w)`` over the pieces, with ``w = tokens * confidence`` and
    ``confidence = 1 - entropy(p) / log(labels)``. Tokens, because a page says more than a line; confidence, because a
    page of boilerplate on which the model shrugs is no vote for the middle. A piece whose label is silent ("none",
    "other") has no vote where another one says something.
    """
    ordered = sorted(readings, key=lambda reading: (reading.part, reading.chunk))
    answers = [reading.answer for reading in ordered]
    tokens = [reading.tokens for reading in ordered]
    spread = weighted([_directions(answer) for answer in answers], tokens, len(Direction))
    probabilities = {direction: spread[direction] for direction in Direction if direction in spread}
    names = list(dict.fromkeys(name for answer in answers for name in answer.heads))
    heads = {name: _head([a.heads.get(name, {}) for a in answers], tokens) for name in names}
    raw_names = list(dict.fromkeys(name for answer in answers for name in answer.raw))
    raw = {name: _head([a.raw.get(name, {}) for a in answers], tokens) for name in raw_names}
    events = _events(ordered)
    guidance = heads.get(GUIDANCE)
    return Merged(
        direction=max(probabilities, key=lambda d: probabilities[d]) if len(answers) > 1 else answers[0].direction,
        probabilities=probabilities,
        events=events,
        guidance=max(guidance, key=lambda label: guidance[label]) if guidance else None,
        heads=heads,
        raw=raw,
        conflicts=_conflicts(ordered),
        calibration_id="+".join(sorted({a.calibration_id for a in answers if a.calibration_id})),
    )


def confidence(distribution: Mapping[str, float], labels: int) -> float:
    """Return 1 for a certain distribution and 0 for an even one; what it leaves out is even over the missing labels."""
    if labels < 2:
        return 1.0
    values = [p for p in distribution.values() if p > 0]
    missing, rest = labels - len(distribution), 1 - sum(values)
    if missing > 0 and rest > 0:
        values += [rest / missing] * missing
    entropy = -sum(p * log(p) for p in values)
    return min(max(1 - entropy / log(labels), 0.0), 1.0)


def weighted(spreads: Sequence[Mapping[str, float]], tokens: Sequence[int], labels: int) -> dict[str, float]:
    """Return the mean of distributions, weighted by tokens and confidence; one alone stays exactly as it is."""
    if len(spreads) == 1:
        return dict(spreads[0])
    weights = [count * confidence(spread, labels) for spread, count in zip(spreads, tokens, strict=True)]
    if not sum(weights):
        weights = [float(max(count, 1)) for count in tokens]
    total: dict[str, float] = {}
    for spread, weight in zip(spreads, weights, strict=True):
        for label, probability in spread.items():
            total[label] = total.get(label, 0.0) + weight * probability
    whole = sum(total.values())
    return {label: value / whole for label, value in total.items()} if whole else dict(spreads[0])


def _directions(answer: Answer) -> dict[str, float]:
    return {direction.value: probability for direction, probability in answer.probabilities.items()}


def _head(spreads: Sequence[Mapping[str, float]], tokens: Sequence[int]) -> dict[str, float]:
    """Merge one head over the pieces that were asked about it."""
    asked = [(spread, count) for spread, count in zip(spreads, tokens, strict=True) if spread]
    spoke = [(spread, count) for spread, count in asked if _top(spread) not in SILENT]
    chosen = spoke or asked
    labels = max(len(spread) for spread, _ in asked)
    return weighted([spread for spread, _ in chosen], [count for _, count in chosen], labels)


def _top(spread: Mapping[str, float]) -> str:
    return max(spread, key=lambda label: spread[label])


def _events(readings: Sequence[Reading]) -> list[Event]:
    """Return what the pieces report, most probable first; a silent label only where nothing else is said."""
    found: dict[str, list[tuple[float, int, int]]] = {}
    for reading in readings:
        said = _event(reading.answer)
        if said is not None:
            found.setdefault(said[0], []).append((-said[1], reading.part, reading.chunk))
    spoken = {label: pieces for label, pieces in found.items() if label not in SILENT} or found
    events = [
        Event(label, -min(pieces)[0], [(part, chunk) for _, part, chunk in sorted(pieces)[:MOST_EVIDENCE]])
        for label, pieces in spoken.items()
    ]
    return sorted(events, key=lambda event: (-event.probability, event.event_type))[:MOST_EVENTS]


def _event(answer: Answer) -> tuple[str, float] | None:
    if spread := answer.heads.get(EVENT_TYPE):
        label = _top(spread)
        return label, spread[label]
    if answer.event_type is None:
        return None
    return answer.event_type, 1.0 if answer.event_type_probability is None else answer.event_type_probability


def _conflicts(readings: Sequence[Reading]) -> list[str]:
    """Return the heads on which two pieces are sure of different things, each with what they say and where."""
    conflicts: list[str] = []
    for head in ("direction", GUIDANCE):
        sure: dict[str, tuple[float, int]] = {}
        for reading in readings:
            answer = reading.answer
            spread = _directions(answer) if head == "direction" else answer.heads.get(head, {})
            if not spread:
                continue
            label = _top(spread)
            if label in SILENT or label == Direction.NEUTRAL or spread[label] < SURE:
                continue
            if label not in sure or spread[label] > sure[label][0]:
                sure[label] = (spread[label], reading.part)
        if len(sure) > 1:
            said = ", ".join(f"{label} {p:.2f} in part {part}" for label, (p, part) in sorted(sure.items()))
            conflicts.append(f"{head}: {said}")
    return conflicts
