"""The status snapshot that a scheduler leaves in Redis twice a second, for dashboards and the demo's live table."""

from __future__ import annotations

from msgspec import Struct

from schemas.frames import Extractor, Limits

STOPPED_BY_DEAD_LETTERS = "stopped_by_dead_letters"
"""The state of a scheduler that takes nothing in any more (see `schemas.settings.DeadLetterSettings`)."""
STOPPED_METRIC = "tapewire_stopped_by_dead_letters"
"""The gauge that is 1 in that state."""
STOPPED_MEND = "mend what makes the dead letters (tapewire dlq ls), then restart the scheduler; nothing is lost"
"""What to tell whoever sees that state."""


class ClassStatus(Struct, kw_only=True, frozen=True):
    """One service class: what arrived since the start, what waits, what runs, how it ended."""

    name: str
    slo_ms: float
    arrived: int
    queued: int
    in_flight: int
    signals: int
    late: int
    expired: int
    dead_letters: int


class WorkerModel(Struct, kw_only=True, frozen=True):
    """What a scheduler knows of a worker's engine; `tapewire capacity` calculates with it.

    ``seconds of a step = step + prefill tokens * prefill_token + decodes * decode + KV tokens * kv_token``, fitted to
    the worker's step reports.
    """

    step_seconds: float
    prefill_token_seconds: float
    decode_seconds: float
    kv_token_seconds: float
    steps_ahead: int
    limits: Limits
    extractors: list[Extractor]


class WorkerStatus(Struct, kw_only=True, frozen=True):
    """One worker as its scheduler sees it.

    Args:
        kv_usage: fraction of KV blocks in use at the last report.
    """

    worker_id: str
    engine: str
    engine_version: str
    model: str
    in_flight: int
    steps: int
    kv_usage: float
    fitted: WorkerModel | None = None


class SchedulerStatus(Struct, kw_only=True, frozen=True):
    """One scheduler.

    Args:
        state: ``waiting_for_worker``, ``running``, ``paused`` (back-pressure), ``kafka_away``, ``stalled``,
            ``stopped_by_dead_letters`` (see `schemas.settings.DeadLetterSettings`) or ``draining``.
        undecodable: records that became dead letters before they had a class.
        stamps_dropped: stamps lost because Redis was slow or away.
        retrying: failed requests that wait for their next attempt.
        unconfirmed: published records that Kafka has not confirmed.
        unfinished: received offsets without a confirmed outcome.
    """

    scheduler_id: str
    at_ns: int
    state: str
    classes: list[ClassStatus]
    workers: list[WorkerStatus]
    undecodable: int
    stamps_dropped: int
    retrying: int = 0
    unconfirmed: int = 0
    unfinished: int = 0
