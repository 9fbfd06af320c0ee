"""Which filings are on their way, and up to which moment of the feed everything has arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

CHECKPOINTS_MOST = 100
"""Moments that wait for their filings; one sweep every two seconds makes no more during three minutes."""
UNWANTED_MOST = 100_000


class Progress:
    """The state of one feed between listing and confirmation.

    Args:
        published: whether an accession was published before.
        covered_ns: moment up to which everything was published at the start; 0 when nothing is known.
    """

    def __init__(self, published: Callable[[str], bool], covered_ns: int) -> None:
        self.covered_ns = covered_ns
        """Everything listed up to this moment of the feed is known: published, on its way, or given up."""
        self._published = published
        self._pending: set[str] = set()
        self._settled: set[str] = set()
        self._unwanted: dict[str, None] = {}
        self._checkpoints: deque[tuple[int, set[str]]] = deque()

    @property
    def pending(self) -> int:
        """Filings on their way."""
        return len(self._pending)

    def known(self, accession: str) -> bool:
        """Whether an accession needs nothing more."""
        return (
            accession in self._pending
            or accession in self._settled
            or accession in self._unwanted
            or self._published(accession)
        )

    def skip(self, accession: str) -> None:
        """Note a filing of a form that nobody asked for."""
        self._unwanted[accession] = None
        if len(self._unwanted) > UNWANTED_MOST:
            del self._unwanted[next(iter(self._unwanted))]

    def start(self, accession: str) -> None:
        """Note that a filing is on its way."""
        self._pending.add(accession)

    def reach(self, moment_ns: int) -> None:
        """Note that all filings up to a moment have been listed; it is covered once those on their way are settled."""
        self.covered_ns = max(self.covered_ns, moment_ns)
        if len(self._checkpoints) < CHECKPOINTS_MOST:
            self._checkpoints.append((moment_ns, set(self._pending)))

    def settle(self, accession: str, *, given_up: bool = False) -> int:
        """Note that a filing is done; returns the moment up to which everything is done now, or 0 for no change."""
        self._pending.discard(accession)
        if given_up:
            self._settled.add(accession)
        for _, waiting in self._checkpoints:
            waiting.discard(accession)
        return self.covered_now()

    def covered_now(self) -> int:
        """Return the latest moment whose filings are all done and that was not returned before, or 0."""
        moment = 0
        while self._checkpoints and not self._checkpoints[0][1]:
            moment = max(moment, self._checkpoints.popleft()[0])
        return moment
