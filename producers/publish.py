"""Publishes events to the input topics through one idempotent Kafka producer, with every wait bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, UnknownTopicOrPartitionError

from producers.errors import PublishError
from schemas.codec import encode_json
from schemas.errors import UnavailableError
from schemas.records import Event, NewsEvent
from schemas.settings import KafkaSettings
from schemas.topics import HEADER_EVENT_ID, HEADER_SCHEMA_VERSION

Headers = Iterable[tuple[str, bytes]]

BATCH_BYTES = 128 * 1024
"""One batch per partition and request. At full rate eight times aiokafka's default, so that a request carries hundreds
of events; it adds no delay at a low rate, because nothing lingers."""
RETRY_SECONDS = 0.2
"""Between two attempts to reach the cluster at start: short beside a broker's start, long beside a refused connect."""
CLOSE_SECONDS = 3.0
"""How long closing may take once publishing has failed: what is unconfirmed then stays so, waiting brings nothing."""


class EventPublisher:
    """Publishes events and confirms them; an async context manager.

    The producer is idempotent (``acks=all``), so its retries neither reorder nor repeat records. aiokafka keeps
    retrying such records for ever; here a broker that confirms nothing for ``send_seconds`` while records wait ends
    the work with `UnavailableError`. Leaving the block confirms what was published, unless it is left by an error.

    Args:
        kafka: how to reach the cluster, and the topic names.
        send_seconds: longest time without any confirmation while records wait for one.
        client_id: names this producer in the broker's logs and quotas.
    """

    def __init__(self, kafka: KafkaSettings, *, send_seconds: float = 30.0, client_id: str = "tapewire-feed") -> None:
        self._kafka = kafka
        self._topics = kafka.topics
        self._send_seconds = send_seconds
        self._client_id = client_id
        self._producer: Any = None
        self._in_flight = 0
        self._confirmed: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._first_refusal: tuple[str, str] | None = None
        self._progress_at = 0.0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def confirmed(self) -> dict[str, int]:
        """Records that the brokers have confirmed so far, per topic."""
        return dict(self._confirmed)

    @property
    def in_flight(self) -> int:
        """Records that wait for their confirmation."""
        return self._in_flight

    async def __aenter__(self) -> Self:
        """Connect, trying for ``kafka.connect_seconds``.

        Raises:
            UnavailableError: no broker answered in that time.
            ConfigError: a certificate of the configuration cannot be read.
        """
        self._producer = AIOKafkaProducer(
            **self._kafka.client_options(),
            client_id=self._client_id,
            enable_idempotence=True,
            acks="all",
            max_batch_size=BATCH_BYTES,
        )
        reason = "no answer"
        try:
            async with asyncio.timeout(self._kafka.connect_seconds):
                while True:
                    try:
                        await self._producer.start()
                    except (KafkaError, OSError) as error:
                        reason = _words(error)
                        await asyncio.sleep(RETRY_SECONDS)
                    else:
                        return self
        except TimeoutError:
            await self._close()
            raise self.unavailable(f"{reason}, tried for {self._kafka.connect_seconds:g} s") from None
        except BaseException:
            await self._close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Confirm what was published and disconnect; after an error disconnect only.

        Raises:
            UnavailableError, PublishError: as `flush`.
        """
        try:
            if error is None:
                await self.flush()
        finally:
            await self._close()

    async def publish(self, event: Event, headers: Headers = ()) -> None:
        """Publish one event to its topic, keyed by story or accession.

        Returns as soon as the record is in a batch; `flush` confirms.

        Raises:
            UnavailableError: the brokers confirm nothing any more, or the topic does not exist.
            PublishError: this or an earlier record was refused.
        """
        own = (HEADER_EVENT_ID, event.event_id.encode()), (HEADER_SCHEMA_VERSION, b"%d" % event.schema_version)
        await self.publish_raw(
            self.topic_of(event), encode_json(event), key=event.key.encode(), headers=[*own, *headers]
        )

    def topic_of(self, event: Event) -> str:
        """Return the name of the topic that an event goes to."""
        return self._topics.news if isinstance(event, NewsEvent) else self._topics.filings

    async def publish_raw(self, topic: str, value: bytes, *, key: bytes | None = None, headers: Headers = ()) -> None:
        """Publish bytes as they are, well-formed or not; otherwise like `publish`.

        Raises:
            UnavailableError, PublishError: as `publish`.
        """
        self._raise_refusals()
        loop = asyncio.get_running_loop()
        if self._in_flight and loop.time() - self._progress_at > self._send_seconds:
            raise self._stalled()
        try:
            async with asyncio.timeout(self._send_seconds):
                confirmation = await self._producer.send(topic, value, key=key, headers=list(headers))
        except TimeoutError:
            raise self._stalled() from None
        except UnknownTopicOrPartitionError:
            reason = "the topic does not exist (tapewire topics create makes it)"
            raise UnavailableError(f"Kafka topic {topic}", "kafka.topic_prefix", reason) from None
        except MessageSizeTooLargeError as error:
            # Refused here and not by the broker: a refusal there would leave a gap in the producer's sequence.
            raise PublishError(topic, str(error)) from None
        except KafkaError as error:
            raise self.unavailable(_words(error)) from None
        if not self._in_flight:
            self._progress_at = loop.time()
            self._idle.clear()
        self._in_flight += 1
        confirmation.add_done_callback(partial(self._on_confirmation, topic))

    async def flush(self) -> dict[str, int]:
        """Wait until every record is confirmed; returns how many there were so far, per topic.

        Raises:
            UnavailableError: no confirmation came for ``send_seconds``.
            PublishError: a broker refused a record.
        """
        loop = asyncio.get_running_loop()
        while self._in_flight:
            left = self._progress_at + self._send_seconds - loop.time()
            if left <= 0:
                raise self._stalled()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), left)
        self._raise_refusals()
        return self.confirmed

    def _on_confirmation(self, topic: str, confirmation: asyncio.Future[Any]) -> None:
        self._in_flight -= 1
        self._progress_at = confirmation.get_loop().time()
        if not self._in_flight:
            self._idle.set()
        if confirmation.cancelled():
            self._refuse(topic, "the client gave it up")
        elif error := confirmation.exception():
            self._refuse(topic, _words(error))
        else:
            self._confirmed[topic] += 1

    def _refuse(self, topic: str, reason: str) -> None:
        """Count it and keep the first reason: with an idempotent producer the later ones follow from it."""
        self._refused[topic] += 1
        if self._first_refusal is None:
            self._first_refusal = topic, reason

    def _raise_refusals(self) -> None:
        if self._first_refusal:
            topic, reason = self._first_refusal
            raise PublishError(topic, reason, self._refused[topic])

    def _stalled(self) -> UnavailableError:
        waiting = f"{self._in_flight} unconfirmed"
        return self.unavailable(f"nothing confirmed for {self._send_seconds:g} s, {waiting}")

    def unavailable(self, reason: str) -> UnavailableError:
        """Return the error that says why these brokers cannot be used."""
        return UnavailableError(f"Kafka at {self._kafka.bootstrap}", "kafka.bootstrap", reason)

    async def _close(self) -> None:
        """Disconnect without waiting for confirmations.

        ``AIOKafkaProducer.stop`` flushes first, and a flush of an idempotent producer never ends while the broker is
        away; aiokafka has no public way to give up, so the parts are closed one by one. Nothing waits here after a
        flush, and then this does what ``stop`` does.
        """
        producer, self._producer = self._producer, None
        if producer is None:
            return
        producer._closed = True  # noqa: SLF001 - see above; without it aiokafka warns of a producer left open
        sender = producer._sender.sender_task  # noqa: SLF001 - see above
        if sender is not None:
            # Not Sender.close: it lets its own CancelledError out when the sender never came to run.
            sender.cancel()
            await asyncio.wait([sender], timeout=CLOSE_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await producer.client.close()


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
