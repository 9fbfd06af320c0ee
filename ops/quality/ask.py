"""Ask an engine in this process about texts, with the scheduler's own tokenizer and without Kafka."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from scheduler.hygiene import clean, same_length
from scheduler.tokens import TextTokenizer, Tokens
from schemas.enums import Direction
from schemas.errors import ConfigError
from schemas.frames import Answer, Extractor, Failure, Request, Result, Started
from schemas.settings import WorkerSettings
from workers.engine import Engine, EngineDescription, EngineDiedError, Steps, WorkerState
from workers.process import create_engine

NO_DEADLINE_NS = 2**62
"""Beyond every clock: nothing here expires."""
SERVICE_CLASS = "eval"
DIRECTION = "direction"
"""Name of the head that every extractor has."""
SETTLE_TURNS = 20
"""Turns of the event loop after the last answer in which the report of its step still arrives: vLLM hands out a
step's outputs first and its statistics right after, from the same task."""

Say = Callable[[str], None]
"""Called with one short line about what takes long."""

Distributions = dict[str, dict[str, float]]
"""Per head, the probability of each label."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What became of one text.

    Args:
        raw: the model's own distribution per head; empty after a failure.
        failure: why there is no answer.
        seconds: from handing it to the engine to its answer.
    """

    raw: Distributions
    failure: Failure | None = None
    seconds: float = 0.0


@dataclass(kw_only=True, slots=True)
class StepCount:
    """What the engine's own counters say about some texts."""

    steps: int = 0
    seconds: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0


@dataclass(slots=True)
class _Sink:
    """Turns an engine's calls into futures."""

    waiting: dict[int, asyncio.Future[Result | Failure]] = field(default_factory=dict)
    count: StepCount = field(default_factory=StepCount)

    def on_started(self, started: Started) -> None:
        """Pass over it."""

    def on_result(self, result: Result) -> None:
        """Hand over an answer."""
        self._end(result.request_id, result)

    def on_failure(self, failure: Failure) -> None:
        """Hand over a failure."""
        self._end(failure.request_id, failure)

    def on_steps(self, steps: Steps) -> None:
        """Count."""
        self.count.steps += steps.steps
        self.count.seconds += steps.seconds
        self.count.prefill_tokens += steps.prefill_tokens
        self.count.decode_tokens += steps.decode_tokens

    def on_died(self, reason: str) -> None:
        """Fail whatever still waits."""
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(EngineDiedError("here", reason))

    def _end(self, request_id: int, outcome: Result | Failure) -> None:
        future = self.waiting.pop(request_id, None)
        if future is not None and not future.done():
            future.set_result(outcome)


class Asker:
    """A warm engine and one extractor; made by `asking`.

    Args:
        engine: started.
        description: as it came up.
        extractor: what is asked.
        sink: the one that the engine was made with.
        serial: numbers for requests, those of all askers of one engine.
    """

    def __init__(
        self,
        engine: Engine,
        description: EngineDescription,
        extractor: Extractor,
        sink: _Sink,
        serial: Iterator[int] | None = None,
    ) -> None:
        self._engine = engine
        self._sink = sink
        self._serial = serial if serial is not None else itertools.count(1)
        self.description = description
        self.extractor = extractor
        self.tokenizer = TextTokenizer(description.tokenizer_json, description.info.tokenizer_hash)
        room = description.limits.max_model_len - extractor.prompt_tokens - extractor.max_new_tokens
        # What is read piece by piece is judged by its first piece: as much as one answer is about.
        self.text_limit = min(room, extractor.chunk_tokens or room)

    @property
    def heads(self) -> dict[str, list[str]]:
        """The extractor's heads and their labels."""
        return self.extractor.heads or {DIRECTION: [direction.value for direction in Direction]}

    async def ask(
        self,
        texts: Sequence[str],
        *,
        concurrency: int = 1,
        encode: Callable[[str], Tokens] | None = None,
        say: Say | None = None,
    ) -> tuple[list[Reply], StepCount]:
        """Ask about texts.

        Args:
            texts: as the records have them.
            concurrency: texts in the engine at the same time. With one, the latency is that of a text alone and the
                steps are what a text costs.
            encode: from text to tokens; none means the scheduler's way.
            say: told the progress.

        Returns:
            a reply per text, in their order, and the engine's counters over all of them.

        Raises:
            EngineDiedError: the engine is gone.
        """
        before = self._sink.count
        self._sink.count = StepCount()
        slots = asyncio.Semaphore(concurrency)
        done = 0

        async def one(text: str) -> Reply:
            nonlocal done
            async with slots:
                reply = await self._one((encode or self.encode)(text))
            done += 1
            if say is not None:
                say(f"{done} of {len(texts)} texts")
            return reply

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(text)) for text in texts]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
        counted, self._sink.count = self._sink.count, before
        return [task.result() for task in tasks], counted

    def encode(self, text: str) -> Tokens:
        """Return a text as the scheduler would send it: cleaned, special tokens as text, cut to the limit."""
        cleaned = same_length(text) if self.extractor.chunk_tokens else clean(text)
        return self.tokenizer.encode([cleaned], self.text_limit)[0]

    def about(self, extractor: str) -> Asker:
        """Return an asker of the same engine for another of its extractors.

        Raises:
            ConfigError: it has none of that name.
        """
        return Asker(self._engine, self.description, _extractor(self.description, extractor), self._sink, self._serial)

    async def _one(self, tokens: Tokens) -> Reply:
        number = next(self._serial)
        request = Request(
            request_id=number,
            text_tokens=tokens.ids,
            service_class=SERVICE_CLASS,
            priority=0,
            deadline_ns=NO_DEADLINE_NS,
            extractor=self.extractor.name,
        )
        future: asyncio.Future[Result | Failure] = asyncio.get_running_loop().create_future()
        self._sink.waiting[number] = future
        begun = time.perf_counter()
        self._engine.submit([request])
        outcome = await future
        seconds = time.perf_counter() - begun
        if isinstance(outcome, Failure):
            return Reply(raw={}, failure=outcome, seconds=seconds)
        return Reply(raw=raw_of(outcome.answer), seconds=seconds)


def raw_of(answer: Answer) -> Distributions:
    """Return the model's own distributions; an engine that reports none apart gives what it says."""
    if answer.raw:
        return answer.raw
    return {DIRECTION: {direction.value: p for direction, p in answer.probabilities.items()}, **answer.heads}


def _extractor(description: EngineDescription, name: str) -> Extractor:
    found = {each.name: each for each in description.extractors}
    if name not in found:
        raise ConfigError("--extractor", f"{name!r} is no extractor; there are {', '.join(found)}")
    return found[name]


@asynccontextmanager
async def asking(settings: WorkerSettings, extractor: str, say: Say) -> AsyncIterator[Asker]:
    """Start an engine for one extractor; it is stopped at the end of the block.

    Raises:
        ConfigError: a setting, the model or the extractor's name is wrong.
        UnavailableError: the model or a package is missing.
        EngineDiedError: the engine did not come up.
    """
    sink = _Sink()

    def on_state(state: WorkerState, detail: str) -> None:
        say(f"{state.value} {detail}".strip())

    engine = create_engine(settings, sink, on_state)
    try:
        description = await engine.start()
        yield Asker(engine, description, _extractor(description, extractor), sink)
    finally:
        await engine.stop()
