"""Marks of handled dead letters: arithmetic over holes, and two operators at the same group on a real broker."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest
from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from ops.dlq_marks import MarkBook, Marks, MarksConflictError, MarksFullError, fitting, merged
from scheduler.offset_map import decode
from schemas.settings import KafkaSettings
from tests.scheduler.records import admin


@given(st.sets(st.integers(0, 300), max_size=120), st.lists(st.sets(st.integers(0, 300), max_size=40), max_size=6))
def test_marks_hold_exactly_what_was_handled(standing: set[int], rounds: list[set[int]]) -> None:
    """Over any topic with holes and any rounds of handling, each letter is open or handled as a plain set says."""
    letters, end = sorted(standing), 301
    marks, done = Marks(0), set[int]()
    for offsets in rounds:
        chosen = offsets & standing
        done |= chosen
        marks = marks.plus(chosen, letters, end)
        assert [o for o in letters if not marks.handled(o)] == sorted(standing - done)
        assert marks.base == min(standing - done, default=end)
        edges = [edge for bounds in marks.ranges for edge in bounds]
        assert edges == sorted(set(edges)), "overlapping or touching"
        assert not marks.ranges or marks.ranges[0][0] > marks.base
        assert decode(*fitting(0, marks)) == list(marks.ranges)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)).map(lambda t: (t[0], t[0] + t[1]))))
def test_merged_ranges_cover_the_same_offsets(ranges: list[tuple[int, int]]) -> None:
    """Joining ranges neither loses nor adds an offset."""
    out = merged(ranges)
    assert {o for a, b in out for o in range(a, b)} == {o for a, b in ranges for o in range(a, b)}
    assert all(before[1] < after[0] for before, after in itertools.pairwise(out))


def test_what_another_operator_handled_behind_our_window_stays() -> None:
    """Marks of letters that came after we looked are kept, and the letters between stay open."""
    theirs = Marks(3, ((5, 6), (90, 95)))
    marks = theirs.plus([3, 4], range(3, 50), 50)
    assert (marks.base, marks.ranges) == (6, ((90, 95),))
    assert not marks.handled(60)


def test_marks_too_scattered_for_the_metadata_are_refused() -> None:
    """When the map does not fit into a commit, the error names the oldest open letter to begin with."""
    rng = random.Random(5)
    offsets = sorted(rng.sample(range(1, 300_000), 20_000))
    with pytest.raises(MarksFullError, match="from 7/0 on"):
        fitting(7, Marks(0).plus(offsets, range(300_000), 300_000))


@pytest.mark.integration
async def test_marks_survive_in_kafka(kafka_settings: KafkaSettings) -> None:
    """What one operator marks another reads: the lowest open letter is the group's offset, the rest its metadata."""
    window = (0, 10)
    async with MarkBook(kafka_settings) as book:
        await book.add(2, [0, 1, 5], range(10), 10, window)
    async with MarkBook(kafka_settings) as book:
        marks = await book.read({2: window, 0: window})
    assert marks == {2: Marks(2, ((5, 6),)), 0: Marks(0)}
    topic = kafka_settings.topics.dead_letters
    async with admin(kafka_settings) as client:
        entry = (await client.list_consumer_group_offsets(topic))[TopicPartition(topic, 2)]
    assert (entry.offset, decode(2, entry.metadata)) == (2, [(5, 6)])


@pytest.mark.integration
async def test_two_operators_do_not_undo_each_other(kafka_settings: KafkaSettings) -> None:
    """Marks that were written after ours were read are kept: they are read again right before ours are written."""
    window = (0, 100)
    async with MarkBook(kafka_settings) as first, MarkBook(kafka_settings) as second:
        await first.read({0: window})
        await second.add(0, [7], range(100), 100, window)
        await first.add(0, [9], range(100), 100, window)
        assert (await second.read({0: window}))[0].ranges == ((7, 8), (9, 10))
        shares = [range(start, 100, 4) for start in range(4)]
        books = [first, second, first, second]
        for _ in range(3):  # in each other's milliseconds: what was undone is seen and done again
            await asyncio.gather(
                *(book.add(0, share, range(100), 100, window) for book, share in zip(books, shares, strict=True)),
                return_exceptions=True,
            )
        for book, share in zip(books, shares, strict=True):
            await book.add(0, share, range(100), 100, window)
        assert (await first.read({0: window}))[0] == Marks(100)


@pytest.mark.integration
async def test_marks_that_are_always_undone_are_told(
    kafka_settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When somebody else's commit replaces ours each time, that is an error, not a silent loss."""
    window = (0, 10)
    async with MarkBook(kafka_settings) as book:
        commit = book._commit

        async def undone(partition: int, base: int, text: str) -> None:
            await commit(partition, base, text)
            await commit(partition, 0, "")

        monkeypatch.setattr(book, "_commit", undone)
        with pytest.raises(MarksConflictError):
            await book.add(0, [3], range(10), 10, window)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("offset", "metadata", "expected"),
    [(4, "somebody else's", Marks(4)), (40, "", Marks(0)), (4, "", Marks(4))],
)
async def test_marks_of_strangers_are_not_believed(
    kafka_settings: KafkaSettings, offset: int, metadata: str, expected: Marks
) -> None:
    """Metadata that is no map is ignored, and an offset behind the topic's end belongs to another topic."""
    async with MarkBook(kafka_settings) as book:
        await book._commit(0, offset, metadata)
        assert await book.read({0: (0, 10)}) == {0: expected}


@pytest.mark.integration
async def test_deleted_letters_are_handled(kafka_settings: KafkaSettings) -> None:
    """Letters that retention has deleted are open no more, and marks above them stay."""
    async with MarkBook(kafka_settings) as book:
        await book.add(0, [1, 7], range(10), 10, (0, 10))
        assert await book.read({0: (5, 10)}) == {0: Marks(5, ((7, 8),))}
