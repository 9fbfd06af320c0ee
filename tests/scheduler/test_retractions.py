"""A killed story takes back everything that was said about it."""

from __future__ import annotations

import pytest

from scheduler.outcomes import Outcomes
from scheduler.publisher import OutHeaders, Publisher
from scheduler.stats import Stats
from scheduler.work import Origin, Original
from schemas.codec import decode_json
from schemas.enums import NewsStatus, SignalKind
from schemas.records import NewsEvent, Signal
from schemas.topics import Topics
from tests.scheduler.make import CLASSES, EVENT_TIME_NS


class Kept(Publisher):
    """A publisher that keeps what it is given; nothing of it is sent."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    def publish(self, topic: str, key: bytes | None, value: bytes, headers: OutHeaders, receipt: object) -> None:
        """Keep the value."""
        self.values.append(value)


@pytest.mark.parametrize(
    ("supersedes", "earlier", "retracts"),
    [
        ("w:7:3", ["w:7:1", "w:7:2"], ["w:7:1", "w:7:2", "w:7:3"]),
        ("w:7:1", [], ["w:7:1"]),
        (None, [], []),
    ],
)
def test_a_kill_retracts_every_version(supersedes: str | None, earlier: list[str], retracts: list[str]) -> None:
    """The retraction names all published versions of the story, the last one last, and its instruments."""
    publisher = Kept()
    killed = NewsEvent(
        event_id="w:7:4",
        source="w",
        headline="",
        received_at_ns=EVENT_TIME_NS,
        version=4,
        status=NewsStatus.KILLED,
        supersedes=supersedes,
        earlier=earlier,
        instruments=["VNTR"],
    )
    Outcomes(publisher, Topics(), Stats(CLASSES)).retraction(
        killed, Origin("t", 0, 1, 1), Original(None, b"{}", ()), {}
    )
    (value,) = publisher.values
    signal = decode_json(value, Signal)
    assert signal.kind is SignalKind.RETRACTION
    assert signal.retracts == retracts
    assert signal.instruments == ["VNTR"]
