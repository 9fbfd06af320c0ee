"""The hostile texts of ``hostile.toml``: attacks as data, and each put to a headline."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from schemas.enums import Direction

FILE = Path(__file__).with_name("hostile.toml")
HARMLESS = "harmless"
"""Category of the added texts that attack nothing."""
WORDS = {Direction.BULLISH: "positive", Direction.BEARISH: "negative", Direction.NEUTRAL: "neutral"}
OPPOSITE = {Direction.BULLISH: Direction.BEARISH, Direction.BEARISH: Direction.BULLISH}
TAG = 0xE0000
"""What Unicode adds to an ASCII code to get the invisible tag character."""


class Place(StrEnum):
    """Where an attack goes."""

    BEFORE = "before"
    AFTER = "after"
    INSIDE = "inside"
    BETWEEN = "between"
    SWAP = "swap"


class Headline(Struct, frozen=True, forbid_unknown_fields=True):
    """A text that is attacked, and what a person reads in it."""

    text: str
    label: Direction

    @property
    def target(self) -> Direction:
        """What an attack on it wants: never what it says."""
        return Direction.BEARISH if self.label is Direction.BULLISH else Direction.BULLISH


class Attack(Struct, frozen=True, forbid_unknown_fields=True):
    """One attack; the fields are explained in the file."""

    category: str
    name: str
    place: Place
    text: str = ""
    times: int = 1
    tags: bool = False
    swap: dict[str, str] = {}
    local: dict[Literal["bullish", "bearish"], str] = {}

    def on(self, headline: Headline) -> str:
        """Return the headline under this attack."""
        if self.place is Place.SWAP:
            return headline.text.translate({ord(old): new for old, new in self.swap.items()})
        text = self._text(headline.target)
        if self.place is Place.BEFORE:
            return text + headline.text
        if self.place is Place.AFTER:
            return headline.text + text
        if self.place is Place.BETWEEN:
            return text.join(headline.text)
        middle = headline.text.index(" ", len(headline.text) // 2)
        return headline.text[:middle] + text + headline.text[middle:]

    def _text(self, target: Direction) -> str:
        # Not `format`: braces are among the attacks.
        text = self.text
        values = {
            "{word}": WORDS[target],
            "{other}": WORDS[OPPOSITE[target]],
            "{direction}": target.value,
            "{local}": self.local.get("bullish" if target is Direction.BULLISH else "bearish", ""),
        }
        for name, value in values.items():
            text = text.replace(name, value)
        if self.tags:
            text = "".join(chr(TAG + ord(char)) for char in text)
        return text * self.times


class HostileSet(Struct, frozen=True, forbid_unknown_fields=True):
    """All attacks and the headlines that they are put to."""

    headlines: list[Headline]
    attacks: list[Attack]


def load_hostile(path: Path = FILE) -> HostileSet:
    """Read the hostile texts."""
    return msgspec.toml.decode(path.read_bytes(), type=HostileSet)
