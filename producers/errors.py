"""Errors of the producers."""

from __future__ import annotations

from schemas.errors import TapewireError


class PublishError(TapewireError):
    """Kafka is there and refuses a record.

    Args:
        topic: where the record was to go.
        reason: why, in the words of the client or the broker.
        records: how many records of that topic were refused so far.
    """

    def __init__(self, topic: str, reason: str, records: int = 1) -> None:
        self.topic = topic
        self.reason = reason
        self.records = records
        noun = "record" if records == 1 else "records"
        super().__init__(f"{records} {noun} refused by topic {topic}: {reason}")
