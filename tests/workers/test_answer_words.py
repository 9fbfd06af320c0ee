"""Hiding label words in a text."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from workers.answer_words import AnswerWords
from workers.sim_engine import TOKENIZER


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return the simulated engine's tokenizer."""
    return Tokenizer.from_str(TOKENIZER.read_text(encoding="utf-8"))


def test_label_words_are_hidden_in_place(tokenizer: Tokenizer) -> None:
    """A label word that is one token becomes a blank, all else stays where it is, and twice changes nothing."""
    word = next(w for w in (" shares", " company", " market") if len(tokenizer.encode(w).ids) == 1)
    before, after = "Results for 2026", " rise"
    ids = tokenizer.encode(f"{before}{word}{after}", add_special_tokens=False).ids
    hidden = AnswerWords(tokenizer, [word]).hide(ids)
    assert len(hidden) == len(ids)
    changed = [number for number, (old, new) in enumerate(zip(ids, hidden, strict=True)) if old != new]
    assert [tokenizer.decode([ids[number]]) for number in changed] == [word]
    assert AnswerWords(tokenizer, [word]).hide(hidden) == hidden


def test_no_words_hide_nothing(tokenizer: Tokenizer) -> None:
    """Without label words a text stays as it is."""
    ids = tokenizer.encode("Shares rise", add_special_tokens=False).ids
    assert AnswerWords(tokenizer, []).hide(ids) == ids
