"""``tapewire feed check`` and ``tapewire feed edgar`` as a user runs them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ops.bench.edgar_stand_in import UNDECLARED_PAGE, EdgarStandIn, Reply
from ops.bench.made_filings import filed
from schemas.settings import KafkaSettings, RedisSettings
from tests.ops.command import assert_refused, tapewire
from tests.producers.edgar.corpus import FIXTURES


def test_json_is_one_line_per_file() -> None:
    """Each file is one object with its format, its events and no rejection."""
    done = tapewire(
        "feed", "check", "--json", str(FIXTURES / "8-K_2024_inline_xbrl.txt"), str(FIXTURES / "form4_2020.xml")
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["format"], first["rejected"], len(first["events"])) == ("edgar-submission", None, 5)
    event = first["events"][1]
    assert event["event_id"] == "0000066740-24-000023:1:2"
    assert (event["kind"], event["form"], event["items"]) == ("filing", "8-K", ["8.01", "9.01"])
    assert event["times"]["accepted"] == "2024-03-08T17:01:45Z"
    assert event["text_chars"] > 1_000
    assert (second["format"], second["events"][0]["form"]) == ("edgar-xml-form", "4")


def test_rejections_are_told_by_kind_and_change_the_exit_code(tmp_path: Path) -> None:
    """Content decides, not the name; a rejected file says why and makes the command fail."""
    (tmp_path / "a.xml").write_bytes((FIXTURES / "8-K_2005_pem.txt").read_bytes())
    (tmp_path / "b.txt").write_bytes((FIXTURES / "error_rate.html").read_bytes())
    (tmp_path / "c.json").write_bytes(b"\x00\x01\x02")
    (tmp_path / "d").write_bytes(b"")
    done = tapewire("feed", "check", "--json", str(tmp_path))
    assert done.returncode == 1
    files = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["rejected"] and one["rejected"]["kind"] for one in files] == [
        None,
        "error_page",
        "unknown_format",
        "empty",
    ]
    assert files[0]["format"] == "edgar-submission"


def test_for_people(tmp_path: Path) -> None:
    """Without --json each event is a short line, and text from a file cannot act on the terminal."""
    hostile = b"<DOCUMENT>\n<TYPE>8-K\x1b[31m\n<TEXT>\n<html><p>Text \x1b]0;x\x07</p></html>\n</TEXT>\n</DOCUMENT>\n"
    (tmp_path / "x\x1b[2J.txt").write_bytes(hostile)
    done = tapewire("feed", "check", str(tmp_path), str(FIXTURES / "10-K_1994_ims.txt"))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "0000320193-94-000016:1:2  10-K  APPLE COMPUTER INC  Item 1 Business" in done.stdout
    assert done.stdout.splitlines()[-1] == "2 files, 2 with events, 0 rejected"


def test_missing_path() -> None:
    """A path that is not there is the user's to mend."""
    assert_refused(tapewire("feed", "check", "/nowhere/at/all"), "PATH")


def test_tickers_file(tmp_path: Path) -> None:
    """Tickers of the configured map become instruments; a broken map names its setting."""
    path = tmp_path / "tickers.json"
    path.write_text('{"0":{"cik_str":1376139,"ticker":"CVI","title":"x"}}')
    env = {"TAPEWIRE_EDGAR__TICKERS_FILE": str(path)}
    done = tapewire("feed", "check", "--json", str(FIXTURES / "SC-TO-T-A_2025.txt"), env=env)
    assert json.loads(done.stdout)["events"][0]["instruments"] == ["CVI"]
    path.write_text("[]")
    assert_refused(tapewire("feed", "check", str(FIXTURES / "form4_2020.xml"), env=env), "edgar.tickers_file")


def test_feed_edgar_needs_a_user_agent() -> None:
    """Without a declared User-Agent nothing is asked of SEC."""
    assert_refused(tapewire("feed", "edgar", "--once"), "edgar.user_agent")


@pytest.mark.integration
async def test_feed_edgar_once(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> None:
    """The command reads the feed once, publishes, and prints what it did."""
    async with EdgarStandIn() as server:
        server.file(filed(1), filed(2))
        env = _environment(server, kafka_settings, redis_settings)
        done = await asyncio.to_thread(tapewire, "feed", "edgar", "--once", "--json", env=env)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        assert (summary["filings"], summary["events"], summary["given_up"]) == (2, 2, 0)
        assert summary["poll_to_publish_p50_ms"] > 0
        server.script("getcurrent", Reply(status=403, body=UNDECLARED_PAGE))
        assert_refused(await asyncio.to_thread(tapewire, "feed", "edgar", "--once", env=env), "edgar.user_agent")


def _environment(server: EdgarStandIn, kafka: KafkaSettings, redis: RedisSettings) -> dict[str, str]:
    return {
        "TAPEWIRE_EDGAR__USER_AGENT": "Tapewire tests tests@example.com",
        "TAPEWIRE_EDGAR__BASE_URL": server.url,
        "TAPEWIRE_EDGAR__DATA_URL": server.url,
        "TAPEWIRE_EDGAR__TICKERS": "false",
        "TAPEWIRE_KAFKA__BOOTSTRAP": kafka.bootstrap,
        "TAPEWIRE_KAFKA__TOPIC_PREFIX": kafka.topic_prefix,
        "TAPEWIRE_REDIS__URL": redis.url,
    }
