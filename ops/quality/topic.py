"""The newest texts of a live input topic, read in a closed window from outside every consumer group."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from ops.quality.ask import Say
from ops.results import TopicReader
from scheduler.classify import clean_news, text_of
from schemas.codec import decode_filing, decode_news
from schemas.enums import NewsStatus
from schemas.errors import ConfigError, DecodeError, UnavailableError
from schemas.records import Event, NewsEvent
from schemas.settings import KafkaSettings

POLL_MS = 250
PATIENCE_SECONDS = 30.0
"""Without one new record for this long, Kafka has gone away in the middle of the window."""

K = TypeVar("K")


@dataclass(slots=True)
class TopicTexts:
    """What the window holds.

    Args:
        texts: of news and filings that can be read, in no order across partitions.
        passed_over: records that cannot be read, and news that their source took back.
    """

    texts: list[str] = field(default_factory=list)
    passed_over: int = 0


async def newest_texts(kafka: KafkaSettings, topic: str, last: int, say: Say) -> TopicTexts:
    """Read about the newest records of an input topic. Nothing is committed and no group is joined.

    Args:
        kafka: where.
        topic: ``news`` or ``filings``.
        last: records, spread over the partitions; where one has fewer, the others give more.
        say: told the progress.

    Raises:
        UnavailableError: Kafka does not answer, or the topic does not exist.
        ConfigError: the window holds no text.
    """
    name = kafka.topics.news if topic == "news" else kafka.topics.filings
    found = TopicTexts()
    async with TopicReader(kafka, [name], from_beginning=True) as reader:
        first, ends = await reader.first_offsets(), await reader.end_offsets()
        wanted = shares({partition: ends[partition] - first[partition] for partition in ends}, last)
        for partition, count in wanted.items():
            reader.seek(partition, ends[partition] - count)
        unread = {partition for partition, count in wanted.items() if count}
        heard = time.monotonic()
        while unread:
            for record in await reader.read(POLL_MS):
                heard = time.monotonic()
                # What was appended since the window was closed belongs to no partition's share.
                if any(p.partition == record.partition and record.offset < end for p, end in ends.items()):
                    _take(found, topic, record.value or b"")
            unread = {partition for partition in unread if await reader.position(partition) < ends[partition]}
            say(f"{len(found.texts)} texts of {name}")
            if time.monotonic() - heard > PATIENCE_SECONDS:
                raise UnavailableError(
                    f"Kafka at {kafka.bootstrap}", "kafka.bootstrap", f"{name} gives no more records"
                )
    if not found.texts:
        raise ConfigError("--topic", f"{name} holds no text; {found.passed_over} records could not be used")
    return found


def shares(sizes: Mapping[K, int], last: int) -> dict[K, int]:
    """Return how much to take of each, together ``last`` or all there is, as evenly as the sizes allow."""
    taken: dict[K, int] = {}
    left = last
    for rank, (key, size) in enumerate(sorted(sizes.items(), key=lambda pair: pair[1])):
        # The smaller ones have been served, so an even share of what is left is the most that any can ask for.
        taken[key] = min(size, -(-left // (len(sizes) - rank)))
        left -= taken[key]
    return taken


def _take(found: TopicTexts, topic: str, value: bytes) -> None:
    try:
        event: Event = decode_news(value) if topic == "news" else decode_filing(value)
    except DecodeError:
        found.passed_over += 1
        return
    if isinstance(event, NewsEvent) and event.status is NewsStatus.KILLED:
        found.passed_over += 1
        return
    found.texts.append(clean_news(event) if isinstance(event, NewsEvent) else text_of(event))
