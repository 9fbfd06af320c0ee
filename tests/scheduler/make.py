"""Small, valid objects for the scheduler's tests; each test changes only what it is about."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import workers
from scheduler.budgets import WorkerBudget
from scheduler.work import Origin, Original, Work
from schemas.codec import encode_json
from schemas.frames import PROTOCOL_VERSION, EngineInfo, Extractor, Hello, Limits, pack_tokens
from schemas.identity import tokenizer_hash
from schemas.records import NewsEvent
from schemas.settings import ClassSettings, ReserveSettings

TOKENIZER = (Path(workers.__file__).parent / "sim_tokenizer.json").read_bytes()
"""A byte-level tokenizer with special tokens, as a worker with the simulated engine sends it."""
TOKENIZER_HASH = tokenizer_hash(TOKENIZER)

EVENT_TIME_NS = 1_700_000_000_000_000_000
MILLISECOND = 1_000_000
CLASSES = (
    ClassSettings(name="flash", slo_ms=150, toxic_ms=250, extractor="headline"),
    ClassSettings(name="standard", slo_ms=1000, extractor="headline"),
    ClassSettings(name="bulk", slo_ms=5000, extractor="filing"),
)
RECORD = encode_json(
    NewsEvent(
        event_id="wire:story:1",
        source="wire",
        headline="Acme raises its guidance",
        received_at_ns=EVENT_TIME_NS,
        published_at_ns=EVENT_TIME_NS - MILLISECOND,
        instruments=["ACME"],
    )
)

_offsets = itertools.count()


def limits(**changed: int) -> Limits:
    """Return the limits of a small engine."""
    values = {
        "max_model_len": 2048,
        "max_num_batched_tokens": 1024,
        "long_prefill_token_threshold": 256,
        "max_num_seqs": 8,
        "kv_blocks": 512,
        "block_size": 16,
    }
    return Limits(**(values | changed))


def extractor(name: str = "headline", **changed: int) -> Extractor:
    """Return an extractor with a template of 40 tokens, 32 of them a shared prefix."""
    values = {"prompt_tokens": 40, "shared_prefix_tokens": 32, "max_new_tokens": 1 if name == "headline" else 48}
    values |= changed
    return Extractor(
        name=name,
        prompt_version="1",
        prompt_tokens=values["prompt_tokens"],
        shared_prefix_tokens=values["shared_prefix_tokens"],
        max_new_tokens=values["max_new_tokens"],
    )


def extractors() -> list[Extractor]:
    """Return the two extractors that the default classes need."""
    return [extractor("headline"), extractor("filing")]


def budget(*, reserve: ReserveSettings | None = None, **changed: int) -> WorkerBudget:
    """Return the budget of a small engine, without a reserve unless one is given."""
    none = ReserveSettings(step_tokens=0, kv_fraction=0, seqs=0)
    return WorkerBudget(limits(**changed), {e.name: e for e in extractors()}, reserve or none)


def hello(worker_id: str = "w1", **changed: Any) -> Hello:
    """Return the greeting of a worker that can serve everything."""
    values: dict[str, Any] = {
        "protocol": PROTOCOL_VERSION,
        "engine": engine(),
        "limits": limits(),
        "extractors": extractors(),
        "pid": 1,
    }
    return Hello(worker_id=worker_id, **(values | changed))


def engine(tokenizer: str = TOKENIZER_HASH) -> EngineInfo:
    """Return an engine's identity."""
    return EngineInfo(name="sim", version="1", model="sim", model_revision="r1", tokenizer_hash=tokenizer)


def work(
    class_index: int = 0,
    *,
    tokens: int = 20,
    deadline_ns: int | None = None,
    toxic_ns: int = 0,
    event_id: str = "wire:story:1",
    original: Original | None = None,
    origin: Origin | None = None,
) -> Work:
    """Return queued-to-be work of a news event; its offset is its own unless given."""
    offset = next(_offsets)
    return Work(
        origin=origin or Origin("test.news", 0, offset, 1),
        event_id=event_id,
        class_index=class_index,
        tokens=pack_tokens(list(range(tokens))),
        token_count=tokens,
        truncated=False,
        event_time_ns=EVENT_TIME_NS,
        deadline_ns=EVENT_TIME_NS + 150 * MILLISECOND if deadline_ns is None else deadline_ns,
        toxic_ns=toxic_ns,
        record=(original or Original(b"story", RECORD, ())).packed(),
        appended_ns=EVENT_TIME_NS + MILLISECOND,
        consumed_ns=EVENT_TIME_NS + 2 * MILLISECOND,
        queued_ns=EVENT_TIME_NS + 3 * MILLISECOND,
    )
