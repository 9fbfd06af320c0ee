"""Creating and describing topics on a real broker."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import MessageSizeTooLargeError

from ops.topics import DEAD_LETTER_BYTES, TopicInfo, describe_topics, ensure_topics, missing_topics, topic_names
from schemas.errors import ConfigError, UnavailableError
from schemas.settings import KafkaSettings
from tests.conftest import CONNECT_SECONDS, Broker

pytestmark = pytest.mark.integration


@pytest.fixture
def fresh(kafka: Broker, topic_prefix: str) -> KafkaSettings:
    """Settings whose topics do not exist yet."""
    return KafkaSettings(
        bootstrap=kafka.bootstrap, topic_prefix=topic_prefix, partitions=2, connect_seconds=CONNECT_SECONDS
    )


async def test_creates_what_is_missing_and_nothing_twice(fresh: KafkaSettings) -> None:
    """The first call creates all five topics, the second finds nothing to do."""
    assert await missing_topics(fresh) == list(topic_names(fresh))
    assert await ensure_topics(fresh) == list(topic_names(fresh))
    assert await missing_topics(fresh) == []
    assert await ensure_topics(fresh) == []


async def test_asking_creates_nothing(fresh: KafkaSettings) -> None:
    """Looking for missing topics leaves them missing, even on a broker that creates what it is asked about."""
    assert await describe_topics(fresh) == []
    assert await missing_topics(fresh) == await missing_topics(fresh) == list(topic_names(fresh))


async def test_concurrent_calls_agree(fresh: KafkaSettings) -> None:
    """Two schedulers that start at once both succeed, and each topic is created by exactly one of them."""
    one, other = await asyncio.gather(ensure_topics(fresh), ensure_topics(fresh))
    assert sorted(one + other) == sorted(topic_names(fresh))


async def test_one_missing_topic_is_added(fresh: KafkaSettings) -> None:
    """A topic that somebody deleted comes back alone."""
    await ensure_topics(fresh)
    admin = AIOKafkaAdminClient(**fresh.client_options())
    await admin.start()
    await admin.delete_topics([fresh.topics.expired])
    await admin.close()
    assert await ensure_topics(fresh) == [fresh.topics.expired]


async def test_describe_tells_shape_and_configuration(fresh: KafkaSettings) -> None:
    """Topics have the settings' partitions and replicas, broker time on inputs and signals, room for dead letters."""
    await ensure_topics(fresh)
    found = {info.name: info for info in await describe_topics(fresh)}
    assert list(found) == list(topic_names(fresh))
    assert {(info.partitions, info.replication, info.leaderless) for info in found.values()} == {(2, 1, 0)}
    topics = fresh.topics
    assert {name for name, info in found.items() if info.timestamp_type == "LogAppendTime"} == {
        topics.news,
        topics.filings,
        topics.signals,
    }
    dead: TopicInfo = found[topics.dead_letters]
    assert dead.max_message_bytes == DEAD_LETTER_BYTES
    assert found[topics.news].max_message_bytes < DEAD_LETTER_BYTES


async def test_the_broker_stamps_inputs(kafka_settings: KafkaSettings) -> None:
    """A producer's own time on an input record is replaced by the broker's, so that no feed can postdate it."""
    topic = kafka_settings.topics.news
    producer = AIOKafkaProducer(**kafka_settings.client_options())
    await producer.start()
    await producer.send_and_wait(topic, b"{}", timestamp_ms=1000, partition=0)
    await producer.stop()
    consumer = AIOKafkaConsumer(**kafka_settings.client_options())
    await consumer.start()
    consumer.assign([TopicPartition(topic, 0)])
    await consumer.seek_to_beginning()
    record = await consumer.getone()
    await consumer.stop()
    assert record.timestamp_type == 1
    assert record.timestamp > 1_600_000_000_000


async def test_a_record_at_the_limit_fits_as_a_dead_letter(kafka_settings: KafkaSettings) -> None:
    """What an input topic just takes fits into the dead letters with headers; what is over the limit is refused."""
    producer = AIOKafkaProducer(**kafka_settings.client_options(), max_request_size=8 * 1024 * 1024)
    await producer.start()
    whole = b"x" * (1024 * 1024 - 100)
    await producer.send_and_wait(kafka_settings.topics.news, whole)
    headers = [("tapewire-error-message", b"m" * 4096)]
    written = await producer.send_and_wait(kafka_settings.topics.dead_letters, whole, headers=headers)
    assert written.topic == kafka_settings.topics.dead_letters
    with pytest.raises(MessageSizeTooLargeError):
        await producer.send_and_wait(kafka_settings.topics.news, whole + b"x" * 200)
    await producer.stop()


async def test_too_few_brokers_names_the_setting(fresh: KafkaSettings) -> None:
    """A replication that the cluster cannot give is a configuration error that names it."""
    settings = fresh.model_copy(update={"replication": 7, "connect_seconds": 1.0})
    with pytest.raises(ConfigError, match=r"^kafka\.replication: .*7 time"):
        await ensure_topics(settings)


async def test_nobody_listens(fresh: KafkaSettings, caplog: pytest.LogCaptureFixture) -> None:
    """An address where nothing listens gives one error with address, setting and reason, and no flood of log lines."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        settings = fresh.model_copy(
            update={"bootstrap": f"127.0.0.1:{unused.getsockname()[1]}", "connect_seconds": 0.5}
        )
        with pytest.raises(UnavailableError, match="refused") as caught:
            await ensure_topics(settings)
    assert caught.value.setting == "kafka.bootstrap"
    assert settings.bootstrap in str(caught.value)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_not_kafka(fresh: KafkaSettings) -> None:
    """A server that takes connections and never answers is told apart from one that is not there."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        settings = fresh.model_copy(update={"bootstrap": f"127.0.0.1:{mute.getsockname()[1]}", "connect_seconds": 0.5})
        with pytest.raises(UnavailableError, match="does not answer as Kafka"):
            await missing_topics(settings)
