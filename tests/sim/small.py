"""A small simulated engine with round figures, for tests."""

from __future__ import annotations

from typing import Any

import msgspec

from ops.sim.driver import Outcome, Simulation, Window
from ops.sim.policies import Policy
from ops.sim.profiles import CostFigures, ExtractorFigures, LimitFigures, Overrides, Profile
from ops.sim.traffic import BULK, FLASH, Arrival

MS = 1_000_000
SECOND = 1_000_000_000


def profile(*, run_ahead: int = 0, noise: float = 0.0, link_us: float = 0.0, **limits: int) -> Profile:
    """Return an engine whose step takes 1 ms and 10 us per prefill token, with 1,000 tokens of a step."""
    values = {
        "max_model_len": 8192,
        "max_num_batched_tokens": 1000,
        "long_prefill_token_threshold": 1000,
        "max_num_seqs": 64,
        "kv_blocks": 4096,
        "block_size": 16,
    }
    return Profile(
        name="small",
        run_ahead=run_ahead,
        noise=noise,
        link_us=link_us,
        costs=CostFigures(step=1e-3, prefill_token=1e-5, decode=1e-5),
        limits=LimitFigures(**(values | limits)),
        extractors={
            "headline": ExtractorFigures(prompt_tokens=16, shared_prefix_tokens=16, max_new_tokens=1),
            "filing": ExtractorFigures(prompt_tokens=16, shared_prefix_tokens=16, max_new_tokens=400),
        },
        tapewire=Overrides(long_prefill_token_threshold=250),
    )


def with_costs(base: Profile, **costs: float) -> Profile:
    """Return a profile with other costs."""
    return msgspec.structs.replace(base, costs=msgspec.structs.replace(base.costs, **costs))


def flash(at_ms: float, tokens: int = 100) -> Arrival:
    """Return a headline."""
    return Arrival(int(at_ms * MS), FLASH, tokens, 1)


def bulk(at_ms: float, tokens: int = 1000, output: int = 32) -> Arrival:
    """Return a filing."""
    return Arrival(int(at_ms * MS), BULK, tokens, output)


def simulate(engine: Profile, policy: Policy, arrivals: list[Arrival], *, seed: int = 0, **options: Any) -> Outcome:
    """Run until everything is done."""
    window = Window(begin=0, end=arrivals[-1].at_ns / SECOND + 0.001, cap=600, until_done=True)
    return Simulation(engine, policy, arrivals, window, seed, **options).run()
