"""``tapewire bench prompts``: what it costs to get an event's text into an engine, event by event and in parts.

Everything runs on one core and in CPU time, so that other processes on the machine are not its cost.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aiokafka import ConsumerRecord
from rich.console import Console
from rich.table import Table

import workers
from ops.bench.made_filings import WORDS
from producers.sample_data import sample_events
from scheduler.admit import Admission
from scheduler.chunks import split
from scheduler.figures import key_figures
from scheduler.filing_text import ChunkSize
from scheduler.ledger import Ledger
from scheduler.outcomes import Outcomes
from scheduler.publisher import Publisher
from scheduler.stats import Stats
from scheduler.tokens import TextTokenizer, TokenizerFileError
from schemas.codec import encode_json
from schemas.enums import NewsStatus
from schemas.errors import ConfigError
from schemas.identity import tokenizer_hash
from schemas.records import NewsEvent
from schemas.settings import KafkaSettings, SchedulerSettings
from workers.extractor_files import load_extractors
from workers.prompts import compile_prompts, load_tokenizer

SIM_TOKENIZER = Path(workers.__file__).with_name("sim_tokenizer.json")
HEADLINES = 4_000
FILING_CHARS = 400_000
CHUNK = ChunkSize(1024, 64)
BATCHES = (1, 100)
TEXT_LIMIT = 2_048
REPEATS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptCosts:
    """CPU time on one core.

    Args:
        tokenizer: file that was measured.
        headline_chars: mean length of the headlines.
        tokenise_us: per headline, by how many are encoded at once.
        headlines_per_s: tokenised on one core, in batches of 100.
        admit_us: per headline, from the fetched record to queued work: decoding, tokenising, class, the work itself.
        assemble_us: per headline in the worker, prompt around text.
        filing_tokens: of a filing of `FILING_CHARS` characters.
        filing_encode_ms, filing_split_ms, filing_figures_ms: for that filing.
        filing_chunks: chunks that it is split into.
        chunk_assemble_us: per chunk in the worker.
    """

    tokenizer: str
    headline_chars: float
    tokenise_us: dict[int, float]
    headlines_per_s: float
    admit_us: float
    assemble_us: float
    filing_tokens: int
    filing_encode_ms: float
    filing_split_ms: float
    filing_figures_ms: float
    filing_chunks: int
    chunk_assemble_us: float

    def as_dict(self) -> dict[str, Any]:
        """Return the figures under the names of the JSON output."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


def measure(file: Path | None) -> PromptCosts:
    """Measure with a ``tokenizer.json``, or with the simulated engine's.

    Raises:
        ConfigError: the file is no tokenizer, or the shipped prompts do not work with it.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    path = file or SIM_TOKENIZER
    try:
        data = path.read_bytes()
        tokenizer = TextTokenizer(data, tokenizer_hash(data))
    except (OSError, TokenizerFileError) as error:
        raise ConfigError("--tokenizer", f"{path}: {error}") from None
    prompts, refused = compile_prompts(load_extractors(), load_tokenizer(data, str(path)), path.name, exact=False)
    if refused:
        raise refused[0]
    events = _headlines()
    texts = [event.headline for event in events]
    tokenise = {
        size: _best(lambda size=size: _encode(tokenizer, texts, size)) / len(texts)  # type: ignore[misc]
        for size in BATCHES
    }
    filing = _filing()
    encoded = tokenizer.encode_long(filing)
    chunks = split(filing, encoded, CHUNK.most, CHUNK.overlap)
    headline_ids = [tokens.ids for tokens in tokenizer.encode(texts, TEXT_LIMIT)]
    return PromptCosts(
        tokenizer=path.name,
        headline_chars=sum(map(len, texts)) / len(texts),
        tokenise_us={size: seconds * 1e6 for size, seconds in tokenise.items()},
        headlines_per_s=1 / tokenise[max(BATCHES)],
        admit_us=_admission(events, tokenizer) / len(events) * 1e6,
        assemble_us=_best(lambda: _assemble(prompts["headline"], headline_ids)) / len(texts) * 1e6,
        filing_tokens=len(encoded),
        filing_encode_ms=_best(lambda: tokenizer.encode_long(filing)) * 1e3,
        filing_split_ms=_best(lambda: split(filing, encoded, CHUNK.most, CHUNK.overlap)) * 1e3,
        filing_figures_ms=_best(lambda: key_figures(filing, 1)) * 1e3,
        filing_chunks=len(chunks),
        chunk_assemble_us=_best(lambda: _assemble(prompts["filing"], [c.tokens for c in chunks])) / len(chunks) * 1e6,
    )


def table(costs: PromptCosts, console: Console) -> None:
    """Print the costs for people."""
    shown = Table(title=f"tapewire bench prompts, {costs.tokenizer}, CPU time on one core", title_justify="left")
    shown.add_column("per headline")
    shown.add_column("", justify="right")
    for size, cost in costs.tokenise_us.items():
        shown.add_row(f"tokenising, {size} at once", f"{cost:.1f} µs")
    shown.add_row("tokenised", f"{costs.headlines_per_s:,.0f}/s")
    shown.add_row("fetched record to queued work, all in all", f"{costs.admit_us:.1f} µs")
    shown.add_row("prompt around the text, in the worker", f"{costs.assemble_us:.1f} µs")
    shown.add_section()
    shown.add_row(f"a filing of {FILING_CHARS:,} characters", f"{costs.filing_tokens:,} tokens")
    shown.add_row("encoding it", f"{costs.filing_encode_ms:.0f} ms")
    shown.add_row(f"splitting it into {costs.filing_chunks} chunks", f"{costs.filing_split_ms:.1f} ms")
    shown.add_row("its key figures", f"{costs.filing_figures_ms:.0f} ms")
    shown.add_row("prompt around a chunk, in the worker", f"{costs.chunk_assemble_us:.1f} µs")
    console.print(shown)


def _best(work: Callable[[], object]) -> float:
    """Return the least CPU seconds of a few runs; the first one fills the tokenizer's cache."""
    return min(_cpu(work) for _ in range(REPEATS))


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _headlines() -> list[NewsEvent]:
    """Return headlines that differ, so that the tokenizer's cache of words is as full as in a day of news."""
    found = [e for e in sample_events("news") if isinstance(e, NewsEvent) and e.status is not NewsStatus.KILLED]
    made: list[NewsEvent] = []
    for number in range(HEADLINES):
        event = found[number % len(found)]
        headline = f"{WORDS[number % len(WORDS)].title()} {number}: {event.headline}"
        made.append(
            NewsEvent(
                event_id=f"bench:{number}:1", source="bench", headline=headline, received_at_ns=event.received_at_ns
            )
        )
    return made


def _filing() -> str:
    texts = [getattr(event, "text", "") for event in sample_events("filings")]
    whole = "\n\n".join(texts)
    return (whole * (FILING_CHARS // len(whole) + 1))[:FILING_CHARS]


def _encode(tokenizer: TextTokenizer, texts: Sequence[str], size: int) -> None:
    for begin in range(0, len(texts), size):
        tokenizer.encode(list(texts[begin : begin + size]), TEXT_LIMIT)


def _assemble(prompt: Any, texts: Sequence[bytes]) -> None:
    for ids in texts:
        prompt.assemble(ids, 1 << 20)


def _admission(events: Sequence[NewsEvent], tokenizer: TextTokenizer) -> float:
    """Return the CPU seconds of taking fetched records in, in batches as a busy topic gives them."""
    settings, kafka = SchedulerSettings(), KafkaSettings()
    topic = kafka.topics.news
    records = [
        ConsumerRecord(topic, 0, offset, 0, 0, b"key", encode_json(event), None, 3, 100, ())
        for offset, event in enumerate(events)
    ]

    async def admit() -> None:
        ledger = Ledger()
        ledger.assign([(topic, 0)])
        outcomes = Outcomes(Publisher(kafka, "bench", lambda _: None), kafka.topics, Stats(settings.classes))
        taken: list[object] = []
        admission = Admission(
            settings, kafka.topics, ledger, outcomes, taken.append, lambda part, chunks: taken.append(part)
        )
        sizes = [ChunkSize(0, 0)] * len(settings.classes)
        for begin in range(0, len(records), max(BATCHES)):
            batch = [(record, time.time_ns()) for record in records[begin : begin + max(BATCHES)]]
            await admission.admit(topic, batch, tokenizer, TEXT_LIMIT, sizes)
        admission.close()

    return _best(lambda: asyncio.run(admit()))
