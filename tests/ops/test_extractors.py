"""`tapewire extractors` as a user runs it: what is listed, what a check finds, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.ops.command import assert_refused, tapewire

HEAD = 'intro=""\nlead=""\nask="\\nanswer:"\nclose=""\n[[heads]]\nname="direction"\n[heads.labels]\n'
WORDS = 'bullish=" positive"\nbearish=" negative"\nneutral=" neutral"\n'


def test_ls_lists_shipped_and_own(tmp_path: Path) -> None:
    """Every extractor comes with its heads, its file and the classes that ask it."""
    (tmp_path / "mine.toml").write_text('name="mine"\n' + HEAD + WORDS)
    done = tapewire("extractors", "ls", "--extractors", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert set(found) == {"filing", "headline", "mine"}
    assert found["mine"]["file"] == str(tmp_path / "mine.toml")
    assert found["mine"]["classes"] == []
    assert found["headline"]["classes"] == ["flash", "standard"]
    assert found["headline"]["heads"]["relevance"] == ["high", "low"]
    assert "relevance: high, low" in tapewire("extractors", "ls").stdout


def test_check_counts_tokens() -> None:
    """A check says what each prompt and each answer costs, and passes for the shipped extractors."""
    done = tapewire("extractors", "check", "--engine", "sim", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["passed"]
    assert {each["name"]: each["answer_tokens"] for each in found["extractors"]} == {"filing": 4, "headline": 3}


def test_check_misses_what_a_class_names(tmp_path: Path) -> None:
    """A service class that names an extractor which there is not fails the check."""
    config = tmp_path / "tapewire.toml"
    config.write_text(
        '[[scheduler.classes]]\nname="flash"\nslo_ms=150\nextractor="poem"\n[[scheduler.rules]]\nservice_class="flash"\n'
    )
    done = tapewire("extractors", "check", "--engine", "sim", "--config", str(config))
    assert done.returncode == 1
    assert "'poem'" in done.stdout


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    """A file that is no extractor is refused with its path and what is wrong, without a traceback."""
    (tmp_path / "mine.toml").write_text('name="mine"\n' + HEAD + WORDS.replace("neutral", "level"))
    assert_refused(tapewire("extractors", "ls", "--extractors", str(tmp_path)), str(tmp_path / "mine.toml"))


def test_a_model_is_looked_at_also_where_the_engine_is_simulated(tmp_path: Path) -> None:
    """`--model` means vLLM's check of that model, whatever engine the configuration names."""
    done = tapewire("extractors", "check", "--model", str(tmp_path / "none"), env={"TAPEWIRE_WORKER__ENGINE": "sim"})
    assert_refused(done, "worker.model")


def test_an_extractor_that_leaves_no_room_for_text_is_a_problem(tmp_path: Path) -> None:
    """A prompt that does not fit the configured context is told with its file and the numbers, and fails the check."""
    (tmp_path / "long.toml").write_text('name="long"\n' + HEAD.replace('intro=""', f'intro="{"word " * 300}"') + WORDS)
    arguments = ("extractors", "check", "--engine", "sim", "--extractors", str(tmp_path), "--json")
    assert tapewire(*arguments).returncode == 0
    done = tapewire(*arguments, env={"TAPEWIRE_WORKER__MAX_MODEL_LEN": "300"})
    assert done.returncode == 1, done.stderr
    found = {each["name"]: each for each in json.loads(done.stdout)["extractors"]}
    assert found["long"]["file"] == str(tmp_path / "long.toml")
    assert "worker.max_model_len is 300" in found["long"]["problem"]
    assert "at least 16 of text" in found["long"]["problem"]
