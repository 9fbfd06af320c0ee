"""The three ways an event ends: a signal, an expired record, a dead letter. Each is published with a receipt."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from scheduler.dead_letter_limit import DeadLetterLimit
from scheduler.instruments import Instruments
from scheduler.producer import TOO_LARGE
from scheduler.publisher import OutHeaders, Outlet, Record
from scheduler.stats import Stats
from scheduler.work import Headers, Origin, Original, Work, read_readable, read_source, unpacked
from schemas.codec import encode_json
from schemas.enums import Direction, Outcome, SignalKind, Stage
from schemas.errors import ErrorKind
from schemas.frames import EngineInfo, Result
from schemas.identity import signal_id
from schemas.records import SCHEMA_VERSION, Expired, NewsEvent, Signal, StampEntry, Stamps
from schemas.topics import (
    HEADER_ERROR_ATTEMPTS,
    HEADER_ERROR_FIELD,
    HEADER_ERROR_KIND,
    HEADER_ERROR_MESSAGE,
    HEADER_ERROR_STAGE,
    HEADER_EVENT_ID,
    HEADER_SCHEDULER,
    HEADER_SCHEMA_VERSION,
    HEADER_SOURCE_OFFSET,
    HEADER_SOURCE_PARTITION,
    HEADER_SOURCE_TOPIC,
    HEADER_TRUNCATED_FROM,
    PASSED_THROUGH,
    Topics,
)

log = structlog.get_logger()

NANOSECONDS = 1_000_000_000
RETRACTION_VERSION = "retraction"
"""Stands for the prompt version in the id of a retraction, which no model wrote."""
OWN_HEADERS = frozenset(
    {
        HEADER_ERROR_KIND,
        HEADER_ERROR_FIELD,
        HEADER_ERROR_MESSAGE,
        HEADER_ERROR_STAGE,
        HEADER_ERROR_ATTEMPTS,
        HEADER_SOURCE_TOPIC,
        HEADER_SOURCE_PARTITION,
        HEADER_SOURCE_OFFSET,
        HEADER_TRUNCATED_FROM,
        HEADER_SCHEDULER,
    }
)
"""Headers that a dead letter gets from us; those of an earlier death are replaced."""
MAX_MESSAGE_CHARS = 500
"""Of an error message in a header: it may quote text from outside."""
HEADER_ROOM_BYTES = 4096
"""Kept free for our headers and Kafka's own framing when a dead letter is close to the topic's limit."""
MAX_PASSED_THROUGH_BYTES = 1024
"""Of one header that a result carries on (W3C trace state asks for 512): a megabyte of it would not fit the topic."""

_VERSION_HEADER = (HEADER_SCHEMA_VERSION, str(SCHEMA_VERSION).encode())


class Receipt(NamedTuple):
    """What comes back when an outcome is confirmed.

    Args:
        origin: the input offset that it is about.
        entry: the stamps to write; None for records that never had a class, and for what is no outcome.
        record: the packed input record, for a dead letter in place of what the broker refuses.
        parts: the records that are done now, where that is not the one at ``origin``: one signal ends all parts of a
            filing, and a partial one ends none.
    """

    origin: Origin
    entry: StampEntry | None
    record: bytes = b""
    parts: tuple[Work, ...] | None = None

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The input offsets that are done once this is confirmed."""
        return (self.origin,) if self.parts is None else tuple(part.origin for part in self.parts)


class Outcomes:
    """Builds and publishes outcomes, and counts them.

    Args:
        publisher: where they go.
        topics: names of the result topics.
        stats: the counters.
        limit: when dead letters must stop; without one they never do.
        written_by: id and life of this scheduler, for a header of everything that it writes.
        instruments: finds those of events that bring none.
    """

    def __init__(
        self,
        publisher: Outlet,
        topics: Topics,
        stats: Stats,
        limit: DeadLetterLimit | None = None,
        written_by: str = "",
        instruments: Instruments | None = None,
    ) -> None:
        self._instruments = instruments or Instruments()
        self._publisher = publisher
        # Read once: a topic's name is put together whenever it is asked for.
        self._signals, self._expired, self._dead_letters = topics.outputs
        self._stats = stats
        self._limit = limit
        # Made once: every record of this life carries the same bytes.
        self._own: OutHeaders = [_VERSION_HEADER]
        if written_by:
            self._own.append((HEADER_SCHEDULER, written_by.encode()))
        self._unconfirmed: Counter[tuple[str, int]] = Counter()

    @property
    def stopped(self) -> bool:
        """Whether dead letters have reached their limit: nothing more may be taken in."""
        return self._limit is not None and self._limit.tripped

    def unconfirmed(self, partitions: Iterable[tuple[str, int]]) -> int:
        """Return how many outcomes of these input partitions Kafka has not confirmed yet."""
        return sum(self._unconfirmed[partition] for partition in partitions)

    def confirmed(self, receipt: Receipt) -> None:
        """Count a confirmation."""
        self._unconfirmed[receipt.origin[:2]] -= 1

    def _publish(self, topic: str, key: bytes | None, value: bytes, headers: OutHeaders, receipt: Receipt) -> None:
        if self._limit is not None and topic != self._dead_letters:
            self._limit.ended(time.monotonic())
        self._unconfirmed[receipt.origin[:2]] += 1
        self._publisher.publish(topic, key, value, headers, receipt)

    def refused(self, topic: str, record: Record, error: Exception) -> None:
        """Publish a dead letter in place of an outcome that the broker will never take; a dead letter gets shorter."""
        receipt = record.receipt
        assert isinstance(receipt, Receipt)  # noqa: S101 - outcomes publish with nothing else
        self._unconfirmed[receipt.origin[:2]] -= 1
        if topic != self._dead_letters:
            kind = ErrorKind.RECORD_TOO_LARGE if isinstance(error, TOO_LARGE) else ErrorKind.INVALID_VALUE
            if not self._admits(kind):
                return
            message = f"Kafka will not take its outcome on {topic}: {type(error).__name__}"
            original = unpacked(receipt.record)
            self._dead_letter(receipt, original, kind.value, "", message, Stage.EMITTED, 0)
        elif not record.value:
            self._publisher.give_up_on(topic, error)
        else:
            self._shorter(record, receipt)

    def _shorter(self, record: Record, receipt: Receipt) -> None:
        """Publish a dead letter again with half of its bytes: the topic takes less than it said."""
        whole = Original(record.key, record.value, tuple(record.headers))
        size = len(record.key or b"") + len(record.value) + sum(map(_header_bytes, whole.headers))
        key, value, headers = _fitting(whole, size // 2) or whole._replace(value=b"")
        out = list(headers)
        if HEADER_TRUNCATED_FROM not in dict(out):
            out.append((HEADER_TRUNCATED_FROM, str(len(record.value)).encode()))
        self._publish(self._dead_letters, key, value, out, receipt)

    def signal(self, work: Work, result: Result, engine: EngineInfo, prompt_version: str) -> None:
        """Publish what the model said about an event."""
        now = time.time_ns()
        original = work.original()
        source = read_source(original.value)
        stamps = work.stamps(source)
        stamps[Stage.EMITTED] = now
        late = now > work.deadline_ns
        counters = self._stats.classes[work.class_index]
        answer = result.answer
        instruments = source.instruments or self._found(original)
        probabilities = answer.probabilities
        signal = Signal(
            signal_id=signal_id(work.event_id, source.version, engine.model_revision, prompt_version),
            event_id=work.event_id,
            event_version=source.version,
            topic=work.origin.topic,
            partition=work.origin.partition,
            offset=work.origin.offset,
            service_class=counters.settings.name,
            direction=answer.direction,
            probabilities=probabilities,
            score=probabilities.get(Direction.BULLISH, 0.0) - probabilities.get(Direction.BEARISH, 0.0),
            model=engine.model,
            model_revision=engine.model_revision,
            prompt_version=prompt_version,
            deadline_ns=work.deadline_ns,
            late=late,
            stamps=stamps,
            instruments=instruments,
            event_type=answer.event_type,
            event_type_probability=answer.event_type_probability,
            calibration_id=answer.calibration_id,
            heads=answer.heads,
            raw=answer.raw,
            truncated=work.truncated,
        )
        counters.signal((now - work.event_time_ns) / NANOSECONDS, late=late)
        key = (instruments[0] if instruments else work.event_id).encode()
        receipt = self._receipt(work, Outcome.SIGNAL, stamps, late=late)
        headers = self.headers(work.event_id, original.headers)
        self._publish(self._signals, key, encode_json(signal), headers, receipt)

    def _found(self, original: Original) -> list[str]:
        """Return the instruments that the text of a news event writes as such."""
        readable = read_readable(original.value)
        return self._instruments.of([], (), (readable.headline, readable.body))

    def expired(self, work: Work, now: int, reason: str) -> None:
        """Publish that an event was not worth running any more."""
        original = work.original()
        source = read_source(original.value)
        stage = work.stage()
        stamps = work.stamps(source)
        stamps[Stage.EMITTED] = now
        counters = self._stats.classes[work.class_index]
        counters.expired += 1
        expired = Expired(
            event_id=work.event_id,
            event_version=source.version,
            topic=work.origin.topic,
            partition=work.origin.partition,
            offset=work.origin.offset,
            service_class=counters.settings.name,
            stage=stage,
            age_ns=now - work.event_time_ns,
            deadline_ns=work.deadline_ns,
            reason=reason,
            stamps=stamps,
            instruments=source.instruments,
        )
        receipt = self._receipt(work, Outcome.EXPIRED, stamps, late=True)
        headers = self.headers(work.event_id, original.headers)
        self._publish(self._expired, work.event_id.encode(), encode_json(expired), headers, receipt)

    def retraction(self, event: NewsEvent, origin: Origin, original: Original, stamps: Stamps) -> None:
        """Publish that what was said about a killed story no longer holds; no engine is asked."""
        now = time.time_ns()
        stamps[Stage.EMITTED] = now
        service_class = self._stats.classes[0].settings
        self._stats.retractions += 1
        self._stats.classes[0].arrived += 1
        slo_ns = int(service_class.slo_ms * 1_000_000)
        deadline = event.received_at_ns + slo_ns
        signal = Signal(
            signal_id=signal_id(event.event_id, event.version, "", RETRACTION_VERSION),
            kind=SignalKind.RETRACTION,
            retracts=[*event.earlier, *([event.supersedes] if event.supersedes else [])],
            event_id=event.event_id,
            event_version=event.version,
            topic=origin.topic,
            partition=origin.partition,
            offset=origin.offset,
            service_class=service_class.name,
            direction=Direction.NEUTRAL,
            probabilities={},
            score=0.0,
            model="",
            model_revision="",
            prompt_version=RETRACTION_VERSION,
            deadline_ns=deadline,
            late=now > deadline,
            stamps=stamps,
            instruments=event.instruments,
        )
        event_time = min(event.received_at_ns, now)
        self._stats.classes[0].signal((now - event_time) / NANOSECONDS, late=signal.late)
        entry = StampEntry(
            event_id=event.event_id,
            service_class=service_class.name,
            outcome=Outcome.SIGNAL,
            late=signal.late,
            slo_ns=slo_ns,
            stamps=stamps,
        )
        key = (event.instruments[0] if event.instruments else event.event_id).encode()
        out = self.headers(event.event_id, original.headers)
        receipt = Receipt(origin, entry, original.packed())
        self._publish(self._signals, key, encode_json(signal), out, receipt)

    def dead_work(self, work: Work, kind: str, message: str) -> None:
        """Publish an event that was decoded and classified but cannot be answered, or hold it (see `stopped`)."""
        if not self._admits(kind):
            return
        counters = self._stats.classes[work.class_index]
        counters.dead_letters += 1
        original = work.original()
        stamps = work.stamps(read_source(original.value))
        stamps[Stage.EMITTED] = time.time_ns()
        receipt = self._receipt(work, Outcome.DEAD_LETTER, stamps, late=False)
        self._dead_letter(receipt, original, kind, "", message, work.stage(), work.runs)

    def dead_record(self, origin: Origin, original: Original, kind: ErrorKind, field: str, reason: str) -> None:
        """Publish a record that could not be decoded, or hold it (see `stopped`)."""
        if not self._admits(kind.value):
            return
        self._stats.undecodable += 1
        self._dead_letter(Receipt(origin, None), original, kind.value, field, reason, Stage.CONSUMED, 0)

    def dead_gap(self, origin: Origin, first: int, message: str) -> None:
        """Publish that input offsets from ``first`` on are gone; nobody knows what was in them."""
        self._stats.undecodable += 1
        # Where a log began anew, the ledger holds the gap at another offset than the one that was lost.
        place, nothing = origin._replace(offset=first), Original(None, b"", ())
        receipt = Receipt(origin, None)
        self._dead_letter(receipt, nothing, ErrorKind.OFFSETS_LOST, "", message, Stage.CONSUMED, 0, place)

    def _dead_letter(
        self,
        receipt: Receipt,
        original: Original,
        kind: str,
        field: str,
        message: str,
        stage: Stage,
        attempts: int,
        place: Origin | None = None,
    ) -> None:
        origin = place or receipt.origin
        log.warning(
            "dead_letter",
            kind=kind,
            field=field,
            reason=message[:MAX_MESSAGE_CHARS],
            topic=origin.topic,
            partition=origin.partition,
            offset=origin.offset,
        )
        added: OutHeaders = [
            (HEADER_ERROR_KIND, kind.encode()),
            (HEADER_ERROR_FIELD, field.encode(errors="replace")),
            (HEADER_ERROR_MESSAGE, message[:MAX_MESSAGE_CHARS].encode(errors="replace")),
            (HEADER_ERROR_STAGE, stage.value.encode()),
            (HEADER_ERROR_ATTEMPTS, str(attempts).encode()),
            (HEADER_SOURCE_TOPIC, origin.topic.encode()),
            (HEADER_SOURCE_PARTITION, str(origin.partition).encode()),
            (HEADER_SOURCE_OFFSET, str(origin.offset).encode()),
        ]
        cut = _fitting(original, self._publisher.max_dead_letter_bytes - HEADER_ROOM_BYTES)
        if cut is not None:
            # The broker took it on the input topic and will not take it here: keep what fits, say so, and say
            # where the whole record stands.
            added.append((HEADER_TRUNCATED_FROM, str(len(original.value)).encode()))
        key, value, headers = cut or original
        kept = [h for h in headers if h[0] not in OWN_HEADERS]
        self._publish(self._dead_letters, key, value, [*kept, *added, *self._own[1:]], receipt)

    def headers(self, event_id: str, source: Headers) -> OutHeaders:
        """Return the headers of an output record: ours, and what an input record passes through."""
        own: OutHeaders = [(HEADER_EVENT_ID, event_id.encode()), *self._own]
        if not source:
            return own
        return own + [h for h in source if h[0] in PASSED_THROUGH and len(h[1] or b"") <= MAX_PASSED_THROUGH_BYTES]

    def _admits(self, kind: str) -> bool:
        """Return whether an event may become a dead letter; what may not is held: it ends in no other way either."""
        return self._limit is None or self._limit.admits(kind, time.monotonic())

    def _receipt(self, work: Work, outcome: Outcome, stamps: Stamps, *, late: bool) -> Receipt:
        entry = StampEntry(
            event_id=work.event_id,
            service_class=self._stats.classes[work.class_index].settings.name,
            outcome=outcome,
            late=late,
            slo_ns=work.deadline_ns - work.event_time_ns,
            stamps=stamps,
        )
        return Receipt(work.origin, entry, work.record)


def _fitting(original: Original, room: int) -> Original | None:
    """Return as much of a record as fits in ``room`` bytes, or None when all of it does.

    A compressed record may bring a key and headers of any size. The value gives way first, then the largest headers,
    and a key that fills the room alone is left out.
    """
    key, value, headers = original
    left = room - len(key or b"")
    if left < 0:
        key, left = None, room
    kept: set[int] = set()
    for index in sorted(range(len(headers)), key=lambda i: _header_bytes(headers[i])):
        left -= _header_bytes(headers[index])
        if left < 0:
            left += _header_bytes(headers[index])
            break
        kept.add(index)
    if len(kept) == len(headers) and key == original.key and len(value) <= left:
        return None
    return Original(key, value[:left], tuple(h for i, h in enumerate(headers) if i in kept))


def _header_bytes(header: tuple[str, bytes | None]) -> int:
    """Return an upper bound of what a header takes in a record: up to four bytes of characters, and two lengths."""
    return 4 * len(header[0]) + len(header[1] or b"") + 10
