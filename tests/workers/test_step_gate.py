"""The step gate: what lower classes may do in a step, from deadlines and a step-time model."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.frames import StepPolicy
from workers.step_gate import (
    FIRST_PART,
    HOLD_SECONDS,
    MARGIN_SECONDS,
    MODEL_ERROR,
    MOST_ERROR,
    PACK_ERROR,
    PACK_MARGIN_SECONDS,
    RELEASE_TOKENS,
    WORTH_SPLITTING,
    Free,
    Lower,
    StepGate,
    Urgent,
)

NOW = 1_700_000_000_000_000_000
MS = 1_000_000
STEP_TOKENS = 2048


def policy(
    tokens: int = 512,
    step: float = 0.01,
    prefill: float = 1e-4,
    decode: float = 1e-4,
    kv: float = 0.0,
    weights: float = 0.0,
) -> StepPolicy:
    """Return a policy: 10 ms a step and 0.1 ms a token unless told otherwise."""
    return StepPolicy(
        lower_step_tokens=tokens,
        step_seconds=step,
        prefill_token_seconds=prefill,
        decode_seconds=decode,
        kv_token_seconds=kv,
        decode_step_seconds=weights,
    )


def urgent(in_ms: float, tokens: int = 100, outputs: int = 1) -> Urgent:
    """Return an urgent request with a deadline in so many milliseconds."""
    return Urgent(prefill_tokens=tokens, deadline_ns=NOW + int(in_ms * MS), output_tokens=outputs)


NOBODY = Lower(prefill_tokens=0, decodes=0, kv_tokens=0)
BUSY = Lower(prefill_tokens=5000, decodes=10, kv_tokens=10_000)


def test_without_urgent_work_only_the_valve_counts() -> None:
    """With nothing urgent in the engine the lower classes get the policy's tokens and all decodes."""
    allowed = StepGate(STEP_TOKENS).allow(policy(), [], BUSY, NOW)
    assert (allowed.lower_prefill_tokens, allowed.lower_decodes) == (512, True)


def test_the_step_is_never_overfilled() -> None:
    """Urgent prefill, the guaranteed share and all decodes come off the step's tokens before lower prefill."""
    allowed = StepGate(600).allow(policy(), [urgent(10_000, 300)], BUSY, NOW, Free(prefill_tokens=200, decodes=5))
    assert allowed.lower_prefill_tokens == 600 - 300 - 200 - 5 - 10


def test_lower_prefill_gets_what_the_deadline_leaves() -> None:
    """The step with everything in it is predicted to end at the deadline less margin and model error."""
    allowed = StepGate(STEP_TOKENS).allow(policy(), [urgent(50)], BUSY, NOW)
    spare = (0.05 - MARGIN_SECONDS) / (1 + MODEL_ERROR) - (0.01 + 100 * 1e-4) - 10 * 1e-4
    assert allowed.lower_decodes
    assert allowed.lower_prefill_tokens == int(spare / 1e-4)


def test_decodes_go_before_prefill() -> None:
    """With time for the decodes alone, they run and prefill waits."""
    allowed = StepGate(STEP_TOKENS).allow(policy(), [urgent(29.5)], BUSY, NOW)
    assert (allowed.lower_prefill_tokens, allowed.lower_decodes) == (0, True)


def test_decodes_are_held_when_the_deadline_needs_it() -> None:
    """With time for the urgent request alone, nothing else runs."""
    allowed = StepGate(STEP_TOKENS).allow(policy(), [urgent(28)], BUSY, NOW)
    assert (allowed.lower_prefill_tokens, allowed.lower_decodes) == (0, False)


def test_reading_the_cache_counts_as_work() -> None:
    """Decodes over long contexts cost what the model says per KV token, and are held for it."""
    short = Lower(prefill_tokens=0, decodes=10, kv_tokens=0)
    long = Lower(prefill_tokens=0, decodes=10, kv_tokens=1_000_000)
    gate = StepGate(STEP_TOKENS)
    assert gate.allow(policy(kv=1e-6), [urgent(50)], short, NOW).lower_decodes
    assert not gate.allow(policy(kv=1e-6), [urgent(50)], long, NOW).lower_decodes


def test_a_passed_deadline_holds_nothing() -> None:
    """What cannot be on time any more does not make others late as well."""
    allowed = StepGate(STEP_TOKENS).allow(policy(), [urgent(-1)], BUSY, NOW)
    assert (allowed.lower_prefill_tokens, allowed.lower_decodes) == (512, True)


def test_the_tightest_of_several_counts() -> None:
    """A relaxed deadline beside a tight one changes nothing, in whatever order they come."""
    tight, relaxed = urgent(28), urgent(10_000, tokens=0)
    for requests in ([tight, relaxed], [relaxed, tight]):
        assert not StepGate(STEP_TOKENS).allow(policy(), requests, BUSY, NOW).lower_decodes


def test_later_steps_of_an_urgent_request_keep_their_time() -> None:
    """A request that still needs ten steps lets this one have a tenth of what is left over."""
    allowed = StepGate(STEP_TOKENS).allow(policy(), [urgent(400, tokens=0, outputs=10)], BUSY, NOW)
    one = 0.01 + 1e-4
    share = ((0.4 - MARGIN_SECONDS) / (1 + MODEL_ERROR) - 10 * one) / 10
    assert allowed.lower_prefill_tokens == int((share - 10 * 1e-4) / 1e-4)


def test_a_running_step_counts_against_the_deadline() -> None:
    """A step that can only begin when the one before has ended has that much less time."""
    gate = StepGate(STEP_TOKENS)
    assert gate.allow(policy(), [urgent(50)], BUSY, NOW).lower_prefill_tokens > 0
    assert not gate.allow(policy(), [urgent(50)], BUSY, NOW + 25 * MS).lower_decodes


def test_a_stop_ends_after_its_bound() -> None:
    """Held without a break for the bound, the lower classes get one whole step, then are held again."""
    gate = StepGate(STEP_TOKENS)
    for moment in range(0, int(HOLD_SECONDS * 1000), 20):
        request = Urgent(prefill_tokens=100, deadline_ns=NOW + (moment + 10) * MS)
        assert not gate.allow(policy(), [request], BUSY, NOW + moment * MS).lower_decodes
    end = NOW + int(HOLD_SECONDS * 1e9)
    request = Urgent(prefill_tokens=100, deadline_ns=end + 10 * MS)
    allowed = gate.allow(policy(), [request], BUSY, end)
    assert (allowed.lower_prefill_tokens, allowed.lower_decodes) == (512, True)
    assert not gate.allow(policy(), [request], BUSY, end).lower_decodes


def test_a_shut_valve_opens_at_the_bound() -> None:
    """Even a policy of no lower tokens lets a chunk through from time to time: a wrong model needs data to mend."""
    gate = StepGate(STEP_TOKENS)
    assert gate.allow(policy(tokens=0), [], BUSY, NOW).lower_prefill_tokens == 0
    later = gate.allow(policy(tokens=0), [], BUSY, NOW + int(HOLD_SECONDS * 1e9))
    assert later.lower_prefill_tokens == RELEASE_TOKENS


def test_a_clock_set_back_does_not_prolong_a_stop() -> None:
    """After a jump back by an hour the stop ends one bound later, not an hour later."""
    gate = StepGate(STEP_TOKENS)
    back = NOW - 3600 * 1000 * MS
    for start in (NOW, back):
        request = Urgent(prefill_tokens=100, deadline_ns=start + 10 * MS)
        assert not gate.allow(policy(), [request], BUSY, start).lower_decodes
    end = back + int(HOLD_SECONDS * 1e9)
    request = Urgent(prefill_tokens=100, deadline_ns=end + 10 * MS)
    assert gate.allow(policy(), [request], BUSY, end).lower_decodes


def test_the_reserve_follows_how_far_predictions_are_off() -> None:
    """Steps half again as long as predicted raise the reserve until it covers them, and good ones let it sink again."""
    gate = StepGate(STEP_TOKENS)
    relaxed = gate.allow(policy(), [urgent(50)], BUSY, NOW).lower_prefill_tokens
    for _ in range(100):
        gate.observe(0.1, 0.15)
    assert 0.45 < gate.error < 0.55
    assert gate.allow(policy(), [urgent(50)], BUSY, NOW).lower_prefill_tokens < relaxed
    for _ in range(1000):
        gate.observe(0.1, 0.1)
    assert gate.error == MODEL_ERROR
    for _ in range(100):
        gate.observe(0.1, 100.0)
    assert gate.error == MOST_ERROR


@pytest.mark.parametrize(("predicted", "seconds"), [(0, 1), (math.nan, 1), (1, math.inf), (1, -1), (1, math.nan)])
def test_times_of_nonsense_teach_nothing(predicted: float, seconds: float) -> None:
    """A clock that jumps or a model that is broken leaves the reserve as it is."""
    gate = StepGate(STEP_TOKENS)
    gate.observe(predicted, seconds)
    assert gate.error == MODEL_ERROR


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -1.0])
def test_a_policy_of_nonsense_opens_the_gate(nonsense: float) -> None:
    """Numbers that mean nothing never stop work."""
    for broken in (policy(step=nonsense), policy(prefill=nonsense), policy(decode=nonsense), policy(kv=nonsense)):
        allowed = StepGate(STEP_TOKENS).allow(broken, [urgent(10)], BUSY, NOW)
        assert (allowed.lower_prefill_tokens, allowed.lower_decodes) == (STEP_TOKENS - 100 - 10, True)


seconds = st.floats(min_value=0, max_value=1, allow_nan=False)
counts = st.integers(min_value=0, max_value=100_000)


@given(
    tokens=counts,
    model=st.tuples(seconds, seconds, seconds, seconds),
    requests=st.lists(
        st.builds(
            Urgent,
            prefill_tokens=counts,
            deadline_ns=st.integers(min_value=0, max_value=2**63 - 1),
            output_tokens=st.integers(min_value=1, max_value=1000),
        ),
        max_size=5,
    ),
    lower=st.builds(Lower, prefill_tokens=counts, decodes=counts, kv_tokens=counts),
    free=st.builds(Free, prefill_tokens=counts, decodes=counts, kv_tokens=counts),
)
def test_any_state_gives_a_share_within_the_step(
    tokens: int, model: tuple[float, float, float, float], requests: list[Urgent], lower: Lower, free: Free
) -> None:
    """Whatever the deadlines and the model, lower prefill stays between nothing and both valve and room."""
    step, prefill, decode, kv = model
    gate = StepGate(STEP_TOKENS)
    allowed = gate.allow(policy(tokens, step, prefill, decode, kv), requests, lower, NOW, free)
    taken = sum(r.prefill_tokens for r in requests) + free.prefill_tokens
    assert 0 <= allowed.lower_prefill_tokens <= min(tokens, max(0, STEP_TOKENS - taken))
    if not requests:
        assert allowed.lower_decodes


def test_a_burst_is_packed_into_steps_that_end_in_time() -> None:
    """Of more equal requests than fit in time, the first share a step and the last part of those that fit waits."""
    burst = [urgent(100, tokens=50) for _ in range(60)]
    allowed = StepGate(100_000).allow(policy(), burst, Lower(prefill_tokens=0, decodes=0, kv_tokens=0), NOW)
    fit = int(((0.1 - PACK_MARGIN_SECONDS) / (1 + PACK_ERROR) - 0.01) / (50 * 1e-4))
    taken = sum(allowed.urgent)
    assert allowed.urgent == (True,) * taken + (False,) * (60 - taken)
    assert taken == int(fit * FIRST_PART)


def test_one_request_that_fills_the_time_is_not_split() -> None:
    """A single long urgent request takes part whole, however close its end is to its deadline."""
    allowed = StepGate(100_000).allow(
        policy(), [urgent(100, tokens=850)], Lower(prefill_tokens=0, decodes=0, kv_tokens=0), NOW
    )
    assert allowed.urgent == (True,)


def test_late_urgent_work_does_not_make_the_rest_late() -> None:
    """A request past its deadline stays out of a step that it would make too long for one that can be on time."""
    allowed = StepGate(100_000).allow(
        policy(),
        [urgent(-5, tokens=900), urgent(60, tokens=100)],
        Lower(prefill_tokens=0, decodes=0, kv_tokens=0),
        NOW,
    )
    assert allowed.urgent == (False, True)


def test_a_longer_answer_leaves_room_for_its_steps() -> None:
    """Of two requests that would end together in time, the second waits when their answers take more steps."""
    one = StepGate(STEP_TOKENS).allow(policy(), [urgent(45, 150), urgent(45, 150)], NOBODY, NOW)
    three = StepGate(STEP_TOKENS).allow(policy(), [urgent(60, 150, 3)] * 2, NOBODY, NOW)
    assert one.urgent == (True, True)
    assert sum(three.urgent) == 1


def test_prompts_do_not_join_a_step_that_an_answer_needs() -> None:
    """A prompt that would push the rest of an answer past its deadline waits; with room for both it joins."""
    answering = urgent(28, 0, 2)
    waits = StepGate(STEP_TOKENS).allow(policy(), [answering, urgent(200, 100)], NOBODY, NOW)
    assert waits.urgent == (True, False)
    joins = StepGate(STEP_TOKENS).allow(policy(), [urgent(60, 0, 2), urgent(200, 100)], NOBODY, NOW)
    assert joins.urgent == (True, True)


def test_an_answer_step_costs_the_reading_of_the_weights() -> None:
    """What a step without prefill takes on top comes off the time that a burst's prompts may take, once per step."""
    requests = [urgent(100, 10, 3)] * 60
    light = sum(StepGate(STEP_TOKENS).allow(policy(step=0.001), requests, NOBODY, NOW).urgent)
    heavy = policy(step=0.001, weights=0.02)
    taken = sum(StepGate(STEP_TOKENS).allow(heavy, requests, NOBODY, NOW).urgent)
    left = (0.1 - PACK_MARGIN_SECONDS) / (1 + PACK_ERROR) - 3 * 0.001 - 2 * 0.02
    assert taken == int(left / (10 * 1e-4)) < light


def test_decodes_hide_behind_the_reading_of_the_weights() -> None:
    """Answers that go on cost the steps after this one nothing as long as reading the weights takes longer."""
    answering = [urgent(100, 0, 2)] * 10
    joins = [
        sum(StepGate(STEP_TOKENS).allow(model, [*answering, *[urgent(100, 10, 2)] * 60], NOBODY, NOW).urgent) - 10
        for model in (policy(weights=0.02, decode=1e-3), policy(weights=0.02, decode=0.0))
    ]
    # What differs: the ten decodes of this step, and those beyond twenty in the next.
    assert joins[0] == int(((0.1 - PACK_MARGIN_SECONDS) / (1 + PACK_ERROR) - 0.01 * 2 - 0.02 - 0.01 + 0.01) / 2e-3)
    assert joins[1] > joins[0]


def test_a_burst_of_longer_answers_is_not_split_for_a_little() -> None:
    """What takes less than a few of the steps that the second part's answers would need on top stays in one step."""
    requests = [urgent(95, 10, 3)] * 100
    model = policy(step=0.002, weights=0.01)
    allowed = StepGate(STEP_TOKENS).allow(model, requests, NOBODY, NOW)
    left = (0.095 - PACK_MARGIN_SECONDS) / (1 + PACK_ERROR) - 3 * 0.002 - 2 * 0.01
    fits = int(left / 1e-3)
    assert left > WORTH_SPLITTING * 0.012
    assert sum(allowed.urgent) == int(fits * FIRST_PART)
    shorter = [urgent(80, 10, 3)] * 60
    left -= 0.015 / (1 + PACK_ERROR)
    assert left < WORTH_SPLITTING * 0.012
    assert sum(StepGate(STEP_TOKENS).allow(model, shorter, NOBODY, NOW).urgent) == int(left / 1e-3)


def test_nothing_joins_an_answer_that_is_a_little_late() -> None:
    """An answer that may just miss its deadline may still meet it: no prompt makes it later."""
    answering = urgent(11, 0, 1)  # its step takes 10.1 ms, and what is kept free does not fit
    allowed = StepGate(STEP_TOKENS).allow(policy(), [answering, urgent(200, 50)], NOBODY, NOW)
    assert allowed.urgent == (True, False)
    hopeless = urgent(5, 0, 1)
    assert StepGate(STEP_TOKENS).allow(policy(), [hopeless, urgent(200, 50)], NOBODY, NOW).urgent == (True, True)


def test_lower_decodes_may_take_the_time_of_later_steps() -> None:
    """Decodes, which run together or not at all, may take what the whole answer leaves, though no share is enough."""
    lower = Lower(prefill_tokens=5000, decodes=100, kv_tokens=0)  # 10 ms
    request = urgent(62, 0, 3)  # three steps of 10.1 ms leave 19.3 ms, 6.4 for each
    allowed = StepGate(STEP_TOKENS).allow(policy(), [request], lower, NOW)
    assert (allowed.lower_decodes, allowed.lower_prefill_tokens) == (True, 0)
    weighty = StepGate(STEP_TOKENS).allow(policy(weights=0.01), [request], lower, NOW)
    assert not weighty.lower_decodes
