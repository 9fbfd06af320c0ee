"""The outcomes of a scheduler that reads filings in chunks: the last chunk that ends here ends its filing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from scheduler.chunks import Chunk
from scheduler.dead_letter_limit import DeadLetterLimit
from scheduler.filing_signal import filing_signal
from scheduler.filings import Filings, MadeBy, Part, Ready
from scheduler.instruments import Instruments
from scheduler.merge import Reading
from scheduler.outcomes import Outcomes, Receipt
from scheduler.producer import TOO_LARGE
from scheduler.publisher import Outlet, Record
from scheduler.room import Room
from scheduler.stats import Stats
from scheduler.work import Work
from schemas.codec import encode_json
from schemas.enums import Outcome
from schemas.errors import ErrorKind
from schemas.frames import EngineInfo, Result
from schemas.records import Signal, StampEntry
from schemas.settings import SchedulerSettings
from schemas.topics import Topics

NANOSECONDS = 1_000_000_000
LONGEST_TIMER_SECONDS = 1.0
"""Times are those of the wall clock, which may be set meanwhile."""
TOO_LATE = "read to its end after its class's toxic age"
UNREAD = "no chunk of it has an answer"


class FilingDesk(Outcomes):
    """`Outcomes` that keeps a chunk's end for its filing, and publishes the filing's when that is done.

    Args:
        publisher, topics, stats: as for `Outcomes`.
        settings: classes, and how filings wait for their parts.
        room: counts the records of parts as long as they are held.
        queue: takes each chunk to run.
        instruments: finds those that events do not bring.
        limit, written_by: as for `Outcomes`.
    """

    def __init__(
        self,
        publisher: Outlet,
        topics: Topics,
        stats: Stats,
        settings: SchedulerSettings,
        room: Room,
        queue: Callable[[Work], None],
        instruments: Instruments | None = None,
        limit: DeadLetterLimit | None = None,
        written_by: str = "",
    ) -> None:
        super().__init__(publisher, topics, stats, limit, written_by, instruments)
        self.filings = Filings(settings.filings, settings.classes)
        self._class_names = [c.name for c in settings.classes]
        self._room = room
        self._queue = queue
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0

    # What comes in

    def take(self, part: Part, chunks: Iterable[Chunk]) -> None:
        """Take a part of a filing and run its chunks."""
        now = time.time_ns()
        whole = part.whole
        self._stats.classes[whole.class_index].arrived += 1
        self._room.enter_part(part)
        ready = self.filings.add(part, now)
        filing = part.filing
        if filing is not None and part.left:
            toxic = self.filings.toxic_ns(filing, whole.class_index)
            for index, chunk in enumerate(chunks):
                self._queue(chunk_work(part, index, chunk, filing.deadline_ns, toxic))
        self._publish_all(ready)

    # How chunks end: everything else goes its usual way

    def signal(self, work: Work, result: Result, engine: EngineInfo, prompt_version: str) -> None:
        """Publish what the model said about an event, or keep what it said about a chunk."""
        part = work.part
        if part is None:
            super().signal(work, result, engine, prompt_version)
            return
        _note_times(part.whole, work)
        span = part.spans[work.chunk]
        reading = Reading(part.number, work.chunk, min(span.own, work.token_count), result.answer)
        part.whole.truncated |= work.truncated
        self._publish_all(self.filings.read(part, reading, MadeBy(engine, prompt_version), time.time_ns()))

    def expired(self, work: Work, now: int, reason: str) -> None:
        """Publish that an event was not worth running any more, or note that a chunk was not."""
        if work.part is None:
            super().expired(work, now, reason)
            return
        _note_times(work.part.whole, work)
        self._publish_all(self.filings.expired(work.part, reason, now))

    def dead_work(self, work: Work, kind: str, message: str) -> None:
        """Publish an event that cannot be answered, or note a chunk that cannot."""
        if work.part is None:
            super().dead_work(work, kind, message)
            return
        _note_times(work.part.whole, work)
        self._publish_all(self.filings.failed(work.part, kind, message, time.time_ns()))

    # Back-pressure, rebalances, the end

    def make_room(self, topic: str) -> None:
        """Close filings that wait for parts which cannot come, because what they hold fills the topic's room."""
        while self.filings.open and self.filings.idle and not self._room.has_room(topic):
            self._publish_all(self.filings.close_oldest())

    def forget(self, partitions: Iterable[tuple[str, int]], *, waiting_only: bool = False) -> None:
        """Forget the filings of partitions that go elsewhere.

        Args:
            partitions: topics and numbers.
            waiting_only: only those that wait for parts; others may still end in time.
        """
        gone = set(partitions)
        self._leave(self.filings.forget(lambda one: one.key[:2] in gone and not (waiting_only and one.sealed)))

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self, parts: list[Part]) -> None:
        for part in parts:
            self._room.leave_part(part)

    # When filings end

    def _publish_all(self, ready: list[Ready]) -> None:
        for filing, final in ready:
            now = time.time_ns()
            too_late = bool(filing.toxic_ns) and now > filing.toxic_ns
            if filing.counting() and not too_late:
                self._publish_signal(Ready(filing, final), now)
            elif final:
                self._end_parts(filing.records, now, too_late=too_late)
            if final:
                self._leave(filing.records)
                filing.release()
        self._arm()

    def _publish_signal(self, ready: Ready, now: int) -> None:
        filing, final = ready
        signal = filing_signal(
            filing, final=final, now_ns=now, class_names=self._class_names, instruments=self._instruments
        )
        first = filing.current[min(filing.current)].whole
        entry = None
        if final:
            counters = self._stats.classes[filing.class_index]
            counters.signal((now - filing.event_time_ns) / NANOSECONDS, late=signal.late)
            entry = StampEntry(
                event_id=signal.event_id,
                service_class=signal.service_class,
                outcome=Outcome.SIGNAL,
                late=signal.late,
                slo_ns=filing.deadline_ns - filing.event_time_ns,
                stamps=signal.stamps,
            )
        done = tuple(part.whole for part in filing.records) if final else ()
        self._publish_record(signal, first, Receipt(first.origin, entry, first.record, done))

    def refused(self, topic: str, record: Record, error: Exception) -> None:
        """Publish a dead letter for each part in place of a filing's signal that the broker will never take."""
        receipt = record.receipt
        if not isinstance(receipt, Receipt) or receipt.parts is None:
            super().refused(topic, record, error)
            return
        self.confirmed(receipt)
        kind = ErrorKind.RECORD_TOO_LARGE if isinstance(error, TOO_LARGE) else ErrorKind.INVALID_VALUE
        for whole in receipt.parts:
            super().dead_work(
                whole, kind, f"Kafka will not take its filing's signal on {topic}: {type(error).__name__}"
            )

    def _publish_record(self, signal: Signal, first: Work, receipt: Receipt) -> None:
        key = (signal.instruments[0] if signal.instruments else signal.event_id).encode()
        headers = self.headers(signal.event_id, first.original().headers)
        self._publish(self._signals, key, encode_json(signal), headers, receipt)

    def _end_parts(self, records: list[Part], now: int, *, too_late: bool) -> None:
        """Give each record of a filing without an answer its own outcome."""
        failure = next((part.failure for part in records if part.failure), None)
        expired = next((part.expired for part in records if part.expired), "")
        for part in records:
            if too_late or part.expired or not (part.failure or failure):
                super().expired(part.whole, now, part.expired or expired or TOO_LATE)
            else:
                kind, message = part.failure or failure or (ErrorKind.ENGINE_ERROR, UNREAD)
                super().dead_work(part.whole, kind, message)

    def _tick(self) -> None:
        self._timer = None
        self._publish_all(self.filings.due(time.time_ns()))

    def _arm(self) -> None:
        due = self.filings.next_due_ns()
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        self.close()
        self._timer_at = due
        delay = min(max((due - time.time_ns()) / NANOSECONDS, 0.0), LONGEST_TIMER_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(delay, self._tick)


def chunk_work(part: Part, index: int, chunk: Chunk, deadline_ns: int, toxic_ns: int) -> Work:
    """Return a chunk as work of its own: with its part's record and times, its filing's deadline and its own tokens."""
    whole = part.whole
    return Work(
        origin=whole.origin,
        event_id=whole.event_id,
        class_index=whole.class_index,
        tokens=chunk.tokens,
        token_count=chunk.count,
        truncated=whole.truncated,
        event_time_ns=whole.event_time_ns,
        deadline_ns=deadline_ns,
        toxic_ns=toxic_ns,
        record=whole.record,
        appended_ns=whole.appended_ns,
        consumed_ns=whole.consumed_ns,
        queued_ns=whole.queued_ns,
        part=part,
        chunk=index,
    )


def _note_times(whole: Work, work: Work) -> None:
    """Let a part know how far its chunks came: the first start, the last end, the most runs."""
    for stage in ("dispatched_ns", "engine_started_ns", "first_token_ns"):
        at, known = getattr(work, stage), getattr(whole, stage)
        if at and (not known or at < known):
            setattr(whole, stage, at)
    whole.completed_ns = max(whole.completed_ns, work.completed_ns)
    whole.runs = max(whole.runs, work.runs)
