"""What one worker can hold: the three inequalities, the reserve, and that everything taken comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.budgets import URGENT_STEPS, Use, WorkerBudget
from schemas.settings import ReserveSettings
from tests.scheduler import make


def _use(step_tokens: int = 1, kv_blocks: int = 1, *, urgent: bool = False) -> Use:
    return Use(step_tokens=step_tokens, prompt_tokens=step_tokens, kv_blocks=kv_blocks, urgent=urgent)


def test_a_long_prefill_takes_no_more_than_the_threshold_of_a_step() -> None:
    """Inequality 1 counts min(prompt, threshold), with the cached template prefix left out."""
    budget = make.budget()
    assert budget.use_of("headline", 20, urgent=False).step_tokens == 40 - 32 + 20
    assert budget.use_of("headline", 1500, urgent=False).step_tokens == 256


def test_kv_blocks_cover_prompt_and_answer_less_the_shared_prefix() -> None:
    """Inequality 2 counts whole blocks of what one request can grow to."""
    budget = make.budget()
    assert budget.use_of("headline", 8, urgent=False).kv_blocks == 2  # 8 of template, 8 of text, 1 of answer: 17
    assert budget.use_of("headline", 7, urgent=False).kv_blocks == 1
    assert budget.use_of("filing", 8, urgent=False).kv_blocks == 4  # 8 + 8 + 48 = 64


def test_only_whole_blocks_of_the_prefix_are_shared() -> None:
    """A prefix that ends inside a block saves only the blocks before it."""
    budget = WorkerBudget(make.limits(), {"headline": make.extractor(shared_prefix_tokens=31)}, ReserveSettings())
    assert budget.use_of("headline", 1, urgent=False).step_tokens == 40 - 16 + 1


@pytest.mark.parametrize(
    ("taken", "asked"),
    [
        pytest.param(_use(step_tokens=1000), _use(step_tokens=25), id="step tokens"),
        pytest.param(_use(kv_blocks=500), _use(kv_blocks=9), id="KV blocks"),  # 512 less 2 * 2 shared ones
    ],
)
def test_each_budget_holds_to_its_last_unit(taken: Use, asked: Use) -> None:
    """A request fits up to the limit itself and not one unit past it."""
    budget = make.budget()
    budget.take(1, taken)
    assert not budget.fits(asked)
    assert budget.fits(replace(asked, step_tokens=max(1, asked.step_tokens - 1), kv_blocks=max(1, asked.kv_blocks - 1)))


def test_sequences_hold_to_the_last_one() -> None:
    """Inequality 3: as many requests as the engine has slots, then none."""
    budget = make.budget(max_num_seqs=2)
    budget.take(1, _use())
    assert budget.fits(_use())
    budget.take(2, _use())
    assert not budget.fits(_use())
    assert not budget.fits(_use(urgent=True))


RESERVE = ReserveSettings(step_tokens=200, kv_fraction=0.5, seqs=3)


@pytest.mark.parametrize(
    "taken",
    [
        pytest.param([_use(step_tokens=824)], id="step tokens"),
        pytest.param([_use(kv_blocks=254)], id="KV blocks"),
        pytest.param([_use()] * 5, id="sequences"),
    ],
)
def test_the_reserve_is_for_the_urgent_class_alone(taken: list[Use]) -> None:
    """Where each limit less the reserve is used up, urgent work still fits and other work does not."""
    budget = make.budget(reserve=RESERVE)
    for request_id, use in enumerate(taken):
        assert budget.fits(replace(use))
        budget.take(request_id, replace(use))
    assert not budget.fits(_use())
    assert budget.fits(_use(urgent=True))


def test_urgent_work_may_fill_a_bounded_number_of_steps_ahead() -> None:
    """The most urgent class queues at most two steps of prefill in an engine, so a later headline can overtake."""
    budget = make.budget()
    budget.take(1, _use(step_tokens=1024 * URGENT_STEPS - 10, urgent=True))
    assert budget.fits(_use(step_tokens=10, urgent=True))
    assert not budget.fits(_use(step_tokens=11, urgent=True))


def test_an_empty_engine_takes_what_is_larger_than_its_budget() -> None:
    """A request that exceeds the limit less the reserve runs alone instead of waiting for ever."""
    budget = make.budget(kv_blocks=8, reserve=RESERVE)
    huge = _use(step_tokens=256, kv_blocks=100)
    assert budget.fits(huge)
    budget.take(1, huge)
    assert not budget.fits(_use())


def test_a_reserve_larger_than_the_engine_does_not_shut_others_out() -> None:
    """At most half of the steps and sequences are kept back, however large the reserve is configured."""
    budget = make.budget(reserve=ReserveSettings(step_tokens=10_000, kv_fraction=0, seqs=100), max_num_seqs=4)
    budget.take(1, _use(step_tokens=500))
    assert budget.fits(_use(step_tokens=12))
    assert not budget.fits(_use(step_tokens=13))


def test_the_end_of_the_prefill_frees_all_but_one_step_token() -> None:
    """A decoding request takes one token of each step; saying so twice changes nothing more."""
    budget = make.budget()
    budget.take(1, _use(step_tokens=256, kv_blocks=20))
    budget.prefilled(1)
    budget.prefilled(1)
    assert (budget.step_tokens, budget.kv_blocks, budget.seqs) == (1, 20, 1)


def test_unknown_requests_change_nothing() -> None:
    """A late or repeated frame about a request that is gone gives nothing back a second time."""
    budget = make.budget()
    budget.take(1, _use(step_tokens=5, kv_blocks=3))
    budget.release(2)
    budget.prefilled(2)
    assert (budget.step_tokens, budget.kv_blocks, len(budget)) == (5, 3, 1)
    budget.release(1)
    budget.release(1)
    budget.prefilled(1)
    assert (budget.step_tokens, budget.kv_blocks, len(budget)) == (0, 0, 0)


def test_text_limit_leaves_room_for_template_and_answer() -> None:
    """The longest text is the model's length less what the worker puts around it and the longest answer."""
    budget = make.budget()
    assert budget.text_limit("headline") == 2048 - 40 - 1
    assert budget.text_limit("filing") == 2048 - 40 - 48


_requests = st.lists(
    st.tuples(
        st.sampled_from(["take", "prefilled", "release"]), st.integers(0, 9), st.integers(1, 2000), st.booleans()
    ),
    max_size=60,
)


@given(_requests)
def test_limits_hold_through_any_history_and_everything_comes_back(
    history: list[tuple[str, int, int, bool]],
) -> None:
    """No history that asks `fits` first exceeds a limit, save by one request alone; at the end all is given back."""
    budget = make.budget(reserve=ReserveSettings(step_tokens=128, kv_fraction=0.25, seqs=2), kv_blocks=128)
    held: dict[int, Use] = {}
    alone: set[int] = set()
    for action, request_id, tokens, urgent in history:
        use = budget.use_of("filing", tokens, urgent=urgent)
        if action == "take" and request_id not in held and budget.fits(use):
            if not held:
                alone.add(request_id)
            held[request_id] = use
            budget.take(request_id, use)
        elif action == "prefilled":
            budget.prefilled(request_id)
        elif action == "release":
            held.pop(request_id, None)
            budget.release(request_id)
            alone.discard(request_id)
        assert budget.seqs == len(held) <= 8
        assert budget.step_tokens == sum(u.step_tokens for u in held.values())
        assert budget.kv_blocks == sum(u.kv_blocks for u in held.values())
        if not alone:
            assert budget.step_tokens <= 1024 * URGENT_STEPS
            assert budget.kv_blocks <= 128
            if not any(u.urgent for u in held.values()):
                assert budget.step_tokens <= 1024 - 128
                assert len(held) <= 8 - 2
    for request_id in list(held):
        budget.release(request_id)
    assert (budget.step_tokens, budget.kv_blocks, budget.seqs) == (0, 0, 0)
