"""One aiokafka producer: connected in bounded time, asked whether Kafka answers, judged when it fails, given up.

aiokafka retries an idempotent batch without end and has no way to give a producer up: its ``stop()`` waits for its
queue, for ever while the broker is away. What is private here is what that takes.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import Any

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    AuthenticationFailedError,
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownError,
    UnsupportedForMessageFormatError,
)
from aiokafka.structs import OffsetAndMetadata

from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings

log = structlog.get_logger()

MAX_BATCH_BYTES = 256 * 1024
"""A batch must stay below the broker's ``message.max.bytes`` (1 MB by default); past this size bigger batches
gain nothing and hold more records back when one fails."""
DEFAULT_MESSAGE_BYTES = 1_000_000
"""Kafka's default ``max.message.bytes`` less some framing: what we assume where a broker does not tell."""
CLOSE_SECONDS = 0.5
"""How long closing may take; with nothing waiting it takes milliseconds."""

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
_REFUSED = (*TOO_LARGE, InvalidTimestampError, PolicyViolationError, UnsupportedForMessageFormatError)
_FORBIDDEN = (
    TopicAuthorizationFailedError,
    GroupAuthorizationFailedError,
    ClusterAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    SaslAuthenticationFailed,
    AuthenticationFailedError,
)


class Fault(Enum):
    """What a failed batch says about the record, the producer or us."""

    REFUSED = auto()
    """The broker will not take one of these records, however often it comes."""
    UNCLEAR = auto()
    """The broker's answer has no name in aiokafka (an invalid record among others): the record may be at fault."""
    BROKEN = auto()
    """This producer cannot go on; another one may."""
    FORBIDDEN = auto()
    """We may not write there, and a person has to mend that."""


def fault_of(error: BaseException) -> Fault:
    """Say what a failed batch means."""
    if isinstance(error, _FORBIDDEN):
        return Fault.FORBIDDEN
    if isinstance(error, _REFUSED):
        return Fault.REFUSED
    # INVALID_RECORD, for one, has a code that aiokafka does not know.
    if type(error) in (UnknownError, BrokerResponseError):
        return Fault.UNCLEAR
    return Fault.BROKEN


async def connect(
    kafka: KafkaSettings, client_id: str, batch_bytes: int = MAX_BATCH_BYTES, **options: Any
) -> AIOKafkaProducer:
    """Return a started idempotent producer.

    Args:
        kafka: how to reach the cluster, and how long to try.
        client_id: names the producer to the brokers.
        batch_bytes: most bytes of one batch.
        options: further aiokafka options (the transactional ones).

    Raises:
        UnavailableError: Kafka does not answer, or refuses us.
    """
    producer = AIOKafkaProducer(
        **kafka.client_options(),
        client_id=client_id,
        enable_idempotence=True,
        acks="all",
        linger_ms=0,
        max_batch_size=batch_bytes,
        **options,
    )
    try:
        async with asyncio.timeout(2 * kafka.connect_seconds):
            await producer.start()
    except asyncio.CancelledError:
        await give_up(producer)
        raise
    except (KafkaError, TimeoutError, OSError) as error:
        await give_up(producer)
        reason = str(error) or f"no answer within {2 * kafka.connect_seconds:g} s"
        setting = "kafka.sasl_username" if isinstance(error, _FORBIDDEN) else "kafka.bootstrap"
        raise UnavailableError(f"Kafka at {kafka.bootstrap}", setting, reason) from None
    return producer


async def partitions_of(producer: AIOKafkaProducer, kafka: KafkaSettings, topic: str) -> list[int]:
    """Return the partitions of a topic.

    Raises:
        UnavailableError: it does not exist.
    """
    try:
        async with asyncio.timeout(kafka.connect_seconds):
            found = await producer.partitions_for(topic)
    except (KafkaError, TimeoutError):
        found = None
    if not found:
        raise UnavailableError(f"topic {topic}", "kafka.topic_prefix", "it does not exist; run: tapewire topics create")
    return sorted(found)


async def answers(producer: AIOKafkaProducer, seconds: float) -> bool:
    """Return whether some broker of the cluster answers a request for metadata in that time."""
    asked = producer.client.force_metadata_update()  # shielded by aiokafka: giving up waiting cancels nothing
    await asyncio.wait([asked], timeout=seconds)
    return bool(asked.done() and not asked.cancelled() and asked.exception() is None and asked.result())


async def close(producer: AIOKafkaProducer) -> bool:
    """Close a producer that has nothing waiting; False when it had to be given up."""
    closing = asyncio.ensure_future(producer.stop())
    await asyncio.wait([closing], timeout=CLOSE_SECONDS)
    if closing.done() and not closing.cancelled() and closing.exception() is None:
        _retrieve_failures(producer)
        return True
    closing.cancel()
    await give_up(producer)
    return False


async def give_up(producer: AIOKafkaProducer) -> None:
    """End a producer whatever it still has; a request that is on its way may still be written."""
    sender = producer._sender  # noqa: SLF001 - see the module's first lines
    tasks = [task for task in asyncio.all_tasks() if _belongs_to(task, sender)]
    for task in tasks:
        task.cancel()
    producer._closed = True  # noqa: SLF001 - or its finalizer reports an unclosed producer
    closing = asyncio.ensure_future(producer.client.close())
    _, unfinished = await asyncio.wait([closing, *tasks], timeout=CLOSE_SECONDS)
    for task in (*tasks, closing):
        if task.done() and not task.cancelled():
            task.exception()  # noted: what ends a producer that is given up interests nobody
    if unfinished:
        log.warning("producer_close_timed_out", tasks=len(unfinished))
    _retrieve_failures(producer)


def _retrieve_failures(producer: AIOKafkaProducer) -> None:
    """Retrieve what a failed producer put into futures that nobody waits for; asyncio would print a traceback of each.

    When its sender dies, all batches and the transaction get the error; a transaction waits for one of them.
    """
    accumulator, transactions = producer._message_accumulator, producer._txn_manager  # noqa: SLF001 - see above
    queued = [batch for batches in accumulator._batches.values() for batch in batches]  # noqa: SLF001 - see above
    futures: list[asyncio.Future[Any] | None] = []
    for batch in (*queued, *accumulator._pending_batches):  # noqa: SLF001 - see above
        futures += [batch.future, batch._drain_waiter]  # noqa: SLF001 - see above
    if transactions is not None:
        futures.append(transactions._transaction_waiter)  # noqa: SLF001 - see above
    for future in futures:
        if future is not None and future.done() and not future.cancelled():
            future.exception()


def _belongs_to(task: asyncio.Task[Any], sender: object) -> bool:
    """Whether a task runs a method of this sender; it keeps no list of those that talk to a broker."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    return frame is not None and frame.f_locals.get("self") is sender


async def message_limits(kafka: KafkaSettings, topics: tuple[str, ...]) -> dict[str, int]:
    """Return ``max.message.bytes`` of each topic; the default where we may not or cannot read it."""
    limits = dict.fromkeys(topics, DEFAULT_MESSAGE_BYTES)
    admin = AIOKafkaAdminClient(**kafka.client_options())
    try:
        async with asyncio.timeout(kafka.connect_seconds):
            await admin.start()
            answered = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, t) for t in topics])
        for answer in answered:
            for _error, _message, _type, name, entries in answer.resources:
                values = {entry[0]: entry[1] for entry in entries}
                if limit := values.get("max.message.bytes"):
                    limits[name] = int(limit)
    except (KafkaError, TimeoutError, OSError, ValueError) as error:
        log.info("topic_limits_unknown", topics=topics, assumed=DEFAULT_MESSAGE_BYTES, error=str(error))
    finally:
        await admin.close()
    return limits


async def group_offsets(kafka: KafkaSettings, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return what a consumer group has committed, with its metadata, which a consumer's ``committed()`` hides.

    Raises:
        KafkaError, TimeoutError, OSError: it cannot be read now.
    """
    admin = AIOKafkaAdminClient(**kafka.client_options())
    try:
        async with asyncio.timeout(kafka.connect_seconds):
            await admin.start()
            found: dict[TopicPartition, OffsetAndMetadata] = await admin.list_consumer_group_offsets(group)
        return found
    finally:
        await admin.close()
