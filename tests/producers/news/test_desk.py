"""The news desk with a real broker and Redis: once, in order, held when embargoed, remembered when confirmed."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from producers.errors import PublishError
from producers.news.desk import WAITING, NewsDesk
from producers.news.duplicates import DuplicateIndex
from producers.news.item import NO_DEFAULTS, NewsItem
from producers.news.rebuild import rebuild
from producers.news.statements import statement_items
from producers.news.store import NewsStore
from producers.news.story import Verdict
from producers.outlet import Outlet
from producers.tail import topic_tail
from schemas.enums import NewsStatus
from schemas.errors import UnavailableError
from schemas.records import Event
from schemas.settings import KafkaSettings, RedisSettings
from tests.producers.news import documents as docs
from tests.producers.news.conftest import Clock, Office, OpenOffice
from tests.producers.news.documents import RECEIVED

pytestmark = pytest.mark.integration

HOUR = 3600 * 10**9


def item(headline: str, *, story: str = "7", source: str = "wire", **fields: Any) -> NewsItem:
    """One version of a story."""
    return NewsItem(source=source, story=story, headline=headline, **fields)


async def test_versions_are_published_in_order_and_once(office: Office) -> None:
    """Creation, correction, kill and a full replay give three events, in the order of their versions."""
    versions = [
        item("Vantor cuts 5%", instruments=["VNTR"], revised_at_ns=RECEIVED),
        item("Vantor cuts 15%", instruments=["VNTR"], revised_at_ns=RECEIVED + 1),
        item("", status=NewsStatus.KILLED, revised_at_ns=RECEIVED + 2),
    ]
    for _ in range(2):
        for version in versions:
            await office.desk.submit([version], RECEIVED)
    events = await office.topic()
    assert [(event.event_id, event.status) for event in events] == [
        ("wire:7:1", NewsStatus.USABLE),
        ("wire:7:2", NewsStatus.CORRECTED),
        ("wire:7:3", NewsStatus.KILLED),
    ]
    assert events[2].supersedes == "wire:7:2"
    assert events[2].earlier == ["wire:7:1"]
    assert events[2].instruments == ["VNTR"]


async def test_a_receipt_says_what_became_of_each_item(office: Office) -> None:
    """A page with a new story, the same again and an old version is answered with ids and verdicts."""
    receipt = await office.desk.submit([item("b", declared=2), item("b", declared=2), item("a", declared=1)], RECEIVED)
    assert receipt.published == ["wire:7:2"]
    assert receipt.verdicts == {Verdict.NEW: 1, Verdict.DUPLICATE: 1, Verdict.STALE: 1}


async def test_a_restart_knows_what_was_published(open_office: OpenOffice) -> None:
    """After a restart a replayed story is known and a correction continues its chain."""
    async with open_office() as first:
        await first.desk.submit([item("a", revised_at_ns=RECEIVED)], RECEIVED)
    async with open_office() as second:
        await second.desk.submit([item("a", revised_at_ns=RECEIVED), item("b", revised_at_ns=RECEIVED + 1)], RECEIVED)
        assert [event.event_id for event in await second.topic()] == ["wire:7:1", "wire:7:2"]


async def test_an_empty_redis_is_rebuilt_from_the_topic(
    open_office: OpenOffice, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """With Redis emptied, the topic's tail tells what was published: replays are known, chains go on, headlines too."""
    headline = "Vantor beats third-quarter profit estimates as grid orders surge"
    async with open_office() as first:
        await first.desk.submit([item(headline, revised_at_ns=RECEIVED)], RECEIVED)
    elsewhere = dataclasses.replace(kafka_settings.topics, prefix=f"{kafka_settings.topic_prefix}-empty")
    store = NewsStore(redis_settings, elsewhere, seen_seconds=60)
    index = DuplicateIndex(similarity=0.75)
    assert await rebuild(store, index, topic_tail(kafka_settings, kafka_settings.topics.news, 100)) == 1
    async with Outlet(kafka_settings, client_id="tests") as outlet:
        desk = NewsDesk(store, outlet, index)
        stop = asyncio.Event()
        working = asyncio.create_task(desk.run(stop))
        receipt = await desk.submit([item(headline, revised_at_ns=RECEIVED)], RECEIVED)
        assert receipt.verdicts == {Verdict.DUPLICATE: 1}
        receipt = await desk.submit([item("Vantor misses", revised_at_ns=RECEIVED + 1)], RECEIVED)
        assert receipt.published == ["wire:7:2"]
        await desk.submit([item(headline, source="other", story="1")], RECEIVED + 1)
        stop.set()
        await working
    await store.close()
    async with open_office() as office:
        assert [event.duplicate_of for event in await office.topic() if event.source == "other"] == ["wire:7:1"]


async def test_a_redis_that_forgets_in_mid_work_makes_no_second_version_1(office: Office) -> None:
    """A story whose key is gone from Redis is still known to the running feed, and its chain goes on."""
    await office.desk.submit([item("a", revised_at_ns=RECEIVED), item("b", revised_at_ns=RECEIVED + 1)], RECEIVED)
    assert await office.store._client.delete(office.kafka.topics.news_story_key("wire:7")) == 1
    again = await office.desk.submit([item("b", revised_at_ns=RECEIVED + 1)], RECEIVED)
    assert again.published == []
    receipt = await office.desk.submit([item("c", revised_at_ns=RECEIVED + 2)], RECEIVED)
    assert receipt.published == ["wire:7:3"]


async def test_embargoed_items_wait_for_their_time(open_office: OpenOffice) -> None:
    """An item under embargo is on no topic before its time; then it is, received at that moment."""
    clock = Clock(RECEIVED)
    async with open_office(clock) as office:
        receipt = await office.desk.submit([item("a", embargo_until_ns=RECEIVED + HOUR)], RECEIVED)
        assert receipt.verdicts == {Verdict.HELD: 1}
        await office.desk.submit([item("other", story="8")], RECEIVED)
        assert [event.key for event in await office.topic()] == ["wire:8"]
        clock.now_ns = RECEIVED + HOUR
        office.desk.wake()
        assert (await office.confirmed.get()).key == "wire:8"
        released = await office.confirmed.get()
        assert released.event_id == "wire:7:1"
        assert released.received_at_ns == RECEIVED + HOUR
        assert released.embargo_until_ns == RECEIVED + HOUR


async def test_an_embargo_ends_by_the_wall_clock(office: Office) -> None:
    """Nobody has to wake the desk: it sleeps until the embargo is over."""
    until = office.desk._now_ns() + 50_000_000
    await office.desk.submit([item("a", embargo_until_ns=until)], RECEIVED)
    released = await office.confirmed.get()
    assert released.received_at_ns >= until


async def test_embargoed_items_survive_a_restart(open_office: OpenOffice) -> None:
    """A held item is in Redis before its sender has an answer, and is published after a restart."""
    clock = Clock(RECEIVED)
    async with open_office(clock) as first:
        await first.desk.submit([item("a", embargo_until_ns=RECEIVED + HOUR)], RECEIVED)
    clock.now_ns = RECEIVED + 2 * HOUR
    async with open_office(clock) as second:
        assert (await second.confirmed.get()).event_id == "wire:7:1"
    async with open_office(clock) as third:
        assert third.desk.held == 0
        assert len(await third.topic()) == 1


async def test_a_kill_under_embargo_leaves_nothing(open_office: OpenOffice) -> None:
    """A story killed before its time is published neither then nor when it is replayed, and needs no retraction."""
    clock = Clock(RECEIVED)
    embargoed = item("a", embargo_until_ns=RECEIVED + HOUR, revised_at_ns=RECEIVED)
    async with open_office(clock) as office:
        await office.desk.submit([embargoed], RECEIVED)
        kill = item("", status=NewsStatus.KILLED, revised_at_ns=RECEIVED + 1)
        assert (await office.desk.submit([kill], RECEIVED)).verdicts == {Verdict.WITHDRAWN: 1}
        assert (await office.desk.submit([embargoed], RECEIVED)).verdicts == {Verdict.STALE: 1}
        clock.now_ns = RECEIVED + 2 * HOUR
        office.desk.wake()
        await office.desk.submit([item("other", story="8")], RECEIVED)
        assert [event.key for event in await office.topic()] == ["wire:8"]


async def test_the_newest_embargoed_version_is_the_one_that_is_published(open_office: OpenOffice) -> None:
    """A correction under embargo replaces the held version, an older one does not, and a lifted embargo ends it."""
    clock = Clock(RECEIVED)
    async with open_office(clock) as office:
        until = RECEIVED + HOUR
        await office.desk.submit([item("a", declared=1, embargo_until_ns=until)], RECEIVED)
        await office.desk.submit([item("b", declared=2, embargo_until_ns=until)], RECEIVED)
        receipt = await office.desk.submit([item("a", declared=1, embargo_until_ns=until)], RECEIVED)
        assert receipt.verdicts == {Verdict.STALE: 1}
        receipt = await office.desk.submit([item("c", declared=3)], RECEIVED)
        assert receipt.published == ["wire:7:3"]
        assert office.desk.held == 0


async def test_a_statement_carries_what_changed(open_office: OpenOffice) -> None:
    """The second statement of a bank has the changed sentences, also after a restart; the first says so."""
    later = docs.FED_STATEMENT.replace("raise the target", "lower the target").replace("March 16", "May 4")
    async with open_office() as first:
        await first.desk.submit(statement_items(docs.FED_STATEMENT.encode(), NO_DEFAULTS, RECEIVED), RECEIVED)
    async with open_office() as second:
        await second.desk.submit(statement_items(later.encode(), NO_DEFAULTS, RECEIVED), RECEIVED + 1)
        before, after = await second.topic()
    assert before.changed == []
    assert before.notes == ["changed: no statement before this one is known"]
    assert after.changed == [
        "The Committee decided to lower the target range for the federal funds rate to 1/4 to 1/2 percent."
    ]
    assert (after.urgency, after.body.count("\n\n")) == (1, 2)


async def test_a_near_duplicate_is_marked_and_published(office: Office) -> None:
    """The same headline from a second wire is published, with the id of the first one's event."""
    headline = "Vantor beats third-quarter profit estimates as grid orders surge"
    await office.desk.submit([item(headline), item(headline, source="second", story="9")], RECEIVED)
    assert {event.event_id: event.duplicate_of for event in await office.topic()} == {
        "wire:7:1": None,
        "second:9:1": "wire:7:1",
    }


async def test_nothing_is_remembered_before_it_is_confirmed(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """Where Kafka refuses, the sender gets the error and the story stays unknown, so it comes again."""

    class Refusing(Outlet):
        async def send(self, events: Sequence[Event]) -> None:
            raise PublishError(kafka_settings.topics.news, "refused", len(events))

    store = NewsStore(redis_settings, kafka_settings.topics, seen_seconds=60)
    desk = NewsDesk(store, Refusing(kafka_settings, client_id="tests"), DuplicateIndex(similarity=0.75))
    working = asyncio.create_task(desk.run(asyncio.Event()))
    with pytest.raises(PublishError):
        await desk.submit([item("a"), item("held", story="8", embargo_until_ns=2**62)], RECEIVED)
    with pytest.raises(PublishError):
        await working
    with pytest.raises(PublishError):
        await desk.submit([item("b")], RECEIVED)
    assert await store.stories(["wire:7"]) == {}
    assert await store.held() == {}
    await store.close()


async def test_sources_wait_when_the_desk_is_slow(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> None:
    """While the desk does not work, no more than its bound waits; the rest comes in as it catches up."""
    store = NewsStore(redis_settings, kafka_settings.topics, seen_seconds=60)
    async with Outlet(kafka_settings, client_id="tests") as outlet:
        desk = NewsDesk(store, outlet, DuplicateIndex(similarity=0.75))
        senders = [
            asyncio.create_task(desk.submit([item(f"headline {n}", story=str(n))], RECEIVED))
            for n in range(WAITING + 20)
        ]
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(desk._waiting) == WAITING
        stop = asyncio.Event()
        working = asyncio.create_task(desk.run(stop))
        receipts = await asyncio.gather(*senders)
        assert sum(len(receipt.published) for receipt in receipts) == WAITING + 20
        stop.set()
        await working
    await store.close()


async def test_a_sender_that_gives_up_loses_nothing(office: Office) -> None:
    """A request that is cut off in mid-work is published all the same, and the desk goes on."""
    sender = asyncio.create_task(office.desk.submit([item("a")], RECEIVED))
    await asyncio.sleep(0)
    sender.cancel()
    await office.desk.submit([item("b", story="8")], RECEIVED)
    assert {event.key for event in await office.topic()} == {"wire:7", "wire:8"}


async def test_redis_away_at_the_start_is_an_error_that_names_the_setting(kafka_settings: KafkaSettings) -> None:
    """No Redis, no feed: without memory every restart would publish everything again."""
    store = NewsStore(RedisSettings(url="redis://127.0.0.1:1/0"), kafka_settings.topics, seen_seconds=60)
    with pytest.raises(UnavailableError) as caught:
        await store.start()
    assert caught.value.setting == "redis.url"
