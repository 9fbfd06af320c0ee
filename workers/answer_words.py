"""Hides the words of an answer where a text uses them as an answer: what the model does not read it cannot copy.

A small model answers with whatever label word stood in the text last. An attack writes the word as an answer is
written; honest news writes it inside a sentence, where it stays. docs/quality.md has the figures for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

BLANKS = (" ...", " -", " _", "...")
"""What may stand for a hidden word: the first of these that is one token, so that nothing moves."""
JOINING = "-,'\u2019&"
"""Signs that stand inside a sentence: ``non-negative``, ``stable, positive``. All others can enclose an answer."""


class AnswerWords:
    """The words to hide.

    Args:
        tokenizer: the model's, special tokens as text.
        words: label words, whatever their case and their leading space.
    """

    def __init__(self, tokenizer: Tokenizer, words: Iterable[str]) -> None:
        self._tokenizer = tokenizer
        spellings: dict[int, set[tuple[int, ...]]] = {}
        for word in {word.strip().lower() for word in words}:
            for form in (word, word.capitalize(), word.upper()):
                for text in (form, f" {form}"):
                    if ids := tuple(self._ids(text)):
                        spellings.setdefault(ids[0], set()).add(ids)
        # The longest first: a spelling may begin with another one.
        self._spellings = {first: sorted(found, key=len, reverse=True) for first, found in spellings.items()}
        blanks = [self._ids(blank) for blank in BLANKS]
        # A tokenizer that spells all of them in several tokens still has a first token for the first one.
        self._blank = next((ids[0] for ids in blanks if len(ids) == 1), blanks[0][0])
        self._texts: dict[int, str] = {}

    def hide(self, ids: list[int]) -> list[int]:
        """Return as many ids, with blanks for the label words that stand as an answer would.

        They do beside a sign, behind a line break, at the end of the text, and where a text has more than one. Costs
        about 0.3 us for a headline without any, 5 us for one that has one.
        """
        # Nearly every text: one look-up per id, in C.
        if self._spellings.keys().isdisjoint(ids):
            return ids
        found = self._find(ids)
        hidden = list(ids)
        for begin, end in found:
            if len(found) > 1 or self._after_a_sign(ids, begin) or self._before_a_sign(ids, end):
                hidden[begin:end] = [self._blank] * (end - begin)
        return hidden

    def _find(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return where label words begin and end, those that are part of a longer word too."""
        found: list[tuple[int, int]] = []
        at = 0
        while at < len(ids):
            spellings = self._spellings.get(ids[at], ())
            length = next((len(s) for s in spellings if tuple(ids[at : at + len(s)]) == s), 0)
            if length:
                found.append((at, at + length))
            at += length or 1
        return found

    def _after_a_sign(self, ids: Sequence[int], begin: int) -> bool:
        """Return whether something other than a word comes before; nothing at all is how honest headlines begin."""
        for token in reversed(ids[:begin]):
            text = self._text(token)
            if "\n" in text:
                return True
            if last := text.rstrip()[-1:]:
                return not last.isalnum() and last not in JOINING
        return False

    def _before_a_sign(self, ids: Sequence[int], end: int) -> bool:
        """Return whether a sign follows without a space, or nothing that is read."""
        follows = self._text(ids[end])[:1] if end < len(ids) else ""
        if follows and not follows.isspace() and not follows.isalnum() and follows not in JOINING:
            return True
        return not any(char.isalnum() for token in ids[end:] for char in self._text(token))

    def _text(self, token: int) -> str:
        """Return what a token says, remembered; a part of a character comes out as a sign."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._tokenizer.decode([token], skip_special_tokens=False)
        return text

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
