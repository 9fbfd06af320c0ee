"""Texts to token ids: special tokens neutralised, too long texts cut on a sentence boundary and marked."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenizers import Tokenizer

from scheduler.errors import SchedulerError
from schemas.frames import pack_tokens

CHARS_PER_TOKEN = 16
"""A text that is longer than this many characters per allowed token is cut to that length before it is encoded, so
that a 400,000 character part does not cost the tokenizer a second. English has about 4.5 characters per token."""

_SENTENCE_END = re.compile(r"""[.!?。！？]["'”’)\]]*(?=\s|$)|[。！？]|\n\s*\n""")  # noqa: RUF001 - full-width sentence ends
_MIN_KEPT = 0.5
"""Cutting on a sentence boundary may cost this share of the room at most; a text without one is cut at a space."""


class TokenizerFileError(SchedulerError):
    """A worker sent a tokenizer file that cannot be loaded."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text as the engine gets it.

    Args:
        ids: packed token ids (see `schemas.frames.pack_tokens`).
        count: number of ids.
        truncated: the text was cut.
    """

    ids: bytes
    count: int
    truncated: bool


class TextTokenizer:
    """The model's own tokenizer, from the ``tokenizer.json`` that a worker sends.

    Text is data, never instructions: ``encode_special_tokens`` makes the characters ``<|im_end|>`` ordinary text
    tokens, so no headline can close the prompt. Thread-safe; `encode` releases the interpreter lock.
    """

    def __init__(self, file: bytes, tokenizer_hash: str) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(file.decode("utf-8"))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception for a bad file
            raise TokenizerFileError(f"cannot load the tokenizer file {tokenizer_hash[:12]}: {error}") from None
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.tokenizer_hash = tokenizer_hash

    def encode(self, texts: list[str], limit: int) -> list[Tokens]:
        """Encode texts; one that has more than ``limit`` tokens is cut.

        Args:
            texts: any text, however long.
            limit: most tokens of one text.
        """
        room = limit * CHARS_PER_TOKEN
        shortened = [text if len(text) <= room else text[:room] for text in texts]
        encodings = self._tokenizer.encode_batch_fast(shortened, add_special_tokens=False)
        encoded: list[Tokens] = []
        for text, short, encoding in zip(texts, shortened, encodings, strict=True):
            ids = encoding.ids
            if len(ids) > limit or len(short) < len(text):
                encoded.append(self._cut(short, limit))
            else:
                encoded.append(Tokens(pack_tokens(ids), len(ids), False))
        return encoded

    def _cut(self, text: str, limit: int) -> Tokens:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        end = encoding.offsets[limit - 1][1] if len(encoding.ids) > limit else len(text)
        ids = self._tokenizer.encode(text[: sentence_end(text, end)], add_special_tokens=False).ids
        # Encoding the shorter text again can merge differently at its end; the bound holds all the same.
        return Tokens(pack_tokens(ids[:limit]), min(len(ids), limit), True)


def sentence_end(text: str, end: int) -> int:
    """Return where to cut ``text`` so that at most ``end`` characters stay.

    After a whole sentence where one ends in the second half of the room, else after a whole word, else at ``end``.
    """
    at_least = int(end * _MIN_KEPT)
    best = 0
    for match in _SENTENCE_END.finditer(text, 0, min(len(text), end + 1)):
        if match.end() <= end:
            best = match.end()
    if best > at_least:
        return best
    space = max(text.rfind(" ", at_least, end), text.rfind("\n", at_least, end))
    return space if space > at_least else end
