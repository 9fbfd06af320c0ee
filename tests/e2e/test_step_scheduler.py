"""Real vLLM with the step scheduler and a real model: what is held back gives the same answers."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from schemas.frames import StepPolicy
from schemas.settings import WorkerSettings
from workers.engine import Steps
from workers.models import resolve_model
from workers.step_notes import StepNote
from workers.vllm_engine import prepare_environment

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.e2e,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (pip install '.[cpu]')"),
]

PATIENCE = 300.0
STOP_SECONDS = 5.0
FILINGS = 4
FILING_TOKENS = 400
OUTPUT_TOKENS = 24
URGENT_TOKENS = 37
"""Unlike any chunk of a filing, so that a step that computed exactly this many was the urgent request's alone."""
HOLD_ALL = StepPolicy(
    lower_step_tokens=96, step_seconds=60.0, prefill_token_seconds=1e-3, decode_seconds=1e-3, kv_token_seconds=0.0
)
"""No step fits an urgent deadline by this model, so everything that can be held is held."""


@dataclass
class Engine:
    """A running vLLM and what each of its steps did."""

    llm: Any
    backend: Any
    steps: list[Steps] = field(default_factory=list)
    serial: int = 0

    async def run(self, prompt: list[int], output_tokens: int, note: StepNote | None, priority: int) -> list[int]:
        """Return the tokens that a prompt is continued with, the likeliest each time."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=output_tokens,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        if note is not None:
            params = self.backend.with_note(params, note)
        self.serial += 1
        tokens: list[int] = []
        async for output in self.llm.generate(
            self.backend.tokens_input(prompt), params, f"r{self.serial}", priority=priority
        ):
            tokens += output.outputs[0].token_ids
        return tokens


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    """Start vLLM with the step scheduler once. In single precision: which tokens share a step changes rounding."""
    files = await resolve_model("smollm2", lambda _state, _detail: None)
    prepare_environment()
    from workers import vllm_backend

    settings = WorkerSettings(
        engine="vllm",
        max_model_len=1024,
        max_num_batched_tokens=512,
        max_num_seqs=16,
        long_prefill_token_threshold=128,
        kv_cache_gib=0.5,
    )
    steps: list[Steps] = []
    llm = await asyncio.to_thread(
        vllm_backend.build, settings, files, steps.append, dtype="float32", enable_prefix_caching=False
    )
    yield Engine(llm, vllm_backend, steps)
    llm.output_handler.cancel()
    await asyncio.to_thread(llm.shutdown, timeout=STOP_SECONDS)
    llm.shutdown = lambda *_args, **_kwargs: None


def note(*, urgent: bool) -> StepNote:
    """Return a note whose deadline is near enough to hold everything and does not pass within the test."""
    deadline_ns = time.time_ns() + 60 * 10**9
    return StepNote(urgent=urgent, floor=False, deadline_ns=deadline_ns, cached_tokens=0, policy=HOLD_ALL)


def prompts(count: int, tokens: int, seed: int) -> list[list[int]]:
    """Return arbitrary prompts."""
    rng = random.Random(seed)
    return [[rng.randint(1_000, 40_000) for _ in range(tokens)] for _ in range(count)]


async def test_the_engine_runs_with_the_step_scheduler(engine: Engine) -> None:
    """The check passed, and vLLM was started with our scheduler in its own process."""
    assert engine.backend.step_scheduler_on(engine.llm)


async def test_what_is_held_back_gives_the_same_answers(engine: Engine) -> None:
    """Filings held for urgent work again and again, in prefill and in decode, produce the same tokens as undisturbed.

    That they were held shows in steps with the urgent tokens alone while filings were running.
    """
    filings = prompts(FILINGS, FILING_TOKENS, seed=1)
    async with asyncio.timeout(PATIENCE):
        undisturbed = await asyncio.gather(*(engine.run(f, OUTPUT_TOKENS, None, 2) for f in filings))
        engine.steps.clear()
        held = [asyncio.create_task(engine.run(f, OUTPUT_TOKENS, note(urgent=False), 2)) for f in filings]
        urgent = prompts(1000, URGENT_TOKENS, seed=2)
        answers: list[list[int]] = []
        while not all(task.done() for task in held):
            answers.append(await engine.run(urgent[len(answers)], 1, note(urgent=True), 0))
        disturbed = [await task for task in held]
    alone = [s for s in engine.steps if (s.prefill_tokens, s.decode_tokens) == (URGENT_TOKENS, 0) and s.running]
    first_decode = next(i for i, s in enumerate(engine.steps) if s.decode_tokens)
    early = [s for s in engine.steps[:first_decode] if s in alone]
    late = [s for s in engine.steps[first_decode:] if s in alone]
    assert early, "no prefill was held"
    assert late, "no decode was held"
    assert all(len(tokens) == OUTPUT_TOKENS for tokens in undisturbed)
    assert disturbed == undisturbed
    assert all(len(answer) == 1 for answer in answers)
    # In between they got their steps: within the valve, all together.
    assert all(s.prefill_tokens <= HOLD_ALL.lower_step_tokens + URGENT_TOKENS for s in engine.steps)
