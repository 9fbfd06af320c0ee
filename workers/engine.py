"""What every engine offers the worker process and what it calls back: the seam between the link and a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from schemas.errors import ErrorKind, TapewireError
from schemas.frames import EngineInfo, Extractor, Failure, Limits, Request, Result, Started, StepPolicy


class WorkerState(StrEnum):
    """What a worker is doing, for a person who waits."""

    CONVERTING = "converting"
    """The model is being prepared for its first use on this machine."""
    LOADING = "loading"
    """The engine is starting and loads weights."""
    WARMING = "warming"
    """Prompts and grammars run once, so that the first event meets a warm engine."""
    CONNECTING = "connecting"
    """Warm; no scheduler has welcomed this worker yet."""
    WORKING = "working"
    """Welcomed by a scheduler."""
    DRAINING = "draining"
    """Finishing what is in the engine; takes no more."""
    STOPPED = "stopped"


OnState = Callable[[WorkerState, str], None]
"""Called with a state and one short line of detail, from the event loop or from a thread of its own."""


class EngineDiedError(TapewireError):
    """The engine cannot go on in this process; whoever supervises it should start it again.

    Args:
        engine: the engine's name.
        reason: what it said last.
    """

    def __init__(self, engine: str, reason: str) -> None:
        self.engine = engine
        self.reason = reason
        super().__init__(f"engine {engine} died: {reason}")


class RequestError(TapewireError):
    """One request cannot be run as it is; the engine is fine.

    Args:
        kind: what the failure frame says.
        reason: one sentence for a person.
        retryable: another run may end differently.
    """

    def __init__(self, kind: ErrorKind, reason: str, *, retryable: bool = False) -> None:
        self.kind = kind
        self.reason = reason
        self.retryable = retryable
        super().__init__(f"{kind.value}: {reason}")

    def failure(self, request_id: int) -> Failure:
        """Return the frame that reports it."""
        return Failure(request_id=request_id, kind=self.kind.value, message=self.reason, retryable=self.retryable)


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineDescription:
    """What a warm engine is.

    Args:
        extractors: one for each prompt that it has compiled.
        tokenizer_json: the ``tokenizer.json`` as bytes; its hash stands in ``info``.
        step_gate: less urgent work is kept out of steps that an urgent request needs (see `workers.step_gate`).
        steps_ahead: steps that are already decided when a request arrives.
    """

    info: EngineInfo
    limits: Limits
    extractors: list[Extractor]
    tokenizer_json: bytes
    step_gate: bool = False
    steps_ahead: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Engine steps since the last call; the fields are those of `schemas.frames.StepReport`."""

    steps: int
    seconds: float
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    kv_usage: float
    decode_steps: int = 0


class EngineSink(Protocol):
    """What an engine calls, always from the event loop.

    When a request's end is reported, `Engine.in_flight` no longer counts it. Each request that was submitted and
    not aborted ends in exactly one result or failure.
    """

    def on_started(self, started: Started) -> None:
        """A request produced its first token and has more to come."""

    def on_result(self, result: Result) -> None:
        """A request is done."""

    def on_failure(self, failure: Failure) -> None:
        """A request ended without an answer."""

    def on_steps(self, steps: Steps) -> None:
        """The engine made steps."""

    def on_died(self, reason: str) -> None:
        """The engine is gone; everything in flight has been reported as failed."""


class Engine(Protocol):
    """A model that answers requests; one per worker process."""

    async def start(self) -> EngineDescription:
        """Load and warm up; returns when the first real request would run at full speed.

        Raises:
            ConfigError: a setting or the model is wrong.
            UnavailableError: the model or a package is missing.
            EngineDiedError: the engine did not come up.
        """

    def submit(self, requests: Sequence[Request]) -> None:
        """Take work, most urgent first. Never blocks and never raises: a bad request becomes a failure."""

    def set_policy(self, policy: StepPolicy) -> None:
        """Split steps like this from the next request on; an engine that cannot do that ignores it."""

    def abort(self, request_ids: Iterable[int]) -> None:
        """Stop these requests and free what they hold. Nothing is reported for them once this returns."""

    async def stop(self) -> None:
        """Give everything back, within a bounded time. Safe to call before `start` and twice."""

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""

    @property
    def steps(self) -> int:
        """Engine steps since the start."""


def monotonic_to_epoch_ns() -> int:
    """Return what to add to a monotonic time in nanoseconds to get nanoseconds since the epoch.

    Linux gives all processes the same CLOCK_MONOTONIC (clock_gettime(2): since boot), so this also holds for the
    stamps of an engine in a process of its own.
    """
    return time.time_ns() - time.monotonic_ns()


def printable(text: str, limit: int = 200) -> str:
    """Return text from outside, safe for a log line or a terminal and bounded in length."""
    return "".join(char if char.isprintable() else "?" for char in text[:limit])
