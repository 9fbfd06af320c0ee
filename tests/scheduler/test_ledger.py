"""Offsets: what may be committed, with holes, out of order, and over reassignments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.ledger import SMALLEST_LIMIT, TRIM_FROM, Commit, Ledger, Partition, PartitionLedger
from scheduler.offset_map import MAX_CHARS, Range, decode
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
    """After Kafka has a commit, the same one is not offered again; a failed one is."""
    ledger = _received(5, 6)
    ledger.finish(5)
    first = ledger.commit()
    assert first is not None
    assert first == ledger.commit() == (6, "", 1)
    ledger.committed(first)
    assert ledger.commit() is None
    ledger.finish(6)
    assert ledger.commit() == (7, "", 1)


def test_what_is_finished_above_the_commit_is_written_beside_it() -> None:
    """The map bridges the holes between finished offsets, and changes alone are worth a commit."""
    ledger = _received(5, 6, 9, 10, 40)
    for offset in (9, 6, 40):
        ledger.finish(offset)
    commit = ledger.commit()
    assert commit is not None
    assert commit.offset == 5
    assert decode(5, commit.metadata) == [(6, 10), (40, 41)]
    ledger.committed(commit)
    assert ledger.commit() is None
    ledger.finish(10)
    again = ledger.commit()
    assert again is not None
    assert decode(5, again.metadata) == [(6, 41)]


def test_a_second_confirmation_changes_nothing() -> None:
    """An outcome that is confirmed twice, in front, in a run or behind, is counted once."""
    ledger = _received(*range(5, 12))
    for offset in (5, 7, 8, 9):
        ledger.finish(offset)
    before = (ledger.unfinished, ledger.commit(), ledger.map_chars())
    for offset in (5, 7, 8, 9, 4, 99):
        ledger.finish(offset)
    assert (ledger.unfinished, ledger.commit(), ledger.map_chars()) == before


def test_a_map_that_does_not_fit_is_dropped_and_the_offset_is_not() -> None:
    """Over the limit the commit goes out alone; for the same offset Kafka keeps the shorter map that it has."""
    ledger = _received(*range(30_000))
    for offset in range(1, 2_000, 2):
        ledger.finish(offset)
    small = ledger.commit()
    assert small is not None
    assert decode(0, small.metadata)[-1] == (1_999, 2_000)
    ledger.committed(small)
    for offset in range(2_001, 30_000, 2):
        ledger.finish(offset)
    assert ledger.commit() is None
    assert ledger.map_dropped
    ledger.finish(0)
    assert ledger.commit() == (2, "", 1)


def test_a_partition_whose_map_grows_takes_no_new_records_for_a_while() -> None:
    """Crowded from three quarters of the limit until half of it; where a broker takes no maps, never."""
    ledger = Ledger()
    ledger.assign([P0, P1])
    origins = [o for n in range(24_000) if (o := ledger.receive(*P0, n)) is not None]
    odd = [o for o in origins if o.offset % 2]
    assert not ledger.crowded(P0)
    for origin in odd[:9_000]:
        ledger.finish(origin)
    assert not ledger.crowded(P0)
    for origin in odd[9_000:9_300]:
        ledger.finish(origin)
    assert ledger.crowded(P0)
    assert not ledger.crowded(P1)
    for origin in origins[:5_000]:
        ledger.finish(origin)
    assert ledger.commits("test.news")[P0].offset == 5_000
    assert ledger.crowded(P0)
    for origin in origins[5_000:10_000]:
        ledger.finish(origin)
    assert not ledger.crowded(P0)
    ledger.map_limit = SMALLEST_LIMIT - 1
    for origin in odd:
        ledger.finish(origin)
    assert not ledger.crowded(P0)
    assert ledger.commits("test.news")[P0] == (10_000, "", 1)
    assert ledger.maps_dropped == 1


def test_an_assignment_that_is_restored_skips_what_was_finished() -> None:
    """Records in the restored ranges are done on receipt, and the map keeps those that are still to come."""
    ledger = Ledger()
    ledger.assign([P0], {P0: [(101, 103), (105, 200)]})
    stuck = ledger.receive(*P0, 100)
    assert stuck is not None
    assert ledger.receive(*P0, 101) is None
    commit = ledger.commits("test.news")[P0]
    assert (commit.offset, decode(100, commit.metadata)) == (100, [(101, 103), (105, 200)])
    assert [n for n in range(102, 210) if ledger.receive(*P0, n) is not None] == [103, 104, *range(200, 210)]
    assert ledger.skipped == 97
    ledger.finish(stuck)
    commit = ledger.commits("test.news")[P0]
    assert (commit.offset, decode(103, commit.metadata)) == (103, [(105, 200)])


def test_a_gap_holds_the_commit_until_it_is_recorded() -> None:
    """Offsets that Kafka lost count as one received offset: nothing passes it before its dead letter is confirmed."""
    ledger = Ledger()
    ledger.assign([P0], {P0: [(6, 8), (11, 12)]})
    gap = ledger.receive_gap(P0, 5, 9)
    assert ledger.commits("test.news") == {}
    behind = ledger.receive(*P0, 9)
    assert behind is not None
    ledger.finish(behind)
    assert ledger.commits("test.news") == {}
    ledger.finish(gap)
    assert ledger.commits("test.news")[P0].offset == 10


def test_a_gap_before_everything_never_commits_an_offset_below_zero() -> None:
    """A log that began anew is recorded as a gap at -1, which is nowhere to commit."""
    ledger = Ledger()
    ledger.assign([P0])
    gap = ledger.receive_gap(P0, -1, 0)
    assert ledger.receive(*P0, 0) is not None
    assert ledger.commits("test.news") == {}
    ledger.finish(gap)
    assert ledger.commits("test.news") == {P0: (0, "", 1)}


@pytest.mark.parametrize("offsets", [range(200_000), range(0, 600_000, 3)], ids=["dense", "with holes"])
def test_two_hundred_thousand_unfinished_cost_nothing_to_look_at(offsets: range) -> None:
    """Looking at the commit point and at the map's size touches no list: no run is listed, however many there are."""
    ledger = _received(*offsets)
    for offset in offsets[1::2]:
        ledger.finish(offset)
    listed = 0

    def counting() -> list[Range]:
        nonlocal listed
        listed += 1
        return []

    ledger._finished = counting  # type: ignore[method-assign]  # counts what must not happen
    assert ledger.commit_point() == 0
    assert ledger.map_chars() > MAX_CHARS
    assert ledger.commit() == (0, "", 1)
    assert listed == 0


def test_finished_offsets_are_given_back() -> None:
    """A partition that keeps up holds the records in flight and not its history."""
    ledger = PartitionLedger(epoch=1)
    for offset in range(100_000):
        ledger.receive(offset)
        ledger.finish(offset)
    assert len(ledger._offsets) == len(ledger._done) <= TRIM_FROM
    assert ledger.commit() == (100_000, "", 1)


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
    assert ledger.stale == 1
    assert ledger.commits("test.news") == {P0: (5, "", 2)}


def test_a_forgotten_partition_takes_nothing() -> None:
    """After a revoke, records on their way are refused and outcomes change nothing."""
    ledger = Ledger()
    ledger.assign([P0])
    origin = ledger.receive(*P0, 5)
    assert origin is not None
    ledger.forget([P0])
    assert ledger.receive(*P0, 6) is None
    assert ledger.finish(origin) is False
    assert ledger.commits("test.news") == {}
    ledger.committed({P0: Commit(6, "", 1)})
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
    assert ledger.commits("test.news") == {P0: (4, "", 1), P1: (9, "", 1)}
    assert ledger.commits("test.filings") == {("test.filings", 0): (101, "", 2)}
    ledger.committed({P0: Commit(4, "", 1)})
    assert ledger.commits("test.news") == {P1: (9, "", 1)}


def test_a_commit_of_an_older_assignment_is_not_taken_for_one_of_this() -> None:
    """A confirmation that arrives after a revoke and a return leaves the new assignment's own commit to be made."""
    ledger = Ledger()
    ledger.assign([P0])
    late: dict[Partition, Commit] = {}
    for _ in range(2):
        origin = ledger.receive(*P0, 5)
        assert origin is not None
        ledger.finish(origin)
        late = late or ledger.commits("test.news")
        if ledger._epoch == 1:
            ledger.assign([P0])
    ledger.committed(late)
    assert ledger.commits("test.news") == {P0: (6, "", 2)}


def test_unfinished_work_is_counted_over_topics() -> None:
    """What has no confirmed outcome yet is counted for the topics that are asked about."""
    ledger = Ledger()
    ledger.assign([P0, ("test.filings", 0)])
    ledger.receive(*P0, 3)
    ledger.receive("test.filings", 0, 3)
    assert ledger.unfinished(["test.news"]) == 1
    assert ledger.unfinished(["test.news", "test.filings"]) == 2


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
        for where, commit in ledger.commits("test.news").items():
            assert all(o.offset >= commit.offset for o in current[where] if o not in done)
