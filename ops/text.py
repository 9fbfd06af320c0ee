"""Text from outside made safe to show: no control character, no terminal escape, no direction override."""

from __future__ import annotations

import re
import sys

from rich.console import Console

_HOSTILE = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0 and C1 controls: line breaks, ESC, CSI
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # line separators, direction marks, invisible characters
    "\ud800-\udfff]"  # lone surrogates, which no terminal encoding takes
)


def visible(text: str) -> str:
    """Return the text on one line with every character that could act on a terminal or a log spelt out."""
    return _HOSTILE.sub(_spell, text)


def shortened(text: str, width: int) -> str:
    """Return `visible` text of at most ``width`` characters."""
    shown = visible(text[: width + 1])
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


PIPED_COLUMNS = 160
"""Width of a table that no terminal shows: nothing in it may be cut."""


def stdout_console() -> Console:
    """Return a console for tables on stdout, wide enough where stdout is a file or a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_COLUMNS)
