"""A whole scheduler: killed with finished work above a stuck record, and down while offsets are lost."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from scheduler.errors import OffsetsLostError
from schemas.codec import encode_json
from schemas.frames import Request
from schemas.settings import KafkaSettings, RedisSettings, SchedulerSettings, WorkerSettings
from schemas.topics import HEADER_ERROR_KIND, HEADER_ERROR_MESSAGE, HEADER_SOURCE_OFFSET
from tests.conftest import Broker
from tests.scheduler.dealers import link_settings
from tests.scheduler.intakes import committed_map
from tests.scheduler.records import admin, committed, producer
from tests.scheduler.running import PATIENT, ROOT, kill, news, node, results
from tests.scheduler.waiting import eventually, until
from workers.process import serve
from workers.sim_engine import SimEngine

pytestmark = pytest.mark.integration

COUNT = 10_000
"""Finished above the stuck one."""
STUCK = "This headline is the one that stays in the engine for as long as the test wants. " * 2
LONG = 20
"""Tokens; the stuck headline has 41, the others have six."""


class _Sticky:
    """Stands before the engine: counts what it gets, and keeps the stuck headline back until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = 0
        self.kept: list[Request] = []
        self.engine: SimEngine | None = None
        self.submit = submit = SimEngine.submit

        def keeping(engine: SimEngine, requests: Sequence[Request]) -> None:
            self.engine = engine
            self.seen += len(requests)
            stuck = [r for r in requests if len(r.text_tokens) // 4 > LONG]
            self.kept += stuck
            submit(engine, [r for r in requests if r not in stuck])

        monkeypatch.setattr(SimEngine, "submit", keeping)

    def let_go(self) -> None:
        """Answer what was kept back last."""
        assert self.engine is not None
        self.submit(self.engine, self.kept[-1:])


async def _publish(kafka: KafkaSettings, headlines: dict[str, str], partition: int = 0) -> None:
    async with producer(kafka) as client:
        for story, headline in headlines.items():
            await client.send(kafka.topics.news, encode_json(news(story, headline)), partition=partition)
        await client.flush()


async def test_a_killed_scheduler_redoes_nothing_that_was_finished_and_committed(
    kafka: Broker, kafka_settings: KafkaSettings, redis_settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed -9 with 10,000 finished offsets above one stuck record: the next one runs that record and no other."""
    if kafka.embedded:
        pytest.skip("the embedded broker keeps killed members for over a minute; needs a real Kafka")
    topic, link = kafka_settings.topics.news, link_settings(heartbeat_seconds=0.1, dead_after_seconds=5.0)
    settings = SchedulerSettings(classes=PATIENT, commit_seconds=0.1, session_seconds=6.0)
    arguments = [one.model_dump_json() for one in (settings, kafka_settings, redis_settings, link)]
    engine = _Sticky(monkeypatch)
    await _publish(kafka_settings, {"stuck": STUCK} | {str(n): f"Acme {n}" for n in range(COUNT)})

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.scheduler.scheduler_process", *arguments, cwd=ROOT
        )

    async def all_but_one_are_committed() -> bool:
        return await _map(kafka_settings) == [(1, COUNT + 1)]

    async def everything_is_committed() -> bool:
        return await committed(kafka_settings, topic) == {0: COUNT + 2}

    worker_stop, worker_settings = (
        asyncio.Event(),
        WorkerSettings(id="w1", engine="sim", sim_step_ms=0, sim_prefill_token_us=0, sim_decode_us=0, max_num_seqs=512),
    )
    worker = asyncio.create_task(serve(worker_settings, link, worker_stop))
    processes: list[asyncio.subprocess.Process] = []
    try:
        processes.append(await start())
        await eventually(all_but_one_are_committed, 90)
        assert (engine.seen, len(engine.kept)) == (COUNT + 1, 1)
        kill(processes[0])
        processes.append(await start())
        await until(lambda: len(engine.kept) == 2, 60)
        engine.let_go()
        await _publish(kafka_settings, {"last": "Acme at last"})
        await eventually(everything_is_committed, 60)
        processes[1].terminate()
        assert await processes[1].wait() == 0
    finally:
        for process in processes:
            if process.returncode is None:
                kill(process)
            await process.wait()
        worker_stop.set()
        await worker
    assert engine.seen == COUNT + 3  # the stuck one twice, the last one once
    found = await results(kafka_settings)
    assert found.outcomes == Counter((topic, 0, offset) for offset in range(COUNT + 2))


async def _map(kafka: KafkaSettings) -> list[tuple[int, int]]:
    async with admin(kafka) as client:
        offsets = await client.list_consumer_group_offsets(kafka.topics.news)
    if TopicPartition(kafka.topics.news, 0) not in offsets:
        return []
    return await committed_map(kafka, 0)


async def _lose(kafka: KafkaSettings) -> None:
    """Publish ten more, and delete what is below offset 5 of partition 0."""
    await _publish(kafka, {str(n): f"Acme {n}" for n in range(10)})
    async with admin(kafka) as client:
        await client.delete_records({TopicPartition(kafka.topics.news, 0): RecordsToDelete(before_offset=5)})


async def test_lost_offsets_become_one_dead_letter_and_the_rest_is_answered(
    kafka: Broker, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """quix-streams#1114: it stops and names the offsets; told to record the gap, it publishes it and goes on."""
    if kafka.embedded:
        pytest.skip("the embedded broker does not delete records; needs a real Kafka")
    topic = kafka_settings.topics.news
    await _publish(kafka_settings, {str(n): f"Acme {n}" for n in range(2)})
    async with node(kafka_settings, redis_settings) as one:
        one.worker()
        await one.until_ended(2)
        await one.end()
    await _lose(kafka_settings)
    async with node(kafka_settings, redis_settings) as one:
        one.worker()
        with pytest.raises(OffsetsLostError, match=r"offset 2 is to be read next.*first offset that Kafka has is 5"):
            await one.until(lambda: False)
    async with node(kafka_settings, redis_settings, lost_offsets="record") as one:
        one.worker()
        await one.until_ended(8)
        await one.end()
    found = await results(kafka_settings)
    (letter,) = found.dead_letters
    headers = dict(letter.headers)
    assert headers[HEADER_ERROR_KIND] == b"offsets_lost"
    assert headers[HEADER_SOURCE_OFFSET] == b"2"
    assert b"offsets 2 to 4" in headers[HEADER_ERROR_MESSAGE]
    assert (letter.key, letter.value) == (None, b"")
    assert {offset for _, _, offset in found.outcomes} == {0, 1, 2, *range(5, 12)}
    assert set(found.outcomes.values()) == {1}
    assert (await committed(kafka_settings, topic))[0] == 12
