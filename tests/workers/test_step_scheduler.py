"""vLLM's real scheduler with the step gate, over a small KV cache and without a model; and the check before its use."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from schemas.frames import StepPolicy
from workers.models import resolve_model
from workers.step_notes import StepNote
from workers.vllm_engine import prepare_environment

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (pip install '.[cpu]')"),
]

NOW = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
MakeConfig = Callable[[bool], Any]


@pytest.fixture
async def make_config() -> MakeConfig:
    """Return what makes vLLM's configuration of a real model, with synchronous or asynchronous scheduling."""
    files = await resolve_model("smollm2", lambda _state, _detail: None)
    prepare_environment()
    from vllm.engine.arg_utils import AsyncEngineArgs

    def make(ahead: bool = False) -> Any:
        arguments = AsyncEngineArgs(
            model=str(files.directory), max_model_len=1024, scheduling_policy="priority", enforce_eager=True
        )
        config = arguments.create_engine_config()
        # On the CPU vLLM turns it off; its scheduler works without a device.
        config.scheduler_config.async_scheduling = ahead
        return config

    return make


def policy(tokens: int = 32, step: float = 0.01) -> StepPolicy:
    """Return a policy in which a prompt token and a decode take a millisecond each."""
    return StepPolicy(
        lower_step_tokens=tokens,
        step_seconds=step,
        prefill_token_seconds=0.001,
        decode_seconds=0.001,
        kv_token_seconds=0.0,
    )


def note(kind: str, in_seconds: float = 60.0, with_policy: StepPolicy | None = None) -> StepNote:
    """Return the note of an ``urgent``, ``floor`` or ``lower`` request."""
    return StepNote(
        urgent=kind == "urgent",
        floor=kind == "floor",
        deadline_ns=NOW + int(in_seconds * SECOND),
        cached_tokens=0,
        policy=with_policy,
    )


def make_trial(config: Any) -> Any:
    """Return a scheduler whose clock stands still."""
    from workers.step_scheduler_check import Trial

    trial = Trial(config)
    trial.scheduler.clock_ns = lambda: NOW
    return trial


@pytest.mark.parametrize("ahead", [False, True])
def test_the_installed_vllm_passes(make_config: MakeConfig, ahead: bool) -> None:
    """With the vLLM that is installed, both ways of scheduling do what is relied on."""
    from workers.step_scheduler_check import scheduler_class, why_not

    config = make_config(ahead)
    assert why_not(config) is None
    assert scheduler_class(config).endswith(".AsyncStepScheduler" if ahead else ".StepScheduler")


def test_a_missing_hook_is_named(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM without the method that is overridden is refused, with the method's name."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from workers.step_scheduler_check import why_not

    config = make_config(False)
    monkeypatch.delattr(Scheduler, "_reserve_prefill_lookahead")
    reason = why_not(config)
    assert reason is not None
    assert "_reserve_prefill_lookahead" in reason


def test_a_hook_with_other_parameters_is_refused(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method of the same name that takes something else is not taken for the one that is known."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from workers.step_scheduler_check import why_not

    config = make_config(False)
    monkeypatch.setattr(Scheduler, "_free_request", lambda self, request, reason: None)
    reason = why_not(config)
    assert reason is not None
    assert "_free_request" in reason


def test_a_hook_that_does_nothing_is_noticed(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vLLM that ignores what the hook returns shows in the steps, and the reason says what was scheduled."""
    from workers.step_scheduler import StepScheduler
    from workers.step_scheduler_check import why_not

    config = make_config(False)
    monkeypatch.setattr(StepScheduler, "_reserve_prefill_lookahead", lambda _self, _request, _computed, new: new)
    reason = why_not(config)
    assert reason is not None
    assert "vLLM scheduled {'long': 64}" in reason


def test_what_was_not_thought_through_is_refused(make_config: MakeConfig) -> None:
    """With vLLM's own order of arrival the step scheduler stays out."""
    from workers.step_scheduler_check import why_not

    config = make_config(False)
    config.scheduler_config.policy = "fcfs"
    reason = why_not(config)
    assert reason is not None
    assert "priority" in reason


def test_a_refusal_is_loud_and_leaves_vllm_alone(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the check fails the engine starts with vLLM's scheduler, and one error in the log says why."""
    from vllm.v1.core.sched.scheduler import Scheduler

    from workers.vllm_backend import use_step_scheduler

    config = make_config(False)
    monkeypatch.delattr(Scheduler, "_reserve_prefill_lookahead")
    with structlog.testing.capture_logs() as logs:
        use_step_scheduler(config)
    assert config.scheduler_config.scheduler_cls is None
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("step_scheduler_off", "error")]
    assert "_reserve_prefill_lookahead" in logs[0]["reason"]


@pytest.mark.parametrize("ahead", [False, True])
def test_without_a_policy_nothing_changes(make_config: MakeConfig, ahead: bool) -> None:
    """Until the scheduler has sent a policy, a step is as large as vLLM makes it."""
    trial = make_trial(make_config(ahead))
    trial.add("long", 100, 2, note("lower"))
    assert trial.step() == {"long": 64}
    trial.finish()
    assert len(trial.produced["long"]) == 2


def test_several_lower_prompts_share_the_valve(make_config: MakeConfig) -> None:
    """The policy's tokens are for all less urgent prompts of a step together."""
    trial = make_trial(make_config(False))
    for name in ("a", "b"):
        trial.add(name, 20, 1, note("lower", with_policy=policy(30)))
    assert trial.step() == {"a": 20, "b": 10}
    assert trial.step() == {"b": 10}


def test_lower_work_fills_what_the_deadline_leaves(make_config: MakeConfig) -> None:
    """Beside an urgent request that has time to spare, as much prefill runs as fits before its deadline."""
    trial = make_trial(make_config(False))
    trial.add("long", 200, 1, note("lower", with_policy=policy(32)))
    assert trial.step() == {"long": 32}
    trial.add("urgent", 20, 1, note("urgent", 0.06))
    step = trial.step()
    # (60 ms - 5 ms) / 1.15 less 10 ms for the step and 20 ms for the urgent tokens leaves 17 tokens of 1 ms.
    assert step == {"long": 17, "urgent": 20}


def test_a_guaranteed_share_is_never_held(make_config: MakeConfig) -> None:
    """A request of the floor runs beside an urgent one whose deadline holds everything else, behind which it waits."""
    trial = make_trial(make_config(False))
    trial.add("lower", 40, 1, note("lower", with_policy=policy(32, step=60.0)))
    trial.add("floor", 20, 1, note("floor"))
    trial.add("urgent", 20, 1, note("urgent"))
    assert trial.step() == {"urgent": 20, "floor": 20}
    trial.finish()
    assert {name: len(tokens) for name, tokens in trial.produced.items()} == {"lower": 1, "floor": 1, "urgent": 1}


def test_full_slots_are_not_held_for_what_cannot_get_one(make_config: MakeConfig) -> None:
    """With every slot decoding, an urgent request holds nothing: only those decodes can free the slot it needs."""
    trial = make_trial(make_config(False))
    for name in ("a", "b", "c", "d"):
        trial.add(name, 8, 4, note("lower", with_policy=policy(64, step=60.0)))
    assert trial.step() == {"a": 8, "b": 8, "c": 8, "d": 8}
    trial.add("urgent", 20, 1, note("urgent"))
    for _ in range(3):
        assert trial.step() == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert trial.step() == {"urgent": 20}


def test_a_full_cache_holds_for_one_step_at_most(make_config: MakeConfig) -> None:
    """An urgent request that no KV block is left for stops nobody, so those who hold the blocks can end."""
    trial = make_trial(make_config(False))
    # Two prompts of 30 blocks each leave 3 of the 63 usable ones.
    trial.add("a", 470, 20, note("lower", with_policy=policy(64, step=60.0)))
    trial.add("b", 480, 3, note("lower"))
    assert any(trial.step() == {"a": 1, "b": 1} for _ in range(40))
    trial.add("urgent", 100, 1, note("urgent"))
    steps = [trial.step() for _ in range(4)]
    assert steps == [{}, {"a": 1, "b": 1}, {"a": 1, "urgent": 63}, {"urgent": 37}]
    trial.finish()
    assert {name: len(tokens) for name, tokens in trial.produced.items()} == {"a": 20, "b": 3, "urgent": 1}


def test_what_is_aborted_is_forgotten(make_config: MakeConfig) -> None:
    """An urgent request that is aborted while it waits holds nothing any more, and nothing is kept of it."""
    from vllm.v1.request import RequestStatus

    trial = make_trial(make_config(False))
    trial.add("long", 100, 1, note("lower", with_policy=policy(32, step=60.0)))
    assert trial.step() == {"long": 32}
    trial.add("urgent", 100, 1, note("urgent"))
    assert trial.step() == {"urgent": 64}
    trial.scheduler.finish_requests("urgent", RequestStatus.FINISHED_ABORTED)
    assert trial.step() == {"long": 32}
    trial.finish()
    assert not trial.scheduler._notes
    assert not trial.scheduler._first


def test_running_ahead_counts_the_step_that_runs(make_config: MakeConfig) -> None:
    """A step that is put together while another runs has only what that one leaves of the time to the deadline."""
    synchronous, ahead = make_trial(make_config(False)), make_trial(make_config(True))
    for trial in (synchronous, ahead):
        trial.add("long", 200, 1, note("lower", with_policy=policy(32)))
        assert trial.step() == {"long": 32}
        trial.add("urgent", 20, 1, note("urgent", 0.1))
    assert synchronous.step() == {"long": 32, "urgent": 20}
    # 42 ms of the 100 ms are the running step's: (58 - 5) / 1.15 - 30 leaves 16.
    assert ahead.step() == {"long": 16, "urgent": 20}
