"""The step-time model: it finds the true costs, follows them, and survives every report and every steady load."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.step_model import HUBER, MAX_TERM_GROWTH, StepCosts, StepModel
from schemas.frames import Limits, StepReport
from schemas.settings import ValveSettings
from tests.scheduler import make

PRIOR = StepCosts.prior(ValveSettings())
LIMITS = make.limits(max_num_batched_tokens=8192, kv_blocks=6250)
KV_TOKENS = LIMITS.kv_blocks * LIMITS.block_size
FAST = StepCosts(step=5e-3, prefill_token=20e-6, decode=30e-6, kv_token=20e-9)
"""An accelerator: a quarter of the prior and less, and KV reads that the prior knows nothing of."""


def _report(
    steps: int = 1, seconds: float = 0.02, prefill: int = 0, decodes: int = 0, kv_usage: float = 0.0
) -> StepReport:
    return StepReport(
        session="s",
        steps=steps,
        seconds=seconds,
        prefill_tokens=prefill,
        decode_tokens=decodes,
        running=1,
        waiting=0,
        kv_usage=kv_usage,
    )


def _varied(costs: StepCosts, count: int, *, seed: int = 0, noise: float = 0.05) -> Iterator[StepReport]:
    """Give reports that each sum up one to eight steps of a changing load."""
    rng = random.Random(seed)
    for _ in range(count):
        steps, decodes, kv_usage = rng.randint(1, 8), rng.randint(0, 200), rng.random()
        chunks = [rng.choice([0, 0, 500, 2000, 6000]) for _ in range(steps)]
        seconds = sum(
            costs.seconds(chunk, decodes, kv_usage * KV_TOKENS) * max(0.2, rng.gauss(1, noise)) for chunk in chunks
        )
        yield _report(steps, seconds, sum(chunks), decodes * steps, kv_usage)


def _learn(model: StepModel, reports: Iterator[StepReport]) -> None:
    for report in reports:
        assert model.observe(report, LIMITS)


def _assert_known(model: StepModel, costs: StepCosts, within: float) -> None:
    """Compare the coefficients that matter, and the predictions of steps of each kind."""
    assert model.costs.step == pytest.approx(costs.step, rel=2 * within)
    assert model.costs.prefill_token == pytest.approx(costs.prefill_token, rel=within)
    for load in ((0, 100, 0.3), (6000, 0, 0.1), (500, 200, 0.9)):
        prefill, decodes, kv_usage = load
        predicted = model.costs.seconds(prefill, decodes, kv_usage * KV_TOKENS)
        assert predicted == pytest.approx(costs.seconds(prefill, decodes, kv_usage * KV_TOKENS), rel=within), load


def test_the_prior_is_believed_before_the_first_report() -> None:
    """Without a report the model is what the settings say."""
    assert StepModel(PRIOR).costs == PRIOR == StepCosts(step=0.02, prefill_token=1e-4, decode=1e-4, kv_token=0.0)


def test_a_step_is_the_sum_of_its_terms() -> None:
    """The prediction is linear in prefill tokens, decodes and KV tokens."""
    costs = StepCosts(step=1.0, prefill_token=2.0, decode=3.0, kv_token=4.0)
    assert costs.seconds(10) == 21.0
    assert costs.seconds(10, 100, 1000) == 1 + 20 + 300 + 4000


@pytest.mark.parametrize("factor", [0.1, 1.0, 5.0])
def test_finds_the_true_costs_in_noisy_sums_of_steps(factor: float) -> None:
    """From reports that each sum up several noisy steps, costs far from the prior are found within a few per cent."""
    true = StepCosts(**{term: factor * getattr(FAST, term) for term in ("step", "prefill_token", "decode", "kv_token")})
    model = StepModel(PRIOR)
    _learn(model, _varied(true, 600))
    _assert_known(model, true, within=0.06)
    assert (model.observed, model.rejected) == (600, 0)


def test_thirty_reports_are_enough_to_plan_with() -> None:
    """Three seconds after a worker started under a changing load, steps are predicted to a fifth."""
    model = StepModel(PRIOR)
    _learn(model, _varied(FAST, 30))
    _assert_known(model, FAST, within=0.2)


@pytest.mark.parametrize("times", [10.0, 100.0, 0.01])
def test_outliers_hardly_count(times: float) -> None:
    """One report in twenty that is far off (a pause, a suspended machine) leaves the model within a tenth."""
    model = StepModel(PRIOR)
    rng = random.Random(7)
    for report in _varied(FAST, 1000, seed=3):
        off = rng.random() < 0.05
        seconds = report.seconds * times if off else report.seconds
        model.observe(
            _report(report.steps, seconds, report.prefill_tokens, report.decode_tokens, report.kv_usage), LIMITS
        )
    for load in ((0, 100, 0.3), (6000, 0, 0.1), (500, 200, 0.9)):
        prefill, decodes, kv_usage = load
        predicted = model.costs.seconds(prefill, decodes, kv_usage * KV_TOKENS)
        assert predicted == pytest.approx(FAST.seconds(prefill, decodes, kv_usage * KV_TOKENS), rel=0.1), load


def test_a_single_outlier_moves_a_settled_model_by_little() -> None:
    """However long one step took, the prediction moves no further than a few typical residuals would move it."""
    model = StepModel(PRIOR)
    _learn(model, _varied(FAST, 600, noise=0.02))
    before = model.costs.seconds(2000, 100, 0.5 * KV_TOKENS)
    assert model.observe(_report(1, 60.0, 2000, 100, 0.5), LIMITS)
    assert model.costs.seconds(2000, 100, 0.5 * KV_TOKENS) == pytest.approx(before, rel=HUBER * 0.05)


@pytest.mark.parametrize("factor", [4.0, 0.25])
def test_follows_when_the_true_costs_change(factor: float) -> None:
    """A throttled or freed engine, four times slower or faster, is known again within half a minute of load."""
    changed = StepCosts(**{t: factor * getattr(FAST, t) for t in ("step", "prefill_token", "decode", "kv_token")})
    model = StepModel(PRIOR)
    _learn(model, _varied(FAST, 500))
    _learn(model, _varied(changed, 300, seed=1))
    for load in ((0, 100, 0.3), (6000, 0, 0.1), (500, 200, 0.9)):
        prefill, decodes, kv_usage = load
        predicted = model.costs.seconds(prefill, decodes, kv_usage * KV_TOKENS)
        assert predicted == pytest.approx(changed.seconds(prefill, decodes, kv_usage * KV_TOKENS), rel=0.25), load


def _constant(rng: random.Random, *, prefill: int = 2000, decodes: int = 64, kv_usage: float = 0.5) -> StepReport:
    steps = 5
    noise = sum(max(0.2, rng.gauss(1, 0.05)) for _ in range(steps))
    seconds = FAST.seconds(prefill, decodes, kv_usage * KV_TOKENS) * noise
    return _report(steps, seconds, prefill * steps, decodes * steps, kv_usage)


def test_hours_of_a_constant_load_do_not_wind_the_model_up() -> None:
    """After an hour of one and the same load the prediction of that load is right and no coefficient has drifted."""
    model = StepModel(PRIOR)
    rng = random.Random(5)
    for number in range(36_000):
        assert model.observe(_constant(rng), LIMITS)
        if number == 300:
            early = model.costs
    assert model.costs.seconds(2000, 64, 0.5 * KV_TOKENS) == pytest.approx(
        FAST.seconds(2000, 64, 0.5 * KV_TOKENS), rel=0.05
    )
    for term in ("step", "prefill_token", "decode"):
        assert getattr(model.costs, term) == pytest.approx(getattr(early, term), rel=0.2), term


def test_a_constant_load_does_not_erase_what_was_known() -> None:
    """What a changing load taught about other steps is still there after ten minutes that say nothing about them."""
    model = StepModel(PRIOR)
    _learn(model, _varied(FAST, 600))
    rng = random.Random(6)
    for _ in range(6_000):
        assert model.observe(_constant(rng), LIMITS)
    _assert_known(model, FAST, within=0.15)


def test_learns_again_after_a_long_constant_load() -> None:
    """The first hundred reports of a changing load after an hour of a constant one give the costs apart."""
    model = StepModel(PRIOR)
    rng = random.Random(8)
    for _ in range(5_000):
        assert model.observe(_constant(rng), LIMITS)
    _learn(model, _varied(FAST, 150, seed=9))
    _assert_known(model, FAST, within=0.15)


def test_an_engine_that_costs_nothing_is_survived() -> None:
    """Reports of zero seconds bring the costs down to their least, and never to nothing."""
    model = StepModel(PRIOR)
    for number in range(2_000):
        assert model.observe(_report(3, 0.0, 100 * (number % 7), 5, 0.1), LIMITS)
    assert 0 < model.costs.step <= PRIOR.step / 100
    assert 0 < model.costs.prefill_token <= PRIOR.prefill_token / 100


@pytest.mark.parametrize(
    "report",
    [
        pytest.param(_report(seconds=math.nan), id="NaN seconds"),
        pytest.param(_report(seconds=math.inf), id="infinite seconds"),
        pytest.param(_report(seconds=-0.1), id="negative seconds"),
        pytest.param(_report(seconds=1e6), id="eleven days for one step"),
        pytest.param(_report(steps=0), id="no steps"),
        pytest.param(_report(steps=-3), id="negative steps"),
        pytest.param(_report(prefill=-1), id="negative prefill"),
        pytest.param(_report(prefill=2**62), id="more prefill tokens than the step takes"),
        pytest.param(_report(decodes=-1), id="negative decodes"),
        pytest.param(_report(decodes=10**7), id="more decodes than the step takes"),
        pytest.param(_report(kv_usage=math.nan), id="NaN usage"),
        pytest.param(_report(kv_usage=1.01), id="more than all of the KV cache"),
        pytest.param(_report(kv_usage=-0.1), id="negative usage"),
    ],
)
def test_nonsense_is_left_out_and_counted(report: StepReport) -> None:
    """A report that cannot be changes nothing and is counted, and the next good one is taken."""
    model = StepModel(PRIOR)
    assert not model.observe(report, LIMITS)
    assert (model.costs, model.observed, model.rejected) == (PRIOR, 0, 1)
    assert model.observe(_report(prefill=100), LIMITS)
    assert (model.observed, model.rejected) == (1, 1)


def test_tokens_that_run_ahead_of_their_step_are_no_nonsense() -> None:
    """With steps decided ahead a report may have the tokens of a step whose end belongs to the next report."""
    assert StepModel(PRIOR).observe(_report(steps=1, prefill=2 * LIMITS.max_num_batched_tokens), LIMITS)


_numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -1.0, 1e-300, 1e-9, 0.02, 1.0, 119.0, 1e30])
)
_counts = st.one_of(st.integers(-5, 9000), st.sampled_from([0, 1, 2**31, 2**63 - 1]))
_reports = st.builds(
    lambda steps, seconds, prefill, decodes, kv_usage: _report(steps, seconds, prefill, decodes, kv_usage),
    st.integers(-1, 100),
    _numbers,
    _counts,
    _counts,
    st.one_of(st.floats(0, 1), _numbers),
)
_limits = st.builds(
    lambda tokens, blocks: make.limits(max_num_batched_tokens=tokens, kv_blocks=blocks),
    st.integers(1, 100_000),
    st.integers(1, 10_000_000),
)


@given(
    st.lists(_reports, max_size=40),
    _limits,
    st.sampled_from([PRIOR, FAST, StepCosts(step=1e-5, prefill_token=1e-8, decode=0.0, kv_token=0.0)]),
)
@settings(max_examples=200)
def test_no_report_makes_a_cost_negative_infinite_or_not_a_number(
    reports: list[StepReport], limits: Limits, prior: StepCosts
) -> None:
    """Under any reports each cost stays between nothing and a multiple of its prior, and none is lost count of."""
    model = StepModel(prior)
    for report in reports:
        model.observe(report, limits)
        costs = model.costs
        assert 0 < costs.step <= prior.step * MAX_TERM_GROWTH
        assert 0 < costs.prefill_token <= prior.prefill_token * MAX_TERM_GROWTH
        assert 0 <= costs.decode <= max(prior.decode, 1e-5) * MAX_TERM_GROWTH
        assert 0 <= costs.kv_token <= max(prior.kv_token, 1e-8) * MAX_TERM_GROWTH
    assert model.observed + model.rejected == len(reports)


@given(_reports, st.integers(50, 400))
@settings(max_examples=25, deadline=None)
def test_any_report_over_and_over_is_survived(report: StepReport, times: int) -> None:
    """The same report hundreds of times (a wind-up if there is one) leaves finite costs that can be divided by."""
    model = StepModel(PRIOR)
    for _ in range(times):
        model.observe(report, LIMITS)
    assert math.isfinite(model.costs.seconds(1000, 100, 10_000))
    assert model.costs.prefill_token > 0


def test_finds_what_a_step_without_prefill_takes_on_top() -> None:
    """Where decode-only steps read the weights as long as hundreds of prompt tokens take, their time is found."""
    rng = random.Random(5)
    true = StepCosts(step=2e-3, prefill_token=24e-6, decode=25e-6, kv_token=50e-9, decode_step=6e-3)
    model = StepModel(PRIOR)
    for _ in range(400):
        decodes, kv_usage, steps = rng.randint(1, 60), rng.random() / 2, rng.randint(1, 4)
        chunks = [rng.choice([0, 0, 0, 1500, 3000]) for _ in range(steps)]
        seconds = sum(true.seconds(c, decodes, kv_usage * KV_TOKENS) * rng.gauss(1, 0.03) for c in chunks)
        report = replace(
            _report(steps, seconds, sum(chunks), decodes * steps, kv_usage), decode_steps=sum(not c for c in chunks)
        )
        assert model.observe(report, LIMITS)
    assert model.costs.step + model.costs.decode_step == pytest.approx(8e-3, rel=0.1)
    assert model.costs.seconds(0, 1, 300) == pytest.approx(true.seconds(0, 1, 300), rel=0.1)
    assert model.costs.seconds(3000) == pytest.approx(true.seconds(3000), rel=0.05)


def test_without_such_a_cost_none_is_found() -> None:
    """On an engine whose decode-only steps cost no more than their decodes, answers are predicted at that."""
    rng = random.Random(6)
    true = StepCosts(step=2e-2, prefill_token=6e-4, decode=1e-3, kv_token=0.0)
    model = StepModel(PRIOR)
    for _ in range(400):
        decodes, chunk = rng.randint(1, 24), rng.choice([0, 0, 256, 1024])
        seconds = true.seconds(chunk, decodes) * rng.gauss(1, 0.05)
        assert model.observe(replace(_report(1, seconds, chunk, decodes, 0.1), decode_steps=int(not chunk)), LIMITS)
    assert model.costs.seconds(0, 1) == pytest.approx(true.seconds(0, 1), rel=0.15)


@pytest.mark.parametrize("decode_steps", [-1, 4])
def test_more_steps_without_prefill_than_steps_are_nonsense(decode_steps: int) -> None:
    """A count that cannot be is left out like other nonsense."""
    model = StepModel(PRIOR)
    assert not model.observe(replace(_report(3), decode_steps=decode_steps), LIMITS)
