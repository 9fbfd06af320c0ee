"""Fitting step costs to a trace."""

from __future__ import annotations

import random

import pytest

from ops.sim.driver import Step
from ops.sim.fit import fit


def trace(rng: random.Random, count: int, noise: float, outliers: int = 0) -> list[Step]:
    """Return steps of an engine with known costs, some of them far too long."""
    steps = []
    for number in range(count):
        prefill, decodes = rng.choice([0, 128, 512, 2048]), rng.randint(1, 24)
        kv = decodes * rng.randint(500, 2000)
        seconds = (0.03 + prefill * 5e-4 + decodes * 2e-3 + kv * 1e-6) * rng.gauss(1, noise)
        seconds *= 8 if number < outliers else 1
        steps.append(
            Step(worker="w", starts=0, seconds=seconds, prefill_tokens=prefill, decode_tokens=decodes, kv_tokens=kv)
        )
    return steps


def test_it_finds_the_costs_behind_noise_and_outliers() -> None:
    """With 5 % of noise and a few steps eight times too long, step and prefill cost come out within a tenth."""
    found = fit(trace(random.Random(1), 400, 0.05, outliers=8))
    assert found.costs.step == pytest.approx(0.03, rel=0.1)
    assert found.costs.prefill_token == pytest.approx(5e-4, rel=0.1)
    assert found.noise == pytest.approx(0.05, rel=0.4)


def test_no_cost_is_negative() -> None:
    """Steps that get shorter with every decode do not give a decode a negative cost."""
    steps = [
        Step(worker="w", starts=0, seconds=0.1 - n / 1000, prefill_tokens=0, decode_tokens=n, kv_tokens=0)
        for n in range(20)
    ]
    assert min(fit(steps).costs.step, fit(steps).costs.decode, fit(steps).costs.kv_token) >= 0


def test_too_few_steps_are_refused() -> None:
    """A handful of steps cannot tell four coefficients apart."""
    with pytest.raises(ValueError, match="too few"):
        fit(trace(random.Random(1), 5, 0.05))
