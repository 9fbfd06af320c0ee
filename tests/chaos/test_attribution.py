from __future__ import annotations

import json

import pytest

from scheduler.offset_map import encode
from tests.chaos.attribution import Cause, count, explain
from tests.chaos.commits import covers
from tests.chaos.groups import Committed, Groups
from tests.chaos.incidents import CRASH, PRODUCER_REBUILT, UNDRAINED, UNDRAINED_STOP, Incident
from tests.chaos.ledger import Repeat, account
from tests.chaos.make import NEWS, expired, incident, ms, signal
from tests.chaos.plan import FaultKind
from tests.chaos.told import incidents_in, mark_undrained
from tests.chaos.verdict import judge

ONE, TWO = "scheduler-1", "scheduler-2"


def repeat(first: str, again: str, began: float = 10.0, ended: float = 18.0) -> Repeat:
    """Return a signal of offset 5 that one life wrote and another wrote again, in seconds into the run."""
    return Repeat(signal(5, began, first), signal(5, ended, again))


@pytest.mark.parametrize(
    ("cause", "what", "first", "again"),
    [
        (Cause.SCHEDULER_KILL, incident("scheduler_kill", ONE, 10.4), f"{ONE}/a", f"{TWO}/b"),
        (Cause.SCHEDULER_KILL, incident("scheduler_kill", ONE, 10.4), f"{ONE}/a", f"{ONE}/b"),
        (Cause.SCHEDULER_CRASH, incident(CRASH, ONE, 10.4), f"{ONE}/a", f"{TWO}/b"),
        (Cause.SCHEDULER_PAUSE, incident("scheduler_pause", ONE, 10.4, 20), f"{ONE}/a", f"{TWO}/b"),
        (Cause.SCHEDULER_PAUSE, incident("scheduler_pause", TWO, 3, 17.9), f"{ONE}/a", f"{TWO}/b"),
        (Cause.CLEAN_STOP, incident("scheduler_stop", ONE, 11), f"{ONE}/a", f"{TWO}/b"),
        (Cause.PRODUCER_REBUILT, incident(PRODUCER_REBUILT, ONE, 12), f"{ONE}/a", f"{ONE}/a"),
        (Cause.REBALANCE_UNDRAINED, incident(UNDRAINED, ONE, 12), f"{ONE}/a", f"{TWO}/a"),
        (Cause.BROKER_KILL, incident("broker_kill", "broker-1", 11, 16), f"{ONE}/a", f"{ONE}/a"),
        (Cause.BROKER_SLOW, incident("broker_slow", "broker-1", 8, 11), f"{ONE}/a", f"{TWO}/a"),
        (Cause.REBALANCE, incident("member_join_leave", "scheduler-3", 11, 17), f"{ONE}/a", f"{TWO}/a"),
        (Cause.REBALANCE, incident("scheduler_kill", TWO, 4), f"{ONE}/a", f"{ONE}/a"),
    ],
)
def test_each_cause_is_told(cause: Cause, what: Incident, first: str, again: str) -> None:
    """A repeat is laid to the fault that hit its writer, or moved its partition, between the two records."""
    found, by = explain(repeat(first, again), [what])
    assert (found, by) == (cause, what)


@pytest.mark.parametrize(
    "what",
    [
        incident("scheduler_kill", ONE, 30),
        incident("scheduler_pause", ONE, 19.5, 30),
        incident("scheduler_stop", ONE, 18.5),
        incident("broker_kill", "broker-1", 19, 25),
        incident(PRODUCER_REBUILT, TWO, 12),
        incident(UNDRAINED, ONE, 12, owned=frozenset({(NEWS, 3)})),
        incident("worker_kill", "worker-1", 11, 13),
        incident("redis_kill", "redis", 11, 13),
        incident("member_join_leave", "scheduler-3", 11, 17, skipped="did not run"),
    ],
)
def test_a_fault_that_cannot_have_done_it_explains_nothing(what: Incident) -> None:
    """A fault of later, of somebody else or of a kind that moves nothing leaves a repeat unexplained."""
    assert explain(repeat(f"{ONE}/a", f"{ONE}/a"), [what]) == (Cause.UNEXPLAINED, None)


def test_a_kill_long_before_the_first_record_is_not_its_cause() -> None:
    """What a new life of the killed scheduler wrote was not in flight at the kill; the group moved, if anything."""
    killed = incident("scheduler_kill", ONE, 5)
    assert explain(repeat(f"{ONE}/b", f"{TWO}/a"), [killed])[0] is Cause.REBALANCE


def test_the_most_specific_cause_wins() -> None:
    """The kill of the writer goes before a broker that was slow at the same time."""
    slow, killed = incident("broker_slow", "broker-1", 9, 12), incident("scheduler_kill", ONE, 10.4)
    assert explain(repeat(f"{ONE}/a", f"{TWO}/b"), [slow, killed]) == (Cause.SCHEDULER_KILL, killed)


def test_a_stop_without_time_to_drain_is_told_from_a_clean_one() -> None:
    """The bar speaks of a stop that could finish its work; with a stuck engine it could not, and says so in its log."""
    stop = incident("scheduler_stop", ONE, 11, 17)
    told = incident(UNDRAINED_STOP, ONE, 16, number=0)
    mark_undrained([stop, told])
    assert explain(repeat(f"{ONE}/a", f"{TWO}/b"), [stop, told]) == (Cause.CLEAN_STOP_UNDRAINED, stop)


def test_a_visitor_that_leaves_is_a_clean_stop() -> None:
    """What a visitor wrote is repeated by nobody after it left with its work done; its coming is a rebalance."""
    visit = incident("member_join_leave", "scheduler-3", 2, 12, notes={"leaves_ms": ms(11)})
    assert explain(repeat("scheduler-3/a", f"{TWO}/b"), [visit])[0] is Cause.CLEAN_STOP
    assert explain(repeat(f"{ONE}/a", f"{TWO}/b"), [visit])[0] is Cause.REBALANCE


def test_without_a_writer_the_owner_of_the_partition_counts() -> None:
    """Records that do not say who wrote them are laid to whoever owned their partition."""
    unsigned = repeat("", "")
    assert explain(unsigned, [incident("scheduler_kill", ONE, 11)])[0] is Cause.SCHEDULER_KILL
    elsewhere = incident("scheduler_kill", ONE, 11, owned=frozenset({(NEWS, 2)}))
    assert explain(unsigned, [elsewhere])[0] is Cause.REBALANCE


def test_causes_are_counted() -> None:
    """The report's numbers add up to the repeats."""
    repeats = [repeat(f"{ONE}/a", f"{TWO}/b"), repeat(f"{TWO}/a", f"{TWO}/a", 300, 301)]
    assert count(repeats, [incident("scheduler_kill", ONE, 11)]) == {"scheduler_kill": 1, "unexplained": 1}


def committed(offset: int) -> Groups:
    """Return groups with one commit."""
    return Groups(committed={(NEWS, 0): Committed(offset=offset, metadata="")})


def test_a_kill_may_repeat_what_it_had_in_flight_and_no_more() -> None:
    """Duplicates of a kill are held against what its commit left open, and a repeat of committed work is told apart."""
    killed = incident("scheduler_kill", ONE, 10.5, groups=committed(4), unfinished=2)
    first = [signal(offset, 10 + offset / 100, f"{ONE}/a") for offset in range(6)]
    allowed = [signal(offset, 17, f"{TWO}/b") for offset in (4, 5)]
    ledger = account({(NEWS, 0): range(6)}, [*first, *allowed])
    verdict = judge(ledger, [killed], _below, nodes=1)
    (kill,) = verdict.kills
    assert (kill.in_flight, kill.duplicates, kill.redone, kill.within) == (4, 2, 0, True)

    ledger = account({(NEWS, 0): range(6)}, [*first, *allowed, signal(3, 17, f"{TWO}/b")])
    (kill,) = judge(ledger, [killed], _below, nodes=1).kills
    assert (kill.redone, kill.within) == (1, False)


def test_a_commit_covers_what_its_map_says() -> None:
    """Offsets below the commit and those finished in its map are covered; a map that cannot be read covers nothing."""
    metadata = encode(10, [(12, 15), (20, 21)])
    assert metadata is not None
    commit = Committed(offset=10, metadata=metadata)
    assert [offset for offset in range(8, 24) if covers(commit, offset)] == [8, 9, 12, 13, 14, 20]
    for broken in ("", "rubbish", metadata[:-4]):
        assert [n for n in range(8, 24) if covers(Committed(offset=10, metadata=broken), n)] == [8, 9]


def test_a_conflict_of_a_kill_counts_as_one_of_its_duplicates() -> None:
    """A headline that expired when it was done again was in flight at the kill like any other."""
    killed = incident("scheduler_kill", ONE, 10.5, groups=committed(0), unfinished=0)
    ledger = account({(NEWS, 0): range(1)}, [signal(0, 10, f"{ONE}/a"), expired(0, 17, f"{TWO}/b")])
    (kill,) = judge(ledger, [killed], _below, nodes=1).kills
    assert (kill.in_flight, kill.duplicates) == (1, 1)


@pytest.mark.parametrize(
    ("bar", "what"),
    [
        ("duplicates unexplained 0", []),
        ("duplicates of a clean stop 0", [incident(FaultKind.SCHEDULER_STOP.value, ONE, 11)]),
        ("duplicates of a rebalance 0", [incident(FaultKind.MEMBER_JOIN_LEAVE.value, "scheduler-3", 11)]),
    ],
)
def test_duplicates_without_an_excuse_miss_their_bar(bar: str, what: list[Incident]) -> None:
    """A clean stop and a rebalance have time to drain, and so no duplicates; neither has an unexplained one."""
    first, again = repeat(f"{ONE}/a", f"{TWO}/b")
    verdict = judge(account({(NEWS, 0): [5]}, [first, again]), what, _below, nodes=1)
    assert [name for name, met in verdict.bars.items() if not met] == [bar]


def test_a_lost_event_misses_its_bar() -> None:
    """The first of all bars."""
    verdict = judge(account({(NEWS, 0): [5, 6]}, [signal(5, 1)]), [], _below, nodes=1)
    assert [name for name, met in verdict.bars.items() if not met] == ["lost 0"]


def test_a_schedulers_log_tells_of_undrained_partitions_and_new_producers() -> None:
    """Lines of other events, of other shapes and cut in the middle are passed over."""
    stamp = {"timestamp": "2026-11-29T18:06:27.634419Z"}
    lines = [
        "tapewire: Kafka is unavailable",
        json.dumps({"event": "partitions_revoked", "topic": NEWS, "partitions": [0], "drained": True, **stamp}),
        json.dumps({"event": "partitions_revoked", "topic": NEWS, "partitions": [0, 3], "drained": False, **stamp}),
        json.dumps({"event": "scheduler_drained", "complete": False, **stamp}),
        json.dumps({"event": "producer_made_anew", **stamp}),
        '{"event": "scheduler_run',
    ]
    undrained, stop, rebuilt = incidents_in(ONE, lines)
    assert (undrained.kind, undrained.owned) == (UNDRAINED, frozenset({(NEWS, 0), (NEWS, 3)}))
    assert undrained.began_ms == 1_795_975_587_634
    assert stop.kind == UNDRAINED_STOP
    assert (rebuilt.kind, rebuilt.schedulers) == (PRODUCER_REBUILT, frozenset({ONE}))


def _below(commit: Committed, offset: int) -> bool:
    return offset < commit.offset
