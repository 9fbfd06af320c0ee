"""Says whether the installed vLLM works the way the step scheduler relies on: tried out before use, without a model."""

from __future__ import annotations

import copy
import inspect
import time
from types import SimpleNamespace
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from schemas.frames import StepPolicy
from workers.step_gate import StepGate
from workers.step_notes import StepNote
from workers.step_scheduler import AsyncStepScheduler, StepScheduler

BLOCK_SIZE = 16
BLOCKS = 64
STEP_TOKENS = 64
SEQUENCES = 4
TOKEN = 7
"""What the model that is not there answers."""

HOOKS = {
    "schedule": ["self", "throttle_prefills"],
    "add_request": ["self", "request"],
    "update_from_output": ["self", "scheduler_output", "model_runner_output"],
    "_reserve_prefill_lookahead": ["self", "request", "num_computed_tokens", "num_new_tokens"],
    "_free_request": ["self", "request", "delay_free_blocks"],
}
"""What the step scheduler overrides, with vLLM's parameters."""


class UnknownSchedulerError(Exception):
    """The installed vLLM's scheduler differs from what is relied on; never leaves `why_not`."""


def scheduler_class(vllm_config: Any) -> str:
    """Return the class for vLLM's ``scheduler_cls``, which its engine process imports by this name."""
    chosen = AsyncStepScheduler if vllm_config.scheduler_config.async_scheduling else StepScheduler
    return f"{chosen.__module__}.{chosen.__qualname__}"


def why_not(vllm_config: Any) -> str | None:
    """Return why the step scheduler cannot be used with this engine, in one line, or None when it can.

    Args:
        vllm_config: the engine's configuration, complete but for its KV cache.
    """
    try:
        _check_config(vllm_config)
        _check_hooks()
        _try_out(vllm_config)
    except UnknownSchedulerError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong on the way to a verdict is a verdict
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0][:200]}"
    return None


def _check_config(config: Any) -> None:
    """Refuse what has not been thought through, rather than what is known to fail."""
    unsupported = {
        "speculative decoding": config.speculative_config is not None,
        "a KV connector": config.kv_transfer_config is not None,
        "an encoder connector": config.ec_transfer_config is not None,
        "pipeline parallelism": config.parallel_config.pipeline_parallel_size > 1,
        "an encoder-decoder model": config.model_config.is_encoder_decoder,
        "prefill without chunks": not config.scheduler_config.enable_chunked_prefill,
        "a policy other than priority": config.scheduler_config.policy != "priority",
        "another scheduler_cls": config.scheduler_config.scheduler_cls is not None,
    }
    found = [name for name, present in unsupported.items() if present]
    if found:
        raise UnknownSchedulerError(f"not made for {', '.join(found)}")


def _check_hooks() -> None:
    for name, expected in HOOKS.items():
        hook = getattr(Scheduler, name, None)
        if hook is None:
            raise UnknownSchedulerError(f"vLLM's Scheduler has no {name}")
        parameters = list(inspect.signature(hook).parameters)
        if parameters != expected:
            raise UnknownSchedulerError(f"vLLM's Scheduler.{name} takes {parameters}, expected {expected}")


class Trial:
    """A real scheduler over a small KV cache, with a model that always says the same."""

    def __init__(self, vllm_config: Any) -> None:
        config = copy.copy(vllm_config)
        config.cache_config = copy.copy(vllm_config.cache_config)
        config.cache_config.num_gpu_blocks = BLOCKS
        config.cache_config.enable_prefix_caching = False
        config.scheduler_config = copy.copy(vllm_config.scheduler_config)
        config.scheduler_config.max_num_batched_tokens = STEP_TOKENS
        config.scheduler_config.max_num_scheduled_tokens = None
        config.scheduler_config.max_num_seqs = SEQUENCES
        config.scheduler_config.max_num_active_seqs = None
        config.scheduler_config.long_prefill_token_threshold = 0
        spec = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32)
        self.ahead = bool(config.scheduler_config.async_scheduling)
        self.scheduler: Any = (AsyncStepScheduler if self.ahead else StepScheduler)(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            ),
            structured_output_manager=SimpleNamespace(accept_tokens=lambda *_: True),
            block_size=BLOCK_SIZE,
            hash_block_size=BLOCK_SIZE,
            log_stats=False,
        )
        self._outputs: list[tuple[Any, list[str]]] = []
        self.produced: dict[str, list[int]] = {}

    def add(self, name: str, prompt_tokens: int, max_tokens: int, note: StepNote) -> None:
        """Let a request arrive."""
        params = SamplingParams(
            max_tokens=max_tokens, temperature=0.0, ignore_eos=True, extra_args=note.extra_args(), detokenize=False
        )
        request = Request(
            name, [1] * prompt_tokens, params, None, priority=0 if note.urgent else 1 if note.floor else 2
        )
        self.scheduler.add_request(request)

    def step(self) -> dict[str, int]:
        """Schedule one step, let it end (or the one before, when scheduling runs ahead) and return its tokens."""
        output = self.scheduler.schedule()
        answers = [name for name in output.num_scheduled_tokens if not self.scheduler.requests[name].is_prefill_chunk]
        self._outputs.append((output, answers))
        if len(self._outputs) > self.ahead:
            self._end(*self._outputs.pop(0))
        return dict(output.num_scheduled_tokens)

    def finish(self, limit: int = 50) -> None:
        """Step until nothing is left."""
        for _ in range(limit):
            if self.scheduler.has_requests():
                self.step()
            elif self._outputs:
                self._end(*self._outputs.pop(0))
            else:
                return
        raise UnknownSchedulerError(f"requests were left after {limit} steps")

    def _end(self, output: Any, answers: list[str]) -> None:
        names = list(output.num_scheduled_tokens)
        runner_output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[TOKEN] if name in answers else [] for name in names],
        )
        for one in self.scheduler.update_from_output(output, runner_output).values():
            for core_output in one.outputs:
                self.produced.setdefault(core_output.request_id, []).extend(core_output.new_token_ids)


def _try_out(vllm_config: Any) -> None:
    """Let an urgent request meet a prefill, then a decode, and compare each step's tokens with what must come out."""
    trial = Trial(vllm_config)
    now = time.time_ns()
    lower = StepNote(urgent=False, floor=False, deadline_ns=now, cached_tokens=0, policy=_policy(lower_tokens=24))
    # No step of 60 s fits this deadline, but it does not pass before a step begins: what can be held is held.
    deadline_ns = now + 60_500_000_000
    tight = StepNote(urgent=True, floor=False, deadline_ns=deadline_ns, cached_tokens=0, policy=_policy(24, step=60.0))
    trial.scheduler.clock_ns = lambda: now
    # The clock stands still but the steps are long: without this, the longest stop would be over after one.
    trial.scheduler.gate = StepGate(STEP_TOKENS, hold_seconds=3600.0)
    trial.add("long", 100, 4, lower)
    _expect("the valve on a prefill", trial.step(), {"long": 24})
    trial.add("urgent-1", 20, 1, tight)
    _expect("a prefill held for an urgent request", trial.step(), {"urgent-1": 20})
    if trial.ahead:
        # Scheduled before the urgent answer is known; it needs no further step, so nothing is held for it.
        _expect("the step after an urgent one", trial.step(), {"long": 24})
    for tokens in (24, 24, 24, 4)[trial.ahead :]:
        _expect("a prefill that goes on", trial.step(), {"long": tokens})
    trial.add("urgent-2", 20, 1, tight)
    _expect("a decode held for an urgent request", trial.step(), {"urgent-2": 20})
    _expect("a decode that goes on", trial.step(), {"long": 1})
    trial.finish()
    wanted = {"long": [TOKEN] * 4, "urgent-1": [TOKEN], "urgent-2": [TOKEN]}
    if trial.produced != wanted:
        raise UnknownSchedulerError(f"requests produced {trial.produced}, expected {wanted}")


def _expect(what: str, scheduled: dict[str, int], wanted: dict[str, int]) -> None:
    if scheduled != wanted:
        raise UnknownSchedulerError(f"{what}: vLLM scheduled {scheduled}, expected {wanted}")


def _policy(lower_tokens: int, step: float = 0.001) -> StepPolicy:
    return StepPolicy(
        lower_step_tokens=lower_tokens,
        step_seconds=step,
        prefill_token_seconds=0.001,
        decode_seconds=0.001,
        kv_token_seconds=0.0,
    )
