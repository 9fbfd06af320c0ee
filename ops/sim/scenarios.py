"""The benchmark's scenarios: traffic, window and engine of each, by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from ops.sim import article, measures
from ops.sim.driver import Outcome, Window
from ops.sim.profiles import Profile
from ops.sim.traffic import (
    BULK,
    CLASSES,
    CPU_CLASSES,
    FILING_TOKENS,
    FLASH,
    HEADLINE_OUTPUT,
    HEADLINE_TOKENS,
    NS,
    Arrival,
    filing,
    headline,
    poisson,
)
from schemas.settings import ClassSettings

ARTICLE_SHARE = 0.15
"""Headlines among all events in the founding article's traffic."""
BACKLOG = 300
"""Filings that wait when a run with a backlog begins."""
OVERFULL = 1.15
"""Filings arrive at this multiple of what the engine could do with nothing else: the backlog never empties."""
DEFAULT_POLICIES = ("fcfs", "engine-priority", "article", "tapewire-no-gate", "tapewire")

Traffic = Callable[[random.Random, Profile], list[Arrival]]
Measure = Callable[[Outcome, Profile], dict[str, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One scenario.

    Args:
        about: one line for people.
        profile: of its engine, unless another is asked for.
        traffic: the arrivals of a seed.
        policies: what is compared by default.
        measure: takes from a run what the bars need beyond the figures.
        workers: the service classes of each worker; empty means all.
        classes: the service classes of the traffic.
    """

    name: str
    about: str
    profile: str
    window: Window
    traffic: Traffic
    policies: tuple[str, ...] = DEFAULT_POLICIES
    measure: Measure | None = None
    workers: tuple[tuple[str, ...], ...] = ((),)
    classes: tuple[ClassSettings, ...] = CLASSES

    def arrivals(self, profile: Profile, seed: int) -> list[Arrival]:
        """Return the arrivals in order of time."""
        rng = random.Random(f"{self.name}-{seed}")  # noqa: S311 - a simulation, fixed by its seed
        return sorted(self.traffic(rng, profile), key=lambda arrival: arrival.at_ns)


def filings_per_second(profile: Profile, output_tokens: int = 128) -> float:
    """Return about how many filings an engine does per second with full steps and nothing else."""
    costs = profile.costs
    wrap = profile.extractors["filing"]
    text = fmean(FILING_TOKENS)
    own = text + wrap.prompt_tokens - wrap.shared_prefix_tokens
    context = wrap.shared_prefix_tokens + own / 2
    prefill = own * (costs.prefill_token + context * costs.attended_pair)
    decode = output_tokens * (costs.decode + (wrap.prompt_tokens + text + output_tokens / 2) * costs.kv_token)
    # Steps as large as the engine takes them, so that hardly any fixed cost is left.
    fixed = (own + output_tokens) / profile.limits.max_num_batched_tokens * costs.step
    return 1 / (prefill + decode + fixed)


def headlines_per_second(profile: Profile) -> float:
    """Return about how many headlines an engine does per second with full steps and nothing else."""
    costs = profile.costs
    own = headline_tokens(profile)
    fixed = own / profile.limits.max_num_batched_tokens * costs.step
    return 1 / (own * costs.prefill_token + fixed)


def headline_tokens(profile: Profile) -> float:
    """Return the mean of the tokens that a headline has to compute."""
    wrap = profile.extractors["headline"]
    block = profile.limits.block_size
    return fmean(HEADLINE_TOKENS) + wrap.prompt_tokens - wrap.shared_prefix_tokens // block * block


def _mixed(rng: random.Random, profile: Profile) -> list[Arrival]:
    bulk = OVERFULL * filings_per_second(profile)
    flash = bulk * ARTICLE_SHARE / (1 - ARTICLE_SHARE)
    return [
        *_backlog(rng, profile, MIXED.end),
        *(headline(rng, at) for at in poisson(rng, flash, MIXED.begin, MIXED.end)),
    ]


def _backlog(rng: random.Random, profile: Profile, end: float) -> list[Arrival]:
    """Return filings of which some always wait."""
    bulk = OVERFULL * filings_per_second(profile)
    return [filing(rng, 0) for _ in range(BACKLOG)] + [filing(rng, at) for at in poisson(rng, bulk, 0, end)]


def _burst_idle(rng: random.Random, profile: Profile) -> list[Arrival]:
    return [headline(rng, BURST_AT) for _ in range(BURST)]


def _burst_loaded(rng: random.Random, profile: Profile) -> list[Arrival]:
    bulk = LOADED * filings_per_second(profile)
    return [*(filing(rng, at) for at in poisson(rng, bulk, 0, LOADED_WINDOW.end)), *_burst_idle(rng, profile)]


def _long_document(rng: random.Random, profile: Profile) -> list[Arrival]:
    wrap = profile.extractors["filing"]
    text = LONG_TOKENS - wrap.prompt_tokens
    document = Arrival(NS, BULK, text, wrap.max_new_tokens)
    # Far enough apart that none of them waits for another.
    times = [int((1.02 + n * LONG_GAP + rng.uniform(0, LONG_GAP / 2)) * NS) for n in range(LONG_HEADLINES)]
    return [document, *(headline(rng, at) for at in times)]


def _flash_overload(rng: random.Random, profile: Profile) -> list[Arrival]:
    flash = OVERLOAD * headlines_per_second(profile)
    return [
        *_backlog(rng, profile, OVERLOAD_WINDOW.end),
        *(headline(rng, at) for at in poisson(rng, flash, OVERLOAD_WINDOW.begin, OVERLOAD_WINDOW.end)),
    ]


def _bulk_flood(rng: random.Random, profile: Profile) -> list[Arrival]:
    return [
        *(headline(rng, at) for at in poisson(rng, 1, FLOOD_WINDOW.begin, FLOOD_WINDOW.end)),
        *(filing(rng, at) for at in poisson(rng, 1000, 0, FLOOD_WINDOW.end)),
    ]


def _cpu(rng: random.Random, profile: Profile) -> list[Arrival]:
    """The real benchmark's traffic: two dozen filings at once, headlines that compute about 130 tokens."""
    return [
        *(Arrival(0, BULK, rng.randint(*CPU_FILING_TOKENS), 64) for _ in range(24)),
        *(
            Arrival(at, FLASH, rng.randint(*CPU_HEADLINE_TOKENS), HEADLINE_OUTPUT)
            for at in poisson(rng, 1.2, 0.5, CPU_WINDOW.end)
        ),
    ]


ARTICLE_WINDOW = Window(begin=0, end=2, cap=300, until_done=True)
MIXED = Window(begin=15, end=75, cap=240)
BURST = 500
BURST_AT = 20 * NS
BURST_WINDOW = Window(begin=19, end=24, cap=60)
LOADED = 0.9
LOADED_WINDOW = Window(begin=10, end=40, cap=120)
LONG_TOKENS = 65_536
LONG_GAP = 0.4
"""Seconds; headlines come at random within the first half of each."""
LONG_HEADLINES = 20
LONG_WINDOW = Window(begin=0, end=12, cap=60)
OVERLOAD = 1.1
OVERLOAD_WINDOW = Window(begin=10, end=70, cap=240)
FLOOD_WINDOW = Window(begin=5, end=65, cap=125)
CPU_FILING_TOKENS = (576, 2112)
CPU_HEADLINE_TOKENS = (112, 132)
CPU_WINDOW = Window(begin=0, end=22, cap=300, until_done=True)

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="mixed",
            about="the article's mix of headlines and filings, with a backlog of filings that never empties",
            profile="h100-8b",
            window=MIXED,
            traffic=_mixed,
        ),
        Scenario(
            name="burst-idle",
            about="500 headlines at once, in an idle engine",
            profile="h100-8b",
            window=BURST_WINDOW,
            traffic=_burst_idle,
            measure=measures.burst,
        ),
        Scenario(
            name="burst-loaded",
            about="500 headlines at once, with filings at 90 % of the engine's capacity",
            profile="h100-8b",
            window=LOADED_WINDOW,
            traffic=_burst_loaded,
            measure=measures.burst,
        ),
        Scenario(
            name="long-document",
            about="headlines while one filing of 64k tokens is in prefill",
            profile="h100-8b",
            window=LONG_WINDOW,
            traffic=_long_document,
            measure=measures.waits,
        ),
        Scenario(
            name="flash-overload",
            about="headlines at 110 % of the engine's capacity for 60 s, with a backlog of filings",
            profile="h100-8b",
            window=OVERLOAD_WINDOW,
            traffic=_flash_overload,
            measure=measures.overload,
        ),
        Scenario(
            name="bulk-flood",
            about="1000 filings to one headline, far above what the engine can do",
            profile="h100-8b",
            window=FLOOD_WINDOW,
            traffic=_bulk_flood,
        ),
        Scenario(
            name="article",
            about="the founding article's hundred requests, in its own engine model and in one cut into steps",
            profile="article",
            window=ARTICLE_WINDOW,
            traffic=lambda rng, _: article.traffic(rng),
            policies=("article-naive", "article", "fcfs", "engine-priority", "tapewire", "tapewire-label"),
            measure=measures.answers,
        ),
        Scenario(
            name="cpu",
            about="24 filings at once and 1.2 headlines per second, SmolLM2 on two cores",
            profile="cpu-smollm2",
            window=CPU_WINDOW,
            traffic=_cpu,
            classes=CPU_CLASSES,
        ),
    )
}
