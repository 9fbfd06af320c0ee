"""One event on its way through the scheduler, from the input record to its outcome."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from schemas.enums import Stage
from schemas.records import Nanoseconds, Stamps

Headers = tuple[tuple[str, bytes], ...]


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


class Work(Struct, kw_only=True, gc=False):
    """One event that waits for, or is in, an engine.

    Kept small, since a hundred thousand of these may wait: token ids are packed bytes, the text itself is gone
    (the raw record is kept, because a dead letter must hold it untouched).

    Args:
        class_index: position of the service class in the configuration, 0 the most urgent.
        tokens: packed token ids of the text (see `schemas.frames.pack_tokens`).
        token_count: number of those.
        deadline_ns: event time plus SLO; never changes, whatever happens to the work.
        toxic_ns: time after which it is not run any more; 0 for never.
        runs: how often it was given to a worker.
        deaths: how many workers died with it in flight.
        refusals: how often an engine failed it and said that another try may help.
    """

    origin: Origin
    event_id: str
    event_version: int
    instruments: tuple[str, ...]
    class_index: int
    tokens: bytes
    token_count: int
    truncated: bool
    event_time_ns: Nanoseconds
    deadline_ns: Nanoseconds
    toxic_ns: Nanoseconds
    key: bytes | None
    value: bytes
    headers: Headers
    published_ns: Nanoseconds
    received_ns: Nanoseconds
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

    def stamps(self) -> Stamps:
        """Return the stamps so far, without the stages that were not reached."""
        pairs = (
            (Stage.PUBLISHED, self.published_ns),
            (Stage.RECEIVED, self.received_ns),
            (Stage.APPENDED, self.appended_ns),
            (Stage.CONSUMED, self.consumed_ns),
            (Stage.QUEUED, self.queued_ns),
            (Stage.DISPATCHED, self.dispatched_ns),
            (Stage.ENGINE_STARTED, self.engine_started_ns),
            (Stage.FIRST_TOKEN, self.first_token_ns),
            (Stage.COMPLETED, self.completed_ns),
        )
        return {stage: at for stage, at in pairs if at}

    def stage(self) -> Stage:
        """Return the last stage it reached."""
        return max(self.stamps().items(), key=lambda pair: _ORDER[pair[0]])[0]

    def forget_run(self) -> None:
        """Clear what one run left behind, so that a requeued event looks queued; its deadline stays."""
        self.dispatched_ns = self.engine_started_ns = self.first_token_ns = self.completed_ns = 0
        self.worker_id = ""
        self.request_id = 0


_ORDER = {stage: index for index, stage in enumerate(Stage)}
