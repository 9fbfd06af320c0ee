"""Whether a commit of the scheduler covers an offset; the one place that reads its map of finished offsets."""

from __future__ import annotations

from tests.chaos.groups import Committed


def covers(commit: Committed, offset: int) -> bool:
    """Return whether an offset is below the commit or finished in its map."""
    return offset < commit.offset
