"""One event, or one chunk of a filing, on its way through the scheduler, from the input record to its outcome."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from schemas.enums import Stage
from schemas.records import Nanoseconds, Stamps

if TYPE_CHECKING:
    from scheduler.filings import Part

Headers = tuple[tuple[str, bytes | None], ...]
"""Record headers; Kafka allows a header without a value."""


PUBLISHED, RECEIVED, APPENDED, CONSUMED, QUEUED, DISPATCHED, ENGINE_STARTED, FIRST_TOKEN, COMPLETED, *_ = Stage
"""As module constants: looking nine members up in their class takes longer than the rest of `Work.stamps`."""


class Origin(NamedTuple):
    """Where an event stands, and in which assignment it was received.

    Args:
        epoch: number of the partition's assignment to this process; work of an older epoch never touches the
            ledger again.
    """

    topic: str
    partition: int
    offset: int
    epoch: int


class State(IntEnum):
    """Where a piece of work is. ``DROPPED`` work belongs to nobody here: its partition went elsewhere."""

    QUEUED = 0
    IN_FLIGHT = 1
    DONE = 2
    DROPPED = 3
    RETRYING = 4
    """It failed and waits for its next attempt."""


class Source(Struct, kw_only=True, frozen=True):
    """What an outcome needs to know of the event behind it, news or filing."""

    version: int = 1
    instruments: list[str] = []
    published_at_ns: Nanoseconds = 0
    accepted_at_ns: Nanoseconds = 0
    received_at_ns: Nanoseconds = 0


class Readable(Struct, kw_only=True, frozen=True):
    """The text of a news event, for what is looked up in it once there is a signal."""

    headline: str = ""
    body: str = ""


class Original(NamedTuple):
    """An input record as it came."""

    key: bytes | None
    value: bytes
    headers: Headers

    def packed(self) -> bytes:
        """Return it as one bytes object: a fifth of what the parts cost as objects of their own."""
        return _pack(self)


class Work(Struct, kw_only=True, gc=False):
    """One event that waits for, or is in, an engine.

    Kept small, since a hundred thousand of these may wait: token ids are packed bytes, and of the event itself only
    the original record is kept, packed. It is read again (a microsecond) when there is an outcome to write.

    Args:
        record: the packed `Original`.
        class_index: position of the service class in the configuration, 0 the most urgent.
        tokens: packed token ids of the text (see `schemas.frames.pack_tokens`).
        token_count: number of those.
        deadline_ns: event time plus SLO; never changes, whatever happens to the work.
        toxic_ns: time after which it is not run any more; 0 for never.
        runs: how often it was given to a worker.
        deaths: how many workers died with it in flight.
        refusals: how often an engine failed it and said that another try may help.
        suspect: it was in flight at too many deaths, with others: it runs apart from other suspects until it is clear
            which of them kills engines.
        late: it can no longer meet its deadline, so it waits until nothing waits that still can.
        floor: it was dispatched as its class's guaranteed share.
        alone: when it was dispatched, its worker had no other urgent work.
        productive: its present run has produced a token.
        part: of a chunk, the part of the filing that it is from; its record is the part's own, not another copy.
        chunk: its place among the part's chunks.
    """

    origin: Origin
    event_id: str
    class_index: int
    tokens: bytes
    token_count: int
    truncated: bool
    event_time_ns: Nanoseconds
    deadline_ns: Nanoseconds
    toxic_ns: Nanoseconds
    record: bytes
    appended_ns: Nanoseconds
    consumed_ns: Nanoseconds
    queued_ns: Nanoseconds = 0
    dispatched_ns: Nanoseconds = 0
    engine_started_ns: Nanoseconds = 0
    first_token_ns: Nanoseconds = 0
    completed_ns: Nanoseconds = 0
    state: State = State.QUEUED
    sequence: int = 0
    request_id: int = 0
    worker_id: str = ""
    runs: int = 0
    deaths: int = 0
    refusals: int = 0
    suspect: bool = False
    late: bool = False
    floor: bool = False
    alone: bool = False
    productive: bool = False
    part: Part | None = None
    chunk: int = 0

    def original(self) -> Original:
        """Return the input record."""
        return unpacked(self.record)

    def stamps(self, source: Source) -> Stamps:
        """Return the stamps so far, without the stages that were not reached."""
        stamps = {
            PUBLISHED: source.published_at_ns or source.accepted_at_ns,
            RECEIVED: source.received_at_ns,
            APPENDED: self.appended_ns,
            CONSUMED: self.consumed_ns,
            QUEUED: self.queued_ns,
            DISPATCHED: self.dispatched_ns,
            ENGINE_STARTED: self.engine_started_ns,
            FIRST_TOKEN: self.first_token_ns,
            COMPLETED: self.completed_ns,
        }
        return stamps if 0 not in stamps.values() else {stage: at for stage, at in stamps.items() if at}

    def stage(self) -> Stage:
        """Return the last stage it reached."""
        if self.completed_ns:
            return Stage.COMPLETED
        if self.first_token_ns:
            return Stage.FIRST_TOKEN
        return Stage.DISPATCHED if self.dispatched_ns else Stage.QUEUED

    @property
    def behind(self) -> bool:
        """Whether it waits behind all other work of its class: its failures must not cost work that has none."""
        return self.refusals > 0 or self.suspect

    def forget_run(self) -> None:
        """Clear what one run left behind, so that a requeued event looks queued; its deadline stays."""
        self.dispatched_ns = self.engine_started_ns = self.first_token_ns = self.completed_ns = 0
        self.worker_id = ""
        self.request_id = 0


_pack = msgspec.msgpack.Encoder().encode
unpacked = msgspec.msgpack.Decoder(Original).decode
"""The `Original` that `Original.packed` packed."""
read_source = msgspec.json.Decoder(Source).decode
read_readable = msgspec.json.Decoder(Readable).decode
