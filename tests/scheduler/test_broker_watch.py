"""Few lines about a broker that is away, and a new producer only where the cluster is not at fault."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from scheduler.broker_watch import CONFIRM_SECONDS, REMIND_SECONDS, BrokerWatch

PUBLISH_SECONDS = 20.0


class _Producer:
    """Counts how often it was made anew."""

    oldest_seconds = 0.0

    def __init__(self) -> None:
        self.renewed: list[str] = []

    async def answers(self, seconds: float) -> bool:
        return True

    def renew(self, reason: str) -> None:
        self.renewed.append(reason)


@pytest.fixture
def producer() -> _Producer:
    """A stand-in for the publisher: what is tested is what is decided about it."""
    return _Producer()


@pytest.fixture
def watch(producer: _Producer) -> BrokerWatch:
    """A watch over it."""
    return BrokerWatch(producer, lambda: {"unconfirmed": 7}, PUBLISH_SECONDS)


def _events(logs: list[Any]) -> list[str]:
    return [entry["event"] for entry in logs]


def test_an_outage_is_three_kinds_of_lines(watch: BrokerWatch) -> None:
    """Five minutes away: one line at the start, one every half minute with what waits, one at the end with how long."""
    with capture_logs() as logs:
        for second in range(300):
            watch.look(answers=False, oldest=second, now=1000.0 + second)
            assert watch.away
        watch.look(answers=True, oldest=0, now=1300)
    assert not watch.away
    reminders = (300 - 1) // REMIND_SECONDS
    assert _events(logs) == ["kafka_away", *["kafka_still_away"] * int(reminders), "kafka_back"]
    assert all(entry["unconfirmed"] == 7 for entry in logs)
    assert logs[-1]["seconds"] == 300


def test_a_cluster_that_answers_and_confirms_nothing_is_away(watch: BrokerWatch) -> None:
    """A partition without a leader leaves metadata answered and batches waiting: that is away as well."""
    watch.look(answers=True, oldest=CONFIRM_SECONDS, now=10)
    assert not watch.away
    watch.look(answers=True, oldest=CONFIRM_SECONDS + 1, now=11)
    assert watch.away


def test_a_producer_is_not_made_anew_while_the_cluster_is_away(watch: BrokerWatch, producer: _Producer) -> None:
    """However old a batch gets, a cluster that does not answer gets no second producer that would write it twice."""
    for second in range(600):
        watch.look(answers=False, oldest=second, now=second)
    assert producer.renewed == []
    # It is back: the old producer has the whole time to deliver what it has.
    for second in range(600, 600 + int(PUBLISH_SECONDS)):
        watch.look(answers=True, oldest=second, now=second)
    assert producer.renewed == []


def test_a_stuck_producer_is_made_anew_once_per_time_limit(watch: BrokerWatch, producer: _Producer) -> None:
    """The cluster answers and nothing is confirmed: a new producer after the limit, and another only after it again."""
    for second in range(2 * int(PUBLISH_SECONDS) + 10):
        watch.look(answers=True, oldest=second, now=second)
    assert len(producer.renewed) == 2


def test_what_an_outage_explains_is_not_logged(watch: BrokerWatch) -> None:
    """Failed commits and fetches are lines of their own while Kafka is there, and one number while it is away."""
    with capture_logs() as logs:
        watch.trouble("commit_failed", topic="t")
        watch.look(answers=False, oldest=0, now=1)
        for _ in range(50):
            watch.trouble("commit_failed", topic="t")
        watch.look(answers=True, oldest=0, now=2)
    assert _events(logs) == ["commit_failed", "kafka_away", "kafka_back"]
    assert logs[-1]["silenced"] == 50
