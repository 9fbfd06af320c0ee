"""The capacity model: what it says fits does fit in the simulator, and what it says binds does."""

from __future__ import annotations

import msgspec
import pytest

from ops.capacity import Budget, Traffic, WorkerModel, capacity
from ops.sim.policies import make_policy
from ops.sim.profiles import Profile, load_profile
from ops.sim.traffic import CLASSES, FLASH
from tests.sim.small import MS, flash, simulate

SLO_NS = int(CLASSES[FLASH].slo_ms * MS)


def model(profile: Profile) -> WorkerModel:
    """Return the model of a profile's engine."""
    return WorkerModel(
        costs=profile.step_costs(),
        limits=profile.engine_limits(tapewire=True),
        extractors=profile.wraps(),
        steps_ahead=profile.run_ahead,
    )


def on_time(profile: Profile, burst: int) -> int:
    """Return how many of a burst of the longest headlines meet the SLO in an idle simulated engine."""
    outcome = simulate(profile, make_policy("fcfs"), [flash(10, tokens=128) for _ in range(burst)])
    return sum(1 for job in outcome.jobs if job.latency_ns <= SLO_NS)


def test_the_largest_burst_is_on_time_in_the_simulator() -> None:
    """On an idle engine the burst that fits is answered in time, and one of half as much again is not."""
    profile = load_profile("h100-8b")
    alone = capacity(model(profile), Traffic(), 1).points[-1]
    assert alone.lower_step_tokens == 0
    assert alone.burst_binds is Budget.TIME
    assert on_time(profile, alone.burst) == alone.burst
    assert on_time(profile, alone.burst * 3 // 2) < alone.burst * 3 // 2


def test_a_wider_valve_costs_burst_and_gives_throughput() -> None:
    """From the widest valve to the narrowest, bursts and flash rates grow and bulk throughput shrinks."""
    points = capacity(model(load_profile("h100-8b")), Traffic(), 1).points
    assert [p.burst for p in points] == sorted(p.burst for p in points)
    assert [p.flash_per_s for p in points] == sorted(p.flash_per_s for p in points)
    bulk = [p.bulk_tokens_per_s for p in points]
    assert bulk == sorted(bulk, reverse=True)


def test_two_workers_do_twice_as_much() -> None:
    """Equal workers add up."""
    one, two = (capacity(model(load_profile("h100-8b")), Traffic(burst=5), n).chosen for n in (1, 2))
    assert two.lower_step_tokens >= one.lower_step_tokens
    same = [p for p in capacity(model(load_profile("h100-8b")), Traffic(), 2).points if p.lower_step_tokens == 0]
    alone = capacity(model(load_profile("h100-8b")), Traffic(), 1).points[-1]
    assert same[0].burst == 2 * alone.burst


@pytest.mark.parametrize(
    ("limits", "binds"),
    [({"kv_blocks": 60}, Budget.KV_BLOCKS), ({"max_num_seqs": 3}, Budget.SEQUENCES)],
)
def test_the_budget_that_binds_is_named(limits: dict[str, int], binds: Budget) -> None:
    """With few KV blocks or few sequence slots, that is what ends the burst, not the time."""
    profile = load_profile("h100-8b")
    small = msgspec.structs.replace(profile, limits=msgspec.structs.replace(profile.limits, **limits))
    assert capacity(model(small), Traffic(), 1).points[-1].burst_binds is binds


def test_an_slo_below_one_step_fits_nothing() -> None:
    """When even a lone headline takes longer than the SLO, nothing fits and no rate is promised."""
    answer = capacity(model(load_profile("cpu-smollm2")), Traffic(slo_ms=20), 4)
    assert not answer.fits
    assert (answer.chosen.burst, answer.chosen.flash_per_s) == (0, 0.0)
