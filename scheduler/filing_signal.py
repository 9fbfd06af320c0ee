"""Writes the one signal of a filing from its parts and the readings of their chunks; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec
from msgspec import Struct

from scheduler.filings import ChunkSpan, Filing, MadeBy, Part
from scheduler.instruments import Instruments
from scheduler.merge import Event, Merged, Reading, merge
from scheduler.tokens import last_sentence_end
from scheduler.work import read_source
from schemas.enums import Direction, Stage
from schemas.identity import signal_id
from schemas.records import EventMention, Figure, FilingReading, Signal, SourceRecord, Span, Stamps

EVIDENCE_CHARS = 300
"""Of one quotation: a sentence or two."""
MOST_SIGNAL_FIGURES = 100
MOST_MISSING = 1_000
"""Numbers of missing parts that a signal lists; an event may claim to be one of two billion."""


class _Text(Struct):
    text: str = ""


_read_text = msgspec.json.Decoder(_Text).decode


def filing_signal(
    filing: Filing, *, final: bool, now_ns: int, class_names: Sequence[str], instruments: Instruments
) -> Signal:
    """Return the signal of a filing that has at least one reading.

    Args:
        filing: with its parts and readings.
        final: whether this is its outcome; otherwise it is what is read so far.
        now_ns: time of the signal, nanoseconds since the epoch.
        class_names: names of the service classes.
        instruments: finds those that the parts do not bring.
    """
    parts = [filing.current[number] for number in sorted(filing.current)]
    counting = sorted(filing.counting(), key=lambda one: (one[1].part, one[1].chunk))
    readings = [reading for _, reading, _ in counting]
    merged = merge(readings)
    event_id = event_id_of(filing)
    version = max(part.version for part in parts)
    model, revision, prompt_version = _made_by([made_by for *_, made_by in counting])
    first = parts[0]
    stamps = stamps_of(filing, now_ns)
    probabilities = merged.probabilities
    return Signal(
        signal_id=signal_id(event_id, version, revision, prompt_version + _variant(filing, final=final)),
        event_id=event_id,
        event_version=version,
        topic=first.whole.origin.topic,
        partition=first.whole.origin.partition,
        offset=first.whole.origin.offset,
        service_class=class_names[filing.class_index],
        direction=merged.direction,
        probabilities=probabilities,
        score=probabilities.get(Direction.BULLISH, 0.0) - probabilities.get(Direction.BEARISH, 0.0),
        model=model,
        model_revision=revision,
        prompt_version=prompt_version,
        deadline_ns=filing.deadline_ns,
        late=now_ns > filing.deadline_ns,
        stamps=stamps,
        instruments=_instruments(parts, instruments),
        event_type=merged.events[0].event_type if merged.events else None,
        event_type_probability=merged.events[0].probability if merged.events else None,
        calibration_id=merged.calibration_id,
        truncated=any(part.whole.truncated for part in parts),
        heads=merged.heads,
        raw=merged.raw,
        filing=_reading(filing, parts, readings, merged, final=final),
    )


def event_id_of(filing: Filing) -> str:
    """Return the event's own id where the filing has one part, and the accession where it has several."""
    return filing.key[3] if filing.parts > 1 else filing.records[-1].whole.event_id


def stamps_of(filing: Filing, now_ns: int) -> Stamps:
    """Return the stamps of a filing: each stage when its first chunk reached it, the last chunk's ``completed``."""
    oldest = min(filing.records, key=lambda part: (part.whole.event_time_ns, part.whole.queued_ns))
    stamps = oldest.whole.stamps(read_source(oldest.whole.original().value))
    wholes = [part.whole for part in filing.records]
    for stage, times in (
        (Stage.DISPATCHED, [w.dispatched_ns for w in wholes]),
        (Stage.ENGINE_STARTED, [w.engine_started_ns for w in wholes]),
        (Stage.FIRST_TOKEN, [w.first_token_ns for w in wholes]),
    ):
        if reached := [at for at in times if at]:
            stamps[stage] = min(reached)
    if completed := max(w.completed_ns for w in wholes):
        stamps[Stage.COMPLETED] = completed
    stamps[Stage.EMITTED] = now_ns
    return {stage: stamps[stage] for stage in Stage if stage in stamps}


def _variant(filing: Filing, *, final: bool) -> str:
    """Return what tells the id of a signal from that of the whole filing's, ``""`` for that one itself."""
    came = "" if filing.complete else f"/parts {_ranges(sorted(filing.current))}"
    return came if final else f"/partial{came}"


def _ranges(numbers: Iterable[int]) -> str:
    """Write numbers as ``1-3,7``."""
    runs: list[str] = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ",".join(runs)


def _made_by(makers: Iterable[MadeBy]) -> tuple[str, str, str]:
    """Return model, revision and prompt version; of several, in the middle of an upgrade, all of them."""
    known = list(dict.fromkeys(makers))
    models = sorted({made_by.engine.model for made_by in known})
    revisions = sorted({made_by.engine.model_revision for made_by in known})
    prompts = sorted({made_by.prompt_version for made_by in known})
    return "+".join(models), "+".join(revisions), "+".join(prompts)


def _instruments(parts: Sequence[Part], instruments: Instruments) -> list[str]:
    given = list(dict.fromkeys(name for part in parts for name in part.instruments))
    ciks = list(dict.fromkeys(cik for part in parts for cik in part.ciks))
    return instruments.of(given, ciks, (text_of_part(part) for part in parts[:1]))


def text_of_part(part: Part) -> str:
    """Return the text of a part, out of its record."""
    return _read_text(part.whole.original().value).text


def _reading(
    filing: Filing, parts: Sequence[Part], readings: Sequence[Reading], merged: Merged, *, final: bool
) -> FilingReading:
    answered = {reading.part for reading in readings}
    missing = [n for n in range(1, min(filing.parts, MOST_MISSING + len(answered)) + 1) if n not in answered]
    tokens = sum(part.tokens for part in parts)
    records = sorted(filing.records, key=lambda part: (part.number, part.whole.origin.offset))
    return FilingReading(
        accession=filing.key[3],
        event_types=_mentions(merged.events, {part.number: part for part in parts}),
        guidance=merged.guidance,
        items=list(dict.fromkeys(item for part in parts for item in part.items)),
        figures=_figures(parts),
        conflicts=merged.conflicts,
        partial=not final,
        coverage=min(sum(reading.tokens for reading in readings) / tokens, 1.0) if tokens else 0.0,
        chunks=len(readings),
        parts=filing.parts,
        missing_parts=missing[:MOST_MISSING],
        sources=[
            SourceRecord(
                event_id=part.whole.event_id,
                topic=part.whole.origin.topic,
                partition=part.whole.origin.partition,
                offset=part.whole.origin.offset,
            )
            for part in records
        ],
    )


def _figures(parts: Sequence[Part]) -> list[Figure]:
    """Return the figures of all parts in the order of the text, each statement once; of too many, the clear ones."""
    once: dict[tuple[str, str, float], Figure] = {}
    for part in parts:
        for figure in part.figures:
            once.setdefault((figure.metric, figure.unit, figure.value), figure)
    figures = sorted(once.values(), key=lambda figure: not figure.metric)[:MOST_SIGNAL_FIGURES]
    return sorted(figures, key=lambda figure: (figure.span.part, figure.span.start))


def _mentions(events: Sequence[Event], parts: dict[int, Part]) -> list[EventMention]:
    texts: dict[int, str] = {}
    for number in sorted({number for event in events for number, _ in event.pieces}):
        texts[number] = text_of_part(parts[number])
    return [
        EventMention(
            event_type=event.event_type,
            probability=event.probability,
            evidence=[
                evidence(texts[number], number, parts[number].spans[chunk], event.event_type)
                for number, chunk in event.pieces
            ],
        )
        for event in events
    ]


def evidence(text: str, part: int, chunk: ChunkSpan, event_type: str) -> Span:
    """Quote what a chunk says: from the sentence that names the event type on, else from its beginning."""
    stem = event_type.partition("_")[0].lower()[:8].rstrip("s")
    piece = text[chunk.start : chunk.end]
    named = piece.lower().find(stem) if len(stem) > 3 else -1
    start = chunk.start
    if 0 <= named < len(piece):
        start = max(start, last_sentence_end(text, max(start, start + named - EVIDENCE_CHARS // 2), start + named))
    while start < chunk.end - 1 and text[start].isspace():
        start += 1
    end = min(chunk.end, start + EVIDENCE_CHARS)
    if end < chunk.end and (whole := last_sentence_end(text, start, end)) > start:
        end = whole
    return Span(part=part, start=start, end=end, quote=text[start:end])
