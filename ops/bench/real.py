"""The policies on real vLLM, in real time: what ``tapewire bench latency --engine vllm`` runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ops.bench.figures import Figures, bulk_figures, flash_figures
from ops.bench.real_engine import RealEngine, start_engine
from ops.bench.real_run import RealRun, is_lower
from ops.percentiles import NS_PER_MS, percentile
from ops.sim import policies
from ops.sim.compare import Run
from ops.sim.driver import Outcome
from ops.sim.policies import Policy, SubmitAll
from ops.sim.profiles import Profile, load_profile
from ops.sim.scenarios import Scenario
from ops.sim.traffic import BULK, FLASH, NS, Arrival
from ops.sim.traffic import CPU_CLASSES as CLASSES

ALONE = 20
"""Headlines of the isolated run."""
BY_PRIORITY = ("engine-priority", "tapewire", "tapewire-no-gate")
"""Policies whose engine orders what waits by priority; the others leave vLLM's order of arrival."""


def run_policies(
    scenario: Scenario, names: Sequence[str], seeds: int, say: Callable[[str], None]
) -> dict[str, list[Run]]:
    """Run every policy on the same arrivals, each in a vLLM started the way it wants it.

    Raises:
        ConfigError: a policy that there is not.
        UnavailableError: vLLM is not installed, or the step scheduler does not work with this one.
    """
    profile = load_profile(scenario.profile)
    runs: dict[str, list[Run]] = {}
    for name in names:
        runs[name] = asyncio.run(_run_seeds(scenario, profile, name, seeds, say))
    return runs


async def _run_seeds(
    scenario: Scenario, profile: Profile, name: str, seeds: int, say: Callable[[str], None]
) -> list[Run]:
    first = make_policy(name)
    order = "priority" if name in BY_PRIORITY else "fcfs"
    say(f"starting vLLM for {name}")
    engine = await start_engine(
        "smollm2", first.limits(profile), order=order, gated=first.gated, on_state=lambda _state, detail: say(detail)
    )
    runs: list[Run] = []
    try:
        await warm_up(engine, profile)
        for seed in range(seeds):
            arrivals = scenario.arrivals(profile, seed)
            say(f"{scenario.name}: {name}, seed {seed}, alone")
            alone = await RealRun(
                engine=engine, profile=profile, policy=make_policy(name), arrivals=_alone(arrivals)
            ).run()
            say(f"{scenario.name}: {name}, seed {seed}")
            outcome = await RealRun(engine=engine, profile=profile, policy=make_policy(name), arrivals=arrivals).run()
            runs.append(Run(figures=real_figures(outcome, alone)))
    finally:
        await engine.stop()
    return runs


def make_policy(name: str) -> Policy:
    """Return a fresh policy for this machine's service classes.

    Raises:
        ConfigError: there is no such policy.
    """
    return policies.make_policy(name, CLASSES)


def _alone(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """Return the first headlines, one per second."""
    headlines = [arrival for arrival in arrivals if arrival.class_index == FLASH][:ALONE]
    return [arrival._replace(at_ns=number * NS) for number, arrival in enumerate(headlines)]


async def warm_up(engine: RealEngine, profile: Profile) -> None:
    """Run some of everything: kernels are compiled and shared prefixes cached before anything is measured."""
    some = [Arrival(0, class_index, tokens, 2) for class_index in (BULK, FLASH) for tokens in (32, 700, 120)]
    await RealRun(engine=engine, profile=profile, policy=SubmitAll(priorities=False), arrivals=some * 2).run()


def real_figures(outcome: Outcome, alone: Outcome) -> Figures:
    """Take the figures from a run and from one with the headlines alone."""
    seconds = outcome.window.end
    return Figures(
        flash=flash_figures(
            _latencies(outcome, lower=False),
            CLASSES[FLASH].slo_ms,
            expired=sum(1 for job in outcome.jobs if job.expired_ns),
            waiting_ms=[],
        ),
        bulk=bulk_figures(_latencies(outcome, lower=True), outcome.lower_tokens / seconds if seconds else 0.0),
        isolated_p50_ms=percentile(sorted(_latencies(alone, lower=False)), 50),
    )


def _latencies(outcome: Outcome, *, lower: bool) -> list[float]:
    return [job.latency_ns / NS_PER_MS for job in outcome.jobs if job.done_ns and is_lower(job) is lower]
