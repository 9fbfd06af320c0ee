"""The ledger: what became of every input offset. Pure: records in, verdict out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Source(NamedTuple):
    """An input record."""

    topic: str
    partition: int
    offset: int


class Outcome(NamedTuple):
    """What one output record says about one input record. A filing's signal gives one of these per part.

    Args:
        kind: ``signal``, ``expired`` or ``dead_letter``.
        id: signal id; empty for the others, which have none of their own.
        writer: id and life of the scheduler that wrote it, ``scheduler-1/3f…``; empty where the record does not say.
        at_ms: the broker's time of append.
        partial: a filing's signal of what was read so far; the whole one comes later, with an id of its own.
        consumed_ns, dispatched_ns: stamps, 0 where there are none.
    """

    source: Source
    kind: str
    id: str
    writer: str
    at_ms: int
    partial: bool = False
    consumed_ns: int = 0
    dispatched_ns: int = 0


class Repeat(NamedTuple):
    """An outcome that should not be there, and the one before it."""

    first: Outcome
    again: Outcome


@dataclass(kw_only=True)
class Ledger:
    """The verdict.

    Args:
        events: input records.
        outcomes: input records with an outcome, per kind.
        lost: input records without any outcome.
        duplicates: the same outcome of the same input record once more.
        conflicts: a second outcome that differs from the first: a signal and an expired record, or two ids.
        phantoms: outcomes of offsets that are not on the input topics.
        partial_only: input records whose only outcome is a filing's signal of what was read so far.
        completions: the first outcome of each input record, in the order of append.
    """

    events: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    lost: list[Source] = field(default_factory=list)
    duplicates: list[Repeat] = field(default_factory=list)
    conflicts: list[Repeat] = field(default_factory=list)
    phantoms: list[Outcome] = field(default_factory=list)
    partial_only: int = 0
    completions: list[Outcome] = field(default_factory=list)


def account(inputs: Mapping[tuple[str, int], Sequence[int]], outcomes: Iterable[Outcome]) -> Ledger:
    """Settle every input offset.

    Args:
        inputs: the offsets that are on each input partition, holes left out.
        outcomes: everything on the output topics, in any order.
    """
    by_source: defaultdict[Source, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_source[outcome.source].append(outcome)
    ledger = Ledger()
    counts: defaultdict[str, int] = defaultdict(int)
    for (topic, partition), offsets in inputs.items():
        ledger.events += len(offsets)
        for offset in offsets:
            source = Source(topic, partition, offset)
            found = by_source.pop(source, None)
            if not found:
                ledger.lost.append(source)
                continue
            found.sort(key=lambda outcome: outcome.at_ms)
            ledger.completions.append(found[0])
            counts[_settle(ledger, found)] += 1
    for strangers in by_source.values():
        ledger.phantoms += strangers
    ledger.outcomes = dict(sorted(counts.items()))
    ledger.completions.sort(key=lambda outcome: outcome.at_ms)
    return ledger


def _settle(ledger: Ledger, found: list[Outcome]) -> str:
    """Judge the outcomes of one input record, oldest first; returns the kind that counts for it."""
    seen: dict[tuple[str, str], Outcome] = {}
    whole: Outcome | None = None
    for outcome in found:
        known = seen.get((outcome.kind, outcome.id))
        seen[outcome.kind, outcome.id] = outcome
        if known is not None:
            # Each repeat is held against the one just before it: what happened between these two explains it.
            ledger.duplicates.append(Repeat(known, outcome))
            continue
        if outcome.partial:
            continue
        if whole is not None:
            ledger.conflicts.append(Repeat(whole, outcome))
        else:
            whole = outcome
    if whole is None:
        ledger.partial_only += 1
        return found[0].kind
    return whole.kind
