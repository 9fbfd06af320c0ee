"""``tapewire bench fidelity``: the same arrivals on real vLLM and on the simulator, and how far they are apart.

The simulator's step costs are fitted to the steps of each real run, since a shared machine is not equally fast in two
of them: what is compared is the scheduling, the order and the size of steps, not the machine's mood.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import msgspec
from rich.console import Console
from rich.table import Table

from ops.bench.real import BY_PRIORITY, warm_up
from ops.bench.real_engine import start_engine
from ops.bench.real_run import RealRun
from ops.percentiles import NS_PER_MS, percentile
from ops.sim.compare import simulate
from ops.sim.driver import Outcome
from ops.sim.fit import Fit, fit
from ops.sim.policies import make_policy
from ops.sim.profiles import Profile, load_profile
from ops.sim.scenarios import SCENARIOS, Scenario
from ops.sim.traffic import FLASH

Say = Callable[[str], None]
SCENARIO = "cpu"
SHOWN = (50, 99)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One percentile of one class under one policy, in milliseconds; ``error`` is relative to the real one."""

    policy: str
    service_class: str
    percent: int
    real_ms: float
    sim_ms: float

    @property
    def error(self) -> float:
        """Simulated against real, minus one."""
        return self.sim_ms / self.real_ms - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Fidelity:
    """The comparison.

    Args:
        fits: the step costs, by policy.
    """

    fits: dict[str, Fit]
    rows: list[Row]

    def as_dict(self) -> dict[str, object]:
        """Return the object of the JSON output."""
        return {
            "fits": {
                name: msgspec.structs.asdict(f.costs) | {"noise": round(f.noise, 4), "steps": f.steps}
                for name, f in self.fits.items()
            },
            "rows": [asdict(row) | {"error": round(row.error, 4)} for row in self.rows],
        }


def measure(policies: Sequence[str], seed: int, say: Say) -> Fidelity:
    """Run every policy on real vLLM, then on the simulator.

    Raises:
        ConfigError: a policy that there is not.
        UnavailableError: vLLM is not installed.
    """
    scenario = SCENARIOS[SCENARIO]
    profile = load_profile(scenario.profile)
    outcomes = {name: asyncio.run(_real(scenario, profile, name, seed, say)) for name in policies}
    return compare(scenario, profile, outcomes, seed)


def compare(scenario: Scenario, profile: Profile, outcomes: dict[str, Outcome], seed: int) -> Fidelity:
    """Simulate what was run for real and compare."""
    fits: dict[str, Fit] = {}
    rows: list[Row] = []
    for name, outcome in outcomes.items():
        fitted = fits[name] = fit([step for step in outcome.trace if step.seconds > 0])
        measured = msgspec.structs.replace(profile, costs=fitted.costs, noise=min(fitted.noise, 1.0))
        policy = make_policy(name, scenario.classes)
        simulated = simulate(scenario, measured, policy, scenario.arrivals(profile, seed), seed)
        reached = len(outcome.jobs)  # headlines that came after the last filing was done were not run
        for urgent in (True, False):
            real_ms = _latencies(outcome, reached, urgent=urgent)
            sim_ms = _latencies(simulated, reached, urgent=urgent)
            rows += [
                Row(
                    policy=name,
                    service_class="flash" if urgent else "bulk",
                    percent=percent,
                    real_ms=percentile(real_ms, percent),
                    sim_ms=percentile(sim_ms, percent),
                )
                for percent in SHOWN
            ]
    return Fidelity(fits=fits, rows=rows)


def table(fidelity: Fidelity, console: Console) -> None:
    """Print the comparison for people."""
    for name, fitted in fidelity.fits.items():
        costs = fitted.costs
        console.print(
            f"{name}: {fitted.steps} steps of {costs.step * 1e3:.1f} ms + "
            f"{costs.prefill_token * 1e6:.0f} us per prefill token + {costs.decode * 1e3:.2f} ms per decode + "
            f"{costs.kv_token * 1e9:.0f} ns per KV token, scatter {fitted.noise:.0%}",
            soft_wrap=True,
        )
    shown = Table(title="tapewire bench fidelity: simulator against real vLLM", title_justify="left")
    for column in ("policy", "class", "percentile", "real ms", "simulated ms", "error"):
        shown.add_column(column, justify="left" if column in ("policy", "class") else "right")
    for row in fidelity.rows:
        shown.add_row(
            row.policy,
            row.service_class,
            f"p{row.percent}",
            f"{row.real_ms:,.0f}",
            f"{row.sim_ms:,.0f}",
            f"{row.error:+.0%}",
        )
    console.print(shown)


async def _real(scenario: Scenario, profile: Profile, name: str, seed: int, say: Say) -> Outcome:
    policy = make_policy(name, scenario.classes)
    say(f"starting vLLM for {name}")
    engine = await start_engine(
        "smollm2",
        policy.limits(profile),
        order="priority" if name in BY_PRIORITY else "fcfs",
        gated=policy.gated,
        on_state=lambda _state, detail: say(detail),
    )
    try:
        await warm_up(engine, profile)
        say(f"{scenario.name}: {name}")
        arrivals = scenario.arrivals(profile, seed)
        return await RealRun(engine=engine, profile=profile, policy=policy, arrivals=arrivals).run()
    finally:
        await engine.stop()


def _latencies(outcome: Outcome, reached: int, *, urgent: bool) -> list[float]:
    return sorted(
        job.latency_ns / NS_PER_MS
        for job in outcome.jobs[:reached]
        if job.done_ns and (job.arrival.class_index == FLASH) is urgent
    )
