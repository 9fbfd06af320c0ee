"""Texts from a live topic: how they are spread over partitions, and that reading them leaves no trace."""

from __future__ import annotations

import json
import time

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from hypothesis import given
from hypothesis import strategies as st

from ops.quality.topic import newest_texts, shares
from schemas.errors import ConfigError
from schemas.settings import KafkaSettings


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 1_000), min_size=1), st.integers(1, 5_000))
def test_shares(sizes: dict[int, int], last: int) -> None:
    """Together they are what was asked for or all there is, and none is short while another gives more."""
    taken = shares(sizes, last)
    assert sum(taken.values()) == min(last, sum(sizes.values()))
    assert all(0 <= taken[key] <= sizes[key] for key in sizes)
    most = max(taken.values())
    assert all(taken[key] >= most - 1 or taken[key] == sizes[key] for key in sizes)


def _news(number: int, **changes: object) -> bytes:
    event = {
        "event_id": f"t:{number}",
        "source": "t",
        "headline": f"Headline {number}",
        "received_at_ns": time.time_ns(),
    }
    return json.dumps(event | changes).encode()


async def _publish(settings: KafkaSettings, values: list[bytes]) -> None:
    producer = AIOKafkaProducer(**settings.client_options())
    await producer.start()
    try:
        for number, value in enumerate(values):
            await producer.send_and_wait(settings.topics.news, value, partition=number % 2)
    finally:
        await producer.stop()


@pytest.mark.integration
async def test_newest_texts_of_a_topic(kafka_settings: KafkaSettings) -> None:
    """The newest readable texts come, what cannot be used is counted, and no consumer group exists afterwards."""
    killed = _news(11, status="killed", supersedes="t:1")
    await _publish(kafka_settings, [*map(_news, range(10)), _news(10, body="With a body."), killed, b"not json"])
    found = await newest_texts(kafka_settings, "news", 5, lambda _: None)
    # Partition 0 has the even records, 12 not readable; partition 1 the odd ones, 11 a retraction; it is shorter, and
    # so gives the odd one of five.
    assert sorted(found.texts) == ["Headline 10\nWith a body.", "Headline 7", "Headline 9"]
    assert found.passed_over == 2
    everything = await newest_texts(kafka_settings, "news", 1_000, lambda _: None)
    assert len(everything.texts) == 11
    admin = AIOKafkaAdminClient(**kafka_settings.client_options())
    await admin.start()
    try:
        groups = [name for name, *_ in await admin.list_consumer_groups()]
    finally:
        await admin.close()
    assert not [name for name in groups if name.startswith(kafka_settings.topic_prefix)]


@pytest.mark.integration
async def test_empty_topic(kafka_settings: KafkaSettings) -> None:
    """A topic without a text is an error rather than a calibration of nothing."""
    with pytest.raises(ConfigError, match="holds no text"):
        await newest_texts(kafka_settings, "filings", 10, lambda _: None)
