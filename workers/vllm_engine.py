"""The real engine: vLLM's AsyncLLM in this process, its core and its model in processes of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import logging
import multiprocessing
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import structlog
from tokenizers import Tokenizer

from schemas.errors import ConfigError, ErrorKind, UnavailableError
from schemas.frames import Answer, EngineInfo, Failure, Limits, Request, Result, Started, StepPolicy
from schemas.identity import tokenizer_hash
from schemas.settings import WorkerSettings
from workers import orphan_guard
from workers.answers import Distributions, answer_of, label_distributions, object_distributions
from workers.calibration import Calibration
from workers.engine import (
    EngineDescription,
    EngineDiedError,
    EngineSink,
    OnState,
    RequestError,
    Steps,
    WorkerState,
    monotonic_to_epoch_ns,
    printable,
)
from workers.loading import leave_out, load_prompt_calibrations, load_prompts, require
from workers.models import INSTALL, ModelFiles, resolve_model
from workers.prompts import ExtractorError, Prompt, load_tokenizer
from workers.step_notes import engine_priority, note_for

NAME = "vllm"
STOP_SECONDS = 1.0
"""How long vLLM's processes get to end before they are killed. Left alone they take 12 s on a busy CPU, which is more
than a stop may take; by then nothing is in flight, and the kernel gives back what they hold."""
GONE = "vLLM's engine process ended"
WARM_UP_TEXT = "The company will hold its annual meeting of shareholders in May."
MIN_TEXT_TOKENS = 64
"""A context that leaves less than this for the text beside the longest prompt is a mistake in the settings."""

log = structlog.get_logger()


class VllmEngine:
    """Runs requests in vLLM, each in a task that ends in exactly one report.

    Args:
        settings: model and limits.
        sink: where results go.
        on_state: told what the engine is doing.
    """

    def __init__(self, settings: WorkerSettings, sink: EngineSink, on_state: OnState) -> None:
        self._settings = settings
        self._sink = sink
        self._on_state = on_state
        self._llm: Any = None
        self._backend: Any = None
        self._limits: Limits | None = None
        self._tokenizer: Tokenizer | None = None
        self._prompts: dict[str, Prompt] = {}
        self._refused: dict[str, ExtractorError] = {}
        self._calibrations: dict[str, Calibration] = {}
        self._params: dict[str, Any] = {}
        self._cached: dict[str, int] = {}
        self._flights: dict[int, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._serial = itertools.count()
        self._policy: StepPolicy | None = None
        self._warm = False
        self._gone = False
        self._steps = 0

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._flights)

    @property
    def steps(self) -> int:
        """Steps since the start, those of the warm-up included."""
        return self._steps

    async def start(self) -> EngineDescription:
        """Load the model and run every prompt and grammar once; see `Engine.start`."""
        if importlib.util.find_spec("vllm") is None:
            raise UnavailableError("vLLM", "worker.engine", f"not installed; {INSTALL}, or [gpu] with a GPU")
        files = await resolve_model(self._settings.model, self._on_state)
        tokenizer_json = files.tokenizer_json
        self._tokenizer = load_tokenizer(tokenizer_json, str(files.directory))
        self._prompts = load_prompts(self._settings, self._tokenizer, files.name)
        self._calibrations = load_prompt_calibrations(self._settings, files.revision, self._prompts)
        check_context(self._settings, files, self._prompts)
        self._on_state(WorkerState.LOADING, f"vLLM with {files.name}, about half a minute")
        self._llm = await self._build(files)
        self._limits = self._backend.limits(self._llm, self._settings)
        self._params = {
            name: self._backend.label_params(prompt) if prompt.heads else self._backend.object_params(prompt)
            for name, prompt in self._prompts.items()
        }
        block = self._limits.block_size
        # Only whole blocks of the shared prefix stay in vLLM's prefix cache.
        self._cached = {n: p.extractor.shared_prefix_tokens // block * block for n, p in self._prompts.items()}
        await self._warm_up()
        return EngineDescription(
            info=EngineInfo(
                name=NAME,
                version=self._backend.VERSION,
                model=files.name,
                model_revision=files.revision,
                tokenizer_hash=tokenizer_hash(tokenizer_json),
            ),
            limits=self._limits,
            extractors=[prompt.extractor for prompt in self._prompts.values()],
            tokenizer_json=tokenizer_json,
            step_gate=self._backend.step_scheduler_on(self._llm),
            steps_ahead=self._backend.steps_ahead(self._llm),
        )

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand requests to vLLM, most urgent first."""
        for request in requests:
            task = asyncio.create_task(self._run(request), name=f"request-{request.request_id}")
            self._flights[request.request_id] = task

    def set_policy(self, policy: StepPolicy) -> None:
        """Send this along with every request from now on; vLLM's engine process has no other way in."""
        self._policy = policy

    def abort(self, request_ids: Iterable[int]) -> None:
        """Cancel requests; vLLM frees their sequences and blocks before its next step."""
        for request_id in request_ids:
            task = self._flights.pop(request_id, None)
            if task is not None:
                task.cancel()
                # A cancelled task still has to tell the engine process; keep it until it has.
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)

    async def stop(self) -> None:
        """Abort everything and end vLLM's processes."""
        self._gone = True
        self.abort(list(self._flights))
        if self._ending:
            await asyncio.wait(self._ending, timeout=1.0)
        if self._llm is not None:
            llm, self._llm = self._llm, None
            if llm.output_handler is not None:
                # It would take the end of the engine for a failure and log a traceback.
                llm.output_handler.cancel()
            # It warns of each process that it kills after that time, which is what is meant to happen.
            for name in ("vllm.v1.utils", "vllm.utils.system_utils"):
                logging.getLogger(name).setLevel(logging.ERROR)
            await asyncio.to_thread(llm.shutdown, timeout=STOP_SECONDS)
            # Its finalizer shuts down once more while the interpreter is being torn down, and fails.
            llm.shutdown = lambda *_args, **_kwargs: None

    async def _build(self, files: ModelFiles) -> Any:
        """Start vLLM in a thread, so that the loop lives on and a stop in these 30 seconds is heard."""
        prepare_environment()
        building = asyncio.ensure_future(asyncio.to_thread(self._build_blocking, files))
        try:
            return await asyncio.shield(building)
        except asyncio.CancelledError:
            await _give_up(building)
            raise
        except ValueError as error:
            reason = f"vLLM does not take these settings with {files.directory}: {_reason(error)}"
            raise ConfigError("worker", reason) from None
        except Exception as error:
            raise EngineDiedError(NAME, f"it did not start with {files.directory}: {_reason(error)}") from error

    def _build_blocking(self, files: ModelFiles) -> Any:
        from workers import vllm_backend

        self._backend = vllm_backend
        return vllm_backend.build(self._settings, files, self._on_steps)

    def _on_steps(self, steps: Steps) -> None:
        self._steps += steps.steps
        if self._warm:
            self._sink.on_steps(steps)

    async def _warm_up(self) -> None:
        """Run each prompt twice: once to compile and fill the prefix cache, once as every later request runs."""
        for name in list(self._prompts) * 2:
            prompt = self._prompts.get(name)
            if prompt is None:
                continue
            self._on_state(WorkerState.WARMING, f"prompt {name}")
            text = self._tokens(WARM_UP_TEXT)
            ids = [*prompt.prefix, *text, *prompt.suffix]
            try:
                await self._generate(f"warm-up-{next(self._serial)}", prompt, ids)
            except RequestError as error:
                if error.kind is ErrorKind.GRAMMAR:
                    self._leave_out(prompt, error.reason)
                else:
                    # What the model makes of the text does not matter here, only that it ran.
                    log.warning("warm_up_answer_unusable", prompt=name, reason=error.reason)
            except Exception as error:
                reason = f"the warm-up of the extractor in {prompt.path} failed: {_reason(error)}"
                raise EngineDiedError(NAME, reason) from error
        require(self._prompts, self._refused.values())
        self._warm = True
        # Ends only with the engine: vLLM's own task that receives outputs.
        if self._llm.output_handler is not None:
            self._llm.output_handler.add_done_callback(lambda _task: self._died())

    def _leave_out(self, prompt: Prompt, reason: str) -> None:
        """Go on without an extractor whose grammar the engine does not take: one bad schema must not stop the rest."""
        self._refused[prompt.name] = ExtractorError(prompt.path, reason)
        del self._prompts[prompt.name]
        leave_out(self._refused[prompt.name])

    def _tokens(self, text: str) -> list[int]:
        tokenizer: Any = self._tokenizer
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    async def _run(self, request: Request) -> None:
        """Run one request and report its end, unless it was aborted meanwhile."""
        task = asyncio.current_task()
        report: Result | Failure
        try:
            report = await self._answer(request)
        except RequestError as error:
            report = error.failure(request.request_id)
        except Exception as error:  # noqa: BLE001 - whatever vLLM raises for one request must not end the others
            report = Failure(
                request_id=request.request_id,
                kind=ErrorKind.ENGINE_ERROR.value,
                message=f"{type(error).__name__}: {_reason(error)}",
                retryable=True,
            )
            if isinstance(error, self._backend.EngineDeadError):
                self._died()
                return
        self._forget(request.request_id, task, report)

    def _forget(self, request_id: int, task: asyncio.Task[None] | None, report: Result | Failure) -> None:
        if self._flights.get(request_id) is not task:
            return
        del self._flights[request_id]
        if isinstance(report, Result):
            self._sink.on_result(report)
        else:
            self._sink.on_failure(report)

    async def _answer(self, request: Request) -> Result:
        prompt = self._prompts.get(request.extractor)
        if prompt is None:
            if refused := self._refused.get(request.extractor):
                raise RequestError(ErrorKind.GRAMMAR, f"the extractor was left out: {refused.reason}")
            raise RequestError(ErrorKind.INVALID_VALUE, f"no extractor is named {request.extractor!r}")
        ids = prompt.assemble(request.text_tokens, self._settings.max_model_len)
        key = f"{request.request_id}-{next(self._serial)}"
        answer, metrics, output_tokens = await self._generate(key, prompt, ids, request)
        offset = monotonic_to_epoch_ns()
        return Result(
            request_id=request.request_id,
            answer=answer,
            engine_started_ns=_epoch_ns(metrics.scheduled_ts, offset),
            first_token_ns=_epoch_ns(metrics.first_token_ts, offset),
            completed_ns=_epoch_ns(metrics.last_token_ts, offset),
            prompt_tokens=len(ids),
            output_tokens=output_tokens,
        )

    async def _generate(
        self, key: str, prompt: Prompt, ids: list[int], request: Request | None = None
    ) -> tuple[Answer, Any, int]:
        """Run one prompt through vLLM; returns answer, vLLM's request metrics and the number of output tokens."""
        params, priority = self._params[prompt.name], 0
        if request is not None:
            priority = engine_priority(request)
            if self._backend.step_scheduler_on(self._llm):
                params = self._backend.with_note(params, note_for(request, self._cached[prompt.name], self._policy))
        tokens: list[int] = []
        logprobs: list[Any] = []
        output: Any = None
        try:
            stream = self._llm.generate(self._backend.tokens_input(ids), params, key, priority=priority)
            async for output in stream:
                part = output.outputs[0]
                if not tokens and part.token_ids and not output.finished and request is not None:
                    self._report_started(request.request_id, output.metrics)
                tokens += part.token_ids
                logprobs += part.logprobs or []
        except self._backend.REFUSALS as error:
            if self._warm:
                raise
            # vLLM looks at a schema before it goes to the engine; all else that it looks at then is our own.
            raise RequestError(ErrorKind.GRAMMAR, f"vLLM does not take it: {_reason(error)}") from None
        reason = output.outputs[0].finish_reason if output is not None else None
        if reason == "error":
            raise RequestError(ErrorKind.GRAMMAR, "vLLM cannot make a grammar of it", retryable=self._warm)
        if reason not in ("stop", "length"):
            raise RuntimeError(f"the engine ended the request with {reason!r}")
        raw = self._decode(prompt, tokens, logprobs, cut=reason == "length")
        return answer_of(raw, self._calibrations.get(prompt.name)), output.metrics, len(tokens)

    def _decode(self, prompt: Prompt, tokens: list[int], logprobs: list[Any], *, cut: bool) -> Distributions:
        """Decode vLLM's output: per token a mapping from token ids to log probabilities."""
        if prompt.heads:
            spreads = [{token: entry.logprob for token, entry in step.items()} for step in logprobs]
            return label_distributions(tokens, spreads, prompt.heads)
        sampled = [step[token].logprob for token, step in zip(tokens, logprobs, strict=False) if token in step]
        tokenizer: Any = self._tokenizer
        return object_distributions(tokens, sampled, tokenizer, prompt.template.labels, cut=cut)

    def _report_started(self, request_id: int, metrics: Any) -> None:
        offset = monotonic_to_epoch_ns()
        self._sink.on_started(
            Started(
                request_id=request_id,
                engine_started_ns=_epoch_ns(metrics.scheduled_ts, offset),
                first_token_ns=_epoch_ns(metrics.first_token_ts, offset),
            )
        )

    def _died(self) -> None:
        """Fail what is in flight and say that the engine is gone, once."""
        if self._gone:
            return
        self._gone = True
        for request_id, task in list(self._flights.items()):
            failure = Failure(request_id=request_id, kind=ErrorKind.ENGINE_ERROR.value, message=GONE, retryable=True)
            self._forget(request_id, task, failure)
        self._sink.on_died(GONE)


def prepare_environment() -> None:
    """Set what vLLM and its processes read from the environment; what an operator has set stays."""
    defaults = {
        # All files are on this machine by now.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # This process has threads and sockets, which a fork would copy in an undefined state.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
        # Longer than `STOP_SECONDS`: the engine process is killed, and the model's with it, before it warns
        # that the model's is still there.
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "5",
        # Deprecations inside libraries, and segments that a killed engine process left to the resource tracker.
        "PYTHONWARNINGS": "ignore::FutureWarning,ignore::DeprecationWarning,ignore:resource_tracker:UserWarning",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    os.environ[orphan_guard.OWNER] = str(os.getpid())


def check_context(settings: WorkerSettings, files: ModelFiles, prompts: dict[str, Prompt]) -> None:
    """Check that the context fits the model and leaves room for text.

    Raises:
        ConfigError: ``worker.max_model_len`` is too large or too small.
    """
    if files.context is not None and settings.max_model_len > files.context:
        reason = f"{settings.max_model_len} tokens, {files.name} was made for {files.context}"
        raise ConfigError("worker.max_model_len", reason)
    for prompt in prompts.values():
        needed = prompt.extractor.prompt_tokens + prompt.max_new_tokens + MIN_TEXT_TOKENS
        if needed > settings.max_model_len:
            reason = f"{settings.max_model_len} tokens, the prompt {prompt.name} needs at least {needed}"
            raise ConfigError("worker.max_model_len", reason)


async def _give_up(building: asyncio.Future[Any]) -> None:
    """End a start that nobody waits for any more: kill the engine process, which makes the start fail."""
    while not building.done():
        for child in multiprocessing.active_children():
            child.kill()
        await asyncio.wait({building}, timeout=0.2)
    with suppress(Exception):
        building.result().shutdown(timeout=0)


def _epoch_ns(monotonic_seconds: float, offset: int) -> int:
    """Convert one of vLLM's stamps, seconds on the monotonic clock; zero means that vLLM has none."""
    return int(monotonic_seconds * 1e9) + offset if monotonic_seconds else time.time_ns()


def _reason(error: BaseException) -> str:
    """Return one line that says what was wrong; vLLM's own and pydantic's errors are long."""
    details = getattr(error, "errors", None)
    text = str(details()[0]["msg"]) if callable(details) else str(error)
    lines = text.strip().splitlines()
    return printable(lines[0]) if lines else type(error).__name__
