"""Bursts in the simulator: what their headlines reach against the most that any order gives."""

from __future__ import annotations

from statistics import median

import pytest

from ops.sim.compare import run_policy
from ops.sim.driver import Simulation
from ops.sim.policies import Tapewire
from ops.sim.profiles import load_profile
from ops.sim.scenarios import SCENARIOS


@pytest.mark.parametrize(("scenario", "seeds"), [("burst-idle", 12), ("burst-loaded", 3)])
def test_a_burst_is_on_time_as_far_as_any_order_can_be(scenario: str, seeds: int) -> None:
    """With three tokens to each answer the median run is within the bars, and no run of these is lost as a whole."""
    profile = load_profile("h100-8b")
    runs = [run_policy(SCENARIOS[scenario], profile, "tapewire", seed).extras for seed in range(seeds)]
    assert median(run["on_time_ratio"] for run in runs) >= 0.93
    assert min(run["on_time_ratio"] for run in runs) >= 0.7
    assert median(run["makespan_ratio"] for run in runs) <= 1.15
    assert max(run["past_toxic"] for run in runs) == 0


def test_an_engine_learns_what_its_answer_steps_cost() -> None:
    """After a few seconds under load the planner's model knows a step without prefill to a fifth."""
    profile, scenario = load_profile("h100-8b"), SCENARIOS["burst-loaded"]
    policy = Tapewire(gated=True)
    Simulation(profile, policy, scenario.arrivals(profile, 0), scenario.window, 0).run()
    costs = policy.planner.step_costs("w1")
    assert costs is not None
    true = profile.costs.step + profile.costs.floor
    assert costs.step + costs.decode_step == pytest.approx(true, rel=0.25)
