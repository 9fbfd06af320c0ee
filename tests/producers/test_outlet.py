from __future__ import annotations

import asyncio

import msgspec
import pytest

from ops.embedded import EmbeddedKafka
from ops.topics import ensure_topics
from producers.errors import PublishError
from producers.outlet import REFUSALS_MOST, Outlet
from producers.publish import EventPublisher, Headers
from producers.tail import topic_tail
from schemas.errors import UnavailableError
from schemas.records import Event, FilingEvent
from schemas.settings import KafkaSettings

pytestmark = pytest.mark.integration

DEADLINE_SECONDS = 60.0
EVENT = FilingEvent(
    event_id="0009990001-26-000001:1:1",
    accession="0009990001-26-000001",
    form="8-K",
    text="Text.",
    received_at_ns=1_772_485_500_000_000_000,
)


async def _values(kafka: KafkaSettings) -> list[bytes]:
    return [value async for value in topic_tail(kafka, kafka.topics.filings)]


async def test_events_are_confirmed_in_order(kafka_settings: KafkaSettings) -> None:
    """When send returns, every event of the group is on the topic, in order."""
    events = [msgspec.structs.replace(EVENT, event_id=f"{EVENT.accession}:1:{n}", part=n, parts=3) for n in (1, 2, 3)]
    async with Outlet(kafka_settings, client_id="test") as outlet:
        await outlet.send(events)
        found = [msgspec.json.decode(value, type=FilingEvent) for value in await _values(kafka_settings)]
    assert found == events


async def test_brokers_that_were_away_get_everything() -> None:
    """A send while the broker is away returns once it is back and has confirmed, through a fresh producer."""
    waits: list[float] = []
    away = asyncio.Event()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        away.set()
        await asyncio.sleep(0.05)

    with EmbeddedKafka() as first:
        kafka = KafkaSettings(bootstrap=first.bootstrap, topic_prefix="outlet", connect_seconds=2.0)
        await ensure_topics(kafka)
        port = first.port
        async with asyncio.timeout(DEADLINE_SECONDS):
            async with Outlet(kafka, client_id="test", send_seconds=1.0, sleep=sleep) as outlet:
                await outlet.send([EVENT])
                await asyncio.to_thread(first.stop)
                sending = asyncio.create_task(outlet.send([EVENT]))
                await away.wait()
                with EmbeddedKafka(port=port):
                    await ensure_topics(kafka.model_copy(update={"connect_seconds": 20.0}))
                    await sending
                    assert len(await _values(kafka)) >= 1
    assert waits


class _WithoutTopic(EventPublisher):
    """What a publisher says when the broker makes no topics by itself, which the embedded one does."""

    async def publish(self, event: Event, headers: Headers = ()) -> None:
        """Refuse."""
        raise UnavailableError("Kafka topic x", "kafka.topic_prefix", "the topic does not exist")


async def test_topic_that_does_not_exist_is_for_the_operator(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing topic ends the send with the setting that names it, instead of waiting for ever."""
    monkeypatch.setattr("producers.outlet.EventPublisher", _WithoutTopic)
    async with Outlet(kafka_settings, client_id="test") as outlet:
        with pytest.raises(UnavailableError) as caught:
            await outlet.send([EVENT])
    assert caught.value.setting == "kafka.topic_prefix"


async def test_event_that_kafka_refuses(kafka_settings: KafkaSettings) -> None:
    """An event over the size that a broker takes is refused after a few attempts, and the next one gets through."""
    large = msgspec.structs.replace(EVENT, text="x" * 2_000_000)
    async with Outlet(kafka_settings, client_id="test") as outlet:
        with pytest.raises(PublishError):
            await outlet.send([large])
        await outlet.send([EVENT])
    assert REFUSALS_MOST > 1
    assert len(await _values(kafka_settings)) == 1
