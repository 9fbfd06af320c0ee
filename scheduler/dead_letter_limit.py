"""The limit on dead letters (`schemas.settings.DeadLetterSettings`). Pure; the clock is passed in.

A bad deploy makes a dead letter of every event. Without a limit it empties the input topics into the dead letters at
full speed, and somebody has to find and publish all of them again.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from schemas.settings import DeadLetterSettings
from schemas.status import STOPPED_MEND

GRAINS = 60
"""Parts of the window; what is older leaves in steps of this size."""
TELL_SECONDS = 30.0
"""How often a scheduler that has stopped says so again."""
MINUTE_SECONDS = 60.0


class Notice(NamedTuple):
    """What an operator is told.

    Args:
        kinds: dead letters within the window when the limit was reached, by kind, most frequent first; the one that
            reached it included.
        held: events that would have become dead letters since; they are unfinished and will be read again.
        reason: which limit was reached.
        mend: what to do.
    """

    kinds: dict[str, int]
    held: int
    reason: str
    mend: str


class _Grain:
    """A part of the window: its number, its outcomes, and how many of them were dead letters of which kind."""

    __slots__ = ("kinds", "number", "outcomes")

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcomes = 0
        self.kinds: Counter[str] = Counter()


class DeadLetterLimit:
    """Counts outcomes within the window and says, once and for all, when dead letters are too many.

    Args:
        settings: the limits.
    """

    def __init__(self, settings: DeadLetterSettings) -> None:
        self._settings = settings
        self._grain_seconds = settings.window_seconds / GRAINS
        self._grains: deque[_Grain] = deque()
        # Sums over the grains: a flood of bad records must not add up the window for each of them.
        self._outcomes = 0
        self._dead = 0
        self._kinds: Counter[str] = Counter()
        self._told: float | None = None
        self.reason = ""
        """Which limit was reached; empty while none is. Only a new life of the process empties it again."""
        self.held = 0
        """Events that were not written as dead letters because the limit had been reached."""

    @property
    def tripped(self) -> bool:
        """Whether the limit has been reached."""
        return bool(self.reason)

    def ended(self, now: float) -> None:
        """Count an outcome that is no dead letter.

        Args:
            now: monotonic time in seconds.
        """
        if not self.tripped:  # what was counted then is what the operator is told
            self._at(now).outcomes += 1
            self._outcomes += 1

    def admits(self, kind: str, now: float) -> bool:
        """Count an event that wants to become a dead letter; False when it must be held instead.

        Args:
            kind: its error kind.
            now: monotonic time in seconds.
        """
        if not self.tripped:
            self.ended(now)
            self._at(now).kinds[kind] += 1
            self._kinds[kind] += 1
            self._dead += 1
            self.reason = self._judge()
        self.held += self.tripped
        return not self.tripped

    def notice(self, now: float) -> Notice | None:
        """Return what to tell the operator now: at once, then every `TELL_SECONDS`; None in between."""
        if not self.tripped or (self._told is not None and now - self._told < TELL_SECONDS):
            return None
        self._told = now
        return Notice(dict(self._kinds.most_common()), self.held, self.reason, STOPPED_MEND)

    def _judge(self) -> str:
        settings, dead = self._settings, self._dead
        if dead < settings.least:
            return ""
        window = f"in {settings.window_seconds:g} s"
        if dead > settings.ratio * self._outcomes:
            return f"{dead} of {self._outcomes} outcomes {window} are dead letters (scheduler.dead_letters.ratio)"
        if dead * MINUTE_SECONDS > settings.per_minute * settings.window_seconds:
            return f"{dead} dead letters {window} (scheduler.dead_letters.per_minute)"
        return ""

    def _at(self, now: float) -> _Grain:
        number = int(now / self._grain_seconds)
        if self._grains and self._grains[-1].number == number:
            return self._grains[-1]
        while self._grains and self._grains[0].number <= number - GRAINS:
            left = self._grains.popleft()
            self._outcomes -= left.outcomes
            self._dead -= left.kinds.total()
            self._kinds -= left.kinds
        self._grains.append(_Grain(number))
        return self._grains[-1]
