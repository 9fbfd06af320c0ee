"""A publisher for feeds that run for months: it outlives a broker that was away, and confirms event by event group."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import structlog

from producers.errors import PublishError
from producers.pacing import Sleep
from producers.publish import EventPublisher
from schemas.errors import UnavailableError
from schemas.records import Event
from schemas.settings import KafkaSettings
from schemas.topics import HEADER_TRACE_PARENT

log = structlog.get_logger()

RETRY_SECONDS = 1.0
RETRY_MOST_SECONDS = 30.0
REFUSALS_MOST = 3
"""Attempts at events that Kafka refuses: a refusal can come from another event of the same producer."""

TOPIC_SETTING = "kafka.topic_prefix"
"""Setting that `EventPublisher` names when the brokers are there and the topic is not."""


class Outlet:
    """Publishes groups of events in order and returns when Kafka has confirmed them; an async context manager.

    When the brokers are away it waits for them, with a fresh producer, for as long as it takes: the caller's own
    bounded queue is the back-pressure. What is published twice that way has the same event ids.

    Args:
        kafka: how to reach the cluster.
        client_id: names the producer to the brokers.
        send_seconds: longest time without any confirmation before the producer is replaced.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        *,
        client_id: str,
        send_seconds: float = 30.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._send_seconds = send_seconds
        self._sleep = sleep
        self._publisher: EventPublisher | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            UnavailableError: no broker answers: at a start that is for the operator to mend.
        """
        self._publisher = await self._opened()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect; everything that `send` returned for is confirmed already."""
        await self._drop(self._publisher)

    async def send(self, events: Sequence[Event]) -> None:
        """Publish events in order under one trace and wait for their confirmation.

        Raises:
            PublishError: Kafka refuses one of them.
            UnavailableError: the topic does not exist, which no waiting mends.
        """
        trace = secrets.token_hex(16)
        wait = RETRY_SECONDS
        refusals = 0
        while True:
            publisher = self._publisher
            try:
                if publisher is None:
                    publisher = await self._reopened()
                if await self._publish_all(publisher, events, trace):
                    return
            except PublishError:
                await self._drop(publisher)
                refusals += 1
                if refusals >= REFUSALS_MOST:
                    raise
            except UnavailableError as error:
                await self._drop(publisher)
                if error.setting == TOPIC_SETTING:
                    raise
                log.warning("kafka_away", error=str(error), wait_s=wait)
                await self._sleep(wait)
                wait = min(wait * 2, RETRY_MOST_SECONDS)

    async def _publish_all(self, publisher: EventPublisher, events: Sequence[Event], trace: str) -> bool:
        """Publish and confirm; false when another task has closed the publisher meanwhile: then all is repeated."""
        for event in events:
            if publisher is not self._publisher:
                return False
            await publisher.publish(event, [(HEADER_TRACE_PARENT, _traceparent(trace))])
        await publisher.flush()
        return True

    async def _opened(self) -> EventPublisher:
        publisher = EventPublisher(self._kafka, send_seconds=self._send_seconds, client_id=self._client_id)
        return await publisher.__aenter__()

    async def _reopened(self) -> EventPublisher:
        async with self._opening:
            if self._publisher is None:
                self._publisher = await self._opened()
                log.info("kafka_back")
            return self._publisher

    async def _drop(self, publisher: EventPublisher | None) -> None:
        """Close a publisher that failed, once, whoever of its users comes first."""
        if publisher is None or publisher is not self._publisher:
            return
        self._publisher = None
        # Left by an error, a publisher does not wait for confirmations; nobody relies on those that are missing.
        error = PublishError("", "the publisher is replaced")
        await publisher.__aexit__(type(error), error, None)


def _traceparent(trace: str) -> bytes:
    return f"00-{trace}-{secrets.token_hex(8)}-01".encode()
