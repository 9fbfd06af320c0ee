"""A real scheduler process while its broker is killed and comes back, and while it is killed or stopped itself."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis.asyncio as redis

from ops.embedded import free_port
from scheduler import offset_map
from scheduler.producer import group_offsets
from schemas.codec import decode_json
from schemas.records import Signal
from schemas.settings import KafkaSettings, RedisSettings
from schemas.status import SchedulerStatus
from tests.ops.command import start
from tests.own_kafka import OwnKafka
from tests.scheduler.records import ends, read
from tests.scheduler.running import news, publish
from tests.scheduler.waiting import eventually

pytestmark = pytest.mark.integration

PROFILE = Path(__file__).parents[2] / "ops" / "profiles" / "overhead.toml"
"""Classes whose work never gets too old to run."""
OUTAGE_LINES = {"kafka_away", "kafka_still_away", "kafka_back"}


class _Process:
    """A scheduler process, its worker, and the status that it leaves in Redis."""

    def __init__(self, kafka: KafkaSettings, cache: RedisSettings, tmp: Path, **scheduler: str) -> None:
        self.kafka = kafka
        self._redis = redis.Redis.from_url(cache.url)
        self._env = {
            "TAPEWIRE_KAFKA__BOOTSTRAP": kafka.bootstrap,
            "TAPEWIRE_KAFKA__TOPIC_PREFIX": kafka.topic_prefix,
            "TAPEWIRE_REDIS__URL": cache.url,
            "TAPEWIRE_LINK__ADDRESS": f"ipc://{tmp}/link",
            "TAPEWIRE_LOG__FORMAT": "json",
            "TAPEWIRE_SCHEDULER__SESSION_SECONDS": "6",
            # 16 answers every 20 ms: the load lasts for as long as the fault.
            "TAPEWIRE_WORKER__SIM_STEP_MS": "20",
            "TAPEWIRE_WORKER__MAX_NUM_SEQS": "16",
            **{f"TAPEWIRE_SCHEDULER__{name.upper()}": value for name, value in scheduler.items()},
        }
        self.log = tmp / "scheduler.log"
        self.worker = start("worker", "--config", str(PROFILE), env=self._env, cwd=tmp, stderr=subprocess.DEVNULL)
        self.scheduler = self._start()

    def _start(self) -> subprocess.Popen[str]:
        with self.log.open("ab") as log:
            return start("scheduler", "--config", str(PROFILE), env=self._env, stderr=log.fileno())

    def start_again(self) -> None:
        """Start the scheduler that was killed once more."""
        self.scheduler = self._start()

    def events(self) -> Counter[str]:
        """Count the lines on the scheduler's stderr by their event; a line that is no event fails the test."""
        return Counter(json.loads(line)["event"] for line in self.log.read_text().splitlines())

    async def status(self) -> SchedulerStatus | None:
        """Return the scheduler's status."""
        raw = await self._redis.get(self.kafka.topics.status_key("scheduler-1"))
        return decode_json(raw, SchedulerStatus) if isinstance(raw, bytes) else None

    async def signals(self, least: int) -> bool:
        """Whether the scheduler has counted so many signals."""
        status = await self.status()
        return status is not None and sum(c.signals for c in status.classes) >= least

    async def state(self, wanted: str) -> bool:
        """Whether the scheduler is in a state."""
        status = await self.status()
        return status is not None and status.state == wanted

    async def close(self) -> None:
        """End what runs."""
        for process in (self.scheduler, self.worker):
            process.kill()
            await asyncio.to_thread(process.wait)
        await self._redis.aclose()


@asynccontextmanager
async def _running(kafka: KafkaSettings, cache: RedisSettings, tmp: Path, **scheduler: str) -> AsyncIterator[_Process]:
    process = _Process(kafka, cache, tmp, **scheduler)
    try:
        yield process
    finally:
        await process.close()


async def _outcomes(kafka: KafkaSettings, *, committed: bool) -> Counter[tuple[int, int]]:
    """How often each news offset has a signal."""
    level = "read_committed" if committed else "read_uncommitted"
    records = await read(kafka, kafka.topics.signals, isolation_level=level)
    return Counter((s.partition, s.offset) for s in (decode_json(r.value, Signal) for r in records))


async def _inputs(kafka: KafkaSettings) -> set[tuple[int, int]]:
    return {(p, o) for p, end in (await ends(kafka, kafka.topics.news)).items() for o in range(end)}


async def _finished(kafka: KafkaSettings) -> set[tuple[int, int]]:
    """The news offsets that the group's commits, with their maps, call finished."""
    found: set[tuple[int, int]] = set()
    for tp, entry in (await group_offsets(kafka, kafka.topics.news)).items():
        ranges = [(0, entry.offset), *offset_map.decode(entry.offset, entry.metadata)] if entry.offset >= 0 else []
        found |= {(tp.partition, o) for begin, end in ranges for o in range(begin, end)}
    return found


async def test_an_outage_is_three_lines_and_loses_nothing(
    own_kafka: OwnKafka, own_settings: KafkaSettings, redis_settings: RedisSettings, tmp_path: Path
) -> None:
    """Killed and started again under load: three kinds of lines on stderr, one signal for each event, a clean stop."""
    events = 6000
    await publish(own_settings, [news(str(n)) for n in range(events)])
    async with _running(own_settings, redis_settings, tmp_path) as process:
        await eventually(lambda: process.signals(500), 60)
        before = process.events()
        await asyncio.to_thread(own_kafka.kill)
        await eventually(lambda: process.state("kafka_away"), 30)
        await asyncio.to_thread(own_kafka.start)
        await eventually(lambda: process.state("running"), 60)
        await eventually(lambda: process.signals(events), 60)
        during = process.events() - before
        process.scheduler.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.scheduler.wait, 20) == 0
    assert await _outcomes(own_settings, committed=False) == Counter(await _inputs(own_settings))
    assert await _finished(own_settings) == await _inputs(own_settings)
    assert during["kafka_away"] == during["kafka_back"] == 1
    assert during["kafka_still_away"] <= 1
    assert "library_message" not in process.events()
    # A rebalance may follow, as the session may have expired meanwhile, and a commit may have been on its way.
    others = Counter({name: n for name, n in during.items() if name not in OUTAGE_LINES})
    moves = {"partitions_revoked", "partitions_lost", "partitions_assigned"}
    assert set(others) <= {*moves, "commit_failed", "commits_go_on"}
    assert others.total() <= 10


async def test_killed_in_the_middle_of_transactions(
    own_settings: KafkaSettings, redis_settings: RedisSettings, tmp_path: Path
) -> None:
    """SIGKILL leaves exactly the signals whose offsets are committed; the next life adds each missing one once."""
    events = 2000
    await publish(own_settings, [news(str(n)) for n in range(events)])
    async with _running(own_settings, redis_settings, tmp_path, delivery="transactional") as process:
        for least in (300, 900):
            while not await _seen(own_settings, least):
                assert process.scheduler.poll() is None
            process.scheduler.kill()
            await asyncio.to_thread(process.scheduler.wait)
            # Not at once: what was being committed at the kill is still being written out.
            await eventually(lambda: _together(own_settings), 30)
            process.start_again()
        await eventually(lambda: _seen(own_settings, events), 90)
        process.scheduler.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.scheduler.wait, 20) == 0
    assert await _outcomes(own_settings, committed=True) == Counter(await _inputs(own_settings))
    assert await _finished(own_settings) == await _inputs(own_settings)


@pytest.mark.parametrize("delivery", ["at_least_once", "transactional"])
async def test_stopped_for_longer_than_its_session(
    own_settings: KafkaSettings, redis_settings: RedisSettings, tmp_path: Path, delivery: str
) -> None:
    """What it had in flight belongs to its successor by then: dropped and counted, and each event has one signal."""
    port = free_port()
    options = {"delivery": delivery, "commit_seconds": "0.1", "drain_seconds": "5"}
    homes = [tmp_path / name for name in ("one", "two")]
    for home in homes:
        home.mkdir()
    await publish(own_settings, [news(str(n)) for n in range(2000)])
    async with _running(own_settings, redis_settings, homes[0], **options, metrics_port=str(port)) as one:
        await eventually(lambda: one.signals(100), 60)
        one.worker.send_signal(signal.SIGSTOP)
        # All that it has published is committed: whatever comes twice from here on comes from what it does as a zombie.
        await eventually(lambda: _together(own_settings), 30)
        one.scheduler.send_signal(signal.SIGSTOP)
        async with _running(own_settings, redis_settings, homes[1], **options, id="scheduler-2"):
            await eventually(lambda: _seen(own_settings, 2000), 60)
            one.scheduler.send_signal(signal.SIGCONT)
            await eventually(lambda: _told(one, "partitions_lost", 2), 30)
            one.worker.send_signal(signal.SIGCONT)
            await eventually(lambda: _counted(port, "tapewire_stale_outcomes_total"), 30)
            await publish(own_settings, [news(str(n)) for n in range(2000, 2200)])
            await eventually(lambda: _seen(own_settings, 2200), 60)
            await eventually(lambda: _all_finished(own_settings), 30)
    assert await _outcomes(own_settings, committed=True) == Counter(await _inputs(own_settings))


async def _told(process: _Process, event: str, times: int) -> bool:
    return process.events()[event] >= times


async def _counted(port: int, name: str) -> bool:
    def scrape() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    samples = dict(line.split() for line in (await asyncio.to_thread(scrape)).splitlines() if line.startswith(name))
    return float(samples[name]) > 0


async def _all_finished(kafka: KafkaSettings) -> bool:
    return await _finished(kafka) == await _inputs(kafka)


async def _seen(kafka: KafkaSettings, least: int) -> bool:
    return len(await _outcomes(kafka, committed=True)) >= least


async def _together(kafka: KafkaSettings) -> bool:
    return await _outcomes(kafka, committed=True) == Counter(await _finished(kafka))
