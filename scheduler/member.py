"""A member of one topic's consumer group: how it joins and how it leaves."""

from __future__ import annotations

import asyncio

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from scheduler.fetch_pace import pace_fetches
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings, SchedulerSettings

log = structlog.get_logger()

FETCH_MAX_WAIT_MS = 100
PARTITION_FETCH_BYTES = 2 * 1024 * 1024
HEARTBEAT_MS = 1000
"""Most milliseconds between heartbeats. A member hears of a rebalance in the answer to its next one, so this adds to
the session timeout before the partitions of a dead member move. A third of the session, as is usual, would be 3.3 s."""
JOIN_MARGIN_SECONDS = 10.0
"""Added to the drain time to give the group's rebalance timeout: members rejoin after the revoke callback."""
LEAVE_SECONDS = 1.0
"""How long leaving the group may take: with Kafka away it never ends, and whoever stops us does not wait long."""


def rebalance_seconds(settings: SchedulerSettings) -> float:
    """Return how long the group waits for this member in a rebalance."""
    return settings.drain_seconds + JOIN_MARGIN_SECONDS


def new_member(
    topic: str, kafka: KafkaSettings, settings: SchedulerSettings, listener: ConsumerRebalanceListener
) -> AIOKafkaConsumer:
    """Return a consumer in the topic's group that has not joined yet."""
    session_ms = int(settings.session_seconds * 1000)
    client = AIOKafkaConsumer(
        **kafka.client_options(),
        group_id=topic,
        client_id=settings.id,
        enable_auto_commit=False,
        # Never "latest" or "earliest" by itself: both skip or repeat events silently when offsets are gone.
        auto_offset_reset="none",
        # An event of a transaction that was aborted never happened: it must not become a signal.
        isolation_level="read_committed",
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=min(session_ms // 3, HEARTBEAT_MS),
        # aiokafka's default is the session timeout, too short to wait for running work.
        rebalance_timeout_ms=int(rebalance_seconds(settings) * 1000),
        fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
        max_partition_fetch_bytes=PARTITION_FETCH_BYTES,
    )
    pace_fetches(client)
    client.subscribe([topic], listener=listener)
    return client


async def join(client: AIOKafkaConsumer, topic: str, kafka: KafkaSettings) -> None:
    """Join the group; a member that could not is closed.

    Raises:
        UnavailableError: Kafka does not answer, or the topic does not exist.
    """
    try:
        async with asyncio.timeout(3 * kafka.connect_seconds):
            await client.start()
    except asyncio.CancelledError:
        await leave(client, topic)
        raise
    except UnknownTopicOrPartitionError:
        await leave(client, topic)
        raise UnavailableError(
            f"topic {topic}", "kafka.topic_prefix", "it does not exist; run: tapewire topics create"
        ) from None
    except (KafkaError, TimeoutError, OSError) as error:
        await leave(client, topic)
        reason = str(error) or "no answer"
        raise UnavailableError(f"Kafka at {kafka.bootstrap}", "kafka.bootstrap", reason) from None


def was_thrown_out(client: AIOKafkaConsumer) -> bool:
    """Return whether the group has forgotten this member: its session was over, and its partitions went elsewhere.

    aiokafka calls the same listener then as in an orderly rebalance, where Java's client has ``onPartitionsLost``. It
    drops the member's id as soon as a heartbeat or a commit is refused, before it calls the listener.
    """
    member_id: str = client._coordinator.member_id  # noqa: SLF001 - aiokafka has no public way to ask
    return not member_id


async def leave(client: AIOKafkaConsumer, topic: str) -> None:
    """Leave the group, in bounded time."""
    leaving = asyncio.ensure_future(client.stop())
    await asyncio.wait([leaving], timeout=LEAVE_SECONDS)
    leaving.cancel()
    # With Kafka away aiokafka lets a CancelledError of its own tasks out of stop(); ours it is not.
    await asyncio.wait([leaving])
    error = asyncio.CancelledError() if leaving.cancelled() else leaving.exception()
    if error is not None:
        log.warning("consumer_stop_failed", topic=topic, error=f"{type(error).__name__}: {error}")
