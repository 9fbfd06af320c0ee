"""Which parts of which filings are here, and when a filing is done: a state machine without I/O or clock.

A part is one input record, cut into chunks that run on their own. A filing takes parts until it has all of them, or
until it is sealed because one does not come; it is done once it is sealed and all its chunks have ended. Until then the
offsets of its parts stay unfinished, so a scheduler that is killed reads all of them again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler.merge import Reading
from scheduler.work import Work
from schemas.frames import EngineInfo
from schemas.records import Figure
from schemas.settings import ClassSettings, FilingSettings

MILLISECOND = 1_000_000
NANOSECONDS = 1_000_000_000
FEW_DUE = 1024
"""Entries of the timetable that may belong to filings that are done."""

Key = tuple[str, int, int, str]
"""Topic, partition, number of its assignment, accession: parts of one filing stand in one partition."""


class ChunkSpan(NamedTuple):
    """Where a chunk stands in its part's text, and its tokens.

    Args:
        start, end: characters, end exclusive.
        tokens: all of its tokens.
        own: of those, how many are not in the chunk before as well.
    """

    start: int
    end: int
    tokens: int
    own: int


class MadeBy(NamedTuple):
    """Who gave an answer."""

    engine: EngineInfo
    prompt_version: str


@dataclass(slots=True, kw_only=True, eq=False)
class Part:
    """One input record of a filing.

    Args:
        whole: stands for the record: where it is, its times, its bytes; it is never run itself.
        accession, number, parts, version: of the event.
        spans: of its chunks, in the order of the text.
        tokens: of the whole text.
        items, ciks, instruments: of the event.
        figures: key figures of its text.
        left: chunks that have not ended.
        failure: error kind and message of the chunk that failed last.
        expired: why chunks were not run any more.
    """

    whole: Work
    accession: str
    number: int
    parts: int
    version: int
    spans: list[ChunkSpan]
    tokens: int
    items: list[str] = field(default_factory=list)
    ciks: list[str] = field(default_factory=list)
    instruments: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    left: int = 0
    failure: tuple[str, str] | None = None
    expired: str = ""
    filing: Filing | None = None

    @property
    def key(self) -> Key:
        """The filing that it belongs to."""
        topic, partition, _, epoch = self.whole.origin
        return topic, partition, epoch, self.accession


@dataclass(slots=True, kw_only=True, eq=False)
class Filing:
    """One filing that is being read.

    Args:
        records: every record that came for it, in order; all of them end with it.
        current: per number the part that counts: the newest version.
        readings: answers of chunks, each with its part and who gave it.
        left: chunks that have not ended.
        sealed: it takes no more parts.
        done: it has its final outcome, or belongs to nobody here any more.
        partial_due: its deadline is near; the next answer, if there is none yet, gives the partial signal.
        partial_sent: it had its partial signal.
    """

    key: Key
    class_index: int
    event_time_ns: int
    deadline_ns: int
    toxic_ns: int
    last_part_ns: int
    records: list[Part] = field(default_factory=list)
    current: dict[int, Part] = field(default_factory=dict)
    readings: list[tuple[Part, Reading, MadeBy]] = field(default_factory=list)
    left: int = 0
    sealed: bool = False
    done: bool = False
    partial_due: bool = False
    partial_sent: bool = False

    @property
    def parts(self) -> int:
        """How many parts the filing has, as far as those that came know."""
        return max(part.parts for part in self.current.values())

    @property
    def complete(self) -> bool:
        """Whether every part is here."""
        return len(self.current) >= self.parts

    def counting(self) -> list[tuple[Part, Reading, MadeBy]]:
        """Return the readings of parts that no newer version has replaced."""
        return [one for one in self.readings if self.current.get(one[0].number) is one[0]]

    def release(self) -> None:
        """Let go of everything that is held; what ends late still finds that the filing is done."""
        self.records.clear()
        self.current.clear()
        self.readings.clear()


class Ready(NamedTuple):
    """A filing that has something to publish: its final outcome, or the signal of what is read so far."""

    filing: Filing
    final: bool


class Filings:
    """All filings of one scheduler that are not done. Times are nanoseconds since the epoch and are passed in.

    Args:
        settings: how long to wait, and for how many.
        classes: service classes, most urgent first.
    """

    def __init__(self, settings: FilingSettings, classes: Sequence[ClassSettings]) -> None:
        self._classes = tuple(classes)
        self._wait_ns = int(settings.wait_seconds * NANOSECONDS)
        self._partial_ns = int(settings.partial_ms * MILLISECOND)
        self._max_open = settings.max_open
        self._open: dict[Key, Filing] = {}  # the one whose last part is oldest comes first
        self._alive: dict[int, Filing] = {}
        self._due: list[tuple[int, int, Filing]] = []
        self._sequence = 0
        self._left = 0

    @property
    def open(self) -> int:
        """How many filings wait for parts."""
        return len(self._open)

    @property
    def alive(self) -> int:
        """How many filings are not done."""
        return len(self._alive)

    @property
    def idle(self) -> bool:
        """Whether no chunk of any filing waits or runs: only a new part can bring a filing on."""
        return not self._left

    def next_due_ns(self) -> int | None:
        """Return when `due` has to be asked again, or None."""
        return self._due[0][0] if self._due else None

    def add(self, part: Part, now_ns: int) -> list[Ready]:
        """Take a part; its chunks (``part.left`` of them) are the caller's to run, with the filing's deadline.

        A record whose part is here already, in this or a newer version, runs nothing and ends with the filing.
        """
        key = part.key
        filing = self._open.pop(key, None)
        if filing is None:
            filing = Filing(
                key=key,
                class_index=part.whole.class_index,
                event_time_ns=part.whole.event_time_ns,
                deadline_ns=0,
                toxic_ns=0,
                last_part_ns=now_ns,
            )
            self._alive[id(filing)] = filing
        part.filing = filing
        filing.records.append(part)
        filing.last_part_ns = now_ns
        before = filing.current.get(part.number)
        if before is None or part.version > before.version:
            filing.current[part.number] = part
            part.left = len(part.spans)
            filing.left += part.left
            self._left += part.left
        self._set_times(filing, part.whole)
        ready: list[Ready] = []
        if filing.complete:
            ready += self._seal(filing)
        else:
            self._open[key] = filing
            if len(self._open) > self._max_open:
                ready += self.close_oldest()
        if not filing.done:
            self._note(filing)
        return ready

    def _set_times(self, filing: Filing, whole: Work) -> None:
        filing.class_index = min(filing.class_index, whole.class_index)
        filing.event_time_ns = min(filing.event_time_ns, whole.event_time_ns)
        urgent = self._classes[filing.class_index]
        filing.deadline_ns = filing.event_time_ns + int(urgent.slo_ms * MILLISECOND)
        filing.toxic_ns = self.toxic_ns(filing, filing.class_index)

    def toxic_ns(self, filing: Filing, class_index: int) -> int:
        """Return when a filing's chunk of this class gets toxic; 0 for never."""
        toxic_ms = self._classes[class_index].toxic_ms
        return filing.event_time_ns + int(toxic_ms * MILLISECOND) if toxic_ms is not None else 0

    # How chunks end

    def read(self, part: Part, reading: Reading, made_by: MadeBy, now_ns: int) -> list[Ready]:
        """Note the answer to a chunk."""
        filing = part.filing
        if filing is not None and not filing.done:
            filing.readings.append((part, reading, made_by))
        return self._ended(part, now_ns)

    def failed(self, part: Part, kind: str, message: str, now_ns: int) -> list[Ready]:
        """Note a chunk that has no answer: the filing is read without it."""
        part.failure = (kind, message)
        return self._ended(part, now_ns)

    def expired(self, part: Part, reason: str, now_ns: int) -> list[Ready]:
        """Note a chunk that was not worth running any more."""
        part.expired = reason
        return self._ended(part, now_ns)

    def _ended(self, part: Part, now_ns: int) -> list[Ready]:
        filing = part.filing
        if filing is None or filing.done:
            return []
        part.left -= 1
        filing.left -= 1
        self._left -= 1
        if filing.sealed and not filing.left:
            return [self._finish(filing)]
        if filing.partial_due and now_ns < filing.deadline_ns:
            return self._partial(filing)
        return []

    # When filings end

    def due(self, now_ns: int) -> list[Ready]:
        """Return what time has made ready: partial signals, and filings that waited long enough for a part."""
        ready: list[Ready] = []
        heap = self._due
        while heap and heap[0][0] <= now_ns:
            filing = heapq.heappop(heap)[2]
            if filing.done:
                continue
            if not filing.sealed and now_ns >= self._closes_ns(filing):
                ready += self._seal(filing)
            if not filing.done and not filing.partial_due and now_ns >= filing.deadline_ns - self._partial_ns:
                filing.partial_due = True
                if now_ns < filing.deadline_ns:
                    ready += self._partial(filing)
            if not filing.done:
                self._note(filing)
        return ready

    def close_oldest(self) -> list[Ready]:
        """Seal the filing that has waited longest for a part; it ends with what it has."""
        for filing in self._open.values():
            return self._seal(filing)
        return []

    def forget(self, gone: Callable[[Filing], bool]) -> list[Part]:
        """Drop the filings that belong elsewhere now; returns their records, which are held no more."""
        dropped: list[Part] = []
        for filing in [f for f in self._alive.values() if gone(f)]:
            self._left -= filing.left
            self._remove(filing)
            dropped += filing.records
            filing.release()
        return dropped

    def _closes_ns(self, filing: Filing) -> int:
        waited = filing.last_part_ns + self._wait_ns
        # Past its toxic age a signal is worth nothing, so nobody waits longer than that for a part.
        return min(waited, filing.deadline_ns) if filing.toxic_ns else waited

    def _partial(self, filing: Filing) -> list[Ready]:
        if filing.partial_sent or not filing.counting():
            return []
        filing.partial_sent = True
        return [Ready(filing, False)]

    def _seal(self, filing: Filing) -> list[Ready]:
        filing.sealed = True
        self._open.pop(filing.key, None)
        return [] if filing.left else [self._finish(filing)]

    def _finish(self, filing: Filing) -> Ready:
        self._remove(filing)
        return Ready(filing, True)

    def _remove(self, filing: Filing) -> None:
        filing.done = True
        del self._alive[id(filing)]
        if self._open.get(filing.key) is filing:
            del self._open[filing.key]

    def _note(self, filing: Filing) -> None:
        """Put the next time at which something has to be decided about a filing into the timetable."""
        times = [] if filing.sealed else [self._closes_ns(filing)]
        if not filing.partial_due and (len(filing.current) > 1 or filing.left > 1 or not filing.sealed):
            times.append(filing.deadline_ns - self._partial_ns)
        if not times:
            return
        self._sequence += 1
        heapq.heappush(self._due, (min(times), self._sequence, filing))
        if len(self._due) > 2 * len(self._alive) + FEW_DUE:
            kept = {entry[2]: entry for entry in sorted(self._due, reverse=True) if not entry[2].done}
            self._due = sorted(kept.values())
