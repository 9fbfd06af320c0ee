"""The command line, as real processes: messages, exit codes, what goes to stdout, and Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.redis_client import redis_client
from ops.runtime import EXIT_DEFECT, Forced, exit_code_of
from schemas.codec import encode_json
from schemas.settings import KafkaSettings, RedisSettings
from schemas.status import SchedulerStatus, WorkerStatus
from tests.ops.command import assert_refused, await_line, environment, start, tapewire


def away(port: int) -> dict[str, str]:
    """Return an environment in which neither Kafka nor Redis answers."""
    return {
        "TAPEWIRE_KAFKA__BOOTSTRAP": f"127.0.0.1:{port}",
        "TAPEWIRE_KAFKA__CONNECT_SECONDS": "0.5",
        "TAPEWIRE_REDIS__URL": f"redis://127.0.0.1:{port}/0",
        # Of its own: a scheduler on the default address must not get in the way.
        "TAPEWIRE_LINK__ADDRESS": f"ipc:///tmp/tapewire-test-{port}",
    }


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("[kafka]\nboostrap = 'a:1'\n", "kafka.boostrap"),
        ("[scheduler]\nmax_queued = 'many'\n", "scheduler.max_queued"),
        ("[kafka\n", "--config"),
        (None, "--config"),
    ],
)
@pytest.mark.parametrize("command", ["scheduler", "worker", "topics ls", "config show"])
def test_a_wrong_configuration_is_one_message(tmp_path: Path, command: str, text: str | None, setting: str) -> None:
    """An unknown key, a wrong type, bad TOML or a missing file: one message with the setting, exit code 2."""
    file = tmp_path / "t.toml"
    if text is not None:
        file.write_text(text)
    assert_refused(tapewire(*command.split(), "--config", str(file)), setting)


@pytest.mark.parametrize(
    "command", ["topics ls", "topics create", "tail signals", "feed file -", "scheduler", "up --engine sim"]
)
def test_kafka_away_is_one_message(tmp_path: Path, unused_tcp_port: int, command: str) -> None:
    """Without Kafka every command that needs it ends with the setting's name and exit code 2."""
    assert_refused(tapewire(*command.split(), env=away(unused_tcp_port), cwd=tmp_path), "kafka.bootstrap")


def test_redis_away_is_one_message(unused_tcp_port: int) -> None:
    """Without Redis the latency command ends with the setting's name and exit code 2."""
    assert_refused(tapewire("latency", env=away(unused_tcp_port)), "redis.url")


@pytest.mark.integration
def test_up_refuses_a_wrong_redis_at_start(tmp_path: Path, kafka_settings: KafkaSettings, unused_tcp_port: int) -> None:
    """To who starts everything at once, a Redis that is not there is a wrong address: exit code 2."""
    env = {**away(unused_tcp_port), **of(kafka_settings)}
    assert_refused(tapewire("up", "--engine", "sim", env=env, cwd=tmp_path), "redis.url")


def test_a_missing_model_is_one_message(tmp_path: Path) -> None:
    """The demo looks for the model before it starts anything."""
    assert_refused(tapewire("demo", "--model", str(tmp_path / "none"), cwd=tmp_path), "worker.model")
    assert not list(tmp_path.iterdir())


def test_the_gpu_demo_wants_a_model(tmp_path: Path) -> None:
    """On a GPU there is no model to fall back to, and the message says which flag is missing."""
    assert_refused(tapewire("demo", "--engine", "gpu", cwd=tmp_path), "--model")


def test_wrong_flags_are_told_without_a_traceback() -> None:
    """A value that a flag does not take ends with exit code 2 and the flag's name."""
    done = tapewire("demo", "--engine", "abacus")
    assert done.returncode == 2
    assert "--engine" in done.stderr
    assert "Traceback" not in done.stderr


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    """The effective configuration follows the documented precedence, and ./tapewire.toml needs no flag."""
    (tmp_path / "tapewire.toml").write_text(
        "[worker]\nengine = 'vllm'\nmodel = 'file'\n[link]\naddress = 'tcp://127.0.0.1:1'\n"
    )
    env = {"TAPEWIRE_WORKER__MODEL": "env", "TAPEWIRE_REDIS__URL": "redis://u:hunter2@h/0"}
    shown = tapewire("config", "show", "--json", env=env, cwd=tmp_path)
    values = json.loads(shown.stdout)
    assert values["worker"]["model"] == "env"
    assert values["link"]["address"] == "tcp://127.0.0.1:1"
    assert "hunter2" not in shown.stdout
    flag = tapewire("worker", "--engine", "abacus", env=env, cwd=tmp_path)
    assert_refused(flag, "worker.engine")


def test_config_show_reads_back(tmp_path: Path) -> None:
    """What ``config show`` prints is a configuration file."""
    (tmp_path / "shown.toml").write_text(tapewire("config", "show", cwd=tmp_path).stdout)
    first, second = (
        tapewire("config", "show", "--json", *more, cwd=tmp_path).stdout for more in ([], ["--config", "shown.toml"])
    )
    assert json.loads(first) == json.loads(second)


def test_version_and_schemas() -> None:
    """The version and the JSON Schemas go to stdout; an unknown schema name lists the known ones."""
    assert tapewire("--version").stdout.startswith("tapewire ")
    schema = json.loads(tapewire("schema", "signal").stdout)
    assert "signal_id" in schema["$defs"]["Signal"]["required"]
    unknown = tapewire("schema", "nope")
    assert unknown.returncode == 2
    assert "news-event" in unknown.stderr


def test_keys_are_private_and_kept(tmp_path: Path) -> None:
    """Link keys are readable by their owner alone, and a second run changes nothing."""
    made = tapewire("keys", str(tmp_path / "k"))
    files = [Path(line) for line in made.stdout.split()]
    assert {file.name for file in files} >= {"scheduler.key", "scheduler.key_secret", "worker.key_secret"}
    assert all(file.stat().st_mode & 0o077 == 0 for file in files if file.name.endswith("_secret"))
    before = {file: file.read_bytes() for file in files}
    again = tapewire("keys", str(tmp_path / "k"))
    assert again.stdout == ""
    assert {file: file.read_bytes() for file in files} == before


def test_an_unforeseen_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A defect shows its name and the way to its traceback, escapes text from outside, and exits with 70."""
    assert exit_code_of(KeyError("\x1b[31mboom"), debug=False) == EXIT_DEFECT
    shown = capsys.readouterr().err
    assert "KeyError" in shown
    assert "--debug" in shown
    assert "\x1b" not in shown
    assert exit_code_of(Forced(), debug=False) == 130


def test_a_worker_without_a_scheduler_stops_on_ctrl_c(tmp_path: Path) -> None:
    """A warm worker that waits for its scheduler ends with 0 on SIGINT."""
    worker = start("worker", "--engine", "sim", "--connect", f"ipc://{tmp_path}/none", cwd=tmp_path)
    await_line(worker, '"connecting"')
    worker.send_signal(signal.SIGINT)
    _, rest = worker.communicate(timeout=60)
    assert worker.returncode == 0, rest
    assert "Traceback" not in rest


def test_ctrl_c_before_the_start_is_clean() -> None:
    """A signal while modules are still being imported is no traceback."""
    code = (
        "import os, signal, sys\n"
        "from ops import cli\n"
        "sys.argv = ['tapewire', 'config', 'show']\n"
        "cli.app = lambda **_: os.kill(os.getpid(), signal.SIGTERM)\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "interrupted" in done.stderr
    assert "Traceback" not in done.stderr


def of(kafka: KafkaSettings, redis: RedisSettings | None = None) -> dict[str, str]:
    """Return the environment that leads to the broker and the Redis under test."""
    env = {"TAPEWIRE_KAFKA__BOOTSTRAP": kafka.bootstrap, "TAPEWIRE_KAFKA__TOPIC_PREFIX": kafka.topic_prefix}
    return env if redis is None else {**env, "TAPEWIRE_REDIS__URL": redis.url}


@pytest.mark.integration
def test_doctor_finds_everything_fine(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> None:
    """With Kafka, topics, Redis and the simulated engine the doctor exits with 0; JSON is alone on stdout."""
    env = {**of(kafka_settings, redis_settings), "TAPEWIRE_WORKER__ENGINE": "sim"}
    done = tapewire("doctor", "--json", env=env)
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert {c["name"]: c["state"] for c in found["checks"]} == {
        "config": "ok",
        "link": "ok",
        "kafka": "ok",
        "topics": "ok",
        "redis": "ok",
        "scheduler": "warning",
        "engine": "ok",
        "model": "ok",
    }


@pytest.mark.integration
@pytest.mark.parametrize("state", ["kafka_away", "stalled"])
async def test_doctor_warns_of_a_scheduler_that_stands(
    kafka_settings: KafkaSettings, redis_settings: RedisSettings, state: str
) -> None:
    """A scheduler without Kafka, or whose work stands still, is a warning with what to look at, workers or not."""
    worker = WorkerStatus(
        worker_id="w1", engine="sim", engine_version="0", model="sim", in_flight=0, steps=0, kv_usage=0.0
    )
    status = SchedulerStatus(
        scheduler_id="s9",
        # Ahead of now, so that it is fresh when the doctor comes to it.
        at_ns=time.time_ns() + 60_000_000_000,
        state=state,
        classes=[],
        workers=[worker],
        undecodable=0,
        stamps_dropped=0,
    )
    async with redis_client(redis_settings) as client:
        await client.set(kafka_settings.topics.status_key("s9"), encode_json(status), ex=60)
    env = {**of(kafka_settings, redis_settings), "TAPEWIRE_WORKER__ENGINE": "sim"}
    done = await asyncio.to_thread(tapewire, "doctor", "--json", env=env)
    (found,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "scheduler s9"]
    assert (found["state"], found["detail"]) == ("warning", state)
    assert "look at" in found["mend"]


@pytest.mark.integration
def test_doctor_names_missing_topics(kafka_settings: KafkaSettings, redis_settings: RedisSettings) -> None:
    """Topics that are not there are named, with the command that makes them."""
    env = {**of(kafka_settings, redis_settings), "TAPEWIRE_KAFKA__TOPIC_PREFIX": "test-nothing-here"}
    done = tapewire("doctor", env={**env, "TAPEWIRE_WORKER__ENGINE": "sim"})
    assert done.returncode == 2
    assert "✗ topics: missing test-nothing-here.news" in done.stdout
    assert "tapewire topics create" in done.stdout


def test_doctor_says_what_to_mend(tmp_path: Path, unused_tcp_port: int) -> None:
    """With nothing running every failure has its own line and its remedy, and the exit code is 2."""
    env = {**away(unused_tcp_port), "TAPEWIRE_WORKER__MODEL": str(tmp_path), "TAPEWIRE_LINK__ADDRESS": "tcp://*:7421"}
    done = tapewire("doctor", "--json", env=env)
    failed = {c["name"]: c["mend"] for c in json.loads(done.stdout)["checks"] if c["state"] == "failed"}
    assert done.returncode == 2
    assert {"link", "kafka", "redis", "model"} <= set(failed)
    assert all(failed.values())
    wrong = tapewire("doctor", "--json", "--config", str(tmp_path / "none.toml"))
    assert wrong.returncode == 2
    assert json.loads(wrong.stdout)["checks"][0]["name"] == "config"


@pytest.mark.integration
def test_topics_are_created_and_listed(kafka_settings: KafkaSettings) -> None:
    """``topics create`` leaves what exists alone; ``topics ls`` lists all five."""
    created = json.loads(tapewire("topics", "create", "--json", env=of(kafka_settings)).stdout)
    assert created["created"] == []
    assert len(created["existing"]) == 5
    listed = json.loads(tapewire("topics", "ls", "--json", env=of(kafka_settings)).stdout)
    assert len(listed["topics"]) == 5
    assert listed["missing"] == []
    for_people = tapewire("topics", "ls", env=of(kafka_settings))
    assert for_people.returncode == 0
    assert kafka_settings.topics.dead_letters in for_people.stdout


@pytest.mark.integration
def test_feed_file_reports_rejected_lines(kafka_settings: KafkaSettings) -> None:
    """Good lines are published, a bad one is told with its number and field, and the exit code says so."""
    good = {"event_id": "s:1:1", "source": "s", "headline": "ok", "received_at_ns": 1_700_000_000_000_000_000}
    lines = [json.dumps(good), json.dumps({**good, "headline": 7}), "", json.dumps({**good, "event_id": "s:2:1"})]
    done = tapewire("feed", "file", "-", "--json", env=of(kafka_settings), stdin="\n".join(lines))
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["published"] == {kafka_settings.topics.news: 2}
    assert [(line["line"], line["field"]) for line in report["rejected_lines"]] == [(2, "headline")]
    assert "line 2: wrong_type: field 'headline'" in done.stderr


@pytest.mark.integration
def test_tail_stops_at_its_limit_and_on_ctrl_c(kafka_settings: KafkaSettings) -> None:
    """``--limit`` ends the tail by itself, SIGINT ends it with 0, and a record that is no signal does no harm."""
    news = kafka_settings.model_copy(update={"topic_prefix": kafka_settings.topic_prefix})
    good = {"event_id": "s:1:1", "source": "s", "headline": "x", "received_at_ns": 1_700_000_000_000_000_000}
    publish = (
        "import asyncio, sys\n"
        "from aiokafka import AIOKafkaProducer\n"
        "async def main():\n"
        f"    p = AIOKafkaProducer(bootstrap_servers={news.bootstrap!r})\n"
        "    await p.start()\n"
        f"    await p.send_and_wait({news.topics.signals!r}, {json.dumps(good).encode()!r})\n"
        f"    await p.send_and_wait({news.topics.signals!r}, b'\\x1b[31mnot json')\n"
        "    await p.stop()\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", publish], env=environment(), check=True, timeout=60)
    two = tapewire("tail", "signals", "--from-beginning", "--limit", "2", "--json", env=of(kafka_settings))
    assert two.returncode == 0
    assert {type(json.loads(line)) for line in two.stdout.splitlines()} == {dict}
    assert len(two.stdout.splitlines()) == 2
    people = tapewire("tail", "signals", "--from-beginning", "--limit", "2", env=of(kafka_settings))
    assert len(people.stdout.splitlines()) == 2
    assert "\x1b" not in people.stdout

    following = start("tail", "signals", "--from-beginning", "--json", env=of(kafka_settings))
    assert following.stdout is not None
    assert following.stdout.readline()
    following.send_signal(signal.SIGINT)
    _, errors = following.communicate(timeout=60)
    assert following.returncode == 0, errors


@pytest.mark.integration
def test_a_closed_pipe_is_no_error(kafka_settings: KafkaSettings) -> None:
    """A reader that goes away, as ``head`` does, ends the command quietly."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "ops", "topics", "ls", "--json"],
        env=environment(of(kafka_settings)),
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert "Traceback" not in done.stderr
    assert "unexpected" not in done.stderr


@pytest.mark.parametrize("command", ["topics ls", "topics create", "doctor"])
def test_ctrl_c_ends_a_command_that_waits_for_a_silent_kafka(command: str) -> None:
    """A command with nothing to drain ends with 0 at the first Ctrl-C, although its broker never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        env = {**away(silent.getsockname()[1]), "TAPEWIRE_KAFKA__CONNECT_SECONDS": "600"}
        running = start(*command.split(), env=env)
        connection, _ = silent.accept()  # it is waiting for our answer now
        with connection:
            running.send_signal(signal.SIGINT)
            _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "Traceback" not in err
