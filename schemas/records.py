"""The records on the Kafka topics, as msgspec Structs that encode to JSON.

Rules of evolution: a new field has a default, a field never changes its type, unknown fields are ignored, and a
golden file for every version is decoded in the tests for ever.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from schemas.enums import Direction, NewsStatus, SignalKind, Stage

SCHEMA_VERSION = 1
"""Version that this code writes."""
SUPPORTED_SCHEMA_VERSIONS = frozenset({1})
"""Versions that this code reads."""

Id = Annotated[
    str,
    Meta(min_length=1, max_length=256, extra_json_schema={"pattern": r"^(?![\s\S]*[\x00-\x1f\x7f])"}),
]
"""An id becomes a Kafka key, part of a hash and a field of log lines: no control characters. `schemas.codec` sees to
that: msgspec would run the pattern for every id of every record, which took longer than all other decoding."""
Label = Annotated[str, Meta(max_length=256)]
Text = str
Nanoseconds = int
"""Nanoseconds since the Unix epoch, UTC."""

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""Counts from 1; bounded, because JSON numbers are not and consumers in other languages have fixed widths."""

Stamps = dict[Stage, Nanoseconds]


class NewsEvent(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One version of one news story, as a feed handler publishes it.

    Args:
        event_id: ``source:story:version``; the same version of a story always has the same id.
        source: the wire or feed that carried it.
        headline: the text that is classified; never empty unless the story was killed.
        received_at_ns: when the feed handler had it; the deadline counts from here.
        published_at_ns: when the source says it published; kept as it came, used for nothing but analysis.
        version: 1 for the first version of the story.
        urgency: IPTC urgency, 1 (flash) to 9; 0 when the source gives none.
        supersedes: event id of the version that this one replaces or kills.
        embargo_until_ns: not for use before this time; 0 when there is no embargo.
        earlier: event ids of the published versions before ``supersedes``, oldest first: a killed story takes back
            all of them.
        duplicate_of: event id of the first event with nearly the same headline, from another source.
        changed: of a statement that is diffed against the one before it, the sentences that are new or reworded.
        notes: what the feed handler changed, assumed or left unknown, as ``field: what`` (``body: mojibake``,
            ``published: without_zone=...``).
    """

    event_id: Id
    source: Id
    headline: Text
    received_at_ns: Nanoseconds
    published_at_ns: Nanoseconds = 0
    version: Count = 1
    body: Text = ""
    language: Label = "en"
    instruments: list[Id] = []
    urgency: Annotated[int, Meta(ge=0, le=9)] = 0
    status: NewsStatus = NewsStatus.USABLE
    supersedes: Id | None = None
    embargo_until_ns: Nanoseconds = 0
    earlier: list[Id] = []
    duplicate_of: Id | None = None
    changed: list[Text] = []
    notes: list[Label] = []
    url: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def key(self) -> str:
        """Kafka key: the story, so that its versions stay in order and no ticker makes a hot partition."""
        story, _, _ = self.event_id.rpartition(":")
        return story or self.event_id


class FilingEvent(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One part of one document of one SEC submission.

    Args:
        event_id: ``accession:document:part``.
        accession: EDGAR accession number; all parts of a filing share it.
        form: form type as EDGAR writes it (``8-K``, ``10-Q/A``).
        text: plain text of the part; never empty.
        received_at_ns: when the feed handler had it; the deadline counts from here.
        accepted_at_ns: EDGAR's acceptance time (US/Eastern in the header, UTC here); 0 when unknown.
        items: 8-K item codes (``2.02``).
        section: heading or item that the part comes from.
        part: number of this part, from 1.
        parts: number of parts of the filing.
        amends: accession of the filing that this one amends (``/A`` forms), where it is known.
        notes: what the feed handler changed in the part's document, as ``field: what`` (``text: mojibake``).
    """

    event_id: Id
    accession: Id
    form: Id
    text: Text
    received_at_ns: Nanoseconds
    accepted_at_ns: Nanoseconds = 0
    version: Count = 1
    items: list[Id] = []
    ciks: list[Id] = []
    company: Label = ""
    instruments: list[Id] = []
    section: Label = ""
    part: Count = 1
    parts: Count = 1
    amends: str = ""
    notes: list[Label] = []
    url: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def key(self) -> str:
        """Kafka key: the accession, so that a filing's parts stay in order."""
        return self.accession


Event = NewsEvent | FilingEvent


class Span(Struct, kw_only=True, frozen=True):
    """A quotation, and where it stands.

    Args:
        part: number of the filing's part.
        start, end: characters of that part's ``text``, end exclusive.
        quote: those characters.
    """

    part: int
    start: int
    end: int
    quote: str


class EventMention(Struct, kw_only=True, frozen=True):
    """One thing that a filing reports.

    Args:
        event_type: a label of the extractor's head ``event_type``.
        probability: highest over the pieces of the filing that report it.
        evidence: where it is said.
    """

    event_type: str
    probability: float
    evidence: list[Span]


class Figure(Struct, kw_only=True, frozen=True):
    """One key figure, quoted from the text and never written by the model.

    Args:
        metric: what it measures (``revenue``, ``eps``), or ``""`` when the text around it does not say.
        unit: ``usd``, another ISO 4217 code in lower case, ``percent`` or ``usd_per_share``.
        value: the number with its scale applied.
        span: the quotation.
    """

    metric: str
    unit: str
    value: float
    span: Span


class SourceRecord(Struct, kw_only=True, frozen=True):
    """One input record behind a signal."""

    event_id: str
    topic: str
    partition: int
    offset: int


class FilingReading(Struct, kw_only=True, frozen=True):
    """What the signal of a filing says beyond a direction.

    Args:
        accession: EDGAR accession number.
        event_types: what it reports, most probable first.
        guidance: the most probable label of the head ``guidance`` where the extractor has one.
        items: 8-K item codes of the filing.
        figures: key figures, in the order of the text.
        conflicts: heads on which pieces of the filing contradict each other, each with what they say.
        partial: what was read when the deadline was near; the signal of the whole filing follows, and ends its records.
        coverage: share of the filing's tokens that was read, 0 to 1; parts that never came do not count.
        chunks: pieces of text that were answered.
        parts: parts that the filing has.
        missing_parts: numbers of the parts that did not come or have no answer.
        sources: every input record behind this signal, in the order of their parts.
    """

    accession: str
    event_types: list[EventMention]
    guidance: str | None
    items: list[str]
    figures: list[Figure]
    conflicts: list[str]
    partial: bool
    coverage: float
    chunks: int
    parts: int
    missing_parts: list[int]
    sources: list[SourceRecord]


class Signal(Struct, kw_only=True, frozen=True):
    """What a strategy engine consumes: one model's reading of one event.

    Args:
        signal_id: hash of event id, event version, model revision and prompt version (`schemas.identity`); a
            duplicate has the same id and can be dropped.
        kind: a retraction takes back the signals of the event ids in ``retracts``.
        topic, partition, offset: where the source event stands; of a filing in several parts, the first of them.
        direction: the most probable direction.
        probabilities: probability per direction, summing to 1.
        event_type: what happened, where the extractor asks for it.
        score: probability of bullish minus probability of bearish, in [-1, 1].
        calibration_id: which calibration the probabilities went through; empty for the model's own.
        deadline_ns: event time plus the class's SLO.
        late: emitted after the deadline.
        truncated: the text was longer than the model's context; its head and its tail were read.
        stamps: nanoseconds since the epoch per stage, as far as the event had come.
        heads: distribution over its labels for every head but the direction, calibrated like ``probabilities``.
        raw: distribution of every head as the model gave it, before calibration.
        filing: what else a filing says.
    """

    signal_id: str
    event_id: str
    event_version: int
    topic: str
    partition: int
    offset: int
    service_class: str
    direction: Direction
    probabilities: dict[Direction, float]
    score: float
    model: str
    model_revision: str
    prompt_version: str
    deadline_ns: Nanoseconds
    late: bool
    stamps: Stamps
    kind: SignalKind = SignalKind.SIGNAL
    retracts: list[str] = []
    instruments: list[str] = []
    event_type: str | None = None
    event_type_probability: float | None = None
    calibration_id: str = ""
    truncated: bool = False
    heads: dict[str, dict[str, float]] = {}
    raw: dict[str, dict[str, float]] = {}
    filing: FilingReading | None = None
    schema_version: int = SCHEMA_VERSION


class Expired(Struct, kw_only=True, frozen=True):
    """An event that was not worth running any more.

    Args:
        stage: the last stage it had reached.
        age_ns: event time to the decision, in nanoseconds.
        reason: one sentence for a person.
    """

    event_id: str
    event_version: int
    topic: str
    partition: int
    offset: int
    service_class: str
    stage: Stage
    age_ns: Nanoseconds
    deadline_ns: Nanoseconds
    reason: str
    stamps: Stamps
    instruments: list[str] = []
    schema_version: int = SCHEMA_VERSION


class StampEntry(Struct, kw_only=True, frozen=True):
    """One entry of the Redis stamps stream (field ``d``, JSON): how one event ended and when it passed each stage."""

    event_id: str
    service_class: str
    outcome: str
    late: bool
    slo_ns: Nanoseconds
    stamps: Stamps


def json_schema(record: type[Struct]) -> dict[str, object]:
    """Return the JSON Schema (2020-12) of one record type."""
    return msgspec.json.schema(record)
