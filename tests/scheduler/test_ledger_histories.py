"""Ledger and map over whole histories: receive, finish, commit, crash, restore, go away and come back."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from scheduler.ledger import Commit, Ledger
from scheduler.offset_map import MAX_CHARS, decode
from scheduler.work import Origin

P = ("test.news", 0)


class Histories(RuleBasedStateMachine):
    """One partition of a group, the log that Kafka holds, what it has committed, and one scheduler after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[int] = []
        """Offsets that hold a record; the others are markers or were compacted."""
        self.done: set[int] = set()
        """Offsets with a confirmed outcome, by whomever."""
        self.stored = Commit(0, "", 0)
        """What Kafka has for the group; nothing is committed at first, which reads like offset 0."""
        self.stored_done: set[int] = set()
        """What that commit says is done."""
        self.ledger = Ledger()
        self.running: list[Origin] = []
        self.late: list[Origin] = []
        """Running for an assignment that is over."""
        self.position = 0

    @initialize(gaps=st.lists(st.integers(0, 3), min_size=1, max_size=60))
    def publish(self, gaps: list[int]) -> None:
        """Fill the log."""
        offset = 0
        for gap in gaps:
            offset += gap
            self.log.append(offset)
            offset += 1
        self.assign()

    def assign(self) -> None:
        """Own the partition, from what Kafka has."""
        self.ledger.assign([P], {P: decode(self.stored.offset, self.stored.metadata)})
        self.position = self.stored.offset
        self.running = []

    @rule(count=st.integers(1, 8))
    def receive(self, count: int) -> None:
        """Take the next records."""
        coming = [o for o in self.log if o >= self.position][:count]
        for offset in coming:
            self.position = offset + 1
            origin = self.ledger.receive(*P, offset)
            if origin is None:
                assert offset in self.done, "an unfinished record was skipped"
            else:
                assert offset not in self.stored_done or offset < self.stored.offset, "committed work is redone"
                self.running.append(origin)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Confirm an outcome, in any order."""
        origin = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        assert self.ledger.finish(origin)
        self.done.add(origin.offset)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def finish_late(self, data: st.DataObject) -> None:
        """Hear of an outcome of an assignment that is over."""
        origin = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        assert not self.ledger.finish(origin)

    @rule(limit=st.sampled_from([MAX_CHARS, MAX_CHARS, 64, 0]), reaches_kafka=st.booleans())
    def commit(self, limit: int, *, reaches_kafka: bool) -> None:
        """Commit, to a broker that may be away or may take less metadata."""
        self.ledger.map_limit = limit
        commits = self.ledger.commits(P[0])
        if commits and reaches_kafka:
            self.store(commits[P])
            self.ledger.committed(commits)

    def store(self, commit: Commit) -> None:
        """Keep a commit as Kafka does."""
        finished = _in(self.log, decode(commit.offset, commit.metadata))
        assert finished <= self.done, "the map calls something finished that is not"
        finished |= {o for o in self.log if o < commit.offset}
        if not self.ledger._partitions[P].map_dropped:
            assert self.stored_done <= finished, "a commit forgot what the one before it knew"
        self.stored, self.stored_done = commit, finished

    @rule()
    def crash(self) -> None:
        """Be killed, and be followed by another that starts from what Kafka has."""
        self.ledger = Ledger()
        self.late = []
        self.assign()

    @rule()
    def revoke_and_return(self) -> None:
        """Commit, give the partition up with work running, and get it back."""
        if commits := self.ledger.commits(P[0]):
            self.store(commits[P])
        self.ledger.forget([P])
        assert self.ledger.commits(P[0]) == {}
        self.late += self.running
        self.assign()

    @invariant()
    def commits_pass_nothing_unfinished(self) -> None:
        """What Kafka has never lies above a record without an outcome."""
        assert all(o in self.done for o in self.log if o < self.stored.offset)

    @invariant()
    def the_estimate_is_an_upper_bound(self) -> None:
        """The size that decides on pausing is never below what a commit would write."""
        ledger = self.ledger._partitions.get(P)
        commit = ledger.commit() if ledger else None
        if ledger and commit:
            assert len(commit.metadata) <= ledger.map_chars()

    def teardown(self) -> None:
        """Finish everything: every record ends, and the commit arrives behind the last one."""
        if not self.log:
            return
        self.receive(len(self.log))
        for origin in self.running:
            self.ledger.finish(origin)
            self.done.add(origin.offset)
        if commits := self.ledger.commits(P[0]):
            self.store(commits[P])
        assert set(self.log) == self.done
        assert self.stored.offset == self.log[-1] + 1


def _in(log: Iterable[int], ranges: Iterable[tuple[int, int]]) -> set[int]:
    spans = list(ranges)
    return {o for o in log if any(start <= o < end for start, end in spans)}


def test_no_history_loses_or_repeats_what_was_committed() -> None:
    """Over crashes, revokes and late outcomes nothing unfinished is skipped, and nothing committed is redone."""
    run_state_machine_as_test(Histories, settings=settings(max_examples=150, stateful_step_count=60))
