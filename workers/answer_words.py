"""Hides the words of an answer where they stand in a text: what the model does not read there it cannot copy.

A small model answers with whatever label word stood in the text last (docs/quality.md has the figures). Among honest
headlines about one in a hundred has such a word, and loses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

BLANKS = (" ...", " -", " _", "...")
"""What may stand for a hidden word: the first of these that is one token, so that nothing moves."""


class AnswerWords:
    """The tokens to hide.

    Args:
        tokenizer: the model's, special tokens as text.
        words: label words, whatever their case and their leading space.
    """

    def __init__(self, tokenizer: Tokenizer, words: Iterable[str]) -> None:
        self._hidden: set[int] = set()
        for word in {word.strip().lower() for word in words}:
            for form in (word, word.capitalize(), word.upper()):
                for text in (form, f" {form}"):
                    ids = tokenizer.encode(text, add_special_tokens=False).ids
                    if len(ids) == 1:
                        self._hidden.add(ids[0])
        blanks = [tokenizer.encode(blank, add_special_tokens=False).ids for blank in BLANKS]
        # A tokenizer that spells all of them in several tokens still has a first token for the first one.
        self._blank = next((ids[0] for ids in blanks if len(ids) == 1), blanks[0][0])

    def hide(self, ids: Sequence[int]) -> list[int]:
        """Return as many ids, with a blank for each that is a label word as a whole."""
        return [self._blank if each in self._hidden else each for each in ids]
