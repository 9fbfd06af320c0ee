"""The valve: within the SLO for every model, quick to close and slow to open, and steady under a steady load."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.sim.policies import make_policy
from scheduler.step_model import StepCosts
from scheduler.valve import CLOSE, CLOSE_SHARE, CLOSE_STEP, NANOSECONDS, URGENT_TOKENS, Valve
from schemas.settings import ValveSettings
from tests.sim.small import SECOND, bulk, flash, profile, simulate, with_costs

SLO = 0.15
MOST = 8192
SETTINGS = ValveSettings()
COSTS = StepCosts(step=5e-3, prefill_token=20e-6, decode=30e-6, kv_token=20e-9)
T0 = 1_700_000_000 * NANOSECONDS


def _valve(settings: ValveSettings = SETTINGS, *, gated: bool = True, steps_ahead: int = 0) -> Valve:
    return Valve(SLO, settings, MOST, gated=gated, steps_ahead=steps_ahead)


def _worst(costs: StepCosts, tokens: int, urgent: int, decodes: int, kv: float, *, gated: bool, ahead: int) -> float:
    """Return the engine's time for a headline that arrives right after a step began, as the valve's module says."""
    running = (1 + ahead) * costs.seconds(tokens, decodes, kv)
    own = costs.seconds(urgent, decodes, kv) + (0.0 if gated else tokens * costs.prefill_token)
    return running + own


_costs = st.builds(
    lambda step, prefill, decode, kv: StepCosts(step=step, prefill_token=prefill, decode=decode, kv_token=kv),
    st.one_of(st.floats(1e-4, 0.03), st.floats(1e-5, 1.0)),
    st.one_of(st.floats(2e-6, 2e-4), st.floats(1e-8, 1e-2)),
    st.floats(0, 1e-4),
    st.one_of(st.floats(0, 5e-8), st.floats(0, 1e-6)),
)


@given(
    costs=_costs,
    urgent=st.one_of(st.integers(0, 500), st.integers(0, 20_000)),
    decodes=st.integers(0, 256),
    kv=st.floats(0, 3e5),
    gated=st.booleans(),
    ahead=st.integers(0, 3),
    margin=st.floats(0, 0.6),
    overhead_ms=st.one_of(st.floats(0, 20), st.floats(0, 200)),
)
@settings(max_examples=400)
def test_a_headline_at_the_worst_moment_meets_its_slo_whatever_the_model(
    *,
    costs: StepCosts,
    urgent: int,
    decodes: int,
    kv: float,
    gated: bool,
    ahead: int,
    margin: float,
    overhead_ms: float,
) -> None:
    """What the valve allows keeps the predicted worst case within SLO * (1 - margin), unless it is at its least."""
    chosen = ValveSettings(margin=margin, max_margin=0.7, overhead_ms=overhead_ms)
    valve = _valve(chosen, gated=gated, steps_ahead=ahead)
    tokens = valve.target(costs, urgent, decodes, kv)
    assert chosen.min_step_tokens <= tokens <= MOST
    budget = max(SLO - overhead_ms / 1000, 0) * (1 - margin)
    shape: dict[str, Any] = {"gated": gated, "ahead": ahead}
    if tokens > chosen.min_step_tokens:
        assert _worst(costs, tokens, max(urgent, URGENT_TOKENS), decodes, kv, **shape) <= budget * (1 + 1e-9)
    if tokens < MOST:  # and it spends all of it
        assert _worst(costs, tokens + 1, max(urgent, URGENT_TOKENS), decodes, kv, **shape) >= budget * (1 - 1e-9)


def test_a_step_gate_allows_more_and_steps_ahead_less() -> None:
    """With a gate the headline's own step carries nothing else; every step decided ahead has to be waited for."""
    slow = StepCosts(step=5e-3, prefill_token=50e-6, decode=0, kv_token=0)
    by_shape = [
        _valve(gated=gated, steps_ahead=ahead).target(slow, 0, 0, 0)
        for gated, ahead in ((True, 0), (False, 0), (True, 1), (False, 1))
    ]
    # 0.1305 less 0.008 + 0.005 of the own step and less 0.005 per step in the way, shared by the steps that carry it
    assert by_shape == [2250, 1125, 1075, 716]


@pytest.mark.parametrize(
    ("more", "decodes", "kv"), [(5_000, 0, 0.0), (0, 500, 0.0), (0, 0, 1e6)], ids=["urgent", "decodes", "KV"]
)
def test_it_closes_at_once(more: int, decodes: int, kv: float) -> None:
    """Urgent tokens that wait, decodes and KV reads narrow the valve in the very next reading."""
    valve = _valve()
    opened = _open_fully(valve)
    now = T0 + 1000 * NANOSECONDS
    assert valve.read(now, COSTS, more, decodes, kv) == valve.target(COSTS, more, decodes, kv) < opened


def _open_fully(valve: Valve) -> int:
    for second in range(40):
        tokens = valve.read(T0 + second * NANOSECONDS, COSTS, 0, 0, 0)
    return tokens


def test_it_opens_slowly() -> None:
    """After it was closed it opens by at most its size per second, and in the end completely."""
    valve = _valve()
    target = _open_fully(valve)
    closed = valve.read(T0 + 40 * NANOSECONDS, COSTS, 10_000, 0, 0)
    assert closed == SETTINGS.min_step_tokens
    begin = T0 + 40 * NANOSECONDS
    readings = [closed, *(valve.read(begin + tick * NANOSECONDS // 10, COSTS, 0, 0, 0) for tick in range(1, 101))]
    for before, after in zip(readings, readings[10:], strict=False):
        assert after <= 3 * before  # ten tenths compounded: (1 + 1 / 10) ** 10 is 2.6
    assert readings == sorted(readings)
    assert readings[-1] == target


@pytest.mark.parametrize("gated", [False, True])
def test_a_constant_load_gives_a_constant_valve(gated: bool) -> None:
    """Minutes of one and the same load, thousands of headlines on time among them, move the valve by nothing."""
    valve = _valve(gated=gated)
    readings = []
    for tick in range(60_000):
        readings.append(valve.read(T0 + tick * NANOSECONDS // 100, COSTS, 300, 64, 50_000))
        valve.observe(0.5 * valve.engine_seconds)
    settled = readings[2_000:]
    assert max(settled) - min(settled) == 0


def test_a_tail_at_its_limit_does_not_swing() -> None:
    """With one urgent request in a thousand too close, the margin stays where it is to within two of its steps."""
    settings = ValveSettings(margin=0.0)
    valve = _valve(settings)
    for _ in range(5):
        valve.observe(valve.engine_seconds)
    margins = []
    for number in range(100_000):
        valve.observe(valve.engine_seconds if number % 1_000 == 0 else 0.0)
        margins.append(valve.margin)
    assert max(margins) - min(margins) <= 2 * CLOSE_STEP


def test_the_margin_grows_when_urgent_requests_come_close_and_shrinks_again() -> None:
    """Each close one adds a step of margin up to the bound, the valve narrows, and good ones take it back slowly."""
    valve = _valve()
    before = valve.target(COSTS, 3_000, 64, 50_000)
    valve.observe(1.01 * CLOSE * valve.engine_seconds)
    assert valve.margin == pytest.approx(SETTINGS.margin + CLOSE_STEP)
    assert valve.target(COSTS, 3_000, 64, 50_000) < before
    for _ in range(1_000):
        valve.observe(10.0)
    assert valve.margin == SETTINGS.max_margin
    for _ in range(int((SETTINGS.max_margin - SETTINGS.margin) / CLOSE_STEP / CLOSE_SHARE) + 100):
        valve.observe(0.1 * valve.engine_seconds)
    assert valve.margin == SETTINGS.margin
    assert valve.target(COSTS, 3_000, 64, 50_000) == before


@given(st.lists(st.floats(allow_nan=False), max_size=300))
def test_the_margin_stays_within_its_bounds_whatever_is_measured(measured: list[float]) -> None:
    """Clocks of two hosts can differ: times below zero and beyond any SLO keep the margin where the settings allow."""
    valve = _valve()
    for seconds in measured:
        valve.observe(seconds)
        assert SETTINGS.margin <= valve.margin <= SETTINGS.max_margin


@given(st.lists(st.integers(-(10**19), 10**19), min_size=1, max_size=50))
def test_a_clock_that_jumps_moves_it_by_at_most_a_seconds_worth(jumps: list[int]) -> None:
    """Forwards or backwards by any amount: the valve stays within its bounds and opens no faster than in a second."""
    valve = _valve()
    before = valve.read(T0, COSTS, 10_000, 0, 0)
    assert before == SETTINGS.min_step_tokens
    for jump in jumps:
        after = valve.read(T0 + jump, COSTS, 0, 0, 0)
        assert SETTINGS.min_step_tokens <= after <= 2 * before + 1
        before = after


def test_an_slo_that_cannot_be_met_leaves_the_least() -> None:
    """When the overhead alone exceeds the SLO, less urgent work still gets its least: a wrong setting stops nobody."""
    valve = _valve(ValveSettings(overhead_ms=500))
    assert valve.engine_seconds == 0
    assert valve.target(COSTS, 0, 0, 0) == SETTINGS.min_step_tokens


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_closed_loop_settles(noise: float) -> None:
    """Model, valve, planner and engine together: under a constant load the valve stays where it has settled."""
    arrivals = sorted(
        [*(bulk(0, output=64) for _ in range(200)), *(flash(20 + 250 * n, tokens=100) for n in range(140))],
        key=lambda arrival: arrival.at_ns,
    )
    engine = with_costs(profile(noise=noise, max_num_seqs=8), prefill_token=2e-4)  # 150 ms are some 600 tokens
    outcome = simulate(engine, make_policy("tapewire"), arrivals, traced=True)
    assert outcome.ended_ns > 30 * SECOND
    settled = [policy.lower_step_tokens for at, policy in outcome.policies if 10 < at < 30]
    before = [policy.lower_step_tokens for at, policy in outcome.policies if at <= 10][-1]
    assert 100 < before < 900  # it does bind
    assert max([before, *settled]) - min([before, *settled]) <= 0.05 * before


@pytest.mark.parametrize("gated", [True, False])
def test_a_longer_answer_closes_it(gated: bool) -> None:
    """Each further answer token of an urgent request is a step that lower work leaves alone or shares in."""
    costs = StepCosts.prior(SETTINGS)
    one, three = (Valve(SLO, SETTINGS, MOST, gated=gated, answer_tokens=n).target(costs, 0, 0, 0.0) for n in (1, 3))
    assert three < one


def test_answer_steps_leave_time_to_read_the_weights() -> None:
    """With a gate, each further token of the answer takes a step that nothing of the lower classes hides."""
    heavy = StepCosts(step=5e-3, prefill_token=50e-6, decode=0, kv_token=0, decode_step=8e-3)
    light = StepCosts(step=5e-3, prefill_token=50e-6, decode=0, kv_token=0)
    tokens = [Valve(SLO, SETTINGS, MOST, gated=True, answer_tokens=3).target(c, 0, 0, 0) for c in (light, heavy)]
    # 0.1305 less 0.008 + 4 x 0.005; the two answer steps take 0.008 more each, the prompt of 160 tokens hides it
    assert tokens == pytest.approx([2050, 1730], abs=1)
