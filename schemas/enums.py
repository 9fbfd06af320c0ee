"""The closed vocabularies of the wire: service classes, stages, directions and outcomes."""

from __future__ import annotations

from enum import StrEnum


class ServiceClass(StrEnum):
    """The service classes of the default configuration, most urgent first.

    Classes are configuration (``[[classes]]``), so code that handles any class takes its name as a string; these
    are the names that the shipped profiles use.
    """

    FLASH = "flash"
    STANDARD = "standard"
    BULK = "bulk"


class Stage(StrEnum):
    """Where an event is on its way to a signal, in order; each has one stamp in nanoseconds since the epoch."""

    PUBLISHED = "published"
    """The source says it published the item."""
    RECEIVED = "received"
    """The feed handler had it in hand; event time starts here."""
    APPENDED = "appended"
    """Kafka's record timestamp on the input topic (millisecond grain)."""
    CONSUMED = "consumed"
    """The scheduler got it from the consumer."""
    QUEUED = "queued"
    """Decoded, tokenised, classified and in its class queue."""
    DISPATCHED = "dispatched"
    """Sent to a worker."""
    ENGINE_STARTED = "engine_started"
    """The engine scheduled its first prefill token."""
    FIRST_TOKEN = "first_token"  # noqa: S105 - the name of a stage, no secret
    """The engine produced the first output token."""
    COMPLETED = "completed"
    """The engine produced the last output token."""
    EMITTED = "emitted"
    """Handed to the producer of the result topic."""


class Direction(StrEnum):
    """What a signal says about its instruments."""

    BULLISH = "bullish"
    BEARISH = "bearish"
    NEUTRAL = "neutral"


class SignalKind(StrEnum):
    """Whether a record on the signals topic asserts something or takes it back."""

    SIGNAL = "signal"
    RETRACTION = "retraction"


class NewsStatus(StrEnum):
    """The publishing status of a news item (IPTC ninjs ``pubstatus``, with corrections told apart)."""

    USABLE = "usable"
    CORRECTED = "corrected"
    KILLED = "killed"


class Outcome(StrEnum):
    """How an event ended; every event ends in exactly one."""

    SIGNAL = "signal"
    EXPIRED = "expired"
    DEAD_LETTER = "dead_letter"
