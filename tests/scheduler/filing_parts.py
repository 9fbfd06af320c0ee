"""Parts of filings, their answers, and a desk whose outcomes are written down instead of published."""

from __future__ import annotations

import itertools
from typing import Any

from scheduler.chunks import Chunk
from scheduler.filing_desk import FilingDesk
from scheduler.filings import ChunkSpan, MadeBy, Part
from scheduler.instruments import Instruments
from scheduler.merge import Reading
from scheduler.outcomes import Receipt
from scheduler.room import Room
from scheduler.stats import Stats
from scheduler.work import Origin, Original, Work
from schemas.codec import decode_json, encode_json
from schemas.enums import Direction
from schemas.frames import Answer, Result
from schemas.records import Expired, FilingEvent, Signal
from schemas.settings import FilingSettings, SchedulerSettings
from schemas.topics import Topics
from tests.scheduler import make

TOPICS = Topics(prefix="test")
MADE_BY = MadeBy(make.engine(), "filing-1")
T0 = make.EVENT_TIME_NS
SECOND = 1_000_000_000
SENTENCES = "Net sales rose 4 percent to $5 million. The board declared a dividend. "

_offsets = itertools.count()


def event(
    number: int = 1, parts: int = 1, *, accession: str = "0001", text: str = SENTENCES, **changed: Any
) -> FilingEvent:
    """Return a part of a filing."""
    values: dict[str, Any] = {
        "event_id": f"{accession}:d:{number}",
        "accession": accession,
        "form": "8-K",
        "text": text,
        "received_at_ns": T0,
        "part": number,
        "parts": parts,
    }
    return FilingEvent(**(values | changed))


def part(
    number: int = 1,
    parts: int = 1,
    *,
    chunks: int = 1,
    class_index: int = 2,
    event_time_ns: int = T0,
    partition: int = 0,
    epoch: int = 1,
    **changed: Any,
) -> Part:
    """Return a part with this many chunks of ten tokens."""
    source = event(number, parts, **changed)
    whole = make.work(
        class_index,
        tokens=0,
        origin=Origin(TOPICS.filings, partition, next(_offsets), epoch),
        event_id=source.event_id,
        original=Original(source.accession.encode(), encode_json(source), ()),
    )
    whole.event_time_ns = event_time_ns
    size = len(source.text) // chunks
    return Part(
        whole=whole,
        accession=source.accession,
        number=number,
        parts=parts,
        version=source.version,
        spans=[ChunkSpan(n * size, (n + 1) * size, 10, 10) for n in range(chunks)],
        tokens=10 * chunks,
        items=source.items,
        ciks=source.ciks,
        instruments=source.instruments,
    )


def answer(direction: Direction = Direction.BULLISH, certainty: float = 0.8, **heads: dict[str, float]) -> Answer:
    """Return an answer."""
    rest = (1 - certainty) / 2
    spread = {d: certainty if d is direction else rest for d in Direction}
    return Answer(direction=direction, probabilities=spread, heads=heads)


def reading(one: Part, chunk: int = 0, said: Answer | None = None) -> Reading:
    """Return the answer to a part's chunk."""
    return Reading(one.number, chunk, one.spans[chunk].own, said or answer())


def result(said: Answer | None = None, at_ns: int = T0 + SECOND) -> Result:
    """Return an engine's result."""
    return Result(
        request_id=1,
        answer=said or answer(),
        engine_started_ns=at_ns,
        first_token_ns=at_ns + 1,
        completed_ns=at_ns + 2,
        prompt_tokens=10,
        output_tokens=1,
    )


class Paper:
    """Stands for the publisher: writes down what would be published."""

    max_dead_letter_bytes = 1_000_000

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes | None, bytes, dict[str, bytes | None], Receipt]] = []

    def publish(
        self, topic: str, key: bytes | None, value: bytes, headers: list[tuple[str, bytes | None]], receipt: Receipt
    ) -> None:
        """Write it down."""
        self.records.append((topic, key, value, dict(headers), receipt))


class Desk:
    """A desk with a real room, and the chunks that it queued."""

    def __init__(self, **settings: Any) -> None:
        filings = FilingSettings(**settings.pop("filings", {}))
        self.settings = SchedulerSettings(classes=make.CLASSES, filings=filings, **settings)
        self.paper = Paper()
        self.stats = Stats(make.CLASSES)
        self.room = Room(TOPICS.inputs, self.settings)
        self.queued: list[Work] = []
        self.desk = FilingDesk(
            self.paper,  # type: ignore[arg-type]  # the desk calls two of a publisher's names
            TOPICS,
            self.stats,
            self.settings,
            self.room,
            self._queue,
            Instruments({"0000000007": ["SEVN"]}),
        )

    def _queue(self, work: Work) -> None:
        self.room.enter(work)
        self.queued.append(work)

    def take(self, one: Part) -> list[Work]:
        """Take a part; returns its chunks."""
        before = len(self.queued)
        chunks = [Chunk(s.start, s.end, b"\x01\x00\x00\x00" * s.tokens, s.tokens, s.own) for s in one.spans]
        self.desk.take(one, chunks)
        return self.queued[before:]

    def answer(self, work: Work, said: Answer | None = None) -> None:
        """Answer a chunk, as the service does."""
        self.room.leave(work)
        done = result(said)
        work.completed_ns, work.engine_started_ns, work.first_token_ns = done.completed_ns, T0, T0
        self.desk.signal(work, done, make.engine(), "filing-1")

    def fail(self, work: Work, kind: str = "engine_error") -> None:
        """Let a chunk die."""
        self.room.leave(work)
        self.desk.dead_work(work, kind, "it failed")

    def expire(self, work: Work) -> None:
        """Let a chunk expire."""
        self.room.leave(work)
        self.desk.expired(work, T0 + SECOND, "too old")

    @property
    def signals(self) -> list[Signal]:
        """Signals so far."""
        return [decode_json(value, Signal) for topic, _, value, _, _ in self.paper.records if topic == TOPICS.signals]

    @property
    def expired(self) -> list[Expired]:
        """Expired records so far."""
        return [decode_json(value, Expired) for topic, _, value, _, _ in self.paper.records if topic == TOPICS.expired]

    @property
    def dead(self) -> list[dict[str, bytes | None]]:
        """Headers of the dead letters so far."""
        return [headers for topic, _, _, headers, _ in self.paper.records if topic == TOPICS.dead_letters]

    @property
    def finished(self) -> list[int]:
        """Offsets that the outcomes so far end."""
        return [origin.offset for *_, receipt in self.paper.records for origin in receipt.origins]

    @property
    def held(self) -> tuple[int, int]:
        """Events and bytes that the room counts for filings."""
        return self.room._events[TOPICS.filings], self.room._bytes[TOPICS.filings]
