"""When a filing is done: all parts, a part that does not come, too many open, deadlines, and any history of these."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from scheduler.filings import FEW_DUE, Filing, Filings, Part, Ready
from schemas.settings import FilingSettings
from tests.scheduler import make
from tests.scheduler.filing_parts import MADE_BY, SECOND, T0, part, reading

WAIT = FilingSettings(wait_seconds=30, partial_ms=500, max_open=3)
BULK_SLO = 5 * SECOND


def _filings(settings: FilingSettings = WAIT) -> Filings:
    return Filings(settings, make.CLASSES)


def _read(filings: Filings, one: Part, chunk: int = 0, now: int = T0) -> list[Ready]:
    return filings.read(one, reading(one, chunk), MADE_BY, now)


def _filing(one: Part) -> Filing:
    assert one.filing is not None
    return one.filing


def test_a_filing_of_one_part_is_done_with_its_last_chunk() -> None:
    """Nothing is waited for: one answer of a one-chunk filing, the last of several otherwise."""
    filings = _filings()
    single, several = part(), part(chunks=3)
    assert filings.add(single, T0) == []
    assert filings.open == 0
    assert _read(filings, single) == [Ready(_filing(single), True)]
    filings.add(several, T0)
    assert _read(filings, several, 1) == []
    assert _read(filings, several, 0) == []
    assert _read(filings, several, 2) == [Ready(_filing(several), True)]
    assert (filings.alive, filings.idle) == (0, True)


def test_parts_in_any_order_make_one_filing() -> None:
    """Three parts, the last first: one filing, done when the last chunk of the last part is answered."""
    filings = _filings()
    parts = [part(n, 3) for n in (3, 1, 2)]
    for one in parts[:2]:
        filings.add(one, T0)
        assert _read(filings, one) == []
    assert filings.open == 1
    filings.add(parts[2], T0)
    assert filings.open == 0
    assert _read(filings, parts[2]) == [Ready(_filing(parts[0]), True)]
    assert len({id(one.filing) for one in parts}) == 1


def test_filings_of_other_partitions_epochs_and_accessions_are_others() -> None:
    """Parts meet only inside one assignment of one partition."""
    filings = _filings(FilingSettings(max_open=10))
    first = part(1, 2)
    others = [part(2, 2, partition=1), part(2, 2, epoch=2), part(2, 2, accession="0002")]
    for one in (first, *others):
        filings.add(one, T0)
    assert filings.open == 4


def test_a_part_that_does_not_come_is_waited_for_from_the_last_one_on() -> None:
    """After ``wait_seconds`` without a part the filing ends with what it has; a straggler is a filing of its own."""
    filings = _filings()
    first, second, straggler = part(1, 3), part(2, 3), part(3, 3)
    filings.add(first, T0)
    filings.add(second, T0 + 20 * SECOND)
    _read(filings, first)
    _read(filings, second)
    filings.due(T0 + 49 * SECOND)
    assert not _filing(first).done
    assert Ready(_filing(first), True) in filings.due(T0 + 50 * SECOND)
    filings.add(straggler, T0 + 51 * SECOND)
    assert straggler.filing is not first.filing
    assert filings.open == 1


def test_what_is_sealed_while_a_chunk_runs_ends_with_that_chunk() -> None:
    """The wait for a part is over, the wait for the engine is not."""
    filings = _filings()
    first = part(1, 2)
    filings.add(first, T0)
    filings.due(T0 + 31 * SECOND)
    assert _filing(first).sealed
    assert not _filing(first).done
    assert _read(filings, first, now=T0 + 32 * SECOND) == [Ready(_filing(first), True)]


def test_too_many_open_filings_close_the_one_that_waited_longest() -> None:
    """Waiting filings are bounded; the one that had a part last is the last to go."""
    filings = _filings()
    waiting = [part(1, 3, accession=str(n)) for n in range(3)]
    for one in waiting:
        filings.add(one, T0)
        _read(filings, one)
    filings.add(part(2, 3, accession="0"), T0 + 1)
    assert filings.add(part(1, 2, accession="new"), T0 + 2) == [Ready(_filing(waiting[1]), True)]
    assert filings.open == 3


def test_a_partial_signal_is_due_once_when_the_deadline_is_near() -> None:
    """500 ms before the deadline, if something is answered and something is not; the whole one comes later."""
    filings = _filings()
    one = part(chunks=3)
    filings.add(one, T0)
    _read(filings, one, 0)
    assert filings.due(T0 + BULK_SLO - SECOND) == []
    assert filings.next_due_ns() == T0 + BULK_SLO - SECOND // 2
    assert filings.due(T0 + BULK_SLO - SECOND // 2) == [Ready(_filing(one), False)]
    assert _read(filings, one, 1, T0 + BULK_SLO - 1) == []
    assert _read(filings, one, 2, T0 + BULK_SLO + 1) == [Ready(_filing(one), True)]


def test_the_first_answer_near_the_deadline_is_a_partial_signal() -> None:
    """Nothing was answered in time: the next answer before the deadline is worth telling, one after it is not."""
    for late in (False, True):
        filings = _filings()
        one = part(chunks=2)
        filings.add(one, T0)
        assert filings.due(T0 + BULK_SLO - SECOND // 4) == []
        ready = _read(filings, one, 0, T0 + BULK_SLO + (1 if late else -1))
        assert ready == ([] if late else [Ready(_filing(one), False)])


def test_a_filing_of_one_chunk_needs_no_timetable() -> None:
    """Short filings cost nothing beside their work."""
    filings = _filings()
    filings.add(part(), T0)
    assert filings.next_due_ns() is None


def test_the_most_urgent_part_sets_class_and_deadline() -> None:
    """The deadline is that of the earliest part under the most urgent class."""
    filings = _filings()
    slow, urgent = part(1, 2, class_index=2), part(2, 2, class_index=1, event_time_ns=T0 - SECOND)
    filings.add(slow, T0)
    assert _filing(slow).deadline_ns == T0 + BULK_SLO
    filings.add(urgent, T0)
    filing = _filing(slow)
    assert (filing.class_index, filing.event_time_ns, filing.deadline_ns) == (1, T0 - SECOND, T0)


def test_a_toxic_class_waits_for_a_part_until_its_deadline_alone() -> None:
    """Past its toxic age a signal is worth nothing: the filing closes before."""
    filings = _filings()
    one = part(1, 2, class_index=0)
    filings.add(one, T0)
    _read(filings, one)
    assert Ready(_filing(one), True) in filings.due(T0 + 150 * make.MILLISECOND)


def test_a_record_that_comes_twice_runs_once() -> None:
    """A redelivered part ends with the filing and asks the engine nothing; a newer version replaces the older one."""
    filings = _filings()
    first, again, newer = part(1, 2), part(1, 2), part(1, 2, version=2)
    for one in (first, again, newer):
        filings.add(one, T0)
    assert [one.left for one in (first, again, newer)] == [1, 0, 1]
    _read(filings, first)
    _read(filings, newer)
    filing = _filing(first)
    assert len(filing.records) == 3
    assert [one[0] for one in filing.counting()] == [newer]


def test_forgotten_filings_ignore_what_ends_late() -> None:
    """After a rebalance the answers that still come change nothing, and the counts are right."""
    filings = _filings()
    one, other = part(chunks=2), part(1, 2, accession="2", partition=1)
    filings.add(one, T0)
    filings.add(other, T0)
    assert filings.forget(lambda filing: filing.key[1] == 0) == [one]
    assert (filings.alive, filings.open, filings.idle) == (1, 1, False)
    assert _read(filings, one) == []
    _read(filings, other)
    assert filings.idle


def test_the_timetable_forgets_filings_that_are_done() -> None:
    """A day of filings leaves no trace."""
    filings = _filings()
    for number in range(3 * FEW_DUE):
        one = part(chunks=2, accession=str(number))
        filings.add(one, T0)
        _read(filings, one, 0)
        _read(filings, one, 1)
    assert filings.alive == 0
    assert len(filings._due) <= FEW_DUE + 2


actions = st.lists(
    st.tuples(
        st.sampled_from(["part", "read", "fail", "expire", "time", "forget", "oldest"]),
        st.integers(0, 40),
        st.integers(1, 4),
    ),
    max_size=80,
)


class _History:
    """Filings that live through what a test tells, and the count of how records ended."""

    def __init__(self, most_open: int) -> None:
        self.filings = _filings(FilingSettings(wait_seconds=5, partial_ms=500, max_open=most_open))
        self.most_open = most_open
        self.records: list[Part] = []
        self.running: list[tuple[Part, int]] = []
        self.ended: Counter[int] = Counter()
        self.partials: Counter[int] = Counter()
        self.now = T0

    def act(self, action: str, number: int, size: int) -> None:
        if action == "part":
            self.part(number, size)
        elif action == "time":
            self.now += number * SECOND // 4
            self.note(self.filings.due(self.now))
        elif action == "oldest":
            self.note(self.filings.close_oldest())
        elif action == "forget":
            self.ended.update(map(id, self.filings.forget(lambda filing: filing.key[3] == str(number % 3))))
        elif self.running:
            self.end(action, *self.running.pop(number % len(self.running)))

    def part(self, number: int, size: int) -> None:
        accession, chunks = str(number % 3), 1 + number % 3
        one = part(1 + number % size, size, accession=accession, chunks=chunks, event_time_ns=self.now)
        self.records.append(one)
        ready = self.filings.add(one, self.now)
        self.running += [(one, chunk) for chunk in range(one.left)]
        self.note(ready)

    def end(self, how: str, one: Part, chunk: int) -> None:
        if how == "read":
            self.note(_read(self.filings, one, chunk, self.now))
        elif how == "fail":
            self.note(self.filings.failed(one, "engine_error", "x", self.now))
        else:
            self.note(self.filings.expired(one, "old", self.now))

    def note(self, ready: list[Ready]) -> None:
        for filing, final in ready:
            if final:
                assert not filing.left
                self.ended.update(id(one) for one in filing.records)
            else:
                assert filing.counting()
                assert not filing.done
                self.partials[id(filing)] += 1
        assert self.filings.open <= self.most_open
        assert self.filings.idle == all(_filing(one).done for one, _ in self.running)


@given(actions, st.integers(1, 5))
def test_any_history_ends_every_record_exactly_once(actions: list[tuple[str, int, int]], most_open: int) -> None:
    """Whatever comes, fails, expires or waits in any order: each record ends once, and nothing is left at the end."""
    history = _History(most_open)
    for action in actions:
        history.act(*action)
    while history.running:
        history.end("read", *history.running.pop())
    history.now += 3600 * SECOND
    history.note(history.filings.due(history.now))
    assert history.filings.alive == history.filings.open == 0
    assert history.ended == Counter(map(id, history.records))
    assert all(count == 1 for count in history.partials.values())
