"""Errors of the scheduler."""

from __future__ import annotations

from schemas.errors import DecisionError, TapewireError


class SchedulerError(TapewireError):
    """Root of the scheduler's own errors."""


class PublishError(SchedulerError):
    """A result could not be published; its input offset stays unfinished.

    Args:
        topic: where it should have gone.
        reason: the producer's words.
    """

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        self.reason = reason
        super().__init__(f"cannot publish to {topic}: {reason}")


class FencedError(SchedulerError, DecisionError):
    """Another scheduler with the same id has taken over our transactions.

    Two schedulers with one id fence each other for ever, so this one stops.

    Args:
        transactional_id: what both call themselves.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        super().__init__(
            f"another scheduler publishes as {transactional_id}: give each scheduler an id of its own (scheduler.id)"
        )


class OffsetsLostError(SchedulerError, DecisionError):
    """Kafka no longer holds the offset that this group wants to read next.

    Going on at another offset would skip events silently, so the scheduler stops and a person decides.
    """


class OffsetMapError(SchedulerError):
    """The metadata of a committed offset is no map of finished offsets; it is ignored.

    Args:
        reason: what is wrong with it, in words of our own.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"not a map of finished offsets: {reason}")
