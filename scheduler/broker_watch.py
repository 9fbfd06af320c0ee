"""Whether Kafka is there: said once when it goes, every half minute while it is away, and once when it is back.

aiokafka logs some thirty warnings a second meanwhile, which `ops.logs` keeps from people.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import structlog

log = structlog.get_logger()

LOOK_SECONDS = 1.0
"""Between two looks; each asks one broker for the metadata of three topics."""
ANSWER_SECONDS = 3.0
"""A cluster that does not answer for this long is away."""
CONFIRM_SECONDS = 3.0
"""So is one that answers and confirms nothing for this long: a partition without a leader, too few replicas."""
REMIND_SECONDS = 30.0


class Watched(Protocol):
    """The publisher, as far as it shows whether Kafka is there."""

    @property
    def oldest_seconds(self) -> float:
        """How long what waits longest for its confirmation has been doing so."""

    async def answers(self, seconds: float) -> bool:
        """Return whether the cluster answers in that time."""

    def renew(self, reason: str) -> None:
        """Make the producer anew."""


class BrokerWatch:
    """Watches the broker for a scheduler.

    Args:
        publisher: is asked, and made anew when it is stuck.
        waits: what waits, as fields of the log lines.
        publish_seconds: how long a cluster that answers may leave a batch unconfirmed before the producer, and not the
            cluster, is at fault. While the cluster is away a new producer would fare no better, and what the old one
            had on its way would be written twice.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        publisher: Watched,
        waits: Callable[[], Mapping[str, int]],
        publish_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._publisher = publisher
        self._waits = waits
        self._publish_seconds = publish_seconds
        self._clock = clock
        self._away_since: float | None = None
        self._answers_since: float | None = None
        self._reminded_at = 0.0
        self._silenced = 0

    @property
    def away(self) -> bool:
        """Whether Kafka is away."""
        return self._away_since is not None

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            before = self._clock()
            await asyncio.sleep(LOOK_SECONDS)
            answers = await self._publisher.answers(ANSWER_SECONDS)
            now = self._clock()
            if now - before > 2 * (LOOK_SECONDS + ANSWER_SECONDS):
                continue  # it was us who were stopped; what Kafka has sent meanwhile waits to be read
            self.look(answers=answers, oldest=self._publisher.oldest_seconds, now=now)

    def look(self, *, answers: bool, oldest: float, now: float) -> None:
        """Take one observation.

        Args:
            answers: whether the cluster answered.
            oldest: age of the oldest unconfirmed batch, in seconds.
            now: monotonic seconds.
        """
        if not answers:
            self._answers_since = None
        elif self._answers_since is None:
            self._answers_since = now
        if answers and oldest <= CONFIRM_SECONDS:
            self._back(now)
            return
        self._gone(now, "it does not answer" if not answers else f"it confirms nothing since {oldest:.0f} s")
        if self._answers_since is not None and min(oldest, now - self._answers_since) > self._publish_seconds:
            self._answers_since = now  # the new producer has as long
            self._publisher.renew(f"no confirmation since {oldest:.0f} s from a cluster that answers")

    def trouble(self, event: str, **fields: Any) -> None:
        """Log a failure that Kafka being away explains: not while it is known to be, then only their number counts."""
        if self.away:
            self._silenced += 1
        else:
            log.warning(event, **fields)

    def _gone(self, now: float, reason: str) -> None:
        if self._away_since is None:
            self._away_since = self._reminded_at = now
            log.warning("kafka_away", reason=reason, **self._waits())
        elif now - self._reminded_at >= REMIND_SECONDS:
            self._reminded_at = now
            log.warning("kafka_still_away", reason=reason, seconds=round(now - self._away_since), **self._waits())

    def _back(self, now: float) -> None:
        if self._away_since is None:
            return
        log.info("kafka_back", seconds=round(now - self._away_since, 1), silenced=self._silenced, **self._waits())
        self._away_since = None
        self._silenced = 0
