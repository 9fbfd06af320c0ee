"""Back-pressure: limits per topic, by events and by bytes, with hysteresis."""

from __future__ import annotations

from scheduler.chunks import Chunk
from scheduler.filing_desk import chunk_work
from scheduler.room import MEBIBYTE, RESUME_BELOW, Room
from scheduler.work import Origin, Original, Work
from schemas.settings import SchedulerSettings
from tests.scheduler import make
from tests.scheduler.filing_parts import SENTENCES, TOPICS, part

NEWS, FILINGS = "test.news", "test.filings"


def _room(max_queued: int = 8, max_queued_mb: float = 64) -> Room:
    return Room([NEWS, FILINGS], SchedulerSettings(max_queued=max_queued, max_queued_mb=max_queued_mb))


def _work(topic: str = NEWS, size: int = 2) -> Work:
    return make.work(origin=Origin(topic, 0, 0, 1), original=Original(None, b"x" * size, ()))


def test_pauses_at_the_limit_and_resumes_below_three_quarters() -> None:
    """A topic that filled up is closed until a quarter of it is gone, so that intake does not flutter."""
    room = _room(max_queued=8)
    held = [_work() for _ in range(8)]
    for work in held:
        assert room.has_room(NEWS)
        room.enter(work)
    assert not room.has_room(NEWS)
    room.leave(held.pop())
    room.leave(held.pop())
    assert len(held) == 8 * RESUME_BELOW
    assert not room.has_room(NEWS)
    room.leave(held.pop())
    assert room.has_room(NEWS)
    room.enter(_work())
    assert room.has_room(NEWS)  # below the limit again, and not paused


def test_bytes_count_as_well() -> None:
    """A few large records fill the room that many small ones would leave."""
    room = _room(max_queued=1000, max_queued_mb=1)
    works = [_work(size=MEBIBYTE // 6) for _ in range(3)]
    for work in works:
        room.enter(work)
    assert not room.has_room(NEWS)
    for work in works:
        room.leave(work)
    assert room.has_room(NEWS)


def test_topics_do_not_share_their_room() -> None:
    """A flood of filings leaves headlines their whole room."""
    room = _room(max_queued=2)
    for _ in range(5):
        room.enter(_work(FILINGS))
    assert not room.has_room(FILINGS)
    assert room.has_room(NEWS)


def test_what_entered_leaves_even_when_it_was_cut_meanwhile() -> None:
    """A text that is shortened while it waits gives back exactly what it took."""
    room = _room(max_queued=1000, max_queued_mb=1)
    for _ in range(200):
        work = _work(size=8000)
        room.enter(work)
        work.tokens, work.token_count = b"", 0
        room.leave(work)
    assert room.has_room(NEWS)
    assert set(room._bytes.values()) == {0}


def test_a_part_holds_its_record_until_its_filing_is_done_and_chunks_their_tokens() -> None:
    """The record is counted once, however many chunks; all is given back, also where one was cut."""
    room = _room(max_queued=1000, max_queued_mb=1)
    text = SENTENCES * 1000
    one = part(chunks=20, text=text)
    chunks = [chunk_work(one, n, Chunk(0, 1, b"x" * 40, 10, 10), 0, 0) for n in range(20)]
    room.enter_part(one)
    for work in chunks:
        room.enter(work)
    assert len(text) < room._bytes[TOPICS.filings] < 2 * len(text)
    assert room._events[TOPICS.filings] == 20
    for work in chunks:
        work.tokens, work.token_count = b"", 0
        room.leave(work)
    assert room._bytes[TOPICS.filings] > len(text)
    room.leave_part(one)
    assert (room._bytes[TOPICS.filings], room._events[TOPICS.filings]) == (0, 0)
