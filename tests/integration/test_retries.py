"""Failures, deaths and their outcomes through a whole scheduler: tried again, quarantined alone, never lost."""

from __future__ import annotations

from collections import Counter

import pytest

from schemas.codec import encode_json
from schemas.errors import ErrorKind
from schemas.frames import Request
from schemas.settings import ClassSettings, KafkaSettings, RedisSettings
from schemas.topics import HEADER_ERROR_ATTEMPTS, HEADER_ERROR_KIND, HEADER_RETRY, HEADER_SCHEDULER
from tests.scheduler.fake_worker import Reply, answered, failed, fake_worker
from tests.scheduler.records import committed, ends, producer, read
from tests.scheduler.running import PATIENT, Node, killed, news, node, publish, results

pytestmark = pytest.mark.integration


class _Flaky:
    """Fails each request so often before it answers, and remembers the deadlines that it saw."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.deadlines: Counter[int] = Counter()

    def __call__(self, request: Request) -> Reply:
        self.deadlines[request.deadline_ns] += 1
        return failed(request) if self.deadlines[request.deadline_ns] <= self.failures else answered(request)


async def _all_is_committed(kafka: KafkaSettings) -> None:
    topic = kafka.topics.news
    newest = {p: end for p, end in (await ends(kafka, topic)).items() if end}
    assert await committed(kafka, topic) == newest


def _nothing_is_held(one: Node) -> None:
    scheduler = one.scheduler
    assert (scheduler._planner.total_queued, scheduler._planner.total_in_flight, scheduler._planner.retrying) == (
        0,
        0,
        0,
    )
    assert scheduler._ledger.unfinished(scheduler._room._events) == 0
    assert set(scheduler._room._events.values()) == set(scheduler._room._bytes.values()) == {0}


async def test_a_failure_that_passes_costs_a_pause_and_no_event(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Twice failed and then answered: one signal each, every attempt with the first one's deadline, nothing kept."""
    flaky = _Flaky(2)
    async with node(kafka_settings, redis_settings, retry_ms=20) as one, fake_worker(one.link, flaky):
        await publish(kafka_settings, [news(str(n)) for n in range(30)])
        await one.until_ended(30)
        assert one.scheduler._stats.retried == 60
        _nothing_is_held(one)
        await one.end()
    found = await results(kafka_settings)
    assert (len(found.signals), found.dead_letters) == (30, [])
    assert {s.deadline_ns for s in found.signals} == set(flaky.deadlines)
    assert set(flaky.deadlines.values()) == {3}
    await _all_is_committed(kafka_settings)


async def test_attempts_are_capped(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> None:
    """What fails every time is one dead letter after so many attempts, and what must not be tried again after one."""

    def reply(request: Request) -> Reply:
        return failed(request, ErrorKind.BAD_ANSWER, retryable=request.service_class == "flash")

    long = news("long", "Acme reports " + "a record quarter " * 150)
    async with node(kafka_settings, redis_settings, retry_ms=5, max_attempts=4) as one:
        async with fake_worker(one.link, reply) as worker:
            await publish(kafka_settings, [news("short"), long])
            await one.until_ended(2)
            _nothing_is_held(one)
            await one.end()
        assert len(worker.seen) == 5
    letters = [dict(letter.headers) for letter in (await results(kafka_settings)).dead_letters]
    assert sorted(letter[HEADER_ERROR_ATTEMPTS] for letter in letters) == [b"1", b"4"]
    assert {letter[HEADER_ERROR_KIND] for letter in letters} == {b"bad_answer"}
    await _all_is_committed(kafka_settings)


async def test_work_that_waits_for_its_attempt_expires_at_its_time(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """A worker that always fails costs a headline its toxic age: expired once, with nothing held or uncommitted."""
    classes = (ClassSettings(name="flash", slo_ms=300, toxic_ms=600, extractor="headline"), *PATIENT[1:])
    async with (
        node(kafka_settings, redis_settings, classes=classes, max_attempts=1000, retry_ms=100) as one,
        fake_worker(one.link, failed) as worker,
    ):
        await one.until(lambda: one.scheduler._status().state == "running")
        await publish(kafka_settings, [news(str(n)) for n in range(5)])
        await one.until_ended(5)
        _nothing_is_held(one)
        assert len(worker.seen) < 5 * 40  # pauses that halve what is left end at a nanosecond: no storm
        await one.end()
    found = await results(kafka_settings)
    assert (len(found.expired), found.signals, found.dead_letters) == (5, [], [])
    assert all(e.age_ns >= 500_000_000 for e in found.expired)  # less what the fastest answer would take
    await _all_is_committed(kafka_settings)


async def test_a_story_killed_between_two_attempts_is_not_tried_again(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """The kill of a story that waits for its next attempt ends it as expired, with no further request to a worker."""
    async with node(kafka_settings, redis_settings, retry_ms=700) as one, fake_worker(one.link, failed) as worker:
        await publish(kafka_settings, [news("a")])
        await one.until(lambda: one.scheduler._status().retrying == 1)
        await publish(kafka_settings, [killed("a")])
        await one.until(lambda: one.scheduler._stats.classes[0].expired == 1)
        await one.until(lambda: not one.scheduler._publisher.pending)
        _nothing_is_held(one)
        assert len(worker.seen) == 1
        await one.end()
    (expired,) = (await results(kafka_settings)).expired
    assert (expired.event_id, "killed" in expired.reason) == ("wire:a:1", True)


async def test_a_stop_leaves_what_waits_to_the_next_life(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """A stop does not wait for pauses; the offsets stay uncommitted, and the next life gives each event its signal."""
    pause = 60_000.0
    async with (
        node(kafka_settings, redis_settings, retry_ms=pause, retry_most_ms=pause) as one,
        fake_worker(one.link, failed),
    ):
        await publish(kafka_settings, [news(str(n)) for n in range(10)])
        await one.until(lambda: one.scheduler._status().retrying == 10)
        await one.end(10)
        assert set(one.scheduler._room._events.values()) == {0}
    async with node(kafka_settings, redis_settings) as one, fake_worker(one.link):
        await one.until_ended(10)
        await one.end()
    found = await results(kafka_settings)
    assert len(found.signals) == 10
    assert set(found.outcomes.values()) == {1}


async def test_only_the_request_that_kills_engines_is_quarantined(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """One event among sixty kills every engine that it reaches (vllm#43920): it alone becomes a dead letter."""
    total, poison = 60, "wire:13:1"
    async with node(kafka_settings, redis_settings) as one:
        await publish(kafka_settings, [news(str(n)) for n in range(total)])
        lives = 0
        while one.ended < total:
            lives += 1
            assert lives <= 4, "a crash loop"
            async with fake_worker(one.link, _keep, f"life-{lives}") as worker:
                while one.ended < total:
                    await one.until(lambda w=worker: w.held or one.ended >= total)
                    at_worker = {w.request_id: w.event_id for w in one.scheduler._planner.in_flight_work()}
                    if poison in at_worker.values():
                        await worker.die()
                        await one.until(lambda: not one.scheduler._workers.status())
                        break
                    worker.reply = answered
                    await worker.settle(list(worker.held.values()))
                    worker.reply = _keep
        await one.until_ended(total)
        _nothing_is_held(one)
        await one.end()
    found = await results(kafka_settings)
    (letter,) = found.dead_letters
    assert letter.key == b"wire:13"
    assert dict(letter.headers)[HEADER_ERROR_KIND] == b"quarantined"
    assert len(found.signals) == total - 1
    assert set(found.outcomes.values()) == {1}
    await _all_is_committed(kafka_settings)


def _keep(request: Request) -> Reply:
    return None


async def test_every_result_names_the_scheduler_and_the_retry(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Signals, expired records and dead letters carry the scheduler's id and life, and the mark of a retried event."""
    classes = (PATIENT[0], ClassSettings(name="standard", slo_ms=1, toxic_ms=1), PATIENT[2])
    long = news("long", "Acme reports " + "a record quarter " * 150)
    async with node(kafka_settings, redis_settings, id="desk-7", classes=classes) as one, fake_worker(one.link):
        async with producer(kafka_settings) as client:
            for value in (encode_json(news("a")), encode_json(long), b"not JSON"):
                headers = [(HEADER_RETRY, b"3/1207"), (HEADER_SCHEDULER, b"of an earlier death")]
                await client.send(kafka_settings.topics.news, value, headers=headers)
            await client.flush()
        await one.until_ended(3)
        await one.end()
        life = f"desk-7/{one.scheduler._session[:8]}".encode()
    for topic in kafka_settings.topics.outputs:
        (record,) = await read(kafka_settings, topic)
        assert [value for name, value in record.headers if name == HEADER_SCHEDULER] == [life], topic
        assert [value for name, value in record.headers if name == HEADER_RETRY] == [b"3/1207"], topic
