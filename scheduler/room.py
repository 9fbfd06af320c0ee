"""Back-pressure: how much of each input topic may be held, so that a flood of filings cannot shut headlines out."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.filings import Part
from scheduler.work import Work
from schemas.frames import TOKEN_BYTES
from schemas.settings import SchedulerSettings

WORK_BYTES = 900
"""What one held event costs beside its record and its token ids: the object, its integers, its heap entries."""
PART_BYTES = 2_500
"""What a part of a filing costs beside its record and its chunks: itself, its filing, its timetable."""
CHUNK_BYTES = 1_500
"""What one chunk's place in its part and its answer cost until the filing is done."""
FIGURE_BYTES = 400
RESUME_BELOW = 0.75
"""Intake that paused goes on below this share of the limit, so that it does not flutter."""
MEBIBYTE = 1024 * 1024


class Room:
    """Counts the events and bytes held per input topic.

    Args:
        topics: the input topics; each has the whole limit for itself.
        settings: the limits.
    """

    def __init__(self, topics: Iterable[str], settings: SchedulerSettings) -> None:
        self._max_events = settings.max_queued
        self._max_bytes = settings.max_queued_mb * MEBIBYTE
        self._events = dict.fromkeys(topics, 0)
        self._bytes = dict.fromkeys(self._events, 0)
        self._full: set[str] = set()

    def enter(self, work: Work) -> None:
        """Count an event that was taken in."""
        topic = work.origin.topic
        self._events[topic] += 1
        self._bytes[topic] += _size(work)

    def leave(self, work: Work) -> None:
        """Count an event that ended or was dropped."""
        topic = work.origin.topic
        self._events[topic] -= 1
        self._bytes[topic] -= _size(work)

    def enter_part(self, part: Part) -> None:
        """Count a part of a filing that was taken in; its chunks are counted as work."""
        self._bytes[part.whole.origin.topic] += _part_size(part)

    def leave_part(self, part: Part) -> None:
        """Count a part whose filing is done or was dropped."""
        self._bytes[part.whole.origin.topic] -= _part_size(part)

    def has_room(self, topic: str) -> bool:
        """Return whether more of a topic may be taken in."""
        share = RESUME_BELOW if topic in self._full else 1.0
        room = self._events[topic] < self._max_events * share and self._bytes[topic] < self._max_bytes * share
        if room:
            self._full.discard(topic)
        else:
            self._full.add(topic)
        return room


def _size(work: Work) -> int:
    if work.part is not None:
        # The record is the part's, which is counted once. Not the length of the ids: see below.
        return WORK_BYTES + TOKEN_BYTES * work.part.spans[work.chunk].tokens
    # Twice the record stands for the token ids too. Not their own length: a text may be cut while it waits, and what
    # entered must leave.
    return WORK_BYTES + 2 * len(work.record)


def _part_size(part: Part) -> int:
    return PART_BYTES + len(part.whole.record) + CHUNK_BYTES * len(part.spans) + FIGURE_BYTES * len(part.figures)
