"""Reads what news sources send and publishes it: each story's versions in a chain, each version once."""

from __future__ import annotations

from producers.formats import Format
from producers.news.formats import NEWS_FORMATS

FORMATS: tuple[Format, ...] = tuple(found.as_format() for found in NEWS_FORMATS)
"""What `producers.formats` offers for news."""
