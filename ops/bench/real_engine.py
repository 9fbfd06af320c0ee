"""Real vLLM for a benchmark: started the way one policy wants it, without a worker process around it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from schemas.errors import UnavailableError
from schemas.frames import Limits
from schemas.settings import WorkerSettings
from workers.engine import OnState, Steps, WorkerState
from workers.models import INSTALL, resolve_model
from workers.vllm_engine import prepare_environment

KV_CACHE_GIB = 3.0
"""Room for all filings of the benchmark at once, so that nobody is slowed down by preemption."""
STOP_SECONDS = 2.0


@dataclass(kw_only=True, slots=True)
class RealEngine:
    """vLLM in processes of its own, started the way one policy wants it.

    Args:
        llm: vLLM's AsyncLLM.
        backend: `workers.vllm_backend`, which cannot be imported before the environment is prepared.
        limits: as the engine came up.
        gated: it runs with the step scheduler.
        sinks: called with the figures of each step.
    """

    llm: Any
    backend: Any
    limits: Limits
    gated: bool
    sinks: list[Any] = field(default_factory=list)

    async def generate(self, key: str, ids: list[int], params: Any, priority: int) -> Any:
        """Yield vLLM's outputs for one request."""
        async for output in self.llm.generate(self.backend.tokens_input(ids), params, key, priority=priority):
            yield output

    async def stop(self) -> None:
        """End vLLM's processes."""
        if self.llm.output_handler is not None:
            self.llm.output_handler.cancel()
        await asyncio.to_thread(self.llm.shutdown, timeout=STOP_SECONDS)
        self.llm.shutdown = lambda *_args, **_kwargs: None


async def start_engine(model: str, limits: Limits, *, order: str, gated: bool, on_state: OnState) -> RealEngine:
    """Start vLLM and run a few requests, so that nothing is compiled while it is measured.

    Args:
        model: see `schemas.settings.WorkerSettings`.
        limits: what it is started with; a chunk limit as large as the step means none.
        order: vLLM's ``scheduling_policy``.
        gated: use the step scheduler.
        on_state: told what takes long.

    Raises:
        UnavailableError: vLLM is not installed, or the step scheduler does not work with this one.
        ConfigError: the model is wrong.
    """
    settings = WorkerSettings(
        engine="vllm",
        model=model,
        max_model_len=limits.max_model_len,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        long_prefill_token_threshold=limits.long_prefill_token_threshold,
        kv_cache_gib=KV_CACHE_GIB,
        step_scheduler=gated,
    )
    files = await resolve_model(model, on_state)
    on_state(WorkerState.LOADING, f"vLLM with {files.name}")
    prepare_environment()
    sinks: list[Any] = []

    def on_steps(steps: Steps) -> None:
        for sink in sinks:
            sink(steps)

    def build() -> tuple[Any, Any]:
        try:
            from workers import vllm_backend
        except ModuleNotFoundError as error:
            raise UnavailableError("vLLM", "--engine vllm", f"{error}; {INSTALL}") from None
        overrides: dict[str, Any] = {"scheduling_policy": order}
        if limits.long_prefill_token_threshold >= limits.max_num_batched_tokens:
            overrides["long_prefill_token_threshold"] = 0
        return vllm_backend, vllm_backend.build(settings, files, on_steps, **overrides)

    backend, llm = await asyncio.to_thread(build)
    on = backend.step_scheduler_on(llm)
    if gated and not on:
        raise UnavailableError("vLLM", "--engine vllm", "the step scheduler does not work with it; see the log")
    return RealEngine(llm=llm, backend=backend, limits=backend.limits(llm, settings), gated=on, sinks=sinks)
