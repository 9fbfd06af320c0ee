"""Whether a commit of the scheduler covers an offset; the one place that reads its map of finished offsets."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache

from scheduler.errors import OffsetMapError
from scheduler.offset_map import Range, decode
from tests.chaos.groups import Committed


def covers(commit: Committed, offset: int) -> bool:
    """Return whether an offset is below the commit or finished in its map."""
    if offset < commit.offset:
        return True
    finished = _ranges(commit.offset, commit.metadata)
    index = bisect_right(finished, offset, key=lambda found: found[0]) - 1
    return index >= 0 and offset < finished[index][1]


@lru_cache(maxsize=1024)
def _ranges(point: int, metadata: str) -> list[Range]:
    try:
        return decode(point, metadata)
    except OffsetMapError:
        return []  # the scheduler ignores such a map too
