"""A feed that is killed a hundred times between a fetch and its publish loses nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ops.bench.edgar_stand_in import EdgarStandIn, Reply
from ops.bench.made_filings import filed
from producers.edgar.filing import parse_filing
from schemas.records import FilingEvent
from schemas.settings import KafkaSettings, RedisSettings
from tests.producers.edgar.conftest import published
from tests.producers.edgar.corpus import CONTEXT
from tests.producers.edgar.kill_driver import Task

pytestmark = pytest.mark.integration

KILLS = 100
BODY = "<p>Item 8.01 Other Events</p>" + "".join(f"<p>{n}. {'Harbour dues rose. ' * 12}</p>" for n in range(6))


class GrowingStandIn(EdgarStandIn):
    """A stand-in with which somebody files once before every look at the feed."""

    def _current(self, start: int, count: int, headers: dict[str, str]) -> Reply:
        if not start:
            self.file(filed(len(self.filings) + 1, body=BODY))
        return super()._current(start, count, headers)


async def test_kill_between_fetch_and_publish(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> None:
    """After a hundred kills around a publish every part of every filing is there, and duplicates have the same ids."""
    async with GrowingStandIn() as server:
        task = Task(
            url=server.url,
            bootstrap=kafka_settings.bootstrap,
            prefix=kafka_settings.topic_prefix,
            redis=redis_settings.url,
            kills=KILLS,
            seed=1,
        )
        driver = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.producers.edgar.kill_driver",
            cwd=Path(__file__).parents[3],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await driver.communicate(msgspec.json.encode(task))
        assert driver.returncode == 0, err.decode()[-2_000:]
        assert json.loads(out)["kills"] == KILLS
        context = replace(CONTEXT, part_chars=500)
        filings = [parse_filing(one.body, context) for one in server.filings]
    expected = {event.event_id for filing in filings for event in filing.events(context)}
    events = await published(kafka_settings)
    assert {event.event_id for event in events} == expected
    assert len(events) > len(expected)  # some kills came after their publish: that is what ids are for
    first: dict[str, FilingEvent] = {}
    for event in events:
        same = msgspec.structs.replace(event, received_at_ns=0, url="")
        assert first.setdefault(event.event_id, same) == same
