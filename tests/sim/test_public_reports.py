"""Public bug reports about urgent work behind bulk work, each as a scenario with its right outcome.

The engine is the simulator's, which schedules as vLLM does: with vLLM's own policy each of the first ones shows what
the report says, and with Tapewire in front of it the urgent request gets through.
"""

from __future__ import annotations

from ops.sim.driver import Outcome
from ops.sim.policies import make_policy
from ops.sim.traffic import CLASSES, FLASH
from tests.sim.small import MS, bulk, flash, profile, simulate
from workers.sim_core import Sequence, SimCore

SLO_NS = int(CLASSES[FLASH].slo_ms * MS)


def urgent_ns(outcome: Outcome) -> int:
    """Return the latency of the only headline, which must have a result."""
    (job,) = [job for job in outcome.jobs if job.arrival.class_index == FLASH]
    assert job.done_ns
    return job.latency_ns


def test_slots_full_of_decodes() -> None:
    """vllm#40004: a priority request cannot displace running ones at max_num_seqs; a reserved slot lets it in."""
    engine = profile(max_num_seqs=4)
    arrivals = [*(bulk(0, tokens=50, output=400) for _ in range(8)), flash(100)]
    assert urgent_ns(simulate(engine, make_policy("engine-priority"), arrivals)) > 300 * MS
    assert urgent_ns(simulate(engine, make_policy("tapewire"), arrivals)) < 10 * MS


def test_a_long_prefill() -> None:
    """vllm#57413: one very long prefill takes every step's whole budget; here the headline waits at most one step."""
    arrivals = [bulk(0, tokens=8000), flash(15)]
    stuck = simulate(profile(), make_policy("engine-priority"), arrivals)
    assert stuck.jobs[1].waited_steps >= 6
    for policy in ("tapewire", "tapewire-no-gate"):
        outcome = simulate(profile(run_ahead=1), make_policy(policy), arrivals)
        assert outcome.jobs[1].waited_steps <= 1
        assert urgent_ns(outcome) <= SLO_NS


def test_preempted_work_comes_back_in_its_order() -> None:
    """vllm#41951: preempted requests lose their place; here they are admitted again before what came after them."""
    limits = profile(kv_blocks=16, max_num_seqs=8).engine_limits(tapewire=False)
    core = SimCore(limits)
    for request_id in range(4):
        core.add(Sequence(request_id=request_id, priority=1, prompt_tokens=60, output_tokens=60, content=request_id))
    preempted: list[int] = []
    finished: list[int] = []
    while (step := core.schedule()) is not None:
        preempted += step.preempted
        finished += core.apply(step).finished
    assert preempted
    assert finished == [0, 1, 2, 3]


def test_revoked_work_keeps_its_deadline_and_does_not_overtake() -> None:
    """llm-d-async#391: a retry with a new deadline overtakes fresh work; here it keeps the old one and its order."""
    engine = profile(max_num_seqs=2, kv_blocks=400)
    arrivals = [*(bulk(n, tokens=1500) for n in range(4)), *(flash(20 + n, tokens=120) for n in range(6))]
    outcome = simulate(engine, make_policy("tapewire"), arrivals)
    filings = [job for job in outcome.jobs if job.arrival.class_index != FLASH]
    assert [job.number for job in sorted(filings, key=lambda job: job.done_ns)] == [0, 1, 2, 3]
    assert all(job.runs <= 3 for job in filings)


def test_nothing_stays_taken() -> None:
    """llm-d-router#2295: leaked in-flight counts; after results, expiry and aborts the planner holds nothing."""
    policy = make_policy("tapewire")
    arrivals = [*(bulk(0) for _ in range(10)), *(flash(30, tokens=120) for _ in range(400)), flash(900)]
    outcome = simulate(profile(), policy, arrivals)
    assert any(job.expired_ns for job in outcome.jobs)
    assert any(job.done_ns for job in outcome.jobs)
    assert policy.queued() == 0
    planner = getattr(policy, "planner")  # noqa: B009 - not part of what every policy has
    assert planner.total_in_flight == 0
    assert urgent_ns_of_last(outcome) < 10 * MS


def urgent_ns_of_last(outcome: Outcome) -> int:
    """Return the last headline's latency."""
    assert outcome.jobs[-1].done_ns
    return outcome.jobs[-1].latency_ns


def test_kv_full() -> None:
    """sglang#14872: with the KV cache full no preemption happens; here blocks are kept free for the headline."""
    engine = profile(kv_blocks=256)
    arrivals = [*(bulk(0, tokens=900, output=300) for _ in range(8)), flash(400)]
    assert urgent_ns(simulate(engine, make_policy("tapewire"), arrivals)) < 30 * MS
