"""Create, describe and check the topics of one deployment."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    KafkaConnectionError,
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from schemas.errors import ConfigError, TapewireError, UnavailableError
from schemas.settings import KafkaSettings

RETRY_SECONDS = 0.1
"""Pause between two tries while a fresh cluster is not ready."""
DEAD_LETTER_BYTES = 2 * 1024 * 1024
"""Largest record on the dead-letter topic: a record at the broker's default limit (1 MiB) with its error headers."""
TIMESTAMP_TYPE = "message.timestamp.type"
MAX_BYTES = "max.message.bytes"

T = TypeVar("T")

_trying: ContextVar[bool] = ContextVar("_trying", default=False)
"""Set in the task that tries to reach the cluster, and in the tasks that aiokafka starts from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicInfo:
    """What the cluster says about one topic.

    Args:
        partitions: how many it has.
        replication: the smallest number of replicas that a partition has.
        leaderless: partitions without a leader; nothing can be written to them.
        timestamp_type: ``LogAppendTime`` or ``CreateTime``.
        max_message_bytes: largest batch that the broker takes, in bytes.
    """

    name: str
    partitions: int
    replication: int
    leaderless: int
    timestamp_type: str
    max_message_bytes: int


def topic_names(kafka: KafkaSettings) -> tuple[str, ...]:
    """Return the names of all topics that a deployment needs, inputs first."""
    return (*kafka.topics.inputs, *kafka.topics.outputs)


def topic_config(kafka: KafkaSettings, name: str) -> dict[str, str]:
    """Return the configuration that a topic is created with; retention is left to the broker.

    Broker time on inputs is what bounds a feed handler's clock, and on signals what makes latency from append to
    append measurable. A dead letter is its whole input record plus headers, so it needs more room than the input had.
    """
    if name in kafka.topics.inputs or name == kafka.topics.signals:
        return {TIMESTAMP_TYPE: "LogAppendTime"}
    if name == kafka.topics.dead_letters:
        return {MAX_BYTES: str(DEAD_LETTER_BYTES)}
    return {}


async def ensure_topics(kafka: KafkaSettings) -> list[str]:
    """Create the topics that do not exist yet, and return when every one can be written to.

    Topics that exist are left as they are, whatever their configuration.

    Returns:
        The names of the topics that this call created.

    Raises:
        ConfigError: the cluster cannot give ``kafka.replication`` or ``kafka.partitions``; a certificate is unusable.
        UnavailableError: no broker answered within ``kafka.connect_seconds``, or it refused.
    """
    created: list[str] = []

    async def attempt(admin: AIOKafkaAdminClient) -> list[str]:
        missing = await _missing(admin, kafka)
        if missing:
            answer = await admin.create_topics([_new_topic(kafka, name) for name in missing])
            # Judge all of them before raising: what one try created must be in the list even if another topic failed.
            errors = [(name, for_code(code)(message)) for name, code, message, *_ in answer.topic_errors if code]
            failed = {name for name, error in errors}
            created.extend(name for name in missing if name not in failed)
            for _, error in errors:
                # Somebody else creating it at the same moment is as good.
                if not isinstance(error, TopicAlreadyExistsError):
                    raise error
        # Creation is answered before every broker knows the leaders; a producer would meet "no leader".
        leaderless = [t["topic"] for t in await _metadata(admin, kafka) if _leaderless(t)]
        if leaderless or await _missing(admin, kafka):
            raise KafkaError(f"partitions without a leader in {', '.join(leaderless) or 'new topics'}")
        return created

    return await _with_admin(kafka, attempt)


async def missing_topics(kafka: KafkaSettings) -> list[str]:
    """Return the names of the deployment's topics that do not exist.

    Raises:
        ConfigError: a certificate is unusable.
        UnavailableError: no broker answered within ``kafka.connect_seconds``, or it refused.
    """
    return await _with_admin(kafka, lambda admin: _missing(admin, kafka))


async def describe_topics(kafka: KafkaSettings) -> list[TopicInfo]:
    """Return what the cluster says about those of the deployment's topics that exist.

    Raises:
        ConfigError: a certificate is unusable.
        UnavailableError: no broker answered within ``kafka.connect_seconds``, or it refused.
    """

    async def attempt(admin: AIOKafkaAdminClient) -> list[TopicInfo]:
        found = {topic["topic"]: topic for topic in await _metadata(admin, kafka)}
        names = [name for name in topic_names(kafka) if name in found]
        if not names:
            return []
        configs: dict[str, dict[str, str]] = {}
        for answer in await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names]):
            for code, message, _, name, entries, *_ in answer.resources:
                if code:
                    raise for_code(code)(message)
                configs[name] = {entry[0]: entry[1] for entry in entries}
        return [_info(found[name], configs[name]) for name in names]

    return await _with_admin(kafka, attempt)


def _new_topic(kafka: KafkaSettings, name: str) -> NewTopic:
    return NewTopic(
        name=name,
        num_partitions=kafka.partitions,
        replication_factor=kafka.replication,
        topic_configs=topic_config(kafka, name),
    )


def _info(topic: dict[str, Any], config: dict[str, str]) -> TopicInfo:
    return TopicInfo(
        name=topic["topic"],
        partitions=len(topic["partitions"]),
        replication=min((len(p["replicas"]) for p in topic["partitions"]), default=0),
        leaderless=_leaderless(topic),
        timestamp_type=config.get(TIMESTAMP_TYPE, ""),
        max_message_bytes=int(config.get(MAX_BYTES, 0)),
    )


def _leaderless(topic: dict[str, Any]) -> int:
    return sum(1 for p in topic["partitions"] if p["leader"] < 0)


async def _metadata(admin: AIOKafkaAdminClient, kafka: KafkaSettings) -> list[dict[str, Any]]:
    # All topics are asked for, never ours by name: a broker with auto-creation creates what it is asked about.
    wanted = set(topic_names(kafka))
    return [topic for topic in await admin.describe_topics() if topic["topic"] in wanted]


async def _missing(admin: AIOKafkaAdminClient, kafka: KafkaSettings) -> list[str]:
    existing = {topic["topic"] for topic in await _metadata(admin, kafka)}
    return [name for name in topic_names(kafka) if name not in existing]


async def _with_admin(kafka: KafkaSettings, attempt: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
    """Run ``attempt`` until it succeeds, fails for good, or ``kafka.connect_seconds`` have passed."""
    last: Exception | None = None
    try:
        async with _quiet_client(), asyncio.timeout(kafka.connect_seconds):
            while True:
                try:
                    async with _admin(kafka) as admin:
                        return await attempt(admin)
                except (KafkaError, OSError, AttributeError) as error:
                    # AttributeError: aiokafka asks a controller that a fresh cluster has not elected for its id.
                    last = error
                    _raise_if_final(kafka, error)
                await asyncio.sleep(RETRY_SECONDS)
    except TimeoutError:
        pass
    if isinstance(last, InvalidReplicationFactorError):
        raise ConfigError("kafka.replication", _words(last)) from None
    reason = _words(last) if last is not None and not isinstance(last, KafkaConnectionError) else await _why(kafka)
    raise _unavailable(kafka, f"nothing usable within {kafka.connect_seconds:g} s: {reason}")


def _outside_try(_: logging.LogRecord) -> bool:
    return not _trying.get()


@contextlib.asynccontextmanager
async def _quiet_client() -> AsyncIterator[None]:
    """Keep aiokafka's one error per failed try off the log: our own error says it once. Other clients still log."""
    logger = logging.getLogger("aiokafka")
    logger.addFilter(_outside_try)
    token = _trying.set(True)
    try:
        yield
    finally:
        _trying.reset(token)


@contextlib.asynccontextmanager
async def _admin(kafka: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(client_id=f"{kafka.topic_prefix}-admin", **kafka.client_options())
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


def _raise_if_final(kafka: KafkaSettings, error: Exception) -> None:
    """Raise for what another try would not mend.

    Too few brokers is not final at once: those of a cluster that starts register one after the other.
    """
    if isinstance(error, InvalidPartitionsError):
        raise ConfigError("kafka.partitions", _words(error)) from None
    final = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)
    if isinstance(error, final):
        raise _unavailable(kafka, _words(error)) from None


async def _why(kafka: KafkaSettings) -> str:
    """Say in plain words why no broker could be talked to; aiokafka logs it and raises a list of addresses."""
    found: list[str] = []
    for server in kafka.bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            async with asyncio.timeout(1.0):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except TimeoutError:
            found.append(f"{server.strip()}: no connection within 1 s")
        except OSError as error:
            # asyncio's own text repeats the address; a resolver's number is negative and has no text of the system.
            number = error.errno or 0
            found.append(f"{server.strip()}: {os.strerror(number) if number > 0 else error}")
        else:
            writer.close()
            found.append(
                f"{server.strip()} takes connections but does not answer as Kafka with {kafka.security_protocol}"
                " (is it Kafka? are kafka.security_protocol and the credentials right?)"
            )
    return "; ".join(found)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _unavailable(kafka: KafkaSettings, reason: str) -> TapewireError:
    return UnavailableError(f"Kafka at {kafka.bootstrap}", "kafka.bootstrap", reason)
