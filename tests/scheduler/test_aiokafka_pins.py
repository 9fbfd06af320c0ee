"""What aiokafka 0.14.0 does that delivery is built around; a test that fails here says what an upgrade changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import RequestTimedOutError

from schemas.settings import KafkaSettings
from tests.scheduler.intakes import commit_as_group, publish_numbers
from tests.scheduler.waiting import until

pytestmark = pytest.mark.integration

PINNED = f"aiokafka 0.14.0 did this, {version('aiokafka')} does not: "


@asynccontextmanager
async def _member(kafka: KafkaSettings, listener: ConsumerRebalanceListener | None = None) -> AsyncIterator[Any]:
    """Give a member of the news topic's group."""
    client = AIOKafkaConsumer(
        **kafka.client_options(),
        group_id=kafka.topics.news,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
    )
    client.subscribe([kafka.topics.news], listener=listener)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def test_a_cancelled_getmany_disables_the_poll_watchdog(kafka_settings: KafkaSettings) -> None:
    """`fetch_context` is no try/finally: after a cancellation the consumer counts as polling for ever."""
    async with _member(kafka_settings) as client:
        fetching = asyncio.create_task(client.getmany(timeout_ms=60_000))
        await until(lambda: client._subscription._fetch_count == 1)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        assert client._subscription._fetch_count == 1, PINNED + (
            "Intake._fetch could be cancelled and waited for with a timeout of our own; Intake.run need not make a new "
            "consumer after cancelling a fetch"
        )
        await client.getmany(timeout_ms=1)
        assert client._subscription.fetcher_idle_time == 0


async def test_a_retried_commit_goes_out_under_the_newer_generation(kafka_settings: KafkaSettings) -> None:
    """A commit that meets a retriable error is sent again after a rebalance, for an assignment that is over."""
    await publish_numbers(kafka_settings, range(8))
    async with _member(kafka_settings) as client:
        coordinator = client._coordinator
        send, sent = coordinator._send_req, []
        assignment = client._subscription.subscription.assignment

        async def flaky(request: Any) -> Any:
            if "OffsetCommit" not in type(request).__name__:
                return await send(request)
            sent.append((coordinator.generation, assignment.active))
            if len(sent) == 1:
                coordinator.request_rejoin()
                await until(lambda: coordinator.generation > sent[0][0] and not assignment.active)
                raise RequestTimedOutError
            return await send(request)

        coordinator._send_req = flaky
        await client.commit({TopicPartition(kafka_settings.topics.news, 0): (1, "")})
        (first, was_active), (second, is_active) = sent
        assert was_active
        assert second > first, PINNED + "Commits need not be cancelled when a revoke begins"
        assert not is_active


async def test_a_pause_throws_prefetched_records_away(kafka_settings: KafkaSettings) -> None:
    """What was fetched ahead of a paused partition is dropped and fetched again; nothing is skipped."""
    count = 10 * kafka_settings.partitions
    await publish_numbers(kafka_settings, range(count))
    async with _member(kafka_settings) as client:
        taken: list[int] = []
        while not taken:
            for batch in (await client.getmany(timeout_ms=200, max_records=1)).values():
                taken += [int(record.value) for record in batch]
        tp = TopicPartition(kafka_settings.topics.news, taken[0] % kafka_settings.partitions)
        assert tp in client._fetcher._records
        client.pause(tp)
        await client.getmany(tp, timeout_ms=0)
        assert tp not in client._fetcher._records, PINNED + (
            "a pause is cheaper than Intake._adjust_pause and docs/delivery.md say"
        )
        client.resume(tp)
        while len(taken) < count:
            for batch in (await client.getmany(timeout_ms=200)).values():
                taken += [int(record.value) for record in batch]
        assert sorted(taken) == list(range(count))


async def test_committed_hides_the_metadata(kafka_settings: KafkaSettings) -> None:
    """`committed()` gives an integer, so the maps have to be read with the admin client."""
    await commit_as_group(kafka_settings, {0: (3, "a map")})
    async with _member(kafka_settings) as client:
        found = await client.committed(TopicPartition(kafka_settings.topics.news, 0))
        assert found == 3
        assert type(found) is int, PINNED + "scheduler.restore could do without the admin client"


class _Slow(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no type information
    """Does not return from the assignment before it is told."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.inside = asyncio.Event()

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Nothing to do."""

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Wait."""
        self.inside.set()
        await self.release.wait()


async def test_records_come_before_the_assignment_callback_returns(kafka_settings: KafkaSettings) -> None:
    """`getmany` hands out records while `on_partitions_assigned` still runs."""
    await publish_numbers(kafka_settings, range(8))
    await commit_as_group(kafka_settings, dict.fromkeys(range(kafka_settings.partitions), (0, "")))
    slow = _Slow()
    async with _member(kafka_settings, slow) as client:
        await slow.inside.wait()
        got: list[int] = []
        try:
            async with asyncio.timeout(20):
                while not got:
                    got += [r.value for batch in (await client.getmany(timeout_ms=200)).values() for r in batch]
        finally:
            before = not slow.release.is_set()
            slow.release.set()
        assert got, PINNED + "Intake.assigned need not pause what it is restoring"
        assert before
