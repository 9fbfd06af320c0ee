"""From fetched records to queued work: decode, tokenise off the event loop, classify; what cannot be read dies here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from aiokafka import ConsumerRecord

from scheduler.chunks import Chunk
from scheduler.classify import Classifier, clean_news, text_of
from scheduler.filing_text import ChunkSize, PartText, read_part
from scheduler.filings import ChunkSpan, Part
from scheduler.ledger import Ledger
from scheduler.outcomes import Outcomes
from scheduler.tokens import TextTokenizer, Tokens
from scheduler.work import Headers, Origin, Original, Work
from schemas.codec import Limits, decode_filing, decode_news
from schemas.enums import NewsStatus, Stage
from schemas.errors import DecodeError
from schemas.records import Event, FilingEvent, NewsEvent, Stamps
from schemas.settings import SchedulerSettings
from schemas.topics import Topics

MILLISECOND = 1_000_000
CLOCK_GRAIN_NS = MILLISECOND - 1
"""Kafka's timestamps are whole milliseconds: an event received in the same one is not ahead of its own append."""
MOST_KILLED = 10_000
"""Killed events that are remembered. One matters only while its story is queued or running, seconds as a rule."""
SMALL_BATCH_CHARS = 2_000
"""Texts of this size together are tokenised at once: less work than a round trip through the thread."""


PORTION_CHARS = 64_000
"""Text that is read in one go off the event loop, 0.1 s: what a long fetch brings is queued as it is ready."""


class _Readable(NamedTuple):
    """A record that could be decoded.

    Args:
        consumed: when it was fetched, nanoseconds since the epoch.
        text: its text as it came.
    """

    event: Event
    origin: Origin
    record: ConsumerRecord
    consumed: int
    text: str


class Admission:
    """Turns records into work.

    Args:
        settings: classes, rules and limits.
        topics: tells news from filings.
        ledger: notes each offset as received.
        outcomes: takes what cannot be read, and retractions.
        queue: takes each piece of work.
        take_part: takes each part of a filing, with the chunks that it is read in.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        topics: Topics,
        ledger: Ledger,
        outcomes: Outcomes,
        queue: Callable[[Work], None],
        take_part: Callable[[Part, Sequence[Chunk]], None],
    ) -> None:
        self._classes = settings.classes
        self._classifier = Classifier(settings.classes, settings.rules)
        self._limits = Limits(**settings.limits.model_dump())
        self._news_topic = topics.news
        self._ledger = ledger
        self._outcomes = outcomes
        self._queue = queue
        self._take_part = take_part
        self.killed: dict[str, None] = {}
        """Event ids that their source took back, oldest first: what is still running for them must not become a signal
        after its own retraction."""
        # One thread for each topic: tokenising two of its batches at once would only let them overtake each other,
        # and a headline must not stand behind a filing.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")
        self._filings_thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize-filings")

    async def admit(
        self,
        topic: str,
        records: list[tuple[ConsumerRecord, int]],
        tokenizer: TextTokenizer,
        text_limit: int,
        sizes: Sequence[ChunkSize],
    ) -> None:
        """Take records of one topic in their order.

        Args:
            topic: the input topic.
            records: each with the time it was consumed, in nanoseconds.
            tokenizer: the model's.
            text_limit: longest text, in tokens, that the workers can hold.
            sizes: per service class, how its extractor wants a filing's text.
        """
        readable: list[_Readable] = []
        for record, consumed in records:
            if self._outcomes.stopped:
                # A received offset without an outcome holds the commit back; one that was never received cannot. So
                # nothing behind the one that was held may be received at all: a restart reads it again.
                break
            origin = self._ledger.receive(topic, record.partition, record.offset)
            if origin is None:
                continue  # revoked while the fetch was on its way; the new owner has it
            event = self._read(topic, record, origin, consumed)
            if event is not None:
                readable.append(_Readable(event, origin, record, consumed, text_of(event)))
        for portion in _portions(readable):
            if topic == self._news_topic:
                await self._admit_news(portion, tokenizer, text_limit)
            else:
                await self._admit_filings(portion, tokenizer, text_limit, sizes)

    async def _admit_news(self, portion: list[_Readable], tokenizer: TextTokenizer, text_limit: int) -> None:
        events = [one.event for one in portion if isinstance(one.event, NewsEvent)]

        def read() -> list[Tokens]:
            return tokenizer.encode([clean_news(event) for event in events], text_limit)

        if sum(len(one.text) for one in portion) <= SMALL_BATCH_CHARS:
            encoded = read()
        else:
            encoded = await asyncio.get_running_loop().run_in_executor(self._thread, read)
        queued = time.time_ns()
        for one, tokens in zip(portion, encoded, strict=True):
            if not self._ledger.owns(one.origin):
                continue
            class_index = self._classifier.classify(one.event, tokens.count)
            self._queue(self._work(one, class_index, tokens, queued))

    async def _admit_filings(
        self, portion: list[_Readable], tokenizer: TextTokenizer, text_limit: int, sizes: Sequence[ChunkSize]
    ) -> None:
        events = [(one.event, one.text) for one in portion if isinstance(one.event, FilingEvent)]

        def read() -> list[PartText]:
            return [read_part(event, text, tokenizer, self._classifier, sizes, text_limit) for event, text in events]

        texts = await asyncio.get_running_loop().run_in_executor(self._filings_thread, read)
        queued = time.time_ns()
        for one, (event, _), text in zip(portion, events, texts, strict=True):
            if self._ledger.owns(one.origin):
                empty = Tokens(b"", 0, text.truncated)
                self._take_part(_part(event, text, self._work(one, text.class_index, empty, queued)), text.chunks)

    def _work(self, one: _Readable, class_index: int, tokens: Tokens, queued: int) -> Work:
        event, origin, record, consumed, _ = one
        service_class = self._classes[class_index]
        appended = record.timestamp * MILLISECOND if record.timestamp > 0 else 0
        # Neither the feed handler's clock nor the broker's can make an event younger than its arrival here.
        event_time = min(event.received_at_ns, consumed)
        if appended:
            event_time = min(event_time, appended + CLOCK_GRAIN_NS)
        toxic_ms = service_class.toxic_ms
        return Work(
            origin=origin,
            event_id=event.event_id,
            class_index=class_index,
            tokens=tokens.ids,
            token_count=tokens.count,
            truncated=tokens.truncated,
            event_time_ns=event_time,
            deadline_ns=event_time + int(service_class.slo_ms * MILLISECOND),
            toxic_ns=event_time + int(toxic_ms * MILLISECOND) if toxic_ms is not None else 0,
            record=Original(record.key, record.value, record.headers).packed(),
            appended_ns=appended,
            consumed_ns=consumed,
            queued_ns=queued,
        )

    def _remember_killed(self, event_id: str) -> None:
        self.killed[event_id] = None
        if len(self.killed) > MOST_KILLED:
            del self.killed[next(iter(self.killed))]

    def close(self) -> None:
        """Let the tokenising thread go."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._filings_thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, topic: str, record: ConsumerRecord, origin: Origin, consumed: int) -> Event | None:
        # A tombstone has no value at all; to a decoder that is an empty record.
        value: bytes = record.value or b""
        headers: Headers = record.headers
        decode = decode_news if topic == self._news_topic else decode_filing
        try:
            event: Event = decode(value, self._limits)
        except DecodeError as error:
            original = Original(record.key, value, headers)
            self._outcomes.dead_record(origin, original, error.kind, error.field, error.reason)
            return None
        if isinstance(event, NewsEvent) and event.status is NewsStatus.KILLED:
            if event.supersedes:
                self._remember_killed(event.supersedes)
            original = Original(record.key, value, headers)
            self._outcomes.retraction(event, origin, original, _first_stamps(event, record, consumed))
            return None
        return event


def _portions(readable: list[_Readable]) -> Iterator[list[_Readable]]:
    """Yield what came in portions of about `PORTION_CHARS`, in order."""
    portion: list[_Readable] = []
    chars = 0
    for one in readable:
        if portion and chars + len(one.text) > PORTION_CHARS:
            yield portion
            portion, chars = [], 0
        portion.append(one)
        chars += len(one.text)
    if portion:
        yield portion


def _part(event: FilingEvent, text: PartText, whole: Work) -> Part:
    return Part(
        whole=whole,
        accession=event.accession,
        number=event.part,
        parts=event.parts,
        version=event.version,
        spans=[ChunkSpan(chunk.start, chunk.end, chunk.count, chunk.own) for chunk in text.chunks],
        tokens=text.tokens,
        items=event.items,
        ciks=event.ciks,
        instruments=event.instruments,
        figures=text.figures,
    )


def _published(event: Event) -> int:
    return event.published_at_ns if isinstance(event, NewsEvent) else event.accepted_at_ns


def _first_stamps(event: Event, record: ConsumerRecord, consumed: int) -> Stamps:
    pairs: Iterable[tuple[Stage, int]] = (
        (Stage.PUBLISHED, _published(event)),
        (Stage.RECEIVED, event.received_at_ns),
        (Stage.APPENDED, max(record.timestamp, 0) * MILLISECOND),
        (Stage.CONSUMED, consumed),
    )
    return {stage: at for stage, at in pairs if at}
