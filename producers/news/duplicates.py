"""Marks headlines that say nearly the same as one from another source, with the first one's id (MinHash)."""

from __future__ import annotations

import re
from collections import deque
from itertools import pairwise
from typing import NamedTuple

from datasketch import MinHash, MinHashLSH

from producers.times import SECOND
from schemas.enums import NewsStatus
from schemas.records import Nanoseconds, NewsEvent

PERMUTATIONS = 64
CANDIDATES_AT = 0.5
"""Similarity from which MinHash proposes a pair; the exact one then decides, so this only has to miss none."""
MIN_WORDS = 4
"""Shorter headlines ("Monetary policy decisions", "Trading halt") say the same about different things."""

_WORD = re.compile(r"[^\W_]+(?:[.,]\d+)*%?")
_PREFIX = re.compile(
    r"^(?:(?:UPDATE|WRAPUP) ?\d*|BRIEF|REFILE|RPT|CORRECTED|CORRECTION|REPEAT)\s*[-:]\s*", re.IGNORECASE
)
"""What wires put before a headline they send again."""
_DIGIT = re.compile(r"\d")


class _Known(NamedTuple):
    event_id: str
    story: str
    source: str
    instruments: frozenset[str]
    shingles: frozenset[str]
    numbers: frozenset[str]
    at_ns: Nanoseconds
    published_at_ns: Nanoseconds


class DuplicateIndex:
    """Headlines of the recent past, from all sources of one feed handler.

    Args:
        similarity: share of words and word pairs (Jaccard) from which two headlines say the same.
        window_ns: how long a headline is compared with later ones.
        most: headlines that are kept; the oldest go first.
    """

    def __init__(self, *, similarity: float, window_ns: Nanoseconds = 24 * 3600 * SECOND, most: int = 50_000) -> None:
        self._similarity = similarity
        self._window_ns = window_ns
        self._most = most
        self._lsh = MinHashLSH(threshold=CANDIDATES_AT, num_perm=PERMUTATIONS)
        self._known: dict[str, _Known] = {}
        self._order: deque[str] = deque()

    def first(self, event: NewsEvent) -> str | None:
        """Return the id of the first event that says nearly the same as this one, and remember this one if none does.

        A pair is of two sources; the numbers in both are the same, so that a rise of 25 points is no duplicate of one
        of 50; and where both name instruments they have one in common.
        """
        if event.status is NewsStatus.KILLED or event.duplicate_of:
            return event.duplicate_of
        shingles = _shingles(event.headline)
        if not shingles:
            return None
        self._forget(event.received_at_ns)
        sketch = MinHash(num_perm=PERMUTATIONS)
        sketch.update_batch([shingle.encode() for shingle in shingles])
        found = self._match(event, shingles, sketch)
        if found is None:
            self._remember(event, shingles, sketch)
        return found

    def _match(self, event: NewsEvent, shingles: frozenset[str], sketch: MinHash) -> str | None:
        numbers = _numbers(shingles)
        candidates = (self._known[key] for key in self._lsh.query(sketch))
        same = [c for c in candidates if c.numbers == numbers and self._same(c, event, shingles)]
        return min(same, key=lambda known: known.at_ns).event_id if same else None

    def _same(self, known: _Known, event: NewsEvent, shingles: frozenset[str]) -> bool:
        if known.source == event.source or known.story == event.key:
            return False
        if known.instruments and event.instruments and known.instruments.isdisjoint(event.instruments):
            return False
        if known.published_at_ns and event.published_at_ns:
            apart = abs(known.published_at_ns - event.published_at_ns)
            if apart > self._window_ns:  # last month's headline, read together with today's
                return False
        return len(known.shingles & shingles) / len(known.shingles | shingles) >= self._similarity

    def _remember(self, event: NewsEvent, shingles: frozenset[str], sketch: MinHash) -> None:
        key = event.event_id
        if key in self._known:  # published again after a crash
            return
        self._known[key] = _Known(
            event_id=key,
            story=event.key,
            source=event.source,
            instruments=frozenset(event.instruments),
            shingles=shingles,
            numbers=_numbers(shingles),
            at_ns=event.received_at_ns,
            published_at_ns=event.published_at_ns,
        )
        self._lsh.insert(key, sketch, check_duplication=False)
        self._order.append(key)

    def _forget(self, now_ns: Nanoseconds) -> None:
        while self._order:
            oldest = self._known[self._order[0]]
            if len(self._order) < self._most and oldest.at_ns > now_ns - self._window_ns:
                return
            key = self._order.popleft()
            del self._known[key]
            self._lsh.remove(key)


def _shingles(headline: str) -> frozenset[str]:
    bare = _PREFIX.sub("", headline)
    words = [word.replace(",", "") for word in _WORD.findall(bare.casefold())]
    if len(words) < MIN_WORDS:
        return frozenset()
    return frozenset((*words, *(f"{a} {b}" for a, b in pairwise(words))))


def _numbers(shingles: frozenset[str]) -> frozenset[str]:
    return frozenset(s for s in shingles if " " not in s and _DIGIT.search(s))
