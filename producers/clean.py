"""Makes text from outside safe and comparable, and says what it changed: mojibake, controls, invisible characters."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from ftfy import TextFixerConfig, fix_encoding_and_explain

MOJIBAKE = "mojibake"
CONTROLS = "controls"
INVISIBLE = "invisible"
MARKS = "combining_marks"

MARKS_KEPT = 8
"""Combining marks on one character that stay; no script needs more. Sorting a run of them takes quadratic time in
Unicode normalisation: 40,000 on one letter kept one core busy for 5.4 s."""

_CERTAIN = TextFixerConfig(
    unescape_html=False,
    # Two repairs that guess: a space taken for a lost byte A0, and characters that stand for any lost byte.
    restore_byte_a0=False,
    replace_lossy_sequences=False,
    decode_inconsistent_utf8=True,
    fix_c1_controls=True,
)

_BREAKS = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
_INVISIBLE = re.compile(
    "[\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\ufe00-\ufe0f\U000e0000-\U000e01ef]"  # variation selectors and tags: they can carry text that nobody sees
    # Joiners carry meaning between letters of Arabic and Indic scripts and nowhere else in a headline.
    "|[\u200c\u200d](?![\u0600-\u0dff])|(?<![\u0600-\u0dff])[\u200c\u200d]"
)
_MARKS = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
    f"{{{MARKS_KEPT}}})"
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_SPACES = re.compile("[ \t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]+")
_BLANK_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaned:
    """Clean text and what was changed to get it.

    Args:
        text: NFC, line feeds as the only line breaks, plain spaces as the only blanks.
        changes: ``mojibake``, ``controls=3``, ``invisible=2``, ``combining_marks=40``; the number counts characters
            that were removed. Blanks and the Unicode form are not recorded: nothing is lost with them.
    """

    text: str
    changes: tuple[str, ...] = ()


def clean(text: str) -> Cleaned:
    """Return the text as a model and a person should see it.

    Mojibake is repaired line by line and only where the repair is certain: the line's bytes must be valid UTF-8 that
    was read in another encoding, or C1 controls that Windows uses for quotation marks.
    """
    if text.isascii() and text.isprintable():
        return Cleaned(text=_SPACES.sub(" ", text).strip())
    changes: list[str] = []
    if not text.isascii():
        text = _repaired(text, changes)
    text = _BREAKS.sub("\n", text)
    for name, pattern in ((CONTROLS, _CONTROLS), (INVISIBLE, _INVISIBLE)):
        text, count = pattern.subn("", text)
        if count:
            changes.append(f"{name}={count}")
    text = _with_few_marks(text, changes)
    text = unicodedata.normalize("NFC", text)
    lines = (_SPACES.sub(" ", line).strip() for line in text.split("\n"))
    return Cleaned(text=_BLANK_LINES.sub("\n\n", "\n".join(lines)).strip("\n"), changes=tuple(changes))


def clean_line(text: str) -> Cleaned:
    """Return `clean` text on one line: a headline, a name."""
    cleaned = clean(text)
    return Cleaned(text=" ".join(cleaned.text.split()), changes=cleaned.changes)


def _repaired(text: str, changes: list[str]) -> str:
    lines = text.split("\n")
    repaired = False
    for index, line in enumerate(lines):
        if line.isascii():
            continue
        fixed, plan = fix_encoding_and_explain(line, _CERTAIN)
        # A repair that swallows a space has taken it for a lost byte.
        if plan and fixed.count(" ") == line.count(" "):
            lines[index] = fixed
            repaired = True
    if not repaired:
        return text
    changes.append(MOJIBAKE)
    return "\n".join(lines)


def _with_few_marks(text: str, changes: list[str]) -> str:
    kept = _MARKS.sub(r"\1", text)
    if len(kept) < len(text):
        changes.append(f"{MARKS}={len(text) - len(kept)}")
    return kept
