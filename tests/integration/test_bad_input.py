"""Records that are not what they should be: one dead letter each, untouched, and the stream goes on."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from schemas.codec import encode_json
from schemas.settings import KafkaSettings, RedisSettings
from schemas.topics import (
    HEADER_ERROR_ATTEMPTS,
    HEADER_ERROR_FIELD,
    HEADER_ERROR_KIND,
    HEADER_ERROR_MESSAGE,
    HEADER_ERROR_STAGE,
    HEADER_SOURCE_OFFSET,
    HEADER_SOURCE_PARTITION,
    HEADER_SOURCE_TOPIC,
    HEADER_TRACE_PARENT,
)
from tests.scheduler.records import committed, ends, producer
from tests.scheduler.running import Node, filing, news, node, publish, results

pytestmark = pytest.mark.integration

MEBIBYTE = 1024 * 1024
PARTITION = 1


def _news(**changed: Any) -> bytes:
    values = json.loads(encode_json(news("bad"))) | changed
    return json.dumps({k: v for k, v in values.items() if v is not ...}, ensure_ascii=False).encode()


def _filing(**changed: Any) -> bytes:
    values = json.loads(encode_json(filing(1))) | changed
    return json.dumps({k: v for k, v in values.items() if v is not ...}, ensure_ascii=False).encode()


def _raw(field: str, value: str) -> bytes:
    """Return a news record with a value that Python's encoder would not write."""
    return _news(**{field: "@"}).replace(b'"@"', value.encode())


# What is wrong, the record, the kind and the field that its dead letter must name, and a word of the reason.
Case = tuple[str, bytes | None, str, str, str]
BAD_NEWS: list[Case] = [
    ("empty", b"", "not_json", "", "truncated"),
    ("tombstone", None, "not_json", "", "truncated"),
    ("no JSON", b"Acme raises its guidance", "not_json", "", "JSON"),
    ("half a record", _news()[:-10], "not_json", "", ""),
    ("two records", _news() + _news(), "not_json", "", ""),
    ("an array", b"[]", "wrong_type", "", "object"),
    ("null", b"null", "wrong_type", "", "object"),
    ("NaN", _raw("urgency", "NaN"), "not_json", "", ""),
    ("a number as headline", _news(headline=5), "wrong_type", "headline", "str"),
    ("a null headline", _news(headline=None), "wrong_type", "headline", "str"),
    ("an object as body", _news(body={}), "wrong_type", "body", "str"),
    ("a string as instruments", _news(instruments="ACME"), "wrong_type", "instruments", "array"),
    ("a number among instruments", _news(instruments=["A", "B", 3]), "wrong_type", "instruments[2]", "str"),
    ("a float as time", _news(received_at_ns=1.5), "wrong_type", "received_at_ns", "int"),
    ("a string as time", _news(received_at_ns="now"), "wrong_type", "received_at_ns", "int"),
    ("a bool as version", _news(version=True), "wrong_type", "version", "int"),
    ("no headline", _news(headline=...), "missing_field", "headline", "headline"),
    ("no event id", _news(event_id=...), "missing_field", "event_id", "event_id"),
    ("no time", _news(received_at_ns=...), "missing_field", "received_at_ns", "received_at_ns"),
    ("an empty object", b"{}", "missing_field", "event_id", "event_id"),
    ("an empty headline", _news(headline=""), "empty_text", "headline", ""),
    ("blanks as headline", _news(headline=" \u200b\n\u3000\ufeff "), "empty_text", "headline", ""),
    ("a headline over the limit", _news(headline="x" * 20_001), "text_too_long", "headline", "20001"),
    ("a body over the limit", _news(body="x " * 200_001), "text_too_long", "body", "400002"),
    ("a record of a megabyte", _news(body="x" * (MEBIBYTE - 1000)), "record_too_large", "", "524288"),
    ("an unknown schema version", _news(schema_version=99), "unknown_schema_version", "schema_version", "99"),
    ("a huge schema version", _raw("schema_version", "9" * 5000), "invalid_value", "schema_version", "range"),
    (
        "a new version with other types",
        _news(schema_version=2, headline={}),
        "unknown_schema_version",
        "schema_version",
        "2",
    ),
    ("UTF-16", _news().decode().encode("utf-16"), "not_utf8", "", "UTF-8"),
    ("UTF-16 without a mark", _news().decode().encode("utf-16-le"), "not_json", "", ""),
    ("Latin-1", _news(headline="Société Générale").decode().encode("latin-1"), "not_utf8", "", "UTF-8"),
    ("a lone surrogate", _raw("headline", '"\\ud800"'), "not_json", "", ""),
    ("deep nesting", b"[" * 100_000, "wrong_type", "", "array"),
    ("deep nesting in a known field", _raw("url", "[" * 50_000 + "]" * 50_000), "wrong_type", "url", "array"),
    ("deep nesting in an ignored field", _raw("later", "[" * 50_000 + "]" * 50_000), "not_json", "", "deep"),
    ("a huge integer", _raw("received_at_ns", "9" * 10_000), "invalid_value", "received_at_ns", "range"),
    ("a huge exponent", _raw("received_at_ns", "1e400000"), "invalid_value", "received_at_ns", "range"),
    ("seconds for nanoseconds", _news(received_at_ns=int(time.time())), "invalid_value", "received_at_ns", "nano"),
    ("a negative time", _news(published_at_ns=-5), "invalid_value", "published_at_ns", "-5"),
    ("an unknown status", _news(status="maybe"), "invalid_value", "status", "maybe"),
    ("an urgency out of range", _news(urgency=10), "invalid_value", "urgency", ""),
    ("an event id too long", _news(event_id="x" * 300), "invalid_value", "event_id", "256"),
    ("markup and escapes", _news(status="[red]\x1b[31m\n{}"), "invalid_value", "status", ""),
]
BAD_FILINGS: list[Case] = [
    ("no form", _filing(form=...), "missing_field", "form", "form"),
    ("an empty text", _filing(text=" \n "), "empty_text", "text", ""),
    ("a text over the limit", _filing(text="x " * 200_001), "text_too_long", "text", "400002"),
    ("a part past the parts", _filing(part=3, parts=2), "invalid_value", "part", "3"),
    ("news on the filings topic", _news(), "missing_field", "accession", "accession"),
]


@pytest_asyncio.fixture
async def running(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> AsyncIterator[Node]:
    """A scheduler and a worker."""
    async with node(kafka_settings, redis_settings) as one:
        one.worker()
        await one.until(lambda: one.scheduler._status().state == "running")
        yield one


async def _send(kafka: KafkaSettings, topic: str, bad: list[Any], good: list[bytes]) -> None:
    """Publish each bad record with a good one right behind it in the same partition."""
    async with producer(kafka, max_request_size=4 * MEBIBYTE) as client:
        for number, (value, after) in enumerate(zip(bad, good, strict=True)):
            headers = [("number", b"%d" % number), (HEADER_TRACE_PARENT, b"00-trace")]
            await client.send(topic, value, key=b"\xff key %d" % number, headers=headers, partition=PARTITION)
            await client.send(topic, after, key=b"good", partition=PARTITION)
        await client.flush()


@pytest.mark.parametrize("kind", ["news", "filings"])
async def test_each_bad_record_is_one_dead_letter_and_the_next_event_is_a_signal(
    kafka_settings: KafkaSettings, running: Node, kind: str
) -> None:
    """Original bytes, key and headers, the kind, the field and where it stood; and every good event gets through."""
    topic = getattr(kafka_settings.topics, kind)
    cases = BAD_NEWS if kind == "news" else BAD_FILINGS
    good = [encode_json(news(str(n)) if kind == "news" else filing(n)) for n in range(len(cases))]
    await _send(kafka_settings, topic, [value for _, value, *_ in cases], good)
    await running.until_ended(2 * len(cases))
    await running.end()
    found = await results(kafka_settings)
    assert len(found.signals) == len(found.dead_letters) == len(cases)
    assert set(found.outcomes.values()) == {1}
    letters = {int(dict(letter.headers)["number"]): letter for letter in found.dead_letters}
    for number, (what, value, error_kind, field, word) in enumerate(cases):
        letter = letters[number]
        headers = {name: content.decode() for name, content in letter.headers}
        assert letter.value == (value or b""), what
        assert letter.key == b"\xff key %d" % number, what
        assert headers[HEADER_TRACE_PARENT] == "00-trace", what
        shown = what, headers
        assert headers[HEADER_ERROR_KIND] == error_kind, shown
        assert headers[HEADER_ERROR_FIELD] == field, shown
        assert word in headers[HEADER_ERROR_MESSAGE], shown
        assert headers[HEADER_ERROR_STAGE] == "consumed", shown
        assert headers[HEADER_ERROR_ATTEMPTS] == "0", shown
        assert headers[HEADER_SOURCE_TOPIC] == topic
        assert (int(headers[HEADER_SOURCE_PARTITION]), int(headers[HEADER_SOURCE_OFFSET])) == (PARTITION, 2 * number)
    assert running.scheduler._stats.undecodable == len(cases)
    assert (await committed(kafka_settings, topic))[PARTITION] == (await ends(kafka_settings, topic))[PARTITION]


@pytest.mark.parametrize("headers", [[("null", None)], [("traceparent", None)], [("", b"")], [("x", b"\xff" * 5000)]])
async def test_odd_headers_stop_nothing(
    kafka_settings: KafkaSettings, running: Node, headers: list[tuple[str, bytes | None]]
) -> None:
    """Headers without a value, without a name or with any bytes come with good and with bad records alike."""
    async with producer(kafka_settings) as client:
        for value in (encode_json(news("a")), b"bad", encode_json(news("b"))):
            await client.send(kafka_settings.topics.news, value, headers=headers, partition=PARTITION)
        await client.flush()
    await running.until_ended(3)
    await running.end()
    found = await results(kafka_settings)
    assert (len(found.signals), len(found.dead_letters)) == (2, 1)
    assert headers[0][0] in dict(found.dead_letters[0].headers)


async def test_news_longer_than_the_context_keeps_head_and_tail(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """A story that the model cannot hold whole still becomes a signal, and says that it was cut."""
    text = "Revenue rose by a tenth and margins held. " * 400
    async with node(kafka_settings, redis_settings) as one:
        one.worker(max_model_len=512)
        await publish(kafka_settings, [news("long", "Acme reports", body=text), news("short")])
        await one.until_ended(2)
        await one.end()
    signals = {s.event_id: s for s in (await results(kafka_settings)).signals}
    assert signals["wire:long:1"].truncated
    assert not signals["wire:short:1"].truncated


async def test_a_filing_longer_than_the_context_is_read_whole(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """A filing that no context holds is read in pieces, and its one signal covers all of it."""
    event = filing(1, "Revenue rose by a tenth and margins held. " * 400)
    async with node(kafka_settings, redis_settings) as one:
        one.worker(max_model_len=512)
        await publish(kafka_settings, [event, filing(2)])
        await one.until_ended(2)
        await one.end()
    signals = {s.event_id: s for s in (await results(kafka_settings)).signals}
    reading = signals[event.event_id].filing
    assert reading is not None
    assert reading.chunks > 1
    assert (reading.coverage, reading.partial, reading.missing_parts) == (1.0, False, [])
    assert not signals[event.event_id].truncated
