"""The whole feed handler: the command, its configuration, its end, and kill -9 at any moment."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError

from ops.config import load
from ops.embedded import free_port
from producers.news.service import NewsOptions, serve, until_stopped
from producers.tail import topic_tail
from schemas.codec import decode_news
from schemas.errors import ConfigError, UnavailableError
from schemas.news_settings import (
    NewsDirectorySettings,
    NewsFeedSettings,
    NewsSettings,
    NewsSourceSettings,
    NewsWebhookSettings,
)
from schemas.records import NewsEvent
from schemas.settings import KafkaSettings, RedisSettings
from tests.producers.news import documents as docs
from tests.producers.news.conftest import Site

ROOT = Path(__file__).parents[3]


async def topic(kafka: KafkaSettings) -> list[NewsEvent]:
    """Everything on the news topic."""
    return [decode_news(value) async for value in topic_tail(kafka, kafka.topics.news, 10_000)]


def command(kafka: KafkaSettings, redis: RedisSettings, *arguments: str) -> subprocess.Popen[str]:
    """Start ``tapewire feed news``."""
    environment = {
        **os.environ,
        "TAPEWIRE_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "TAPEWIRE_KAFKA__TOPIC_PREFIX": kafka.topic_prefix,
        "TAPEWIRE_REDIS__URL": redis.url,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "ops", "feed", "news", *arguments],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.integration
async def test_all_sources_feed_one_topic(
    tmp_path: Path, site: Site, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """A feed, a directory and a webhook run together, and the handler ends when it is told to."""
    at = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    site.serve("/feed.xml", docs.rss(docs.rss_item(1, "Vantor cuts its dividend", at=at)))
    (tmp_path / "story.xml").write_bytes(docs.newsml_g2())
    port = free_port()
    news = NewsSettings(
        user_agent="Tests tests@tapewire.example",
        feeds=(NewsFeedSettings(name="harborline", url=f"{site.url}/feed.xml"),),
        directories=(NewsDirectorySettings(name="pressfeed", path=tmp_path),),
        webhook=NewsWebhookSettings(port=port, sources=(NewsSourceSettings(name="vendor"),)),
    )
    stop = asyncio.Event()
    confirmed: asyncio.Queue[NewsEvent] = asyncio.Queue()
    options = NewsOptions(on_event=confirmed.put_nowait)
    running = asyncio.create_task(serve(news, kafka_settings, redis_settings, stop, options))
    first_two = {(await confirmed.get()).source for _ in range(2)}
    async with aiohttp.ClientSession() as session:
        answer = await session.post(f"http://127.0.0.1:{port}/news/vendor", json=docs.envelope())
        assert answer.status == 200
    stop.set()
    report = await running
    assert first_two == {"harborline", "pressfeed"}
    assert {event.source for event in await topic(kafka_settings)} == {"harborline", "pressfeed", "vendor"}
    assert len(report.latencies_ns) == 3


@pytest.mark.integration
async def test_a_broken_source_ends_the_others_with_its_error(
    tmp_path: Path, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """What an operator must mend comes out as one typed error, not as a group of them."""
    (tmp_path / "in").mkdir()
    news = NewsSettings(
        directories=(NewsDirectorySettings(path=tmp_path / "in"),),
        webhook=NewsWebhookSettings(
            port=int(kafka_settings.bootstrap.rpartition(":")[2]), sources=(NewsSourceSettings(name="v"),)
        ),
    )
    with pytest.raises(UnavailableError) as caught:
        await serve(news, kafka_settings, redis_settings, asyncio.Event())
    assert caught.value.setting == "news.webhook.port"


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({}, "news"),
        ({"central_banks": ("fed",)}, "news.user_agent"),
        ({"central_banks": ("fed",), "user_agent": "curl"}, "news.user_agent"),
    ],
)
async def test_what_is_missing_is_said_before_anything_starts(settings: dict[str, Any], setting: str) -> None:
    """No source at all, and feeds without a declared User-Agent, are configuration errors; no service is asked."""
    with pytest.raises(ConfigError) as caught:
        await serve(NewsSettings(**settings), KafkaSettings(), RedisSettings(), asyncio.Event())
    assert caught.value.setting == setting


@pytest.mark.parametrize(
    "news",
    [
        {"feeds": [{"name": "a", "url": "ftp://x"}]},
        {"feeds": [{"name": "a", "url": "http://x", "zone": "Mars/Olympus"}]},
        {"feeds": [{"name": "a", "url": "http://x"}, {"name": "a", "url": "http://y"}]},
        {"sockets": [{"name": "a", "url": "https://x"}]},
        {"webhook": {"port": 8080}},
        {"webhook": {"port": 8080, "host": "0.0.0.0", "sources": [{"name": "v"}]}},  # noqa: S104 - what is refused
        {"central_banks": ["boe"]},
    ],
)
def test_wrong_settings_are_refused(news: dict[str, Any]) -> None:
    """Addresses of another kind, unknown zones, double names and an open webhook without a token do not start."""
    with pytest.raises(ValidationError):
        NewsSettings(**news)


def test_the_documented_configuration_loads(tmp_path: Path) -> None:
    """The example in docs/feeds-news.md is a valid configuration with every kind of source in it."""
    page = (ROOT / "docs" / "feeds-news.md").read_text(encoding="utf-8")
    example = page.partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "tapewire.toml"
    file.write_text(example, encoding="utf-8")
    news = load(file, environ={}).news
    assert news.central_banks == ("fed", "ecb")
    assert news.feeds
    assert news.directories
    assert news.sockets
    assert news.webhook.port


async def test_a_source_that_takes_a_cancellation_for_its_own_ends_all_the_same() -> None:
    """A source whose library swallows the first cancellation does not keep the feed from stopping."""
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 2:
                    raise

    stop = asyncio.Event()
    stop.set()
    await until_stopped(stubborn, stop)
    assert swallowed == 2


@pytest.mark.integration
def test_the_command_reads_files_and_ends(
    tmp_path: Path, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """With paths the command publishes them, prints a line an event and a summary, and exits 1 for a rejected file."""
    (tmp_path / "a.json").write_bytes(docs.ninjs_1(headline="Kestavel \x1b[31mgrounds 12 jets"))
    (tmp_path / "b.txt").write_bytes(b"no news")
    done = command(kafka_settings, redis_settings, "--json", str(tmp_path))
    out, err = done.communicate(timeout=60)
    event, summary = (json.loads(line) for line in out.splitlines())
    assert done.returncode == 1, err
    assert event["headline"] == "Kestavel [31mgrounds 12 jets"
    assert event["notes"] == ["headline: controls=1"]
    assert summary["summary"]["verdicts"] == {"new": 1}
    assert summary["summary"]["rejected"] == 1
    assert "b.txt" in err
    assert "Traceback" not in err


@pytest.mark.integration
def test_the_command_stops_on_sigterm(
    tmp_path: Path, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """A watching command ends with its summary and exit code 0 when it is told to."""
    (tmp_path / "a.json").write_bytes(docs.ninjs_1())
    running = command(kafka_settings, redis_settings, "--watch", str(tmp_path))
    assert running.stdout is not None
    assert "Kestavel" in running.stdout.readline()
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert out.startswith("1 new; ")


@pytest.mark.integration
async def test_kill_9_at_any_moment_loses_nothing(
    tmp_path: Path, kafka_settings: KafkaSettings, redis_settings: RedisSettings
) -> None:
    """After 100 kills at random moments every delivered story is on the topic, and a repeat carries the same id."""
    kills = 100
    (tmp_path / "0.json").write_bytes(docs.ninjs_1())
    arguments = [
        kafka_settings.bootstrap,
        redis_settings.url,
        kafka_settings.topic_prefix,
        str(tmp_path),
        str(kills),
        "7",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.producers.news.crash", *arguments, cwd=ROOT, stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert int(out.splitlines()[-1]) > 0  # on a fast broker most of them have ended before their turn
    events = await topic(kafka_settings)
    texts = {event.event_id: event.headline for event in events}
    assert {event.headline for event in events} == {
        "Kestavel Airlines grounds 12 narrow-bodies",
        *(f"round {number} story {story}" for number in range(kills) for story in range(3)),
    }
    assert len(texts) == 3 * kills + 1
    assert all(texts[event.event_id] == event.headline for event in events)
    assert {event.version for event in events} == {1}
