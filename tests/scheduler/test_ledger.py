"""Offsets: what may be committed, with holes, out of order, and over reassignments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.ledger import Ledger, PartitionLedger
from scheduler.work import Origin

P0, P1 = ("test.news", 0), ("test.news", 1)


def _received(*offsets: int) -> PartitionLedger:
    ledger = PartitionLedger(epoch=1)
    for offset in offsets:
        ledger.receive(offset)
    return ledger


def test_nothing_received_commits_nothing() -> None:
    """A fresh assignment must not touch the group's offset."""
    assert _received().commit_point() is None


def test_commits_the_lowest_unfinished_offset() -> None:
    """Finished offsets above an unfinished one do not move the commit past it."""
    ledger = _received(5, 6, 7)
    ledger.finish(6)
    ledger.finish(7)
    assert ledger.commit_point() == 5
    ledger.finish(5)
    assert ledger.commit_point() == 8
    assert ledger.unfinished == 0


def test_holes_are_jumped_and_never_waited_for() -> None:
    """Offsets that were never received (markers, compaction) neither block the commit nor count as finished."""
    ledger = _received(5, 9, 40)
    ledger.finish(5)
    assert ledger.commit_point() == 9
    ledger.finish(9)
    assert ledger.commit_point() == 40
    ledger.finish(40)
    assert ledger.commit_point() == 41


def test_an_unchanged_point_is_committed_once() -> None:
    """After Kafka has a commit, the same point is not offered again; a failed one is."""
    ledger = _received(5, 6)
    ledger.finish(5)
    assert ledger.commit_point() == ledger.commit_point() == 6
    ledger.committed(6)
    assert ledger.commit_point() is None
    ledger.finish(6)
    assert ledger.commit_point() == 7


@given(st.data())
def test_agrees_with_a_naive_model(data: st.DataObject) -> None:
    """Over any interleaving of receiving with holes, finishing and committing, the point is that of a full scan."""
    ledger = PartitionLedger(epoch=1)
    received: list[int] = []
    finished: set[int] = set()
    committed: int | None = None
    following = data.draw(st.integers(0, 5))
    for _ in range(data.draw(st.integers(0, 40))):
        action = data.draw(st.sampled_from(["receive", "finish", "commit"]))
        unfinished = [o for o in received if o not in finished]
        if action == "receive":
            following += data.draw(st.integers(0, 3))
            ledger.receive(following)
            received.append(following)
            following += 1
        elif action == "finish" and unfinished:
            offset = data.draw(st.sampled_from(unfinished))
            ledger.finish(offset)
            finished.add(offset)
        unfinished = [o for o in received if o not in finished]
        naive = (unfinished[0] if unfinished else received[-1] + 1) if received else None
        assert ledger.unfinished == len(unfinished)
        assert ledger.commit_point() == (None if naive == committed else naive)
        if action == "commit" and naive is not None:
            ledger.committed(naive)
            assert committed is None or naive >= committed
            committed = naive


def test_each_assignment_has_an_epoch_of_its_own() -> None:
    """An origin belongs to the assignment that was in force when its record came."""
    ledger = Ledger()
    ledger.assign([P0, P1])
    old = ledger.receive(*P0, 5)
    other = ledger.receive(*P1, 5)
    assert old is not None
    assert other is not None
    ledger.forget([P0])
    assert not ledger.owns(old)
    assert ledger.owns(other)
    ledger.assign([P0])
    assert not ledger.owns(old)
    new = ledger.receive(*P0, 5)
    assert new is not None
    assert new.epoch > old.epoch
    assert ledger.owns(new)


def test_a_stale_completion_never_touches_the_new_assignment() -> None:
    """The outcome of an older epoch has no effect, even for an offset that the new one is working on."""
    ledger = Ledger()
    ledger.assign([P0])
    old = ledger.receive(*P0, 5)
    assert old is not None
    ledger.assign([P0])
    ledger.receive(*P0, 5)
    assert ledger.finish(old) is False
    assert ledger.commit_points("test.news") == {P0: 5}


def test_a_forgotten_partition_takes_nothing() -> None:
    """After a revoke, records on their way are refused and outcomes change nothing."""
    ledger = Ledger()
    ledger.assign([P0])
    origin = ledger.receive(*P0, 5)
    assert origin is not None
    ledger.forget([P0])
    assert ledger.receive(*P0, 6) is None
    assert ledger.finish(origin) is False
    assert ledger.commit_points("test.news") == {}
    ledger.committed({P0: 6})
    assert ledger.partitions("test.news") == []


def test_points_are_kept_apart_by_topic() -> None:
    """Each consumer commits its own topic only."""
    ledger = Ledger()
    ledger.assign([P0, P1])
    ledger.assign([("test.filings", 0)])
    for partition, offset in ((P0, 3), (P1, 8), (("test.filings", 0), 100)):
        origin = ledger.receive(*partition, offset)
        assert origin is not None
        assert ledger.finish(origin)
    assert ledger.commit_points("test.news") == {P0: 4, P1: 9}
    assert ledger.commit_points("test.filings") == {("test.filings", 0): 101}
    ledger.committed({P0: 4})
    assert ledger.commit_points("test.news") == {P1: 9}
    assert ledger.unfinished(["test.news", "test.filings"]) == 0


_moves = st.lists(
    st.tuples(
        st.sampled_from(["assign", "forget", "receive", "finish"]), st.sampled_from([P0, P1]), st.integers(0, 20)
    ),
    max_size=60,
)


@given(_moves)
def test_no_history_of_rebalances_commits_past_unfinished_work(moves: list[tuple[str, tuple[str, int], int]]) -> None:
    """Whatever is assigned, revoked and answered late, a commit never passes an offset without a confirmed outcome."""
    ledger = Ledger()
    origins: list[Origin] = []
    current: dict[tuple[str, int], list[Origin]] = {}
    done: set[Origin] = set()
    for move, partition, number in moves:
        if move == "assign":
            ledger.assign([partition])
            current[partition] = []
        elif move == "forget":
            ledger.forget([partition])
            current.pop(partition, None)
        elif move == "receive":
            offset = current[partition][-1].offset + 1 + number % 2 if current.get(partition) else number
            origin = ledger.receive(*partition, offset)
            assert (origin is not None) == (partition in current)
            if origin is not None:
                origins.append(origin)
                current[partition].append(origin)
        elif origins:
            origin = origins.pop(number % len(origins))
            assert ledger.finish(origin) == (origin in current.get(origin[:2], []))
            done.add(origin)
        for where, point in ledger.commit_points("test.news").items():
            assert all(o.offset >= point for o in current[where] if o not in done)
