"""Where the tests find files: excerpts beside them, and a larger corpus that need not be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from producers.formats import ParseContext

FIXTURES = Path(__file__).parent / "fixtures"
CORPUS_VARIABLE = "TAPEWIRE_TEST_CORPUS"
CORPUS = Path(os.environ.get(CORPUS_VARIABLE) or Path(__file__).parents[3] / ".." / "shared" / "corpus")
CONTEXT = ParseContext(received_at_ns=1_767_225_600_000_000_000)

needs_corpus = pytest.mark.skipif(
    not CORPUS.is_dir(), reason=f"no corpus of real files at {CORPUS}; {CORPUS_VARIABLE} names another"
)


def fixture(name: str) -> bytes:
    """Return the bytes of one excerpt."""
    return (FIXTURES / name).read_bytes()
