"""Publishes the event stream at a rate and makes sure that every event is on its topic, whatever the broker does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from schemas.settings import KafkaSettings
from tests.chaos.events import Made

log = structlog.get_logger()

TICK_SECONDS = 0.01
MOST_AT_ONCE = 200
"""Events of one tick; a feeder that is behind catches up with at most this many per tick, and so does not hold up the
loop that also reads the results."""
MOST_UNCONFIRMED = 5_000
PATIENCE_SECONDS = 15.0
"""Without any confirmation for this long, the producer is made anew and everything unconfirmed is published again.
What had arrived all the same is then on the topic twice, at two offsets: two inputs for the ledger."""
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 2.0


class _Out(NamedTuple):
    topic: str
    key: bytes | None
    value: Callable[[], bytes]


class Feeder:
    """Publishes until `stop`; then `finish` confirms the rest.

    Args:
        kafka: where to.
        events: what.
        rate: events/s; 0 for as many as ``may_feed`` lets through.
        may_feed: asked before each tick; bounds what the system has not answered.
        most: events after which it ends by itself; 0 for never.
    """

    def __init__(
        self, kafka: KafkaSettings, events: Iterator[Made], rate: float, may_feed: Callable[[], bool], most: int = 0
    ) -> None:
        self._kafka = kafka
        self._events = itertools.islice(events, most) if most else events
        self._rate = rate
        self._may_feed = may_feed
        self._again: deque[_Out] = deque()
        self._pending: dict[int, _Out] = {}
        self._serial = itertools.count()
        self._producer: Any = None
        self._progress_at = time.monotonic()
        self._broken = False
        self._stopping = False
        self.made = 0
        self.malformed = 0
        self.confirmed = 0
        self.republished = 0
        self.producers = 0
        self.highest: dict[tuple[str, int], int] = {}
        """Highest confirmed offset per input partition: what the broker must still have at the end."""

    @property
    def unconfirmed(self) -> int:
        """Records that are not known to be on their topic."""
        return len(self._pending) + len(self._again)

    def flood(self, records: list[bytes]) -> None:
        """Publish malformed records to the news topic with the next tick."""
        topic = self._kafka.topics.news
        self.malformed += len(records)
        self._again.extend(_Out(topic, None, lambda value=value: value) for value in records)  # type: ignore[misc]  # a default argument binds the value

    def stop(self) -> None:
        """Make no further events."""
        self._stopping = True

    async def run(self) -> None:
        """Publish; returns once `stop` was called, or the stream is over, and everything is confirmed."""
        began = time.monotonic()
        source = iter(self._events)
        over = False
        try:
            while not (self._stopping or over) or self.unconfirmed:
                await self._look_after_producer()
                budget = MOST_AT_ONCE
                if not (self._stopping or over) and self._may_feed():
                    due = int((time.monotonic() - began) * self._rate) - self.made if self._rate else MOST_AT_ONCE
                    budget = min(MOST_AT_ONCE, due + len(self._again))
                for _ in range(max(0, min(budget, MOST_UNCONFIRMED - len(self._pending)))):
                    if self._again:
                        out = self._again.popleft()
                    elif self._stopping or over or (made := next(source, None)) is None:
                        over = True
                        break
                    else:
                        self.made += 1
                        out = _Out(made.topic(self._kafka.topics), made.key, lambda m=made: m.value(time.time_ns()))  # type: ignore[misc]  # as above
                    if not await self._send(out):
                        break
                await asyncio.sleep(TICK_SECONDS)
        finally:
            await self._close()

    async def _send(self, out: _Out) -> bool:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                future = await self._producer.send(out.topic, out.value(), key=out.key)
        except (KafkaError, TimeoutError) as error:
            log.warning("feeder_send_failed", error=f"{type(error).__name__}: {error}")
            self._again.append(out)
            self._broken = True
            return False
        number = next(self._serial)
        if not self._pending:
            self._progress_at = time.monotonic()
        self._pending[number] = out
        future.add_done_callback(lambda done: self._settled(number, done))
        return True

    def _settled(self, number: int, done: asyncio.Future[Any]) -> None:
        out = self._pending.pop(number, None)
        if out is None:
            return  # given up before; it is published again
        if done.cancelled() or done.exception() is not None:
            self._again.append(out)
            self._broken = True
            return
        metadata = done.result()
        where = (metadata.topic, metadata.partition)
        self.highest[where] = max(self.highest.get(where, -1), metadata.offset)
        self.confirmed += 1
        self._progress_at = time.monotonic()

    async def _look_after_producer(self) -> None:
        stuck = self._pending and time.monotonic() - self._progress_at > PATIENCE_SECONDS
        if self._producer is not None and not (self._broken or stuck):
            return
        await self._close()
        lost, self._pending = self._pending, {}
        self.republished += len(lost)
        self._again.extend(lost.values())
        self._broken = False
        while self._producer is None:
            producer = AIOKafkaProducer(
                **self._kafka.client_options(),
                client_id="chaos-feeder",
                enable_idempotence=True,
                acks="all",
                max_batch_size=128 * 1024,
            )
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await producer.start()
            except (KafkaError, TimeoutError, OSError):
                await _stop(producer)
                await asyncio.sleep(0.2)
            else:
                self._producer = producer
                self.producers += 1
                self._progress_at = time.monotonic()

    async def _close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await _stop(producer)


async def _stop(producer: Any) -> None:
    """Close a producer; with the broker away its own stop() never ends."""
    stopping = asyncio.ensure_future(producer.stop())
    await asyncio.wait([stopping], timeout=CLOSE_SECONDS)
    stopping.cancel()
    with contextlib.suppress(asyncio.CancelledError, KafkaError, OSError):
        await stopping
