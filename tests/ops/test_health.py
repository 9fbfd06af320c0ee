"""Container health checks against a real HTTP server and a real Redis."""

from __future__ import annotations

import socket

import msgspec
import pytest
import redis
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from ops.config import Settings
from ops.embedded import free_port
from ops.health import UnhealthyError, check_scheduler, check_worker, main
from schemas.settings import KafkaSettings, RedisSettings, SchedulerSettings, WorkerSettings
from schemas.status import STOPPED_METRIC, SchedulerStatus, WorkerStatus
from schemas.topics import Topics


def scheduler_on(port: int) -> Settings:
    """Settings of a scheduler with metrics on a port."""
    return Settings(scheduler=SchedulerSettings(metrics_port=port))


def test_a_scheduler_that_serves_metrics_is_healthy() -> None:
    """A scheduler whose metrics answer is healthy, and no longer when they stop."""
    port = free_port()
    server, thread = start_http_server(port, "127.0.0.1", CollectorRegistry())
    check_scheduler(scheduler_on(port))
    server.shutdown()
    server.server_close()
    thread.join()
    with pytest.raises(UnhealthyError, match=str(port)):
        check_scheduler(scheduler_on(port))


def test_a_scheduler_that_dead_letters_stopped_is_healthy_and_says_so() -> None:
    """The check passes, so that nobody restarts it into the same, and what it prints says what to mend."""
    registry = CollectorRegistry()
    gauge = Gauge(STOPPED_METRIC, "As the scheduler has it.", registry=registry)
    port = free_port()
    server, thread = start_http_server(port, "127.0.0.1", registry)
    assert "stopped" not in check_scheduler(scheduler_on(port))
    gauge.set(1)
    assert "tapewire dlq ls" in check_scheduler(scheduler_on(port))
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_scheduler_without_metrics_cannot_be_checked() -> None:
    """Without a metrics port the check fails and names the setting, rather than pass blindly."""
    with pytest.raises(UnhealthyError, match=r"scheduler\.metrics_port"):
        check_scheduler(scheduler_on(0))


@pytest.mark.integration
@pytest.mark.parametrize(("worker_id", "own"), [("box-7-4711", ""), ("gpu-0", "gpu-0")])
def test_a_worker_that_a_scheduler_knows_is_healthy(
    redis_settings: RedisSettings, topic_prefix: str, worker_id: str, own: str
) -> None:
    """A worker is healthy while the status of some scheduler lists it, by its name or by its host."""
    settings = Settings(
        kafka=KafkaSettings(topic_prefix=topic_prefix), redis=redis_settings, worker=WorkerSettings(id=own)
    )
    with pytest.raises(UnhealthyError, match="known: none"):
        check_worker(settings, "box_7")
    worker = WorkerStatus(
        worker_id=worker_id, engine="sim", engine_version="1", model="m", in_flight=0, steps=0, kv_usage=0.0
    )
    status = SchedulerStatus(
        scheduler_id="s", at_ns=1, state="running", classes=[], workers=[worker], undecodable=0, stamps_dropped=0
    )
    with redis.Redis.from_url(redis_settings.url) as client:
        client.set(Topics(prefix=topic_prefix).status_key("s"), msgspec.json.encode(status), ex=60)
    check_worker(settings, "box_7")
    with pytest.raises(UnhealthyError, match=worker_id):
        check_worker(settings.model_copy(update={"worker": WorkerSettings(id="another")}), "box_7")


def test_a_worker_without_redis_is_not_healthy() -> None:
    """Redis away is reported as such, not as a traceback."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        settings = Settings(redis=RedisSettings(url=f"redis://127.0.0.1:{unused.getsockname()[1]}"))
        with pytest.raises(UnhealthyError, match="no status in Redis"):
            check_worker(settings, "box")


def test_the_command_exits_1(capsys: pytest.CaptureFixture[str]) -> None:
    """A check that fails exits 1 with one line for the container engine."""
    assert main(["nothing"]) == 1
    assert capsys.readouterr().err == "say which: scheduler or worker\n"
