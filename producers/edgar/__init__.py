"""SEC EDGAR: the current feed, submissions of every era, and their text in parts that a model can read."""

from __future__ import annotations

from collections.abc import Sequence

from producers.formats import Format

FORMATS: Sequence[Format] = ()
"""The formats of this package, the more specific ones first."""
