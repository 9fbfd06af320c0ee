"""The status snapshot that a scheduler leaves in Redis twice a second, for dashboards and the demo's live table."""

from __future__ import annotations

from msgspec import Struct


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


class SchedulerStatus(Struct, kw_only=True, frozen=True):
    """One scheduler.

    Args:
        state: ``waiting_for_worker``, ``running``, ``paused`` (back-pressure) or ``draining``.
        undecodable: records that became dead letters before they had a class.
        stamps_dropped: stamps lost because Redis was slow or away.
    """

    scheduler_id: str
    at_ns: int
    state: str
    classes: list[ClassStatus]
    workers: list[WorkerStatus]
    undecodable: int
    stamps_dropped: int
