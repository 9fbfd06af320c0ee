"""Two ways to ask a headline's heads on real vLLM: one request with a token per head, or a request per head."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from ops.bench.real_engine import RealEngine, start_engine
from ops.config import Settings
from ops.percentiles import percentile
from schemas.frames import Limits, StepPolicy
from workers.answers import Distributions, label_distributions
from workers.engine import Steps
from workers.extractor_files import load_extractors
from workers.models import resolve_model
from workers.prompts import Prompt, compile_prompt, load_tokenizer
from workers.step_notes import StepNote

EXTRACTOR = "headline"
SEQUENCE, PARALLEL, FIRST = "one request, a token per head", "a request per head", "the direction alone"
BURST = 20
FILINGS = 6
"""Filings in the engine at once while there is load: it is never without bulk work."""
FILING_TOKENS = 800
FILING_OUTPUT = 4
PER_SECOND = 3.0
"""Headlines under load; about half of what two cores answer with nothing else to do."""
SLO_SECONDS = 0.75
POLICY = StepPolicy(
    lower_step_tokens=128,
    step_seconds=0.025,
    prefill_token_seconds=6e-4,
    decode_seconds=1e-3,
    kv_token_seconds=3e-6,
)
"""About what the scheduler fits on two cores."""
LIMITS = Limits(
    max_model_len=2048,
    max_num_batched_tokens=256,
    long_prefill_token_threshold=128,
    max_num_seqs=32,
    kv_blocks=0,
    block_size=32,
)
"""Those of the demo."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """One way under one load (seconds are wall time; steps and tokens come from the engine's own counters)."""

    way: str
    load: str
    headlines: int
    p50_ms: float
    p99_ms: float
    steps: float
    prefill_tokens: float
    decode_tokens: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Repeat:
    """The same texts alone and under load.

    Args:
        differing: per head, the share of texts whose best label differed.
        largest: per head, the largest difference of one label's probability.
        again: largest difference over all heads between two runs alone.
    """

    texts: int
    differing: dict[str, float]
    largest: dict[str, float]
    again: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What was measured."""

    model: str
    figures: list[Figures]
    repeat: Repeat

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


async def measure(settings: Settings, headlines: int, say: Say) -> Comparison:
    """Start vLLM and compare.

    Args:
        settings: the model.
        headlines: texts per figure.
        say: told the progress.

    Raises:
        UnavailableError: vLLM is not installed.
        ConfigError: the model is wrong.
    """
    found = await resolve_model(settings.worker.model, lambda _state, detail: say(detail))
    tokenizer = load_tokenizer(found.tokenizer_json, str(found.directory))
    engine = await start_engine(
        settings.worker.model, LIMITS, order="priority", gated=True, on_state=lambda _state, detail: say(detail)
    )
    try:
        bench = _Bench(engine, tokenizer, _ways(tokenizer, found.name))
        figures: list[Figures] = []
        for way in bench.ways:
            await bench.headlines(way, bench.texts(4))  # compiles the grammar and fills the prefix cache
        for way in (FIRST, SEQUENCE, PARALLEL):
            say(f"{way}: alone")
            figures.append(await bench.alone(way, headlines))
            say(f"{way}: {BURST} at once")
            figures.append(await bench.burst(way))
            say(f"{way}: beside filings")
            figures.append(await bench.loaded(way, headlines))
        say("the same texts alone and under load")
        return Comparison(model=found.name, figures=figures, repeat=await bench.repeat(headlines))
    finally:
        await engine.stop()


def _ways(tokenizer: Tokenizer, model: str) -> dict[str, list[Prompt]]:
    """Return the prompts of each way: the shipped one, and one per head behind a prefix that all of them share."""
    file = next(each for each in load_extractors() if each.template.name == EXTRACTOR)
    shipped = compile_prompt(file, tokenizer, model)
    template = file.template
    # The examples answer head after head on lines of their own, so that each line can be asked for by itself.
    asks = {head.name: f"\n{head.name.replace('_', ' ').capitalize()}:" for head in template.heads}

    def ids(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    prefix = ids(template.intro)
    for example in template.examples:
        prefix += ids(template.lead) + ids(example.text)
        for head in template.heads:
            prefix += ids(asks[head.name]) + ids(head.labels[example.answer[head.name]])
        prefix += ids(template.close)
    prefix += ids(template.lead)
    single = [
        replace(
            shipped,
            template=msgspec.structs.replace(template, heads=[head]),
            prefix=prefix,
            suffix=ids(asks[head.name]),
            heads={head.name: shipped.heads[head.name]},
            max_new_tokens=1,
        )
        for head in template.heads
    ]
    direction = replace(single[0], prefix=shipped.prefix, suffix=shipped.suffix)
    return {SEQUENCE: [shipped], PARALLEL: single, FIRST: [direction]}


class _Bench:
    """Asks the engine and keeps the time."""

    def __init__(self, engine: RealEngine, tokenizer: Tokenizer, ways: dict[str, list[Prompt]]) -> None:
        self.ways = ways
        self._engine = engine
        self._tokenizer = tokenizer
        self._serial = itertools.count()
        self._params = {id(p): engine.backend.label_params(p) for prompts in ways.values() for p in prompts}
        self._steps: list[Steps] = []
        self._random = random.Random(1)  # noqa: S311 - the arrivals of a benchmark
        lines = (files("producers") / "samples" / "news.jsonl").read_text(encoding="utf-8").splitlines()
        self._samples = itertools.cycle(headline for line in lines if (headline := json.loads(line).get("headline")))
        self._words = " ".join(next(self._samples) for _ in range(100)).split()
        engine.sinks.append(self._steps.append)

    def texts(self, count: int) -> list[str]:
        """Return sample headlines that were never asked before, so that no cache knows them."""
        return [f"{next(self._samples)} ({next(self._serial)})" for _ in range(count)]

    async def headlines(self, way: str, texts: Sequence[str]) -> list[Distributions]:
        """Ask about texts one after another."""
        return [await self._headline(way, text) for text in texts]

    async def _headline(self, way: str, text: str) -> Distributions:
        ids = self._ids(text)
        block = self._engine.limits.block_size
        asked = []
        for number, prompt in enumerate(self.ways[way]):
            # What stands before the suffix is in the cache by the time of the second request.
            shared = len(prompt.prefix) + (len(ids) if number else 0)
            asked.append(self._ask([*prompt.prefix, *ids, *prompt.suffix], prompt, shared // block * block))
        answers = await asyncio.gather(*asked)
        return {head: spread for answer in answers for head, spread in answer.items()}

    async def _ask(self, ids: list[int], prompt: Prompt, cached: int) -> Distributions:
        note = StepNote(
            urgent=True,
            floor=False,
            deadline_ns=time.time_ns() + int(SLO_SECONDS * 1e9),
            cached_tokens=cached,
            policy=POLICY,
        )
        params = self._engine.backend.with_note(self._params[id(prompt)], note)
        tokens: list[int] = []
        spreads: list[dict[int, float]] = []
        async for output in self._engine.generate(f"h{next(self._serial)}", ids, params, 0):
            part = output.outputs[0]
            tokens += part.token_ids
            spreads += [{i: entry.logprob for i, entry in step.items()} for step in part.logprobs or []]
        return label_distributions(tokens, spreads, prompt.heads)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    async def alone(self, way: str, count: int) -> Figures:
        """One headline after another with nothing else in the engine."""
        return await self._timed(way, "alone", [0.0] * count, one_by_one=True)

    async def burst(self, way: str) -> Figures:
        """Headlines at the same moment."""
        return await self._timed(way, f"{BURST} at once", [0.0] * BURST)

    async def loaded(self, way: str, count: int) -> Figures:
        """Headlines at random moments while filings fill the engine."""
        gaps = [self._random.expovariate(PER_SECOND) for _ in range(count)]
        async with _filings(self._filing):
            return await self._timed(way, "beside filings", gaps)

    async def _timed(self, way: str, load: str, gaps: Sequence[float], *, one_by_one: bool = False) -> Figures:
        texts = self.texts(len(gaps))
        times: list[float] = []
        self._steps.clear()

        async def one(text: str) -> None:
            begun = time.perf_counter()
            await self._headline(way, text)
            times.append((time.perf_counter() - begun) * 1e3)

        tasks = []
        for text, gap in zip(texts, gaps, strict=True):
            await asyncio.sleep(gap)
            tasks.append(asyncio.create_task(one(text)))
            if one_by_one:
                await tasks[-1]
        await asyncio.gather(*tasks)
        await asyncio.sleep(0.05)  # the last step's statistics come behind its outputs
        steps = [s for s in self._steps if s.prefill_tokens or s.decode_tokens]
        times.sort()
        return Figures(
            way=way,
            load=load,
            headlines=len(times),
            p50_ms=percentile(times, 50),
            p99_ms=percentile(times, 99),
            steps=len(steps) / len(times),
            prefill_tokens=sum(s.prefill_tokens for s in steps) / len(times),
            decode_tokens=sum(s.decode_tokens for s in steps) / len(times),
        )

    async def _filing(self) -> None:
        words = self._random.sample(self._words, min(600, len(self._words)))
        ids = self._ids(f"{next(self._serial)} {' '.join(words)}" * 2)[:FILING_TOKENS]
        note = StepNote(urgent=False, floor=False, deadline_ns=2**62, cached_tokens=0, policy=POLICY)
        params = self._engine.backend.with_note(self._engine.backend.plain_params(FILING_OUTPUT), note)
        async for _output in self._engine.generate(f"f{next(self._serial)}", ids, params, 2):
            pass

    async def _afresh(self, texts: Sequence[str]) -> list[Distributions]:
        """Ask about texts that the prefix cache has forgotten."""
        await self._engine.llm.reset_prefix_cache()
        return await self.headlines(SEQUENCE, texts)

    async def repeat(self, count: int) -> Repeat:
        """Ask the same texts twice alone and once beside filings and each other."""
        texts = self.texts(count)
        first = await self._afresh(texts)
        again = await self._afresh(texts)
        async with _filings(self._filing):
            await self._engine.llm.reset_prefix_cache()
            beside = await asyncio.gather(*(self._headline(SEQUENCE, text) for text in texts))
        pairs = list(zip(first, beside, strict=True))
        heads = list(first[0])
        return Repeat(
            texts=count,
            differing={head: sum(_best(a[head]) != _best(b[head]) for a, b in pairs) / count for head in heads},
            largest={head: max(_apart(a[head], b[head]) for a, b in pairs) for head in heads},
            again=max(_apart(a[head], b[head]) for a, b in zip(first, again, strict=True) for head in heads),
        )


class _filings:  # noqa: N801 - used like a function
    """Keeps filings in the engine for the length of a block."""

    def __init__(self, filing: Callable[[], Any]) -> None:
        self._filing = filing
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False

    async def _go_on(self) -> None:
        while not self._over:
            await self._filing()

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(self._go_on()) for _ in range(FILINGS)]
        await asyncio.sleep(1)

    async def __aexit__(self, *_error: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)


def _best(spread: dict[str, float]) -> str:
    return max(spread, key=spread.__getitem__)


def _apart(a: dict[str, float], b: dict[str, float]) -> float:
    return max(abs(a[label] - b[label]) for label in a)


def show(comparison: Comparison, console: Console) -> None:
    """Print the comparison for people."""
    table = Table(title=f"heads of a headline, real vLLM with {comparison.model}")
    for column in ("way", "load", "headlines", "p50 ms", "p99 ms", "steps", "prefill tokens", "decode tokens"):
        table.add_column(column, justify="left" if column in {"way", "load"} else "right")
    for f in comparison.figures:
        counts = (f"{value:.1f}" for value in (f.steps, f.prefill_tokens, f.decode_tokens))
        table.add_row(f.way, f.load, str(f.headlines), f"{f.p50_ms:.0f}", f"{f.p99_ms:.0f}", *counts)
    console.print(table, "steps and tokens per headline, the filings' own among them")
    repeat = comparison.repeat
    for head, share in repeat.differing.items():
        console.print(
            f"{head}: the label differs for {share:.1%} of {repeat.texts} texts between alone and under load, "
            f"probabilities by up to {repeat.largest[head]:.4f}"
        )
    console.print(f"twice alone: probabilities differ by up to {repeat.again:.4f}")
