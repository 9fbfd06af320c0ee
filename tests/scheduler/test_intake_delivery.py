"""What intake does for delivery: maps restored, epochs, commits that fail, lost offsets, crowded partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
import structlog.testing
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import RecordsToDelete
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaError,
    OffsetMetadataTooLargeError,
    RequestTimedOutError,
    UnknownMemberIdError,
)

from scheduler import intake as intake_module
from scheduler import offset_map
from scheduler.commits import Commits
from scheduler.errors import OffsetsLostError
from scheduler.intake import Intake
from scheduler.ledger import SMALLEST_LIMIT, Ledger, Partition
from scheduler.offset_map import encode
from schemas.settings import KafkaSettings, SchedulerSettings
from tests.conftest import Broker
from tests.scheduler.intakes import (
    SETTINGS,
    Taker,
    commit_as_group,
    committed_map,
    numbers,
    publish_numbers,
    rejoin,
    running_intake,
)
from tests.scheduler.records import admin, committed, ends
from tests.scheduler.waiting import eventually, until

pytestmark = pytest.mark.integration

RECORD = SchedulerSettings(session_seconds=6.0, drain_seconds=1.0, lost_offsets="record")


# Maps


async def test_a_restart_redoes_nothing_that_was_finished_above_the_commit(kafka_settings: KafkaSettings) -> None:
    """One record is stuck and all behind it are done: after the restart the stuck one is read again and no other."""
    await publish_numbers(kafka_settings, range(40))
    async with running_intake(kafka_settings, finish=False) as (_, taker):
        await until(lambda: len(taker.unfinished) >= 40)
        for origin in taker.unfinished:
            if (origin.partition, origin.offset) != (0, 3):
                taker.ledger.finish(origin)
    assert await committed_map(kafka_settings, 0) == [(4, 10)]
    async with running_intake(kafka_settings) as (_, taker):
        await publish_numbers(kafka_settings, range(40, 44))
        await until(lambda: len(taker.values) >= 5)
        assert numbers(taker) == [12, *range(40, 44)]
        assert taker.ledger.skipped == 6
    topic = kafka_settings.topics.news
    assert await committed(kafka_settings, topic) == await ends(kafka_settings, topic)


async def test_no_record_is_handed_out_before_the_ledger_has_its_partition(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the maps take, `getmany` gives nothing meanwhile: such a record would be lost or done again."""
    await commit_as_group(kafka_settings, dict.fromkeys(range(kafka_settings.partitions), (0, "")))
    during: list[int] = []

    async def slow(_kafka: Any, client: AIOKafkaConsumer, _group: Any, tps: Iterable[TopicPartition], _t: Any) -> Any:
        getmany = client.getmany

        async def counting(**options: Any) -> Any:
            fetched = await getmany(**options)
            during.append(sum(map(len, fetched.values())))
            return fetched

        client.getmany = counting
        await until(lambda: len(during) >= 4)
        del client.getmany
        taker.room = True
        return {(tp.topic, tp.partition): [(2, 4)] for tp in tps}

    with structlog.testing.capture_logs() as logs:
        async with running_intake(kafka_settings) as (intake, taker):
            await until(lambda: bool(taker.ledger.partitions(intake.topic)))
            taker.room = False
            await until(lambda: intake.paused)
            await publish_numbers(kafka_settings, range(40))
            monkeypatch.setattr(intake_module, "finished_before", slow)
            await rejoin(intake)
            await until(lambda: len(taker.values) >= 32)
        assert set(during[:4]) == {0}
        assert "records_given_back" not in [entry["event"] for entry in logs]
        assert numbers(taker) == [n for n in range(40) if n // 4 not in (2, 3)]


async def test_a_partition_that_nobody_told_the_ledger_about_gives_its_records_back(
    kafka_settings: KafkaSettings,
) -> None:
    """Should a record come before its partition is owned all the same, the consumer goes back to it."""
    async with running_intake(kafka_settings) as (intake, taker):
        await until(lambda: len(taker.ledger.partitions(intake.topic)) == kafka_settings.partitions)
        partition = (intake.topic, 0)
        hold, adjust = [True], intake._adjust_pause
        intake._adjust_pause = lambda: None if hold[0] else adjust()  # type: ignore[method-assign]  # as if it were new
        taker.ledger.forget([partition])
        with structlog.testing.capture_logs() as logs:
            await publish_numbers(kafka_settings, range(8))
            await until(lambda: any(entry["event"] == "records_given_back" for entry in logs))
        taker.ledger.assign([partition])
        hold[0] = False
        await until(lambda: len(taker.values) >= 8)
        assert numbers(taker) == list(range(8))


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param("mirrored by some other tool, 2026", id="another tool"),
        pytest.param("AQAAAAAAAQE=", id="wrong checksum"),
        pytest.param(encode(0, [(5, 500)]), id="behind the end of the log"),
    ],
)
async def test_metadata_that_is_no_map_of_this_log_is_ignored(kafka_settings: KafkaSettings, metadata: str) -> None:
    """Foreign, corrupt or impossible metadata costs one log line, and every record is read."""
    await publish_numbers(kafka_settings, range(40))
    await commit_as_group(kafka_settings, {0: (0, metadata)})
    with structlog.testing.capture_logs() as logs:
        async with running_intake(kafka_settings) as (_, taker):
            await until(lambda: len(taker.values) >= 40)
            assert numbers(taker) == list(range(40))
    assert [entry["event"] for entry in logs].count("offset_map_ignored") == 1


async def test_maps_that_cannot_be_read_cost_repeats_and_no_start(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin client that fails in whatever way leaves an assignment without maps, and work goes on."""
    await publish_numbers(kafka_settings, range(40))
    await commit_as_group(kafka_settings, {0: (0, encode(0, [(5, 8)]) or "")})

    async def broken(*_args: Any, **_options: Any) -> Any:
        raise AttributeError("error_code")

    monkeypatch.setattr("aiokafka.admin.AIOKafkaAdminClient.list_consumer_group_offsets", broken)
    with structlog.testing.capture_logs() as logs:
        async with running_intake(kafka_settings) as (_, taker):
            await until(lambda: len(taker.values) >= 40)
    assert [entry["event"] for entry in logs].count("offset_maps_not_read") == 1


async def test_a_partition_whose_map_is_nearly_full_waits_and_the_others_do_not(kafka_settings: KafkaSettings) -> None:
    """Only the crowded partition stops taking records; it goes on when what is stuck ends, and nothing is skipped."""
    async with running_intake(kafka_settings, finish=False) as (_, taker):
        taker.ledger.map_limit = 256
        count = 4 * 1600
        await publish_numbers(kafka_settings, range(count))
        await until(lambda: len(taker.unfinished) >= count)
        stuck = [o for o in taker.unfinished if o.partition == 0 and not o.offset % 2]
        for origin in taker.unfinished:
            if origin not in stuck:
                taker.ledger.finish(origin)
        taker.finish = True
        # One fetch may be on its way; the second batch finds the partition paused.
        await until(lambda: taker.ledger.crowded((kafka_settings.topics.news, 0)))
        await publish_numbers(kafka_settings, range(count, count + 8))
        await until(lambda: sum(1 for n in numbers(taker) if n >= count and n % 4) >= 6)
        before = numbers(taker)[-8:]
        await publish_numbers(kafka_settings, range(count + 8, count + 12))
        await until(lambda: sum(1 for n in numbers(taker) if n >= count + 8) >= 3)
        assert count + 8 not in numbers(taker)
        for origin in stuck:
            taker.ledger.finish(origin)
        await until(lambda: len(taker.values) >= count + 12)
        assert numbers(taker) == list(range(count + 12))
        assert before


# Epochs


async def test_a_commit_during_a_revoke_never_passes_what_was_only_queued(kafka_settings: KafkaSettings) -> None:
    """parallel-consumer#826: records that were read and never run are read again by the next owner, whoever commits."""
    await publish_numbers(kafka_settings, range(40))
    async with running_intake(kafka_settings, finish=False) as (intake, taker):
        await until(lambda: len(taker.values) >= 40)
        await intake.commit()
        drained = taker.drained

        async def with_a_commit(partitions: set[Partition], timeout: float) -> bool:
            await intake.commit()
            return await drained(partitions, timeout)

        taker.drained = with_a_commit  # type: ignore[method-assign]  # the timer of commits fires in the middle
        await rejoin(intake)
        await until(lambda: len(taker.values) >= 80)
        assert numbers(taker) == sorted([*range(40), *range(40)])
    assert set((await committed(kafka_settings, kafka_settings.topics.news)).values()) <= {0}


async def test_a_late_completion_neither_ends_nor_blocks_the_record_that_came_back(
    kafka_settings: KafkaSettings,
) -> None:
    """parallel-consumer#909: revoked and returned with work running, every offset completes exactly once."""
    await publish_numbers(kafka_settings, range(40))
    async with running_intake(kafka_settings, finish=False) as (intake, taker):
        await until(lambda: len(taker.unfinished) >= 40)
        old = taker.unfinished[:]
        await rejoin(intake)
        await until(lambda: len(taker.unfinished) >= 80)
        new = taker.unfinished[40:]
        assert not any(taker.ledger.finish(origin) for origin in old)
        assert taker.ledger.stale == 40
        await intake.commit()
        assert taker.ledger.unfinished([intake.topic]) == 40
        assert all(taker.ledger.finish(origin) for origin in new)
        await intake.commit()
        topic = kafka_settings.topics.news
        assert await committed(kafka_settings, topic) == await ends(kafka_settings, topic)


# Commits


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(CommitFailedError(), id="CommitFailed"),
        pytest.param(IllegalStateError("partition is not assigned"), id="IllegalState"),
        pytest.param(UnknownMemberIdError(), id="UnknownMemberId"),
        pytest.param(RequestTimedOutError(), id="RequestTimedOut"),
        pytest.param(ConnectionResetError(), id="connection"),
    ],
)
async def test_commits_that_fail_do_not_end_consumption(kafka_settings: KafkaSettings, error: Exception) -> None:
    """faststream#1414: commits fail for a while and heal; records come meanwhile, and all is committed afterwards."""
    async with running_intake(kafka_settings) as (intake, taker):
        await until(lambda: bool(taker.ledger.partitions(intake.topic)))
        commit = intake._client.commit
        failed = 0

        async def failing(offsets: Any) -> None:
            nonlocal failed
            failed += 1
            raise error

        intake._client.commit = failing
        with structlog.testing.capture_logs() as logs:
            for start in range(0, 40, 8):
                await publish_numbers(kafka_settings, range(start, start + 8))
                await until(lambda start=start: len(taker.values) >= start + 8)  # type: ignore[misc]  # bound at once
                await intake.commit()
            assert isinstance(intake._commits, Commits)
            assert failed == intake._commits.failures == 5
            assert await committed(kafka_settings, intake.topic) == {}
            intake._client.commit = commit
            await intake.commit()
        assert [e["event"] for e in logs if e["event"].startswith("commit")] == ["commit_failed", "commits_work_again"]
        assert await committed(kafka_settings, intake.topic) == await ends(kafka_settings, intake.topic)


async def test_a_member_that_the_group_has_forgotten_joins_again(kafka: Broker, kafka_settings: KafkaSettings) -> None:
    """aiokafka#929: a commit under an old generation is refused by the broker; the scheduler rejoins and goes on."""
    if kafka.embedded:
        pytest.skip("the embedded broker keeps the old member for over a minute; needs a real Kafka")
    await publish_numbers(kafka_settings, range(40))
    async with running_intake(kafka_settings) as (intake, taker):
        await until(lambda: len(taker.values) >= 40)
        intake._client._coordinator.generation += 7
        with structlog.testing.capture_logs() as logs:
            await intake.commit()
            await until(lambda: any(entry["event"] == "partitions_assigned" for entry in logs))
        assert "partitions_lost" in [entry["event"] for entry in logs]
        await publish_numbers(kafka_settings, range(40, 80))
        await until(lambda: set(numbers(taker)) == set(range(80)))

        async def all_committed() -> bool:
            await intake.commit()
            return await committed(kafka_settings, intake.topic) == await ends(kafka_settings, intake.topic)

        await eventually(all_committed)


async def test_a_commit_that_was_given_up_prints_no_traceback(kafka_settings: KafkaSettings) -> None:
    """Its request is shielded by aiokafka: it fails later, with nobody waiting, and asyncio would report that."""
    await publish_numbers(kafka_settings, range(4))
    async with running_intake(kafka_settings) as (intake, taker):
        await until(lambda: len(taker.values) >= 4)
        coordinator = intake._client._coordinator
        send, go_on = coordinator._send_req, asyncio.Event()
        left: list[Any] = []

        async def late(request: Any) -> Any:
            if "OffsetCommit" not in type(request).__name__:
                return await send(request)
            left.append(asyncio.current_task())
            await go_on.wait()
            raise RequestTimedOutError

        coordinator._send_req = late
        await intake._commits.commit(intake._client, 0.05)
        assert isinstance(intake._commits, Commits)
        assert intake._commits.failures == 1
        coordinator._send_req = send
        go_on.set()
        (request,) = left
        await asyncio.wait([request])
        await asyncio.sleep(0)  # its callbacks
        assert not request._log_traceback


async def test_a_member_that_joins_while_a_batch_runs(kafka: Broker, kafka_settings: KafkaSettings) -> None:
    """aiokafka#929: the batch goes on, the newcomer gets its share, both commit, and each record is taken once."""
    if kafka.embedded:
        pytest.skip("groups of two do not settle on the embedded broker; needs a real Kafka")
    running, end = asyncio.Event(), asyncio.Event()
    async with running_intake(kafka_settings) as (old, busy):
        take = busy.take

        async def long(topic: str, records: Any) -> None:
            running.set()
            await end.wait()
            await take(topic, records)

        busy.take = long  # type: ignore[method-assign]  # a batch that a test ends
        await publish_numbers(kafka_settings, range(40))
        await running.wait()
        async with running_intake(kafka_settings) as (new, idle):
            half = kafka_settings.partitions // 2
            await until(lambda: [len(t.ledger.partitions(old.topic)) for t in (busy, idle)] == [half, half])
            await until(lambda: len(idle.values) == 20)
            end.set()
            await until(lambda: len(busy.values) == 20)
            await publish_numbers(kafka_settings, range(40, 80))
            await until(lambda: len(busy.values) + len(idle.values) >= 80)
            assert sorted(numbers(busy) + numbers(idle)) == list(range(80))
            for intake in (old, new):
                await intake.commit()
            assert await committed(kafka_settings, old.topic) == await ends(kafka_settings, old.topic)


async def test_the_commit_of_a_revoke_is_not_displaced(kafka_settings: KafkaSettings) -> None:
    """The regular commit comes due while a revoke commits: what had ended is committed, and nothing is done again."""
    await publish_numbers(kafka_settings, range(40))
    async with running_intake(kafka_settings) as (intake, taker):
        await until(lambda: len(taker.values) >= 40)
        commit, reached, go_on = intake._client.commit, asyncio.Event(), asyncio.Event()
        settled: list[dict[int, int]] = []

        async def slow(offsets: Any) -> None:
            reached.set()
            await go_on.wait()
            await commit(offsets)

        async def settle(_timeout: float) -> None:
            settled.append(await committed(kafka_settings, intake.topic))

        intake._client.commit = slow
        intake._commits.settled = settle  # type: ignore[method-assign,assignment]  # what a test listens to
        rejoining = asyncio.create_task(rejoin(intake))
        await reached.wait()
        regular = [asyncio.create_task(one) for one in (intake.commit(), intake._commits.commit(intake._client, 5))]
        for _ in range(5):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(rejoining, *regular)
        assert settled == [await ends(kafka_settings, intake.topic)]
        assert await committed(kafka_settings, intake.topic) == await ends(kafka_settings, intake.topic)
        await publish_numbers(kafka_settings, range(40, 48))
        await until(lambda: len(taker.values) >= 48)
        assert numbers(taker) == list(range(48))


async def test_a_member_that_was_thrown_out_gives_up_at_once(kafka: Broker, kafka_settings: KafkaSettings) -> None:
    """Its partitions are somebody else's: forgotten before anything can end, no drain to wait for, no commit."""
    if kafka.embedded:
        pytest.skip("the embedded broker keeps the old member for over a minute; needs a real Kafka")
    await publish_numbers(kafka_settings, range(40))
    async with running_intake(kafka_settings, finish=False) as (intake, taker):
        await until(lambda: len(taker.unfinished) >= 40)
        told: list[tuple[float, bool]] = []
        commits: list[object] = []

        async def drained(partitions: set[Partition], timeout: float) -> bool:
            told.append((timeout, taker.ledger.finish(taker.unfinished[0])))
            return False

        async def commit(offsets: object) -> None:
            commits.append(offsets)

        taker.drained, intake._client.commit = drained, commit  # type: ignore[method-assign]  # what a test listens to
        intake._client._coordinator.reset_generation()  # as a heartbeat does that is answered with UNKNOWN_MEMBER_ID
        with structlog.testing.capture_logs() as logs:
            await until(lambda: any(entry["event"] == "partitions_assigned" for entry in logs))
        assert told == [(0.0, False)]
        assert not commits
        assert "partitions_lost" in [entry["event"] for entry in logs]
        assert "partitions_revoked" not in [entry["event"] for entry in logs]


async def test_a_broker_that_takes_less_metadata_gets_shorter_maps(
    kafka: Broker, kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map that the broker refuses costs the map and never the offset, and the next ones are half as long."""
    if kafka.embedded:
        pytest.skip("the embedded broker takes metadata of any length; needs a real Kafka")
    monkeypatch.setattr(offset_map, "MAX_CHARS", 8192)
    async with running_intake(kafka_settings) as (intake, taker):
        await until(lambda: bool(taker.ledger.partitions(intake.topic)))
        taker.ledger.map_limit = 8192
        origins = [o for n in range(1, 40_001) if (o := taker.ledger.receive(intake.topic, 0, n)) is not None]
        for origin in origins[1::2]:
            taker.ledger.finish(origin)
        with structlog.testing.capture_logs() as logs:
            await intake.commit()
        assert "offset_metadata_too_large" in [entry["event"] for entry in logs]
        assert taker.ledger.map_limit < 4096
        assert (await committed(kafka_settings, intake.topic))[0] == 1
        for origin in origins[:30_000]:
            taker.ledger.finish(origin)
        await intake.commit()
        assert (await committed(kafka_settings, intake.topic))[0] == 30_001
        assert (await committed_map(kafka_settings, 0))[0] == (30_002, 30_003)
        taker.ledger.forget([(intake.topic, 0)])


async def test_a_commit_without_room_for_any_map_still_moves(kafka_settings: KafkaSettings) -> None:
    """A broker that takes no metadata at all: the limit falls to where maps are given up, commits go through."""
    async with running_intake(kafka_settings) as (intake, taker):
        await until(lambda: bool(taker.ledger.partitions(intake.topic)))
        commit = intake._client.commit

        async def picky(offsets: dict[TopicPartition, tuple[int, str]]) -> None:
            if any(metadata for _, metadata in offsets.values()):
                raise OffsetMetadataTooLargeError
            await commit(offsets)

        intake._client.commit = picky
        origins = [o for n in range(1, 9) if (o := taker.ledger.receive(intake.topic, 0, n)) is not None]
        for number, origin in enumerate(origins):
            if number % 2:
                taker.ledger.finish(origin)
            await intake.commit()
        assert (await committed(kafka_settings, intake.topic))[0] == 1
        assert taker.ledger.map_limit < SMALLEST_LIMIT
        for origin in origins:
            taker.ledger.finish(origin)
            await intake.commit()
        assert isinstance(intake._commits, Commits)
        assert intake._commits.failures == 0
        assert (await committed(kafka_settings, intake.topic))[0] == 9
        taker.ledger.forget([(intake.topic, 0)])


async def test_a_revoke_ends_the_commit_that_is_running(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that hangs is over before the revoke makes its own: it could come again after the rebalance."""
    monkeypatch.setattr(intake_module, "COMMIT_SECONDS", 3600.0)
    await publish_numbers(kafka_settings, range(40))
    async with running_intake(kafka_settings) as (intake, taker):
        await until(lambda: len(taker.values) >= 40)
        commit = intake._client.commit
        history: list[str] = []

        async def hanging(offsets: Any) -> None:
            if history:
                history.append("commit")
                await commit(offsets)
                return
            history.append("hangs")
            try:
                await asyncio.Event().wait()
            finally:
                history.append("cancelled")

        intake._client.commit = hanging
        regular = asyncio.create_task(intake.commit())
        await until(lambda: history == ["hangs"])
        await rejoin(intake)
        await regular
        assert history[:3] == ["hangs", "cancelled", "commit"]
        topic = kafka_settings.topics.news
        assert await committed(kafka_settings, topic) == await ends(kafka_settings, topic)
        assert len(taker.values) == 40


# Offsets that are gone


async def _delete_before(kafka: KafkaSettings, partition: int, offset: int) -> None:
    async with admin(kafka) as client:
        tp = TopicPartition(kafka.topics.news, partition)
        await client.delete_records({tp: RecordsToDelete(before_offset=offset)})


async def _stopped(kafka: KafkaSettings) -> str:
    """Return what an intake says that stops for lost offsets."""
    ledger = Ledger()
    intake = Intake(kafka.topics.news, kafka, SETTINGS, ledger, Taker(ledger))
    await intake.start()
    try:
        with pytest.raises(OffsetsLostError) as caught:
            async with asyncio.timeout(30):
                await intake.run()
        return str(caught.value)
    finally:
        await intake.stop()


async def test_deleted_offsets_stop_the_scheduler_or_become_a_gap(kafka: Broker, kafka_settings: KafkaSettings) -> None:
    """quix-streams#1114: deleted while it was down, it stops and names the offsets, or records them and goes on."""
    if kafka.embedded:
        pytest.skip("the embedded broker does not delete records; needs a real Kafka")
    topic = kafka_settings.topics.news
    await publish_numbers(kafka_settings, range(40))
    async with running_intake(kafka_settings, finish=False) as (_, taker):
        await until(lambda: len(taker.values) >= 40)
        for origin in taker.unfinished:
            if origin.offset < 2 or origin.partition:
                taker.ledger.finish(origin)
    await _delete_before(kafka_settings, 0, 5)
    said = await _stopped(kafka_settings)
    assert f"topic {topic}, partition 0: offset 2 is to be read next" in said
    assert "the first offset that Kafka has is 5" in said
    assert 'scheduler.lost_offsets = "record"' in said
    assert (await committed(kafka_settings, topic))[0] == 2
    async with running_intake(kafka_settings, settings=RECORD) as (intake, taker):
        await until(lambda: len(taker.values) >= 5)
        assert numbers(taker) == [20, 24, 28, 32, 36]
        ((lost, origin),) = taker.gaps
        assert (lost.partition, lost.wanted, lost.first, lost.end) == ((topic, 0), 2, 5, 10)
        await intake.commit()
        assert (await committed(kafka_settings, topic))[0] == 2
        taker.ledger.finish(origin)
        await intake.commit()
        assert (await committed(kafka_settings, topic))[0] == 10


async def test_a_log_that_began_anew_stops_the_scheduler_or_is_read_from_its_start(
    kafka: Broker, kafka_settings: KafkaSettings
) -> None:
    """A committed offset behind the end of the log: it stops and says so, or records it and reads all that is there."""
    if kafka.embedded:
        pytest.skip("the embedded broker waits at an offset behind the end; needs a real Kafka")
    topic = kafka_settings.topics.news
    await publish_numbers(kafka_settings, range(40))
    stale = encode(50, [(60, 70)]) or ""
    await commit_as_group(kafka_settings, {0: (50, stale), 1: (10, ""), 2: (10, ""), 3: (10, "")})
    said = await _stopped(kafka_settings)
    assert "offset 50 is to be read next, but the log ends at 10" in said
    assert (await committed(kafka_settings, topic))[0] == 50
    async with running_intake(kafka_settings, settings=RECORD) as (intake, taker):
        await until(lambda: len(taker.values) >= 10)
        assert numbers(taker) == list(range(0, 40, 4))
        ((lost, origin),) = taker.gaps
        assert (lost.wanted, lost.first, lost.end, lost.began_anew) == (50, 0, 10, True)
        await intake.commit()
        assert (await committed(kafka_settings, topic))[0] == 50
        taker.ledger.finish(origin)
        await intake.commit()
        assert (await committed(kafka_settings, topic))[0] == 10


# Standing still

WATCHFUL = SchedulerSettings(session_seconds=6.0, drain_seconds=1.0, stalled_seconds=0.5)


async def test_a_consumer_that_stands_still_is_made_anew(kafka_settings: KafkaSettings) -> None:
    """Fetching inside aiokafka ends for good while the group looks healthy: a new consumer joins and misses nothing."""
    async with running_intake(kafka_settings, settings=WATCHFUL) as (intake, taker):
        await publish_numbers(kafka_settings, range(40))
        await until(lambda: len(taker.values) >= 40)
        intake._client._fetcher._fetch_task.cancel()
        # A fetch that was on its way may still bring what comes first.
        await publish_numbers(kafka_settings, range(40, 80))
        await publish_numbers(kafka_settings, range(80, 120))
        await until(lambda: len(taker.values) >= 120)
        assert numbers(taker) == list(range(120))
        assert intake.made_anew == 1
        assert not intake.stalled


async def test_a_consumer_whose_every_fetch_fails_is_made_anew(kafka_settings: KafkaSettings) -> None:
    """Group coordination in aiokafka died and `getmany` raises every time: a new consumer joins and misses nothing."""
    async with running_intake(kafka_settings, settings=WATCHFUL) as (intake, taker):
        await publish_numbers(kafka_settings, range(40))
        await until(lambda: len(taker.values) >= 40)
        getmany = intake._client.getmany

        async def broken(**options: Any) -> Any:
            await getmany(**options)
            raise KafkaError("Unexpected error during coordination")

        intake._client.getmany = broken
        await until(lambda: intake.made_anew == 1 and not intake.stalled)
        await publish_numbers(kafka_settings, range(40, 80))
        await until(lambda: len(taker.values) >= 80)
        assert numbers(taker) == list(range(80))


async def test_a_quiet_topic_and_a_pause_are_no_standstill(kafka_settings: KafkaSettings) -> None:
    """Nothing to read, and records that nobody has room for, are looked at again and again and left alone."""
    async with running_intake(kafka_settings, settings=WATCHFUL) as (intake, taker):
        looked = 0
        look = intake._watch.look

        def counting(now: float, positions: Any, ends: Any) -> Any:
            nonlocal looked
            looked += 1
            return look(now, positions, ends)

        intake._watch.look = counting  # type: ignore[method-assign]  # counts
        await until(lambda: looked > 8)
        taker.room = False
        await until(lambda: intake.paused)
        await publish_numbers(kafka_settings, range(40))
        already, looked = len(taker.values), 0
        await until(lambda: looked > 8)
        assert len(taker.values) == already
        taker.room = True
        await until(lambda: len(taker.values) >= 40)
        assert intake.made_anew == 0
