"""The container files: what can be checked without a Docker engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # has no types of its own, and one file does not earn a stub package

from ops.config import load
from schemas.settings import KafkaSettings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "Dockerfile"
OURS = ("topics", "scheduler", "worker", "worker-gpu")
VARIABLE = re.compile(r"\$\{(\w+)")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the compose file, as YAML reads them."""
    parsed: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return parsed


def plain(value: str) -> str:
    """Put the default in the place of each ``${NAME:-default}``."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


@pytest.mark.parametrize("profile", [(), ("--profile", "gpu")], ids=["cpu", "gpu"])
def test_docker_compose_accepts_the_file(profile: tuple[str, ...]) -> None:
    """``docker compose config`` passes, with and without the GPU profile."""
    found = shutil.which("docker")
    if found is None or subprocess.run([found, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("the docker compose plugin is not installed")
    done = subprocess.run(
        [found, "compose", "-f", str(COMPOSE), *profile, "config", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if not key.startswith("TAPEWIRE_")},
    )
    assert done.returncode == 0, done.stderr


def test_every_image_can_be_replaced(services: dict[str, Any]) -> None:
    """Each image, and the base of our own, is named by an environment variable with a default."""
    for name, service in services.items():
        assert re.fullmatch(r"\$\{TAPEWIRE_\w+_IMAGE:-[\w./:-]+\}", service["image"]), name
    for name in OURS:
        assert VARIABLE.match(services[name]["build"]["args"]["PYTHON_IMAGE"])


def test_every_variable_is_documented() -> None:
    """The comment at the top of the compose file lists every variable that it reads."""
    text = COMPOSE.read_text()
    head, _, body = text.partition("name: tapewire")
    used = set(VARIABLE.findall(body))
    assert used <= set(re.findall(r"TAPEWIRE_\w+", head))


def test_every_lasting_service_has_a_health_check(services: dict[str, Any]) -> None:
    """All but the one-shot service that makes the topics say whether they work."""
    assert {name for name, service in services.items() if "healthcheck" not in service} == {"topics"}


def test_ports_are_published_on_loopback_only(services: dict[str, Any]) -> None:
    """Nothing that has no password is reachable from another machine."""
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_data_outlives_the_containers(services: dict[str, Any]) -> None:
    """Kafka's log, Redis's data and the prepared model are on named volumes that the file declares."""
    declared = set(yaml.safe_load(COMPOSE.read_text())["volumes"])
    mounted = {volume.partition(":")[0] for s in services.values() for volume in s.get("volumes", [])}
    assert declared == {"kafka-data", "redis-data", "model-cache"}
    assert declared <= mounted


@pytest.mark.parametrize("name", OURS)
def test_our_services_start_with_a_valid_configuration(services: dict[str, Any], name: str) -> None:
    """The mounted file and the environment of each service give valid settings with the addresses of the network."""
    service = services[name]
    source = next(plain(v) for v in service["volumes"] if v.endswith(":/etc/tapewire/tapewire.toml:ro"))
    environ = {key: plain(value) for key, value in service["environment"].items()}
    settings = load(ROOT / source.partition(":")[0], environ=environ)
    assert settings.kafka.bootstrap == "kafka:9092" != KafkaSettings().bootstrap
    assert settings.redis.url == "redis://redis:6379/0"
    assert settings.link.plaintext
    assert settings.link.address == f"tcp://{'0.0.0.0' if name == 'scheduler' else 'scheduler'}:7421"  # noqa: S104 - inside the container
    assert settings.scheduler.metrics_port
    assert settings.log.format == "json"


def test_build_targets_exist_and_do_not_run_as_root(services: dict[str, Any]) -> None:
    """Each target that the compose file builds is a stage of the Dockerfile that ends as a plain user."""
    stages = re.split(r"(?m)^FROM ", DOCKERFILE.read_text())[1:]
    by_name = {m.group(1): stage for stage in stages if (m := re.match(r"\S+ AS (\S+)\n", stage))}
    targets = {services[name]["build"]["target"] for name in OURS}
    assert targets == {"core", "cpu", "gpu"}
    for target in targets:
        assert re.findall(r"(?m)^USER (\S+)", by_name[target]) == ["tapewire"]


def test_the_build_context_has_what_is_copied() -> None:
    """Every file that a build stage needs is let through by .dockerignore and exists."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    needed = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "schemas", "scheduler", "workers"}
    assert needed | {"producers", "ops"} == set(allowed)
    for source in re.findall(r"(?m)^COPY (ops/\S+)", DOCKERFILE.read_text()):
        assert (ROOT / source).is_file()
