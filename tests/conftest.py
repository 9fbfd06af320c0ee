"""Fixtures for every test: a broker and a Redis, isolated settings, and the rules that all tests keep."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import hypothesis
import pytest
import pytest_asyncio
import structlog
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from ops.embedded import EmbeddedKafka, EmbeddedRedis
from ops.topics import ensure_topics, topic_names
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings, RedisSettings
from tests.own_kafka import LAUNCHER_VARIABLE, OwnKafka, launcher

KAFKA_VARIABLE = "TAPEWIRE_TEST_KAFKA"
REDIS_VARIABLE = "TAPEWIRE_TEST_REDIS"
CONNECT_SECONDS = 30.0
"""A cluster that was just started elects its controller first."""

# A failing example is printed with the line that repeats it; CI draws the same examples on every run.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test without a docstring: the sentence says what it proves."""
    silent = [
        item.nodeid for item in items if isinstance(item, pytest.Function) and not (item.function.__doc__ or "").strip()
    ]
    if silent:
        raise pytest.UsageError("every test says in a docstring what it proves; these do not: " + ", ".join(silent))


def pytest_report_header() -> list[str]:
    """Say which broker and which Redis the run uses."""
    kafka, redis = (os.environ.get(name) or "embedded" for name in (KAFKA_VARIABLE, REDIS_VARIABLE))
    return [f"tapewire: kafka {kafka}, redis {redis}"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Broker:
    """The broker of this run.

    Args:
        bootstrap: ``host:port``.
        embedded: ours, or one that the environment names.
    """

    bootstrap: str
    embedded: bool


@pytest.fixture(autouse=True)
def _logs_to_pytest() -> None:
    """Send structlog's events to the standard library, where pytest shows them for failed tests only."""
    structlog.configure(
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """The embedded broker, or the one that TAPEWIRE_TEST_KAFKA names."""
    if bootstrap := os.environ.get(KAFKA_VARIABLE):
        yield Broker(bootstrap=bootstrap, embedded=False)
        return
    with EmbeddedKafka() as broker:
        yield Broker(bootstrap=broker.bootstrap, embedded=True)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The embedded Valkey, or the Redis that TAPEWIRE_TEST_REDIS names."""
    if url := os.environ.get(REDIS_VARIABLE):
        yield url
        return
    with EmbeddedRedis() as server:
        yield server.url


@pytest.fixture
def topic_prefix() -> str:
    """A topic prefix that no other test has; it also starts the names of groups and of Redis keys."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest_asyncio.fixture
async def kafka_settings(kafka: Broker, topic_prefix: str) -> AsyncIterator[KafkaSettings]:
    """Settings for topics of this test's own, which exist; they are deleted at its end."""
    settings = KafkaSettings(bootstrap=kafka.bootstrap, topic_prefix=topic_prefix, connect_seconds=CONNECT_SECONDS)
    await ensure_topics(settings)
    yield settings
    # Many tests on one broker: what is left behind slows the next one down, but must not fail this one.
    admin = AIOKafkaAdminClient(**settings.client_options())
    with contextlib.suppress(KafkaError, OSError, asyncio.TimeoutError):
        async with asyncio.timeout(10):
            try:
                await admin.start()
                await admin.delete_topics(list(topic_names(settings)))
            finally:
                await admin.close()


@pytest.fixture(scope="session")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnKafka]:
    """A real Apache Kafka that a test may kill, as long as it starts it again."""
    program = launcher()
    if program is None:
        pytest.skip(f"kills its broker, and the embedded one forgets: name an Apache Kafka in {LAUNCHER_VARIABLE}")
    broker = OwnKafka(program, tmp_path_factory.mktemp("kafka"))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


@pytest_asyncio.fixture
async def own_settings(own_kafka: OwnKafka, topic_prefix: str) -> KafkaSettings:
    """Settings for topics of this test's own on that broker, which exist."""
    if not own_kafka.alive:  # a test that failed in the middle may have left it dead
        own_kafka.start()
    settings = KafkaSettings(bootstrap=own_kafka.bootstrap, topic_prefix=topic_prefix, connect_seconds=5)
    async with asyncio.timeout(2 * CONNECT_SECONDS):
        while True:
            # A cluster that was just started answers with errors until its coordinators are there.
            with contextlib.suppress(UnavailableError, KafkaError):
                await ensure_topics(settings)
                return settings
            await asyncio.sleep(0.2)


@pytest.fixture
def redis_settings(redis_url: str) -> RedisSettings:
    """Settings for the Redis of this run; the keys begin with the test's own topic prefix."""
    return RedisSettings(url=redis_url)
