"""Guaranteed shares: what less urgent classes get of the engines even while more urgent work waits."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from schemas.settings import ClassSettings

MOST_CREDIT = 65_536
"""Tokens that a class can have saved up; more would let it take an engine for itself after a long quiet time."""


class Floors:
    """A deficit counter per class, in tokens.

    Whatever is dispatched earns every other class that waits its share of it; what a class gets is paid from what it
    has earned. A class with enough credit for its next piece of work goes first, whatever else waits. Work larger than
    any credit goes on the largest one, and what is missing is earned after it.
    """

    def __init__(self, classes: Sequence[ClassSettings]) -> None:
        self._shares = tuple(0.0 if index == 0 else c.floor for index, c in enumerate(classes))
        self._credit = [0.0] * len(classes)

    def earned(self, class_index: int, tokens: int) -> bool:
        """Return whether a class has the credit for a piece of work of so many tokens."""
        return self._shares[class_index] > 0 and self._credit[class_index] >= min(tokens, MOST_CREDIT)

    def dispatched(self, class_index: int, tokens: int, waiting: Sequence[bool], *, floor: bool = False) -> None:
        """Account for work that was dispatched.

        Args:
            class_index: its class.
            tokens: prompt and output tokens.
            waiting: per class, whether it has work that waits; one that has none needs no floor, and what it has
                saved would hold up urgent work of a later time.
            floor: whether it was dispatched as a floor; other work is never a debt.
        """
        for index, share in enumerate(self._shares):
            if index == class_index:
                self._credit[index] = max(
                    self._credit[index] - tokens, -inf if floor else min(self._credit[index], 0.0)
                )
            elif not waiting[index]:
                self._credit[index] = min(self._credit[index], 0.0)
            elif share:
                # Of everything dispatched, its own work included, the class is to get `share`.
                self._credit[index] = min(self._credit[index] + tokens * share / (1 - share), MOST_CREDIT)
