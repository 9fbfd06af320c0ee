"""The images that docker-compose.yml names, started through a Docker engine where one answers."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import docker  # type: ignore[import-untyped] # has no types of its own
import pytest
import redis
import yaml  # type: ignore[import-untyped] # has no types of its own, and one file does not earn a stub package
from docker.errors import DockerException  # type: ignore[import-untyped] # has no types of its own
from testcontainers.core.container import DockerContainer

from ops.embedded import free_port
from ops.topics import describe_topics, ensure_topics, topic_names
from schemas.settings import KafkaSettings

pytestmark = pytest.mark.docker

COMPOSE = Path(__file__).resolve().parents[2] / "docker-compose.yml"
START_SECONDS = 120.0


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the compose file; skips where no Docker engine answers."""
    try:
        client = docker.from_env(timeout=10)
        client.ping()
        client.close()
    except DockerException as error:
        pytest.skip(f"no Docker engine answers: {error}")
    parsed: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return parsed


def filled(value: str, **given: str) -> str:
    """Put values in the place of each ``${NAME:-default}``: given ones, the environment's, or the default."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: given.get(m[1]) or os.environ.get(m[1]) or m[2], value)


async def test_topics_on_the_composed_kafka(services: dict[str, Any]) -> None:
    """The Kafka image with the compose file's settings comes up, and takes the topics and their configuration."""
    service = services["kafka"]
    port = free_port()
    container = DockerContainer(filled(service["image"])).with_bind_ports(29092, port)
    for name, value in service["environment"].items():
        container = container.with_env(name, filled(value, TAPEWIRE_KAFKA_PORT=str(port)))
    with container:
        settings = KafkaSettings(bootstrap=f"localhost:{port}", connect_seconds=START_SECONDS)
        assert await ensure_topics(settings) == list(topic_names(settings))
        assert {info.timestamp_type for info in await describe_topics(settings)} == {"LogAppendTime", "CreateTime"}


def test_the_composed_redis_keeps_what_it_was_given(services: dict[str, Any]) -> None:
    """The Redis image with the compose file's command takes a stamp and gives it back."""
    service = services["redis"]
    port = free_port()
    container = DockerContainer(filled(service["image"])).with_bind_ports(6379, port).with_command(service["command"])
    retry = redis.retry.Retry(redis.backoff.ConstantBackoff(0.2), retries=int(START_SECONDS / 0.2))
    with container, redis.Redis(port=port, retry=retry, retry_on_error=[redis.ConnectionError]) as client:
        client.xadd("tapewire:stamps", {"event": "e"})
        assert client.xlen("tapewire:stamps") == 1
