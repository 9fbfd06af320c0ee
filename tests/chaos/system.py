"""The system under test: its settings, and the command line of every process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ops.config import ENV_PREFIX, Settings, as_values
from ops.toml import dump_toml
from schemas.settings import (
    ClassSettings,
    FilingSettings,
    KafkaSettings,
    LinkSettings,
    LogSettings,
    RedisSettings,
    RuleSettings,
    SchedulerSettings,
    WorkerSettings,
)
from tests.chaos.broker import LAUNCHER_VARIABLE
from tests.chaos.events import FLASH_SOURCE
from tests.chaos.hooked import Control
from tests.chaos.plan import (
    DEAD_AFTER_SECONDS,
    HOOKED_SCHEDULER,
    HOOKED_WORKER,
    SCHEDULERS,
    SESSION_SECONDS,
    STUCK_AFTER_SECONDS,
    VISITING_WORKER,
    VISITOR,
    WORKERS,
    Delivery,
)
from tests.chaos.processes import Fleet, Managed

PARTITIONS = 4
CLASSES = (
    # Toxic soon: after any fault some of these expire. The rest may wait out every fault.
    ClassSettings(name="flash", slo_ms=400, toxic_ms=1500, extractor="headline"),
    ClassSettings(name="standard", slo_ms=60_000, extractor="headline"),
    ClassSettings(name="bulk", slo_ms=120_000, extractor="filing"),
)
RULES = (
    RuleSettings(service_class="flash", topic="news", sources=(FLASH_SOURCE,)),
    RuleSettings(service_class="standard", topic="news"),
    RuleSettings(service_class="bulk"),
)


def kafka_settings(bootstrap: str, nodes: int) -> KafkaSettings:
    """Return how to reach the broker, and the shape of the topics."""
    return KafkaSettings(
        bootstrap=bootstrap,
        topic_prefix="chaos",
        partitions=PARTITIONS,
        replication=min(nodes, 3),
        connect_seconds=30.0,  # a broker that was just killed needs some seconds to come back
    )


def scheduler_settings(name: str, kafka: KafkaSettings, redis_url: str, link: str, delivery: Delivery) -> Settings:
    """Return the configuration of one scheduler and its workers."""
    return Settings(
        kafka=kafka,
        redis=RedisSettings(url=redis_url),
        link=LinkSettings(address=link, dead_after_seconds=DEAD_AFTER_SECONDS, stuck_after_seconds=STUCK_AFTER_SECONDS),
        scheduler=SchedulerSettings(
            id=name,
            classes=CLASSES,
            rules=RULES,
            session_seconds=SESSION_SECONDS,
            drain_seconds=4.0,
            # Well below the time without a completion after which the bench gives up: a part that the feeder repeated
            # stands alone and waits this long.
            filings=FilingSettings(wait_seconds=10.0),
            delivery=delivery,
        ),
        worker=WorkerSettings(
            engine="sim",
            # Cheap enough for two cores, long enough for a dozen requests to be in flight at any moment.
            sim_step_ms=10.0,
            sim_prefill_token_us=1.0,
            sim_decode_us=1.0,
        ),
        log=LogSettings(level="info", format="json"),
    )


def build_fleet(scratch: Path, kafka: KafkaSettings, redis_url: str, delivery: Delivery) -> Fleet:
    """Write the configurations and return every process, none of them started.

    Args:
        scratch: for configurations, logs and the sockets of the worker links.
        kafka: where the topics are.
        redis_url: where stamps and status go.
        delivery: mode of the schedulers.
    """
    fleet = Fleet()
    homes = {**WORKERS, VISITING_WORKER: VISITOR}
    for scheduler in (*SCHEDULERS, VISITOR):
        config = scratch / f"{scheduler}.toml"
        settings = scheduler_settings(scheduler, kafka, redis_url, f"ipc://{scratch}/{scheduler}.link", delivery)
        config.write_text(dump_toml(as_values(settings, secrets=True)), encoding="utf-8")
        hooks = clock_file(scratch) if scheduler == HOOKED_SCHEDULER else None
        fleet.add(_managed(scheduler, "scheduler", scratch, _command(hooks, "scheduler", config)))
        for worker in (name for name, home in homes.items() if home == scheduler):
            hooks = engine_file(scratch) if worker == HOOKED_WORKER else None
            fleet.add(_managed(worker, "worker", scratch, _command(hooks, "worker", config, "--id", worker)))
    return fleet


def clock_file(scratch: Path) -> Path:
    """Return the control file of the clock that can be stepped."""
    return scratch / "clock"


def engine_file(scratch: Path) -> Path:
    """Return the control file of the engine that can fail."""
    return scratch / "engine"


def clean_environment() -> None:
    """Take our own settings out of this process's environment: children would inherit them over their files."""
    for name in [n for n in os.environ if n.upper().startswith(ENV_PREFIX) and n != LAUNCHER_VARIABLE]:
        del os.environ[name]


def _managed(name: str, kind: str, scratch: Path, command: list[str]) -> Managed:
    return Managed(name=name, kind=kind, command=command, log=scratch / f"{name}.log")


def _command(hooks: Path | None, verb: str, config: Path, *arguments: str) -> list[str]:
    program = ["-m", "ops"]
    if hooks is not None:
        Control(hooks)  # makes the file
        program = ["-m", "tests.chaos.hooked", str(hooks)]
    return [sys.executable, *program, verb, "--config", str(config), *arguments]
