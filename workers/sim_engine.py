"""A simulated engine in real time: `SimCore` decides the steps, the event loop's clock pays for them.

With all costs zero nothing is modelled: a request is answered in the loop turn in which it came, which makes this
engine the measuring weight for everything around it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from zlib import crc32

from schemas.errors import ErrorKind
from schemas.frames import FEW_PROMPT_TOKENS, Answer, EngineInfo, Failure, Limits, Request, Result, Started, StepPolicy
from schemas.identity import tokenizer_hash
from schemas.settings import WorkerSettings
from workers import sim_core
from workers.answers import Distributions, answer_of
from workers.calibration import Calibration
from workers.engine import EngineDescription, EngineSink, OnState, Steps, WorkerState
from workers.loading import load_prompt_calibrations, load_prompts
from workers.prompts import Prompt, load_tokenizer
from workers.sim_core import Costs, SimCore
from workers.step_gate import StepGate

NAME = "sim"
VERSION = "2"
REVISION = blake2b(f"{NAME}-{VERSION}".encode(), digest_size=8).hexdigest()
"""Stands for the model's in signals and calibrations."""
TOKENIZER = Path(__file__).with_name("sim_tokenizer.json")
BLOCK_SIZE = 16
"""Tokens of a KV block; vLLM's default on a GPU."""
ANSWERS = 251
"""Distinct answers per extractor. A prime, so that the checksum of the text spreads over all of them."""


@dataclass(kw_only=True, slots=True)
class _Flight:
    """One request in the modelled engine."""

    answer: Answer
    prompt_tokens: int
    output_tokens: int
    started_ns: int = 0
    first_token_ns: int = 0


class SimEngine:
    """An engine without a model; answers depend on nothing but the text's token ids.

    Args:
        settings: limits and the ``sim_`` costs.
        sink: where results go.
        on_state: told what the engine is doing.
        clock_ns: nanoseconds since the epoch.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        sink: EngineSink,
        on_state: OnState,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._on_state = on_state
        self._clock_ns = clock_ns
        self._limits = Limits(
            max_model_len=settings.max_model_len,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            long_prefill_token_threshold=settings.long_prefill_token_threshold,
            max_num_seqs=settings.max_num_seqs,
            kv_blocks=settings.sim_kv_blocks,
            block_size=BLOCK_SIZE,
        )
        self._costs = Costs(
            step=settings.sim_step_ms / 1e3,
            prefill_token=settings.sim_prefill_token_us / 1e6,
            decode=settings.sim_decode_us / 1e6,
        )
        self._prompts: dict[str, Prompt] = {}
        self._answers: dict[str, list[Answer]] = {}
        self._gated = settings.step_scheduler
        self._core = SimCore(self._limits)
        self._flights: dict[int, _Flight] = {}
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._steps = 0

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._flights)

    @property
    def steps(self) -> int:
        """Steps since the start."""
        return self._steps

    async def start(self) -> EngineDescription:
        """Compile the prompts and start the step loop."""
        self._on_state(WorkerState.LOADING, "simulated engine")
        tokenizer_json = TOKENIZER.read_bytes()
        tokenizer = load_tokenizer(tokenizer_json, str(TOKENIZER))
        self._prompts = load_prompts(self._settings, tokenizer, NAME, exact=False)
        calibrations = load_prompt_calibrations(self._settings, REVISION, self._prompts)
        self._answers = {name: _answers(prompt, calibrations.get(name)) for name, prompt in self._prompts.items()}
        cached = sum(len(prompt.prefix) // BLOCK_SIZE for prompt in self._prompts.values())
        gate = StepGate(self._limits.max_num_batched_tokens) if self._gated else None
        self._core = SimCore(self._limits, cached, gate)
        self._task = asyncio.create_task(self._run(), name="sim-engine")
        self._task.add_done_callback(self._ended)
        return EngineDescription(
            info=EngineInfo(
                name=NAME,
                version=VERSION,
                model=NAME,
                model_revision=REVISION,
                tokenizer_hash=tokenizer_hash(tokenizer_json),
            ),
            limits=self._limits,
            extractors=[prompt.extractor for prompt in self._prompts.values()],
            tokenizer_json=tokenizer_json,
            step_gate=self._gated,
        )

    def submit(self, requests: Sequence[Request]) -> None:
        """Take work; with all costs zero, it is answered before this returns."""
        now = self._clock_ns()
        prefill_tokens = answered = 0
        instant = self._costs.nothing
        for request in requests:
            prompt = self._prompts.get(request.extractor)
            if prompt is None:
                self._refuse(request, ErrorKind.INVALID_VALUE, f"no extractor is named {request.extractor!r}")
                continue
            text_tokens = len(request.text_tokens) // 4
            prompt_tokens = len(prompt.prefix) + text_tokens + len(prompt.suffix)
            if not text_tokens:
                self._refuse(request, ErrorKind.EMPTY_TEXT, "text_tokens is empty")
            elif not self._core.fits(prompt_tokens, prompt.max_new_tokens, len(prompt.prefix)):
                self._refuse(request, ErrorKind.TEXT_TOO_LONG, f"a prompt of {prompt_tokens} tokens does not fit")
            elif instant:
                checksum = crc32(request.text_tokens)
                self._sink.on_result(
                    Result(
                        request_id=request.request_id,
                        answer=self._answers[request.extractor][checksum % ANSWERS],
                        engine_started_ns=now,
                        first_token_ns=now,
                        completed_ns=now,
                        prompt_tokens=prompt_tokens,
                        output_tokens=_output_tokens(prompt, checksum),
                    )
                )
                prefill_tokens += text_tokens
                answered += 1
            else:
                self._queue(request, prompt, prompt_tokens)
        if answered:
            self._report(0.0, prefill_tokens, answered)

    def set_policy(self, policy: StepPolicy) -> None:
        """Split the next steps like this."""
        self._core.policy = policy

    def abort(self, request_ids: Iterable[int]) -> None:
        """Forget requests; nothing is reported for them."""
        ids = list(request_ids)
        for request_id in ids:
            self._flights.pop(request_id, None)
        self._core.abort(ids)

    async def stop(self) -> None:
        """Stop the step loop; what is in flight is forgotten."""
        self._flights.clear()
        if self._task is not None:
            self._task.remove_done_callback(self._ended)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _queue(self, request: Request, prompt: Prompt, prompt_tokens: int) -> None:
        checksum = crc32(request.text_tokens)
        output_tokens = _output_tokens(prompt, checksum)
        self._flights[request.request_id] = _Flight(
            answer=self._answers[request.extractor][checksum % ANSWERS],
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )
        self._core.add(
            sim_core.Sequence(
                request_id=request.request_id,
                priority=request.priority,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                shared_tokens=len(prompt.prefix),
                deadline_ns=request.deadline_ns,
                floor=request.floor,
            )
        )
        self._work.set()

    def _refuse(self, request: Request, kind: ErrorKind, message: str) -> None:
        self._sink.on_failure(Failure(request_id=request.request_id, kind=kind.value, message=message, retryable=False))

    async def _run(self) -> None:
        """Make steps as long as there is work; each ends at the modelled time, whatever the timer's grain."""
        loop = asyncio.get_running_loop()
        free_at = 0.0
        while True:
            step = self._core.schedule(self._clock_ns())
            if step is None:
                self._work.clear()
                await self._work.wait()
                continue
            started_ns = self._clock_ns()
            for sequence in step.admitted:
                flight = self._flights[sequence.request_id]
                flight.started_ns = flight.started_ns or started_ns
            seconds = self._costs.seconds(step)
            free_at = max(free_at, loop.time()) + seconds
            await asyncio.sleep(free_at - loop.time())
            self._deliver(self._core.apply(step))
            self._report(seconds, step.prefill_tokens, step.decode_tokens)

    def _deliver(self, produced: sim_core.Produced) -> None:
        now = self._clock_ns()
        finished = set(produced.finished)
        for request_id in produced.first:
            flight = self._flights[request_id]
            flight.first_token_ns = now
            if request_id not in finished:
                self._sink.on_started(
                    Started(request_id=request_id, engine_started_ns=flight.started_ns, first_token_ns=now)
                )
        for request_id in produced.finished:
            flight = self._flights.pop(request_id)
            self._sink.on_result(
                Result(
                    request_id=request_id,
                    answer=flight.answer,
                    engine_started_ns=flight.started_ns,
                    first_token_ns=flight.first_token_ns,
                    completed_ns=now,
                    prompt_tokens=flight.prompt_tokens,
                    output_tokens=flight.output_tokens,
                )
            )

    def _report(self, seconds: float, prefill_tokens: int, decode_tokens: int) -> None:
        self._steps += 1
        self._sink.on_steps(
            Steps(
                steps=1,
                seconds=seconds,
                prefill_tokens=prefill_tokens,
                decode_tokens=decode_tokens,
                running=self._core.running,
                waiting=self._core.waiting,
                kv_usage=self._core.used_blocks / self._limits.kv_blocks,
                decode_steps=int(prefill_tokens < FEW_PROMPT_TOKENS),
            )
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A step loop that ends by itself is a defect; the process must not live on as if it had an engine."""
        if task.cancelled():
            return
        flights, self._flights = list(self._flights), {}
        for request_id in flights:
            self._sink.on_failure(
                Failure(
                    request_id=request_id,
                    kind=ErrorKind.ENGINE_ERROR.value,
                    message="the engine died",
                    retryable=True,
                )
            )
        self._sink.on_died(f"the step loop ended: {task.exception()!r}")


def _output_tokens(prompt: Prompt, checksum: int) -> int:
    """Return how long the answer to a text is: a label token per head, or a JSON object of the usual length."""
    if prompt.heads:
        return len(prompt.heads)
    longest = prompt.max_new_tokens
    return longest * 3 // 4 + checksum % (longest // 4 + 1)


def _answers(prompt: Prompt, calibration: Calibration | None) -> list[Answer]:
    """Return the answers of one extractor, made once: no arithmetic per request."""
    return [answer_of(_distributions(prompt, number), calibration) for number in range(ANSWERS)]


def _distributions(prompt: Prompt, number: int) -> Distributions:
    """Return the distributions of one answer: every head has a label that is likelier than the others together.

    Each head takes its label from a digit of the number of its own, so that they vary independently.
    """
    certainty = 0.5 + 0.45 * number / ANSWERS
    found: Distributions = {}
    digits = number
    for head, labels in prompt.template.labels.items():
        chosen = labels[digits % len(labels)]
        digits = digits // len(labels) or number + len(found)
        rest = (1 - certainty) / (len(labels) - 1)
        found[head] = {label: certainty if label == chosen else rest for label in labels}
    return found
