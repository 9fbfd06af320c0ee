"""Fixtures for what is tested on a broker that the test may kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiokafka.errors import KafkaError

from ops.topics import ensure_topics
from schemas.errors import UnavailableError
from schemas.settings import KafkaSettings
from tests.own_kafka import LAUNCHER_VARIABLE, OwnKafka, launcher

SETTLE_SECONDS = 60.0
"""A cluster that was just started answers some requests with errors until its coordinators are there."""


@pytest.fixture(scope="session")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnKafka]:
    """A real Apache Kafka that a test may kill, as long as it starts it again."""
    program = launcher()
    if program is None:
        pytest.skip(f"kills its broker, and the embedded one forgets: name an Apache Kafka in {LAUNCHER_VARIABLE}")
    data: Path = tmp_path_factory.mktemp("kafka")
    broker = OwnKafka(program, data)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest_asyncio.fixture
async def own_settings(own_kafka: OwnKafka, topic_prefix: str) -> KafkaSettings:
    """Settings for topics of this test's own on that broker, which exist."""
    settings = KafkaSettings(bootstrap=own_kafka.bootstrap, topic_prefix=topic_prefix, connect_seconds=5)
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        try:
            await ensure_topics(settings)
            return settings
        except (UnavailableError, KafkaError):
            if time.monotonic() >= deadline:
                raise
            await asyncio.sleep(0.2)
