"""The benchmark's scenarios: traffic, window and engine of each, by name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from ops.sim.driver import Window
from ops.sim.profiles import Profile
from ops.sim.traffic import FILING_TOKENS, HEADLINE_TOKENS, Arrival, filing, headline, poisson

ARTICLE_SHARE = 0.15
"""Headlines among all events in the founding article's traffic."""
BACKLOG = 300
"""Filings that wait when a run with a backlog begins."""
OVERFULL = 1.15
"""Filings arrive at this multiple of what the engine could do with nothing else: the backlog never empties."""
DEFAULT_POLICIES = ("fcfs", "engine-priority", "article", "tapewire-no-gate", "tapewire")

Traffic = Callable[[random.Random, Profile], list[Arrival]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One scenario.

    Args:
        about: one line for people.
        profile: of its engine, unless another is asked for.
        traffic: the arrivals of a seed.
        policies: what is compared by default.
    """

    name: str
    about: str
    profile: str
    window: Window
    traffic: Traffic
    policies: tuple[str, ...] = DEFAULT_POLICIES

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
    arrivals = [filing(rng, 0) for _ in range(BACKLOG)]
    arrivals += [filing(rng, at) for at in poisson(rng, bulk, 0, MIXED.end)]
    arrivals += [headline(rng, at) for at in poisson(rng, flash, MIXED.begin, MIXED.end)]
    return arrivals


MIXED = Window(begin=15, end=75, cap=240)

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
    )
}
