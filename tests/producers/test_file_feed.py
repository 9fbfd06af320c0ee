from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from producers.events import restamped, with_suffix
from producers.file_feed import REJECTED_KEPT, FeedProgress, RejectedLine, feed_events, feed_file
from producers.publish import EventPublisher
from producers.sample_data import sample_events, sample_path
from schemas.codec import Limits, decode_filing, decode_news, encode_json
from schemas.errors import ConfigError, ErrorKind, UnavailableError
from schemas.records import Event
from schemas.settings import KafkaSettings
from tests.producers.test_publish import records_on
from tests.schemas.golden import FILING, NEWS

pytestmark = pytest.mark.integration


async def published(kafka: KafkaSettings) -> list[Event]:
    """All events on both input topics."""
    news = await records_on(kafka.topics.news, kafka)
    filings = await records_on(kafka.topics.filings, kafka)
    return [decode_news(record.value) for record in news] + [decode_filing(record.value) for record in filings]


def by_id(events: list[Event]) -> list[Event]:
    """Events in the order of their ids."""
    return sorted(events, key=lambda event: event.event_id)


@pytest.mark.parametrize("name", ["news", "filings"])
async def test_a_sample_file_arrives_whole(kafka_settings: KafkaSettings, name: str) -> None:
    """With times kept, what is on the topic equals what is in the file."""
    report = await feed_file(sample_path(name), kafka_settings, keep_times=True)
    expected = sample_events(name)
    assert report.published == {getattr(kafka_settings.topics, name): len(expected)}
    assert (report.rejected, report.rejected_lines, report.stopped) == (0, (), False)
    assert by_id(await published(kafka_settings)) == by_id(expected)


async def test_events_are_received_when_they_are_fed(kafka_settings: KafkaSettings, tmp_path: Path) -> None:
    """Without keep_times an event counts as received between its feeding and Kafka's own timestamp."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(encode_json(NEWS) + b"\n")
    await feed_file(path, kafka_settings)
    (record,) = await records_on(kafka_settings.topics.news, kafka_settings)
    event = decode_news(record.value)
    assert event == restamped(NEWS, event.received_at_ns)
    assert NEWS.received_at_ns < event.received_at_ns < (record.timestamp + 1) * 1_000_000


async def test_bad_lines_are_reported_and_the_feed_goes_on(kafka_settings: KafkaSettings, tmp_path: Path) -> None:
    """Every bad line is rejected with its number, kind and field; the good ones around them are published."""
    good, other = encode_json(NEWS), encode_json(FILING)
    lines = [
        b"\xef\xbb\xbf" + good,
        b"{not json",
        b"",
        other,
        b'{"event_id":"a"}',
        b"\xff\xfe",
        json.dumps({**json.loads(good), "urgency": 12}).encode(),
        b'{"headline":"' + b"x" * 5000 + b'"}',
        json.dumps({**json.loads(good), "headline": "\u200b"}).encode(),
        b"   \r",
        good + b"\r",
    ]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(lines))
    seen: list[RejectedLine] = []
    report = await feed_file(path, kafka_settings, limits=Limits(record_bytes=2000), on_rejected=seen.append)
    assert [(line.number, line.error.kind, line.error.field) for line in report.rejected_lines] == [
        (2, ErrorKind.NOT_JSON, ""),
        (5, ErrorKind.MISSING_FIELD, "headline"),
        (6, ErrorKind.NOT_UTF8, ""),
        (7, ErrorKind.INVALID_VALUE, "urgency"),
        (8, ErrorKind.RECORD_TOO_LARGE, ""),
        (9, ErrorKind.EMPTY_TEXT, "headline"),
    ]
    assert tuple(seen) == report.rejected_lines
    assert report.published == {kafka_settings.topics.news: 2, kafka_settings.topics.filings: 1}


async def test_all_rejected_lines_are_counted_and_the_first_are_kept(
    kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    """A large file of nonsense does not fill the memory with its errors, and none goes uncounted."""
    path = tmp_path / "nonsense"
    path.write_bytes(b"nonsense\n" * (REJECTED_KEPT + 500))
    report = await feed_file(path, kafka_settings)
    assert (report.rejected, len(report.rejected_lines), report.total) == (REJECTED_KEPT + 500, REJECTED_KEPT, 0)


async def test_a_second_feed_with_a_suffix_has_ids_of_its_own(kafka_settings: KafkaSettings) -> None:
    """Feeding a file again under a suffix publishes new events whose corrections point at their own."""
    await feed_file(sample_path("news"), kafka_settings, keep_times=True)
    await feed_file(sample_path("news"), kafka_settings, keep_times=True, id_suffix="again")
    once = sample_events("news")
    twice = [*once, *(with_suffix(event, "again") for event in once)]
    assert by_id(await published(kafka_settings)) == by_id(twice)


async def test_limit_and_progress(kafka_settings: KafkaSettings) -> None:
    """The limit bounds what is published, and the last call of the callback has the final counts."""
    calls: list[FeedProgress] = []
    report = await feed_file(sample_path("news"), kafka_settings, limit=7, on_progress=calls.append)
    assert report.total == calls[-1].published == 7


async def test_a_stop_confirms_what_was_published(kafka_settings: KafkaSettings, tmp_path: Path) -> None:
    """A feed from a silent pipe ends on a stop, and the line it had is on the topic."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    stop = asyncio.Event()
    try:
        os.write(writer, encode_json(NEWS) + b"\n" + b"{half a line")
        feed = asyncio.create_task(
            feed_file(path, kafka_settings, keep_times=True, on_rejected=lambda _: stop.set(), stop=stop)
        )
        os.write(writer, b"\n")
        async with asyncio.timeout(30):
            report = await feed
    finally:
        os.close(writer)
    assert (report.total, report.rejected, report.stopped) == (1, 1, True)
    assert await published(kafka_settings) == [NEWS]


async def test_two_feeds_share_a_publisher(kafka_settings: KafkaSettings) -> None:
    """News and filings can be fed at rates of their own at the same time; each report counts its own events."""
    async with EventPublisher(kafka_settings) as publisher:
        news, filings = await asyncio.gather(
            feed_events(sample_events("news"), publisher, rate=5000),
            feed_events(sample_events("filings"), publisher, rate=500),
        )
    topics = kafka_settings.topics
    assert news.published == {topics.news: len(sample_events("news"))}
    assert filings.published == {topics.filings: len(sample_events("filings"))}


async def test_a_missing_file_is_named_before_kafka_is_asked(tmp_path: Path) -> None:
    """A wrong path is a configuration error, with or without a broker."""
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        await feed_file(tmp_path / "none.jsonl", KafkaSettings(bootstrap="127.0.0.1:1"))


async def test_without_a_broker_the_setting_is_named() -> None:
    """A feed that cannot reach Kafka says which setting to mend."""
    with pytest.raises(UnavailableError, match=r"kafka\.bootstrap"):
        await feed_file(sample_path("news"), KafkaSettings(bootstrap="127.0.0.1:1", connect_seconds=0.2))
