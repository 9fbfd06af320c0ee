"""Follows the output topics while a run goes on: how many events are done, and when the last new one was."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict

import structlog
from aiokafka.errors import KafkaError

from schemas.settings import KafkaSettings
from tests.chaos.reading import FETCH_MS, MOST_RECORDS, outcomes_of, reader

log = structlog.get_logger()

AGAIN_SECONDS = 0.5


class Observer:
    """Counts completions, which are first outcomes; lag would call a stuck group that nobody feeds healthy.

    Args:
        kafka: where the output topics are.
        committed: read what committed transactions wrote, and nothing else.
    """

    def __init__(self, kafka: KafkaSettings, *, committed: bool) -> None:
        self._kafka = kafka
        self._committed = committed
        self._seen: defaultdict[tuple[str, int], bytearray] = defaultdict(bytearray)
        self.done = 0
        self.repeated = 0
        self.last_new_at = time.monotonic()
        self.kinds: defaultdict[str, int] = defaultdict(int)

    async def run(self) -> None:
        """Read until cancelled; a broker that is away is waited for."""
        async with reader(self._kafka, self._kafka.topics.outputs, committed=self._committed) as consumer:
            while True:
                try:
                    fetched = await consumer.getmany(timeout_ms=FETCH_MS, max_records=MOST_RECORDS)
                except KafkaError as error:
                    log.warning("observer_fetch_failed", error=f"{type(error).__name__}: {error}")
                    await asyncio.sleep(AGAIN_SECONDS)
                    continue
                for batch in fetched.values():
                    for record in batch:
                        for outcome in outcomes_of(record, self._kafka.topics):
                            self._note(outcome.source[:2], outcome.source.offset, outcome.kind)

    def _note(self, partition: tuple[str, int], offset: int, kind: str) -> None:
        seen = self._seen[partition]
        if offset >= len(seen):
            seen.extend(bytes(offset - len(seen) + 4096))
        if seen[offset]:
            self.repeated += 1
            return
        seen[offset] = 1
        self.done += 1
        self.kinds[kind] += 1
        self.last_new_at = time.monotonic()
