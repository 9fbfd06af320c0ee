"""Configuration: precedence, and one message that names the setting for every way it can be wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ops.config import MASK, as_values, load, masked_url
from ops.toml import dump_toml, dump_values
from schemas.errors import ConfigError


def write(path: Path, text: str) -> Path:
    """Write a configuration file."""
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_stand_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without file, environment or flags every setting has its documented default."""
    monkeypatch.chdir(tmp_path)
    assert load(environ={}).kafka.bootstrap == "127.0.0.1:9092"


def test_flags_beat_environment_beats_file(tmp_path: Path) -> None:
    """Each source wins over the one below it and leaves the others' settings in the same group alone."""
    file = write(
        tmp_path / "t.toml",
        '[kafka]\nbootstrap = "file:1"\ntopic_prefix = "file"\npartitions = 7\n',
    )
    environ = {"TAPEWIRE_KAFKA__BOOTSTRAP": "env:1", "TAPEWIRE_KAFKA__TOPIC_PREFIX": "env"}
    settings = load(file, environ=environ, overrides={"kafka": {"bootstrap": "flag:1", "topic_prefix": None}})
    assert (settings.kafka.bootstrap, settings.kafka.topic_prefix, settings.kafka.partitions) == ("flag:1", "env", 7)


def test_file_in_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``./tapewire.toml`` needs no flag."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "tapewire.toml", "[scheduler]\nid = 'here'\n")
    assert load(environ={}).scheduler.id == "here"


def test_deeper_values_come_from_the_environment(tmp_path: Path) -> None:
    """Nested groups take deeper names, lists take JSON."""
    file = write(tmp_path / "t.toml", "[scheduler.reserve]\nseqs = 3\n")
    environ = {"TAPEWIRE_SCHEDULER__RESERVE__STEP_TOKENS": "9", "TAPEWIRE_WORKER__CLASSES": '["flash"]'}
    settings = load(file, environ=environ)
    assert settings.scheduler.reserve.step_tokens == 9
    assert settings.scheduler.reserve.seqs == 3
    assert settings.worker.classes == ("flash",)


@pytest.mark.parametrize(
    ("text", "setting", "words"),
    [
        ("[kafka]\nboostrap = 'a:1'\n", "kafka.boostrap", "no such setting; kafka has bootstrap"),
        ("[kafak]\nbootstrap = 'a:1'\n", "kafak", "groups are kafka"),
        ("[kafka]\nbootstrap = 'nohost'\n", "kafka.bootstrap", "'nohost' is not HOST:PORT"),
        ("[kafka]\npartitions = 'many'\n", "kafka.partitions", "valid integer"),
        ("[kafka]\npartitions = 0\n", "kafka.partitions", "greater than or equal to 1"),
        ("[redis]\nurl = 'http://x'\n", "redis.url", "match pattern"),
        ("[[scheduler.classes]]\nname = 'a'\nslo_ms = -1\n", "scheduler.classes[0].slo_ms", "greater than 0"),
        ("[[scheduler.rules]]\nservice_class = 'nope'\n", "scheduler", "rules name the class 'nope'"),
        ("kafka = 3\n", "kafka", "valid dictionary"),
        ("[kafka\n", "--config", "line 1"),
    ],
)
def test_wrong_file_names_the_setting(tmp_path: Path, text: str, setting: str, words: str) -> None:
    """A wrong file gives one error with the dotted name of the setting and what would be right."""
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path / "t.toml", text), environ={})
    assert caught.value.setting == setting
    assert words in caught.value.reason
    assert "t.toml" in caught.value.reason


def test_all_problems_are_listed(tmp_path: Path) -> None:
    """The first problem leads and the others follow, so that one run shows everything to mend."""
    file = write(tmp_path / "t.toml", "[kafka]\npartitions = 0\n[worker]\nmax_num_seqs = 0\n")
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    assert caught.value.setting == "kafka.partitions"
    assert "worker.max_num_seqs: " in caught.value.reason


@pytest.mark.parametrize(
    ("environ", "setting"),
    [
        ({"TAPEWIRE_KAFKA__BOOSTRAP": "a:1"}, "kafka.boostrap"),
        ({"TAPEWIRE_KAFAK__BOOTSTRAP": "a:1"}, "kafak"),
        ({"TAPEWIRE_WORKER__MAX_NUM_SEQS": "lots"}, "worker.max_num_seqs"),
        ({"TAPEWIRE_SCHEDULER": "{not json"}, "scheduler"),
    ],
)
def test_wrong_environment_names_the_setting(tmp_path: Path, environ: dict[str, str], setting: str) -> None:
    """A misspelt or mistyped environment variable is an error, not silence."""
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path / "t.toml", ""), environ=environ)
    assert caught.value.setting == setting


def test_variables_of_the_tests_are_no_settings(tmp_path: Path) -> None:
    """``TAPEWIRE_TEST_KAFKA`` and the like name no group and disturb nothing."""
    file = write(tmp_path / "t.toml", "")
    assert load(file, environ={"TAPEWIRE_TEST_KAFKA": "x:1"}) == load(file, environ={})


def test_unreadable_and_missing_files(tmp_path: Path) -> None:
    """A file that is missing, a directory or not UTF-8 gives an error of ``--config``, not a traceback."""
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"a = '\xff'")
    for path in (tmp_path / "none.toml", tmp_path, binary):
        with pytest.raises(ConfigError) as caught:
            load(path, environ={})
        assert caught.value.setting == "--config"


def test_a_wrong_secret_is_not_repeated(tmp_path: Path) -> None:
    """An error about a group that holds a secret never shows the secret."""
    file = write(tmp_path / "t.toml", "[kafka]\nsasl_password = 'hunter2'\nsasl_mechanism = 'nope'\n")
    with pytest.raises(ConfigError) as caught:
        load(file, environ={})
    assert "hunter2" not in str(caught.value)


def test_effective_configuration_reads_back(tmp_path: Path) -> None:
    """What is written for a child process gives the same settings, secrets and odd characters included."""
    first = load(
        write(tmp_path / "a.toml", ""),
        environ={},
        overrides={
            "kafka": {"sasl_password": "p\"\\\x7f\n'ü"},
            "redis": {"url": "redis://u:pw@h/1"},
            "link": {"keys": str(tmp_path)},
        },
    )
    again = load(write(tmp_path / "b.toml", dump_toml(as_values(first, secrets=True))), environ={})
    assert again == first


def test_keys_that_are_no_bare_keys_read_back() -> None:
    """A key with a space or a dot, as labels may have, is quoted wherever it stands."""
    values = {"a b": 1, "heads": [{"8-K/A. x": {"q.r": " up"}}], "plain": True}
    assert tomllib.loads(dump_values(values)) == values


def test_secrets_are_masked_for_people(tmp_path: Path) -> None:
    """``config show`` has neither the SASL password nor the one in the Redis URL."""
    settings = load(
        write(tmp_path / "a.toml", ""),
        environ={},
        overrides={"kafka": {"sasl_password": "hunter2"}, "redis": {"url": "redis://u:hunter2@h:1/1"}},
    )
    shown = dump_toml(as_values(settings, secrets=False))
    assert "hunter2" not in shown
    assert shown.count(MASK) == 2
    assert masked_url("redis://h:1/0") == "redis://h:1/0"
