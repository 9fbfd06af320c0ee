"""Runs a scenario with one policy and one seed and takes the figures from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from ops.bench.figures import Figures, bulk_figures, flash_figures
from ops.percentiles import NS_PER_MS, percentile
from ops.sim.article import BATCHERS, batch_seconds, run_article
from ops.sim.driver import Outcome, Simulation, Window
from ops.sim.policies import Policy, make_policy
from ops.sim.profiles import Profile
from ops.sim.scenarios import Scenario
from ops.sim.traffic import CLASSES, FLASH, NS, Arrival
from schemas.settings import ClassSettings

ALONE = 40
"""Headlines of the isolated run."""
ALONE_GAP_NS = NS
"""Time between them: each meets an idle engine."""
LABEL = "tapewire-label"
"""Tapewire as it answers headlines: with one label token, whatever the traffic says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run.

    Args:
        extras: what the scenario's bars need beyond the figures.
    """

    figures: Figures
    extras: dict[str, float] = field(default_factory=dict)


def run_policy(scenario: Scenario, profile: Profile, policy: str, seed: int) -> Run:
    """Run one policy on one seed's arrivals.

    Raises:
        ConfigError: there is no such policy.
    """
    arrivals = scenario.arrivals(profile, seed)
    if policy == LABEL:
        policy = "tapewire"
        arrivals = [a._replace(output_tokens=1) if a.class_index == FLASH else a for a in arrivals]
    batcher = BATCHERS.get(policy) if scenario.name == "article" else None
    if batcher is not None:
        max_batch, token_budget = batcher
        outcome = run_article(arrivals, scenario.window, max_batch=max_batch, token_budget=token_budget)
        isolated: float | None = median(batch_seconds([a]) * 1000 for a in arrivals if a.class_index == FLASH)
    else:
        outcome = simulate(scenario, profile, make_policy(policy, scenario.classes), arrivals, seed)
        alone = make_policy(policy, scenario.classes)
        isolated = isolated_p50_ms(profile, alone, arrivals, seed, scenario.classes)
    extras = scenario.measure(outcome, profile) if scenario.measure else {}
    return Run(figures=figures_of(outcome, isolated, slo_ms=scenario.classes[FLASH].slo_ms), extras=extras)


def simulate(
    scenario: Scenario,
    profile: Profile,
    policy: Policy,
    arrivals: Sequence[Arrival],
    seed: int,
    *,
    traced: bool = False,
) -> Outcome:
    """Run a policy on these arrivals."""
    return Simulation(
        profile,
        policy,
        arrivals,
        scenario.window,
        seed,
        workers=scenario.workers,
        traced=traced,
        classes=scenario.classes,
    ).run()


def isolated_p50_ms(
    profile: Profile,
    policy: Policy,
    arrivals: Sequence[Arrival],
    seed: int,
    classes: tuple[ClassSettings, ...] = CLASSES,
) -> float | None:
    """Return the median latency of the headlines one at a time in an idle engine."""
    alone = [a for a in arrivals if a.class_index == FLASH][:ALONE]
    if not alone:
        return None
    spaced = [a._replace(at_ns=(n + 1) * ALONE_GAP_NS) for n, a in enumerate(alone)]
    end = len(spaced) + 2.0
    outcome = Simulation(profile, policy, spaced, Window(begin=0, end=end, cap=end + 60), seed, classes=classes).run()
    done = sorted(job.latency_ns / NS_PER_MS for job in outcome.jobs if job.done_ns)
    return percentile(done, 50) if done else None


def figures_of(outcome: Outcome, isolated: float | None = None, *, slo_ms: float = CLASSES[FLASH].slo_ms) -> Figures:
    """Take the figures from a run."""
    window = outcome.window
    begin, end = int(window.begin * NS), int(window.end * NS)
    flash = [j for j in outcome.jobs if j.arrival.class_index == FLASH and begin <= j.arrival.at_ns < end]
    lower = [j for j in outcome.jobs if j.arrival.class_index != FLASH and j.done_ns]
    if window.until_done:
        last = max((j.done_ns for j in lower), default=0)
        seconds = last / NS
    else:
        lower = [j for j in lower if begin <= j.done_ns < end]
        seconds = window.end - window.begin
    return Figures(
        flash=flash_figures(
            [j.latency_ns / NS_PER_MS for j in flash if j.done_ns],
            slo_ms,
            expired=sum(1 for j in flash if j.expired_ns),
            waiting_ms=[
                (outcome.ended_ns - j.arrival.at_ns) / NS_PER_MS for j in flash if not (j.done_ns or j.expired_ns)
            ],
        ),
        bulk=bulk_figures(
            [j.latency_ns / NS_PER_MS for j in lower], outcome.lower_tokens / seconds if seconds else 0.0
        ),
        isolated_p50_ms=isolated,
    )
