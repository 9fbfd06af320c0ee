from __future__ import annotations

import pytest

from tests.chaos.incidents import Incident
from tests.chaos.ledger import Outcome, account
from tests.chaos.make import NEWS, incident, ms, ns, signal
from tests.chaos.memory import Sample, slope
from tests.chaos.plan import FaultKind
from tests.chaos.recovery import SOLE, Recovery, recoveries
from tests.chaos.verdict import judge

ONE, TWO = "scheduler-1", "scheduler-2"


def steady(until: float, writer: str = f"{TWO}/a", partition: int = 1) -> list[Outcome]:
    """Return a completion every tenth of a second on a partition of the other scheduler."""
    return [signal(n, n / 10, writer, partition=partition) for n in range(int(until * 10))]


def measured(what: Incident, completions: list[Outcome], *others: Incident) -> Recovery:
    """Return how one incident healed."""
    ordered = sorted(completions, key=lambda outcome: outcome.at_ms)
    return recoveries([what, *others], ordered)[0]


def test_a_killed_scheduler_has_healed_when_all_its_partitions_progress() -> None:
    """The last of its partitions counts, and what goes on elsewhere does not."""
    killed = incident("scheduler_kill", ONE, 10, 12, owned=frozenset({(NEWS, 0), (NEWS, 2)}))
    taken = [signal(7, 16, f"{TWO}/a"), signal(3, 17.5, f"{TWO}/a", partition=2)]
    assert measured(killed, [*steady(30), *taken]).seconds == pytest.approx(7.5)


def test_what_a_killed_scheduler_left_in_the_socket_is_no_recovery() -> None:
    """An append just after the kill is not the work of a new owner."""
    killed = incident("scheduler_kill", ONE, 10, 12)
    outcomes = [signal(6, 10.1, f"{ONE}/a"), signal(7, 16, f"{TWO}/a")]
    assert measured(killed, outcomes).seconds == pytest.approx(6)


def test_a_restarted_life_of_the_killed_scheduler_counts() -> None:
    """Progress by the same name after the restart is progress."""
    killed = incident("scheduler_kill", ONE, 10, 12)
    assert measured(killed, [signal(7, 15, f"{ONE}/b")]).seconds == pytest.approx(5)


def test_a_killed_workers_requests_have_healed_with_the_last_that_ran_again() -> None:
    """Requests consumed before and dispatched after the kill are those it had; newer ones prove nothing."""
    killed = incident("worker_kill", "worker-1", 10, 12)
    again = [
        signal(1, 11, f"{ONE}/a", consumed_ns=ns(9.9), dispatched_ns=ns(10.9)),
        signal(2, 12.5, f"{ONE}/a", consumed_ns=ns(9.9), dispatched_ns=ns(12.4)),
    ]
    newer = signal(3, 20, f"{ONE}/a", consumed_ns=ns(19), dispatched_ns=ns(19.5))
    before = signal(4, 10.05, f"{ONE}/a", consumed_ns=ns(9.9), dispatched_ns=ns(9.95))
    others = signal(5, 25, f"{TWO}/a", consumed_ns=ns(9.9), dispatched_ns=ns(24))
    assert measured(killed, [*again, newer, before, others]).seconds == pytest.approx(2.5)


def test_a_worker_that_had_nothing_needs_no_recovery() -> None:
    """Without a request in flight there is nothing to measure, rather than a time of zero."""
    assert measured(incident("worker_kill", "worker-1", 10, 12), steady(30)).seconds is None


def test_a_worker_without_a_colleague_is_counted_apart() -> None:
    """Its work waits for its restart, which the bar for a kill does not speak of."""
    assert measured(incident("worker_kill", "worker-3", 10, 12), steady(30)).kind == f"worker_kill{SOLE}"
    assert measured(incident("worker_kill", "worker-2", 10, 12), steady(30)).kind == "worker_kill"


def test_a_broker_is_due_for_progress_once_it_takes_records_again() -> None:
    """The time that it was down is the plan's and the JVM's, and no figure of ours."""
    killed = incident("broker_kill", "broker-1", 10, 15, ready_ms=ms(15))
    outcomes = [*steady(10), signal(900, 16.2, partition=1)]
    found = measured(killed, outcomes)
    assert found.seconds == pytest.approx(1.2)
    assert found.longest_stop == pytest.approx(6.2)


def test_overlapping_faults_are_told() -> None:
    """A time to recover with another fault on the same path says little, and is kept out of the bars."""
    killed = incident("worker_kill", "worker-1", 10, 12)
    assert measured(killed, steady(30), incident("broker_slow", "broker-1", 9, 11, number=2)).disturbed
    assert measured(killed, steady(30), incident("scheduler_kill", ONE, 8, 9.5, number=2)).disturbed
    assert not measured(killed, steady(30), incident("scheduler_kill", TWO, 9.5, 11, number=2)).disturbed
    assert not measured(killed, steady(30), incident("broker_slow", "broker-1", 2, 4, number=2)).disturbed
    # Its partitions come six seconds later, with all that has waited, just when the worker dies.
    assert measured(killed, steady(30), incident("scheduler_kill", TWO, 4, 5, number=2)).disturbed


@pytest.mark.parametrize(
    ("what", "late"),
    [
        (incident("scheduler_kill", ONE, 10, 12), signal(900, 19.5, f"{TWO}/a")),
        (
            incident("worker_kill", "worker-1", 10, 12),
            signal(900, 13.5, f"{ONE}/a", consumed_ns=ns(9.9), dispatched_ns=ns(13.4)),
        ),
    ],
)
def test_a_recovery_that_takes_too_long_misses_its_bar(what: Incident, late: Outcome) -> None:
    """Nine seconds for a scheduler, three for a worker."""
    outcomes = [*steady(9, partition=0), late]
    inputs = {(NEWS, 0): [one.source.offset for one in outcomes]}
    bars = judge(account(inputs, outcomes), [what], lambda *_: False, nodes=1).bars
    missed = [name for name, met in bars.items() if not met]
    assert missed
    assert all(what.kind.split("_")[0] in name for name in missed)


def test_one_broker_of_three_may_not_stop_everything() -> None:
    """With three nodes, ten seconds without any completion after a broker's death are too long."""
    killed = incident(FaultKind.BROKER_KILL.value, "broker-2", 10, 15)
    outcomes = [*steady(10), signal(900, 21, partition=1)]
    inputs = {(NEWS, 1): [one.source.offset for one in outcomes]}
    for nodes, fine in ((1, True), (3, False)):
        assert all(judge(account(inputs, outcomes), [killed], lambda *_: False, nodes=nodes).bars.values()) is fine


def test_the_slope_of_memory_is_per_hundred_thousand_events() -> None:
    """A process that grows by 3 MB in 100,000 events says 3; its warm-up does not count."""
    warm = [Sample(n * 10, 10.0 * n) for n in range(25)]
    steady_growth = [Sample(1000 + n * 1000, 80 + n * 0.03) for n in range(100)]
    assert slope([*warm, *steady_growth]) == pytest.approx(3.0)
    assert slope(steady_growth[:10]) is None
