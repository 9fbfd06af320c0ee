"""The founding article's batcher in the founding article's engine model, in virtual time.

The engine runs one batch at a time, and a batch of ``n`` requests takes
``prefill tokens * 0.1 ms / n ** 0.2 + longest answer * 8 ms * (1 + 0.15 n)``; every request of it ends with it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ops.sim.driver import Outcome, Window
from ops.sim.policies import ArticleBatcher, Job
from ops.sim.traffic import BULK, FILING_TOKENS, FLASH, HEADLINE_TOKENS, NS, Arrival

PREFILL_TOKEN = 0.0001
DECODE_TOKEN = 0.008
TICK_NS = 5_000_000
"""Its batcher looks again after this when it found nothing."""
REQUESTS = 100
URGENT_SHARE = 0.15
HEADLINE_OUTPUT = 16
FILING_OUTPUT = 128

PUBLISHED = {
    "naive": {"flash_p99_ms": 3980.11, "all_p50_ms": 1120.45, "all_p99_ms": 4210.82, "late": 16, "tokens_per_s": 1450},
    "adaptive": {"flash_p99_ms": 122.40, "all_p50_ms": 412.30, "all_p99_ms": 1980.50, "late": 0, "tokens_per_s": 1120},
}
"""The figures that the article prints; tokens per second are those of its answers."""
BATCHERS = {"article-naive": (32, 32768), "article": (8, 4096)}
"""Its two configurations: most requests of a batch, and most tokens."""


def traffic(rng: random.Random) -> list[Arrival]:
    """Return the article's hundred requests; its gaps are uniform, since `random` has no ``exponential``."""
    arrivals: list[Arrival] = []
    at = 0.0
    for _ in range(REQUESTS):
        if rng.random() < URGENT_SHARE:
            arrivals.append(Arrival(int(at * NS), FLASH, rng.randint(*HEADLINE_TOKENS), HEADLINE_OUTPUT))
        else:
            arrivals.append(Arrival(int(at * NS), BULK, rng.randint(*FILING_TOKENS), FILING_OUTPUT))
        at += rng.uniform(0.001, 0.015)
    return arrivals


def batch_seconds(batch: Sequence[Arrival]) -> float:
    """Return how long its engine takes for a batch."""
    size = len(batch)
    discount: float = size**0.2
    prefill = sum(a.text_tokens for a in batch) * PREFILL_TOKEN / discount
    return prefill + max(a.output_tokens for a in batch) * DECODE_TOKEN * (1 + 0.15 * size)


def run_article(arrivals: Sequence[Arrival], window: Window, *, max_batch: int, token_budget: int) -> Outcome:
    """Run all arrivals to the end."""
    batcher = ArticleBatcher(max_batch=max_batch, token_budget=token_budget)
    jobs = [Job(number, arrival) for number, arrival in enumerate(arrivals)]
    now = 0
    coming = 0
    left = len(jobs)
    while left:
        while coming < len(jobs) and jobs[coming].arrival.at_ns <= now:
            batcher.arrive(jobs[coming], now)
            coming += 1
        batch = batcher.next_batch()
        if not batch:
            if coming == len(jobs):
                break  # what is left never fits its token budget
            now += TICK_NS
            continue
        now += int(batch_seconds([job.arrival for job in batch]) * NS)
        for job in batch:
            job.first_ns = job.done_ns = now
        left -= len(batch)
    done = [job.arrival for job in jobs if job.done_ns]
    lower = sum(a.text_tokens + a.output_tokens for a in done if a.class_index != FLASH)
    return Outcome(jobs=jobs, window=window, lower_tokens=lower, ended_ns=now)


def answer_tokens_per_s(outcome: Outcome) -> float:
    """Return the answers' tokens per second, the article's measure of throughput."""
    last = max((job.done_ns for job in outcome.jobs), default=0)
    return sum(job.arrival.output_tokens for job in outcome.jobs if job.done_ns) / (last / NS) if last else 0.0
