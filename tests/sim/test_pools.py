"""Several workers: placement by predicted finish, dedicated pools and what they lend."""

from __future__ import annotations

from ops.sim.policies import make_policy
from ops.sim.traffic import CLASSES, FLASH
from tests.sim.small import MS, bulk, flash, profile, simulate

SLO_NS = int(CLASSES[FLASH].slo_ms * MS)
DEDICATED = (("flash",), ("standard", "bulk"))


def test_two_workers_share_a_burst() -> None:
    """Two equal workers answer a burst of headlines in about half the time of one."""
    arrivals = [flash(10, tokens=120) for _ in range(80)]
    ends = {}
    for count in (1, 2):
        outcome = simulate(profile(), make_policy("tapewire"), arrivals, workers=((),) * count)
        assert all(job.done_ns for job in outcome.jobs)
        ends[count] = max(job.latency_ns for job in outcome.jobs)
    assert ends[2] < 0.6 * ends[1]


def test_idle_dedicated_capacity_is_lent_within_the_slo() -> None:
    """With filings waiting, the worker for headlines helps with them, and headlines are in time all the same."""
    arrivals = [*(bulk(0, tokens=2000) for _ in range(60)), *(flash(100 + 150 * n, tokens=120) for n in range(8))]
    alone = simulate(profile(), make_policy("tapewire"), arrivals, workers=DEDICATED[1:])
    both = simulate(profile(), make_policy("tapewire"), arrivals, workers=DEDICATED)
    assert all(job.expired_ns for job in alone.jobs if job.arrival.class_index == FLASH)
    assert all(0 < job.latency_ns <= SLO_NS for job in both.jobs if job.arrival.class_index == FLASH)
    filings = [max(j.done_ns for j in o.jobs if j.arrival.class_index != FLASH) for o in (alone, both)]
    assert filings[1] < 0.7 * filings[0]
