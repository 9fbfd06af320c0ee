"""``tapewire dlq`` against a real broker: what it lists, shows, sends again and marks, and how it refuses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from ops.dlq import Choice, Desk, Outgoing, Plan, received_now
from ops.dlq_letters import LetterId, parse_id
from ops.dlq_view import Filter, show_list, show_one, since_ms
from schemas.codec import encode_json
from schemas.errors import ConfigError
from schemas.settings import KafkaSettings
from schemas.topics import (
    HEADER_ERROR_ATTEMPTS,
    HEADER_ERROR_FIELD,
    HEADER_ERROR_KIND,
    HEADER_ERROR_MESSAGE,
    HEADER_RETRY,
    HEADER_SCHEDULER,
    HEADER_SOURCE_OFFSET,
    HEADER_SOURCE_PARTITION,
    HEADER_SOURCE_TOPIC,
    HEADER_TRACE_PARENT,
    HEADER_TRUNCATED_FROM,
)
from tests.ops.command import assert_refused, tapewire
from tests.scheduler.records import producer, read
from tests.scheduler.running import news

pytestmark = pytest.mark.integration

Headers = list[tuple[str, bytes | None]]


def _errors(kafka: KafkaSettings, kind: str = "bad_answer", **changed: str) -> Headers:
    values = {
        HEADER_ERROR_KIND: kind,
        HEADER_ERROR_FIELD: "",
        HEADER_ERROR_MESSAGE: "as the test says",
        HEADER_ERROR_ATTEMPTS: "3",
        HEADER_SOURCE_TOPIC: kafka.topics.news,
        HEADER_SOURCE_PARTITION: "1",
        HEADER_SOURCE_OFFSET: "40211",
        HEADER_SCHEDULER: "s1/0123abcd",
    } | {name.replace("_", "-"): value for name, value in changed.items()}
    return [(name, value.encode()) for name, value in values.items()]


async def _letters(
    kafka: KafkaSettings, letters: Sequence[tuple[bytes | None, bytes, Headers]], partition: int = 0
) -> None:
    async with producer(kafka) as client:
        for key, value, headers in letters:
            await client.send(kafka.topics.dead_letters, value, key=key, headers=headers, partition=partition)
        await client.flush()


def _good(number: int) -> bytes:
    return encode_json(news(str(number)))


def _env(kafka: KafkaSettings) -> dict[str, str]:
    return {"TAPEWIRE_KAFKA__BOOTSTRAP": kafka.bootstrap, "TAPEWIRE_KAFKA__TOPIC_PREFIX": kafka.topic_prefix}


async def _listed(
    kafka: KafkaSettings, capsys: pytest.CaptureFixture[str], wanted: Filter | None = None, limit: int = 100
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    await show_list(kafka, wanted or Filter(), limit, as_json=True)
    *rows, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return rows, summary


async def _do(desk: Desk, *ids: LetterId, wanted: Filter | None = None) -> Plan:
    plan = await desk.plan(Choice(ids=ids, wanted=wanted or Filter()))
    await desk.carry_out(plan, asyncio.Event(), as_json=True)
    return plan


async def test_the_list_is_filtered_counted_and_the_newest_first(
    kafka_settings: KafkaSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kind, source, time and number choose the letters; the counts are of all that match; handled ones are left out."""
    kafka = kafka_settings
    await _letters(kafka, [(b"k", _good(n), _errors(kafka)) for n in range(5)])
    filings = _errors(kafka, "not_json", tapewire_source_topic=kafka.topics.filings)
    await _letters(kafka, [(None, b"\xff", filings)] * 3, partition=2)
    rows, summary = await _listed(kafka, capsys)
    assert summary == {"total": 8, "shown": 8, "kinds": {"bad_answer": 5, "not_json": 3}}
    assert [row["time"] for row in rows] == sorted((row["time"] for row in rows), reverse=True)
    assert rows[0] == rows[0] | {"id": "2/2", "kind": "not_json", "event_id": "", "attempts": 3, "handled": False}
    assert rows[0]["source"] == {"topic": kafka.topics.filings, "partition": 1, "offset": 40211}
    assert rows[-1]["event_id"] == "wire:0:1"
    assert [r["id"] for r in (await _listed(kafka, capsys, Filter(kind="bad_answer"), 2))[0]] == ["0/4", "0/3"]
    for source in ("filings", kafka.topics.filings):
        assert (await _listed(kafka, capsys, Filter(source=source)))[1]["total"] == 3
    later = since_ms("1h", time.time() + 7200)
    assert (await _listed(kafka, capsys, Filter(since_ms=later)))[1]["total"] == 0
    await _do(Desk(kafka, retries=False), LetterId(0, 1), LetterId(2, 0))
    capsys.readouterr()
    assert [r["id"] for r in (await _listed(kafka, capsys))[0]] == ["2/2", "2/1", "0/4", "0/3", "0/2", "0/0"]
    everything, _ = await _listed(kafka, capsys, Filter(handled=True))
    assert {r["id"] for r in everything if r["handled"]} == {"0/1", "2/0"}


@pytest.mark.parametrize("text", ["soon", "5", "-1h", "1y", "2026-13-01", "9" * 30 + "d", "1h; rm"])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    """``--since`` takes durations and ISO times, and names itself when it gets something else."""
    with pytest.raises(ConfigError, match="--since"):
        since_ms(text, 1e9)


def test_times_are_durations_or_utc() -> None:
    """Durations count back from now; a time without a zone is UTC."""
    assert since_ms("90s", 1000.0) == 910_000
    assert since_ms("1.5h", 10_000.0) == 4_600_000
    assert since_ms("1970-01-02", 0.0) == since_ms("1970-01-02T01:00+01:00", 0.0) == 86_400_000
    assert since_ms("100000d", 1000.0) == 0


@pytest.mark.parametrize("text", ["", "3", "3/", "/4", "a/1", "-1/2", "1/2/3", "٣/1", "1/" + "9" * 30])
def test_an_id_that_is_none_is_refused(text: str) -> None:
    """Anything but partition and offset is one clear error."""
    with pytest.raises(ConfigError, match="dlq ls"):
        parse_id(text)


async def test_hostile_letters_are_shown_as_text(
    kafka_settings: KafkaSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escape sequences, markup and line breaks in keys, headers and values reach no terminal, in list or detail."""
    evil = "\x1b[31m[red]\n\u202e boo"
    errors = _errors(kafka_settings, tapewire_error_message=evil, tapewire_error_kind=evil, tapewire_error_field=evil)
    await _letters(kafka_settings, [(evil.encode(), evil.encode() + b"\xff", [(evil, evil.encode()), *errors])])
    await show_list(kafka_settings, Filter(), 10, as_json=False)
    await show_one(kafka_settings, LetterId(0, 0), as_json=False, raw=False)
    await show_list(kafka_settings, Filter(), 10, as_json=True)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "[red]" in out
    assert "boo\\xff" in out


async def test_one_letter_is_shown_whole(
    kafka_settings: KafkaSettings, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """``--raw`` writes the exact bytes and nothing else; JSON has everything; what does not exist is named."""
    value = bytes(range(256)) * 200
    await _letters(kafka_settings, [(b"\xff", value, [("x", None), *_errors(kafka_settings)])], partition=3)
    await show_one(kafka_settings, LetterId(3, 0), as_json=False, raw=True)
    assert capsysbinary.readouterr().out == value
    await show_one(kafka_settings, LetterId(3, 0), as_json=True, raw=False)
    shown = json.loads(capsysbinary.readouterr().out)
    assert (shown["key_base64"], shown["kind"], shown["handled"]) == ("/w==", "bad_answer", False)
    await show_one(kafka_settings, LetterId(3, 0), as_json=False, raw=False)
    assert b"--raw writes all 51200 bytes" in capsysbinary.readouterr().out
    for missing, word in ((LetterId(3, 1), "0 to 0"), (LetterId(99, 0), "partitions 0 to 3")):
        with pytest.raises(ConfigError, match=word):
            await show_one(kafka_settings, missing, as_json=True, raw=False)


async def test_a_retry_sends_the_original_and_marks_the_letter(
    kafka_settings: KafkaSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Key, value and headers are the original's with the mark of the retry; the letter is not sent twice."""
    kafka = kafka_settings
    own: Headers = [(HEADER_TRACE_PARENT, b"00-trace"), ("x", b"\xff"), (HEADER_RETRY, b"9/9")]
    values = [_good(n) for n in range(3)]
    await _letters(kafka, [(b"\xff key", value, [*own, *_errors(kafka)]) for value in values])
    desk = Desk(kafka, retries=True)
    plan = await _do(desk, LetterId(0, 1))
    assert plan.refused == {}
    assert json.loads(capsys.readouterr().out) == {"id": "0/1", "result": "retried", "detail": kafka.topics.news}
    (record,) = await read(kafka, kafka.topics.news)
    assert (record.key, record.value) == (b"\xff key", values[1])
    assert list(record.headers) == [(HEADER_TRACE_PARENT, b"00-trace"), ("x", b"\xff"), (HEADER_RETRY, b"0/1")]
    again = await _do(desk, LetterId(0, 1), LetterId(0, 2))
    assert again.refused == {LetterId(0, 1): "it is handled already"}
    await _do(desk)
    assert [dict(r.headers)[HEADER_RETRY] for r in sorted(await read(kafka, kafka.topics.news), key=_moment)] == [
        b"0/1",
        b"0/2",
        b"0/0",
    ]
    capsys.readouterr()
    assert (await _listed(kafka, capsys))[1]["total"] == 0


def _moment(record: Any) -> tuple[int, int]:
    return record.timestamp, record.offset


async def test_many_letters_over_all_partitions_are_sent_once(
    kafka_settings: KafkaSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than one batch in each partition: all of one kind go out exactly once, the others stay open."""
    kafka = kafka_settings
    for partition in range(4):
        kinds = ["bad_answer", "engine_error", "bad_answer"] * 150
        await _letters(kafka, [(b"%d" % n, b"{}", _errors(kafka, kind)) for n, kind in enumerate(kinds)], partition)
    plan = await _do(Desk(kafka, retries=True), wanted=Filter(kind="bad_answer"))
    assert (len(plan.chosen), plan.refused) == (1200, {})
    sent = [dict(r.headers)[HEADER_RETRY] for r in await read(kafka, kafka.topics.news)]
    assert (len(sent), len(set(sent))) == (1200, 1200)
    capsys.readouterr()
    assert (await _listed(kafka, capsys))[1]["kinds"] == {"engine_error": 600}


async def test_what_cannot_be_sent_again_is_refused_with_its_reason(kafka_settings: KafkaSettings) -> None:
    """A gap, a foreign topic, a letter without a source or one whose cut record is gone: open, named, nothing sent."""
    kafka = kafka_settings
    cut = _errors(kafka, tapewire_truncated_from="999")
    await _letters(
        kafka,
        [
            (None, b"", _errors(kafka, "offsets_lost")),
            (None, b"a", _errors(kafka, tapewire_source_topic="other.topic")),
            (None, b"b", []),
            (None, b"c", cut),
        ],
    )
    plan = await _do(Desk(kafka, retries=True))
    words = ["no record", "other.topic", "do not say", "cut from 999 bytes"]
    assert [w in plan.refused[LetterId(0, n)] for n, w in enumerate(words)] == [True] * 4
    assert await read(kafka, kafka.topics.news) == []
    dropped = await _do(Desk(kafka, retries=False))
    assert len(dropped.chosen) == 4


async def test_a_cut_letter_is_sent_whole_from_its_source(kafka_settings: KafkaSettings) -> None:
    """The whole record comes from where it stands in the input topic, with its own key and headers."""
    kafka, whole = kafka_settings, b"x" * 50_000
    async with producer(kafka) as client:
        for value in (b"before", whole, b"after"):
            await client.send(kafka.topics.news, value, key=b"k", headers=[("own", b"1")], partition=1)
        await client.flush()
    cut = _errors(kafka, tapewire_truncated_from="50000", tapewire_source_offset="1")
    await _letters(kafka, [(None, whole[:100], cut), (None, b"another", _errors(kafka))])
    await _do(Desk(kafka, retries=True))
    sent = [r for r in await read(kafka, kafka.topics.news) if HEADER_RETRY in dict(r.headers)]
    first = next(r for r in sent if dict(r.headers)[HEADER_RETRY] == b"0/0")
    assert (first.key, first.value, dict(first.headers)["own"]) == (b"k", whole, b"1")
    assert HEADER_TRUNCATED_FROM not in dict(first.headers)
    assert len(sent) == 2


async def test_now_gives_a_readable_event_the_present_time(kafka_settings: KafkaSettings) -> None:
    """``--now`` changes the time of reception and nothing else, and refuses what it cannot read."""
    kafka = kafka_settings
    old = json.loads(_good(1)) | {"received_at_ns": 5, "unknown": {"ü": [1.5, None]}}
    await _letters(kafka, [(None, json.dumps(old).encode(), _errors(kafka)), (None, b"\xff{", _errors(kafka))])
    before = time.time_ns()
    plan = await _do(Desk(kafka, retries=True, now=True))
    (record,) = await read(kafka, kafka.topics.news)
    new = json.loads(record.value)
    assert before <= new["received_at_ns"] <= time.time_ns()
    assert new | {"received_at_ns": 5} == old
    assert "--now" in plan.refused[LetterId(0, 1)]
    assert json.loads(received_now(b'{"received_at_ns": 1, "t": "\\ud800"}', 7)) == {"received_at_ns": 7, "t": "\ud800"}


async def test_a_record_that_its_topic_refuses_stays_open(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the input topic does not take is refused in Kafka's words; the rest of the batch is sent and marked."""
    kafka = kafka_settings
    await _letters(kafka, [(None, b"%d" % n, _errors(kafka)) for n in range(3)])
    make = Desk._outgoing

    async def enlarged(self: Desk, letter: Any, reader: Any) -> Outgoing:
        out = await make(self, letter, reader)
        return Outgoing(out.topic, out.key, b"x" * 20_000_000, out.headers) if letter.id.offset == 1 else out

    monkeypatch.setattr(Desk, "_outgoing", enlarged)
    plan = await _do(Desk(kafka, retries=True))
    assert list(plan.refused) == [LetterId(0, 1)]
    assert (await Desk(kafka, retries=False).plan(Choice())).chosen == {LetterId(0, 1): ""}


def test_the_commands_as_a_user_starts_them(kafka_settings: KafkaSettings) -> None:
    """Lists, dry runs, drops and errors as processes: stdout, exit codes, one message each and no traceback."""
    env = _env(kafka_settings)
    asyncio.run(_letters(kafka_settings, [(b"k", _good(n), _errors(kafka_settings)) for n in range(3)]))
    listed = tapewire("dlq", "ls", env=env)
    assert (listed.returncode, "3 open dead letters: bad_answer 3" in listed.stdout) == (0, True)
    assert_refused(tapewire("dlq", "retry", "--all-open", env=env), "--yes")
    assert_refused(tapewire("dlq", "drop", env=env), "--all-open")
    assert_refused(tapewire("dlq", "show", "0/77", env=env), "0 to 2")
    dry = tapewire("dlq", "retry", "0/0", "0/9", "--dry-run", "--json", env=env)
    assert dry.returncode == 1
    assert [json.loads(line)["result"] for line in dry.stdout.splitlines()] == ["would_retry", "refused"]
    assert "flash after 250 ms" in dry.stderr
    done = tapewire("dlq", "drop", "--all-open", "--yes", env=env)
    assert (done.returncode, done.stdout.count("dropped")) == (0, 3)
    assert "0 open dead letters" in tapewire("dlq", "ls", env=env).stdout


@pytest.mark.parametrize("command", ["ls", "show 0/1", "retry --all-open --yes"])
def test_kafka_away_is_one_message(unused_tcp_port: int, command: str) -> None:
    """Without Kafka each command ends with the setting's name and exit code 2."""
    env = {"TAPEWIRE_KAFKA__BOOTSTRAP": f"127.0.0.1:{unused_tcp_port}", "TAPEWIRE_KAFKA__CONNECT_SECONDS": "0.5"}
    assert_refused(tapewire("dlq", *command.split(), env=env), "kafka.bootstrap")


@pytest.mark.parametrize(
    ("command", "flag", "known"),
    [
        ("ls --kind nonsense", "--kind", "bad_answer"),
        ("ls --source nix", "--source", "tapewire.filings"),
        ("retry --kind nonsense --yes", "--kind", "offsets_lost"),
        ("drop --kind nonsense --dry-run", "--kind", "quarantined"),
    ],
)
def test_an_unknown_kind_or_source_is_refused(command: str, flag: str, known: str) -> None:
    """A kind or source that there is not is told with those that there are, never as "no letters"."""
    done = tapewire("dlq", *command.split(), env={"TAPEWIRE_KAFKA__BOOTSTRAP": "127.0.0.1:1"})
    assert_refused(done, flag)
    assert known in done.stderr
