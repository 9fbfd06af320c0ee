"""Latency figures: the arithmetic, and the command against a real Redis."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from ops.config import Settings, load
from ops.latency import UnknownEventError, by_class, report
from ops.percentiles import percentile, summary_ms
from schemas.codec import encode_json
from schemas.enums import Outcome, Stage
from schemas.errors import UnavailableError
from schemas.records import StampEntry
from schemas.settings import RedisSettings

MS = 1_000_000
BASE = 1_800_000_000_000 * MS


def entry(event_id: str, total_ms: int, *, outcome: Outcome = Outcome.SIGNAL, **without: bool) -> StampEntry:
    """Return an entry whose stages are one millisecond apart, but the last."""
    stages = [Stage.RECEIVED, Stage.APPENDED, Stage.CONSUMED, Stage.QUEUED, Stage.DISPATCHED, Stage.EMITTED]
    stamps = {stage: BASE + index * MS for index, stage in enumerate(stages)}
    stamps[Stage.EMITTED] = BASE + total_ms * MS
    stamps = {stage: at for stage, at in stamps.items() if not without.get(stage.value)}
    return StampEntry(
        event_id=event_id,
        service_class="flash",
        outcome=outcome.value,
        late=total_ms > 150,
        slo_ns=150 * MS,
        stamps=stamps,
    )


@pytest_asyncio.fixture
async def redis(redis_url: str) -> AsyncIterator[Any]:
    """A client of the Redis under test."""
    client: Any = Redis.from_url(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def settings(redis_settings: RedisSettings, topic_prefix: str) -> Settings:
    """Settings with keys of this test's own."""
    overrides = {"redis": {"url": redis_settings.url}, "kafka": {"topic_prefix": topic_prefix}}
    return load(overrides=overrides, environ={})


async def add(redis: Any, settings: Settings, *entries: StampEntry) -> None:
    """Write entries the way a scheduler does."""
    for one in entries:
        await redis.xadd(settings.kafka.topics.stamps_key, {"d": encode_json(one)})


def test_percentiles_are_measured_values() -> None:
    """Nearest rank: the median of two is the first, p99 of a hundred is the 99th, one value is every percentile."""
    assert percentile([1, 2], 50) == 1
    assert percentile(list(range(1, 101)), 99) == 99
    assert percentile([7], 1) == 7
    assert summary_ms([]) is None
    assert summary_ms([3 * MS, 1 * MS, 2 * MS]) == {"p50_ms": 2.0, "p90_ms": 3.0, "p99_ms": 3.0}


def test_a_missing_stamp_leaves_its_steps_out() -> None:
    """An entry without a stage counts in the total but not in the steps around that stage."""
    figures = by_class([entry("a", 100), entry("b", 120, consumed=True)])["flash"].as_json()
    counts = {(step["from"], step["to"]): step["count"] for step in figures["stages"]}
    assert counts["received", "appended"] == 2
    assert counts["appended", "consumed"] == 1
    assert counts["consumed", "queued"] == 1
    assert figures["total"] == {"p50_ms": 100.0, "p90_ms": 120.0, "p99_ms": 120.0}


def test_expired_events_are_misses() -> None:
    """Attainment counts what was within the SLO among signals and expired records; dead letters are not judged."""
    entries = [
        entry("a", 100),
        entry("b", 200),
        entry("c", 300, outcome=Outcome.EXPIRED),
        entry("d", 1, outcome=Outcome.DEAD_LETTER),
    ]
    figures = by_class(entries)["flash"].as_json()
    assert figures["attained"] == pytest.approx(1 / 3)
    assert figures["outcomes"] == {"signal": 2, "expired": 1, "dead_letter": 1}


@pytest.mark.integration
async def test_report_reads_the_newest(redis: Any, settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """``--last`` takes the newest entries, over several pages, and an entry that is no entry is counted."""
    await add(redis, settings, *(entry(f"old-{n}", 10) for n in range(5)), *(entry(f"new-{n}", 100) for n in range(3)))
    await redis.xadd(settings.kafka.topics.stamps_key, {"d": b"not json"})
    await report(settings, last=4, event=None, as_json=True)
    figures = json.loads(capsys.readouterr().out)
    assert (figures["entries"], figures["unreadable"]) == (3, 1)
    assert figures["classes"]["flash"]["total"]["p50_ms"] == 100.0


@pytest.mark.integration
async def test_report_pages_through_a_long_stream(
    redis: Any, settings: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every entry is read exactly once, whatever the page size."""
    monkeypatch.setattr("ops.latency.PAGE", 3)
    await add(redis, settings, *(entry(f"e-{n}", 10) for n in range(10)))
    await report(settings, last=10_000, event=None, as_json=True)
    assert json.loads(capsys.readouterr().out)["entries"] == 10


@pytest.mark.integration
async def test_report_of_one_event(redis: Any, settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """``--event`` shows one event's stamps in order of the stages, for people and for programs."""
    await add(redis, settings, entry("a:\x1b[31m:1", 100), entry("b", 5))
    await report(settings, last=1, event="a:\x1b[31m:1", as_json=True)
    (outcome,) = json.loads(capsys.readouterr().out)["outcomes"]
    assert outcome["total_ms"] == 100.0
    assert list(outcome["stamps"]) == ["received", "appended", "consumed", "queued", "dispatched", "emitted"]
    await report(settings, last=1, event="a:\x1b[31m:1", as_json=False)
    shown = capsys.readouterr().out
    assert "96.000" in shown
    assert "\x1b[31m" not in shown


@pytest.mark.integration
async def test_nothing_yet(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty stream is said to be empty, and an event that is not there is an error that names it."""
    await report(settings, last=10, event=None, as_json=False)
    assert "no stamps yet" in capsys.readouterr().out
    await report(settings, last=10, event=None, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"entries": 0, "unreadable": 0, "classes": {}}
    with pytest.raises(UnknownEventError, match="story-9"):
        await report(settings, last=10, event="story-9", as_json=False)


async def test_redis_away_names_the_setting(settings: Settings, unused_tcp_port: int) -> None:
    """Without Redis the command ends with one error, and a password in the URL is not in it."""
    away = load(overrides={"redis": {"url": f"redis://u:hunter2@127.0.0.1:{unused_tcp_port}/0"}}, environ={})
    with pytest.raises(UnavailableError) as caught:
        await report(away, last=10, event=None, as_json=False)
    assert caught.value.setting == "redis.url"
    assert "hunter2" not in str(caught.value)
