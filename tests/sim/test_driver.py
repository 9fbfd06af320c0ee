"""The simulator: virtual time adds up, every job ends once, and the seed fixes the run."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.sim.policies import POLICIES, make_policy
from ops.sim.traffic import BULK, FLASH, Arrival
from schemas.errors import ConfigError
from tests.sim.small import MS, bulk, flash, profile, simulate

ARRIVALS = st.lists(
    st.builds(
        Arrival,
        st.integers(0, 400 * MS),
        st.sampled_from([FLASH, BULK]),
        st.integers(1, 2000),
        st.integers(1, 32),
    ).map(lambda a: a._replace(output_tokens=1) if a.class_index == FLASH else a),
    min_size=1,
    max_size=30,
)


def test_a_lone_headline_takes_one_step_and_the_link_twice() -> None:
    """One headline of 100 tokens costs 1 ms and 100 * 10 us in the engine, and the link there and back."""
    outcome = simulate(profile(link_us=500), make_policy("fcfs"), [flash(10)])
    assert outcome.jobs[0].latency_ns == 3 * MS
    assert outcome.steps == 1


def test_a_step_that_was_scheduled_ahead_is_waited_for() -> None:
    """With one step ahead a headline waits for the running step's rest and the whole next one."""
    arrivals = [bulk(0, tokens=3000), flash(1)]
    waits = {ahead: simulate(profile(run_ahead=ahead), make_policy("fcfs"), arrivals).jobs[1] for ahead in (0, 1)}
    # The filing is not alone any more when the headline comes, but its chunk is the whole step all the same.
    assert waits[0].waited_steps == 2
    assert waits[1].waited_steps == 2
    priority = {ahead: simulate(profile(run_ahead=ahead), make_policy("tapewire"), arrivals) for ahead in (0, 1)}
    assert priority[0].jobs[1].waited_steps == 0
    assert priority[1].jobs[1].waited_steps == 1


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25, deadline=None)
@given(arrivals=ARRIVALS, seed=st.integers(0, 3))
def test_every_job_ends_once_and_the_seed_fixes_the_run(policy: str, arrivals: list[Arrival], seed: int) -> None:
    """Whatever arrives, each job is done or expired, never both, and a second run with the seed is the same."""
    ordered = sorted(arrivals, key=lambda a: a.at_ns)
    engine = profile(run_ahead=1, noise=0.1, link_us=300)
    runs = [simulate(engine, make_policy(policy), ordered, seed=seed) for _ in range(2)]
    for job in runs[0].jobs:
        assert bool(job.done_ns) != bool(job.expired_ns)
        assert not job.done_ns or job.done_ns >= job.arrival.at_ns
    assert [(j.done_ns, j.expired_ns, j.runs) for j in runs[0].jobs] == [
        (j.done_ns, j.expired_ns, j.runs) for j in runs[1].jobs
    ]
    own = Counter(a.class_index for a in ordered)
    assert runs[0].lower_tokens == sum(a.text_tokens + a.output_tokens for a in ordered if a.class_index == BULK)
    assert len(runs[0].jobs) == own.total()


def test_an_unknown_policy_is_named() -> None:
    """A policy that there is not is refused with the ones that there are."""
    with pytest.raises(ConfigError, match="engine-priority"):
        make_policy("lifo")
