"""The simulated engine's step logic under random work: budgets hold, and every request ends exactly once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.frames import Limits, StepPolicy
from workers.sim_core import Produced, Sequence, SimCore, Step
from workers.step_gate import StepGate

LIMITS = Limits(
    max_model_len=256,
    max_num_batched_tokens=64,
    long_prefill_token_threshold=32,
    max_num_seqs=4,
    kv_blocks=24,
    block_size=16,
)


def make(request_id: int, prompt: int, output: int = 1, priority: int = 0, shared: int = 0) -> Sequence:
    """Build a sequence."""
    return Sequence(
        request_id=request_id, priority=priority, prompt_tokens=prompt, output_tokens=output, shared_tokens=shared
    )


def step(core: SimCore) -> tuple[Step, Produced]:
    """Make one step that must exist."""
    planned = core.schedule()
    assert planned is not None
    return planned, core.apply(planned)


@st.composite
def scenarios(draw: st.DrawFn) -> list[tuple[str, Sequence | int]]:
    """Draw a history of arrivals and aborts."""
    actions: list[tuple[str, Sequence | int]] = []
    for request_id in range(draw(st.integers(1, 25))):
        prompt = draw(st.integers(33, 200))
        sequence = make(
            request_id,
            prompt,
            draw(st.integers(1, 40)),
            draw(st.integers(0, 2)),
            draw(st.sampled_from([0, 32])),
        )
        actions.append(("add", sequence))
        for _ in range(draw(st.integers(0, 3))):
            actions.append(("step", 0))  # noqa: PERF401 - a comprehension would hide that this draws
        if draw(st.integers(0, 5)) == 0:
            actions.append(("abort", draw(st.integers(0, request_id))))
    return actions


def check(core: SimCore, planned: Step, *, alone: bool) -> None:
    """Check one step against every limit."""
    assert sum(tokens for _, tokens, _ in planned.work) == planned.prefill_tokens + planned.decode_tokens
    assert planned.prefill_tokens + planned.decode_tokens <= LIMITS.max_num_batched_tokens
    chunk = LIMITS.max_num_batched_tokens if alone else LIMITS.long_prefill_token_threshold
    assert all(0 < tokens <= chunk for _, tokens, _ in planned.work)
    assert core.running <= LIMITS.max_num_seqs
    assert core.used_blocks <= LIMITS.kv_blocks
    ids = [sequence.request_id for sequence, _, _ in planned.work]
    assert len(set(ids)) == len(ids)


@settings(max_examples=200)
@given(actions=scenarios())
def test_limits_hold_and_everything_ends_once(actions: list[tuple[str, Sequence | int]]) -> None:
    """Whatever arrives or is aborted, no step exceeds a budget, each request ends once, and all blocks come back."""
    core = SimCore(LIMITS, cached_blocks=2)
    added: set[int] = set()
    aborted: set[int] = set()
    first: list[int] = []
    finished: list[int] = []

    def advance() -> bool:
        alone = core.running + core.waiting == 1
        planned = core.schedule()
        if planned is None:
            return False
        check(core, planned, alone=alone)
        produced = core.apply(planned)
        first.extend(produced.first)
        finished.extend(produced.finished)
        return True

    for kind, value in actions:
        if isinstance(value, Sequence):
            assert core.fits(value.prompt_tokens, value.output_tokens, value.shared_tokens)
            core.add(value)
            added.add(value.request_id)
        elif kind == "abort":
            core.abort([value])
            if value not in finished:
                aborted.add(value)
        else:
            advance()
    steps = 0
    while advance():
        steps += 1
        assert steps < 10_000, "the engine does not come to an end"
    assert sorted(finished) == sorted(added - aborted)
    assert len(first) == len(set(first))
    assert set(finished) <= set(first)
    assert (core.running, core.waiting, core.used_blocks) == (0, 0, 2)


def test_a_long_prefill_is_chunked() -> None:
    """A prompt longer than the threshold takes several steps beside another, and as few as fit when it is alone."""

    def chunks(core: SimCore) -> list[int]:
        taken: list[int] = []
        while (planned := core.schedule()) is not None:
            taken += [tokens for s, tokens, _ in planned.work if s.request_id == 1]
            core.apply(planned)
        return taken

    core = SimCore(LIMITS)
    core.add(make(1, prompt=70))
    assert chunks(core) == [64, 6]
    core.add(make(1, prompt=70))
    core.add(make(2, prompt=10, output=9))
    assert chunks(core) == [32, 32, 6]


def test_urgent_work_waits_for_no_one_but_the_running() -> None:
    """Among waiting requests the smaller priority goes first, whenever it came; running ones keep their turn."""
    limits = Limits(**{**{f: getattr(LIMITS, f) for f in LIMITS.__struct_fields__}, "max_num_seqs": 1})
    core = SimCore(limits)
    core.add(make(1, prompt=100, priority=5))
    step(core)
    core.add(make(2, prompt=10, priority=5))
    core.add(make(3, prompt=10, priority=0))
    order = []
    while (planned := core.schedule()) is not None:
        order += core.apply(planned).finished
    assert order == [1, 3, 2]


def test_the_least_urgent_is_preempted() -> None:
    """When KV blocks run out, the least urgent running request starts over and still finishes."""
    limits = Limits(**{**{f: getattr(LIMITS, f) for f in LIMITS.__struct_fields__}, "kv_blocks": 5})
    core = SimCore(limits)
    core.add(make(1, prompt=31, output=20, priority=0))
    core.add(make(2, prompt=31, output=20, priority=1))
    preempted: list[int] = []
    finished: list[int] = []
    while (planned := core.schedule()) is not None:
        preempted += planned.preempted
        finished += core.apply(planned).finished
    assert set(preempted) == {2}
    assert finished == [1, 2]


def test_the_shared_prefix_costs_nothing() -> None:
    """Whole blocks of the shared prefix are neither computed nor held again."""
    core = SimCore(LIMITS, cached_blocks=2)
    core.add(make(1, prompt=50, shared=40))
    planned, _ = step(core)
    assert planned.prefill_tokens == 50 - 32


def test_what_can_never_run_does_not_fit() -> None:
    """A request beyond the context or beyond the whole KV cache is told apart before it is queued."""
    core = SimCore(LIMITS)
    assert core.fits(255, 1, 0)
    assert not core.fits(256, 1, 0)
    small = SimCore(Limits(**{**{f: getattr(LIMITS, f) for f in LIMITS.__struct_fields__}, "kv_blocks": 3}))
    assert small.fits(47, 1, 0)
    assert not small.fits(48, 1, 0)


def test_a_step_may_be_scheduled_before_the_one_ahead_has_run() -> None:
    """Scheduling one step ahead gives the same results in the same number of steps, one step later."""

    def run(ahead: int) -> tuple[list[int], int]:
        core = SimCore(LIMITS)
        for request_id in range(3):
            core.add(make(request_id, prompt=40 + request_id, output=5))
        waiting: list[Step] = []
        finished: list[int] = []
        steps = 0
        while True:
            while len(waiting) <= ahead and (planned := core.schedule()) is not None:
                waiting.append(planned)
            if not waiting:
                return finished, steps
            finished += core.apply(waiting.pop(0)).finished
            steps += 1

    assert run(0) == run(1)


def test_an_aborted_prompt_comes_back_from_the_prefix_cache() -> None:
    """A prompt that was aborted half way and returns computes only what its whole blocks do not hold."""
    core = SimCore(LIMITS)
    for request_id, content in ((1, "a"), (2, "b"), (3, "a")):
        sequence = make(request_id, prompt=100)
        sequence.content = content
        core.add(sequence)
        planned, _ = step(core)
        if request_id < 3:
            assert planned.prefill_tokens == 64
            core.abort([request_id])
    assert planned.prefill_tokens == 100 - 64


def test_blocks_of_an_aborted_prompt_are_overwritten_in_the_end() -> None:
    """Once as many blocks were allocated as were free, nothing of the prompt is left."""
    core = SimCore(LIMITS)
    first = make(1, prompt=100)
    first.content = "a"
    core.add(first)
    step(core)
    core.abort([1])
    for request_id in range(2, 12):
        core.add(make(request_id, prompt=60))
        step(core)
    again = make(99, prompt=100)
    again.content = "a"
    core.add(again)
    planned, _ = step(core)
    assert planned.prefill_tokens == 64


def test_the_gate_lets_urgent_work_pass_running_prefills() -> None:
    """With the step gate an urgent request gets its tokens first, and running prefills what its deadline leaves."""
    policy = StepPolicy(
        lower_step_tokens=48,
        step_seconds=0.001,
        prefill_token_seconds=0.0001,
        decode_seconds=0.0001,
        kv_token_seconds=0.0,
    )
    core = SimCore(LIMITS, gate=StepGate(LIMITS.max_num_batched_tokens), policy=policy)
    core.add(make(1, prompt=200, priority=1))
    core.add(make(2, prompt=200, priority=1))
    planned, _ = step(core)
    assert planned.prefill_tokens == 48  # the valve, though the step holds 64
    urgent = make(3, prompt=20)
    urgent.deadline_ns = 9_000_000
    core.add(urgent)
    planned = core.schedule(starts_ns=0) or Step()
    assert [s.request_id for s, _, _ in planned.work] == [3]
    assert core.apply(planned).finished == [3]
    planned, _ = step(core)
    assert planned.prefill_tokens == 48
