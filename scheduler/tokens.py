"""Texts to token ids: special tokens neutralised, too long texts cut to their head and tail and marked."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tokenizers import Tokenizer

from scheduler.errors import SchedulerError
from scheduler.slabs import slabs
from schemas.frames import pack_tokens

CHARS_PER_TOKEN = 16
"""A text that is longer than this many characters per allowed token is cut to that length before it is encoded, so
that a 400,000 character part does not cost the tokenizer a second. English has about 4.5 characters per token."""
JOINT = " \u2026 "
"""Stands where the middle of a text was left out."""
HEAD_SHARE = 2 / 3
"""Of a text that is cut: its first paragraphs say more than its end, where outlooks and details stand."""
LEAST_FOR_TAIL = 32
"""Room, in tokens, below which a cut text keeps its head alone: a tail of a few words says nothing."""

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


@dataclass(frozen=True, slots=True)
class LongText:
    """A whole text under the tokenizer, however long.

    Args:
        ids: token ids.
        starts, ends: characters of each token in the text, end exclusive; the pieces of one character share them.
    """

    ids: array[int]
    starts: array[int]
    ends: array[int]

    def __len__(self) -> int:
        return len(self.starts)


class TextTokenizer:
    """The model's own tokenizer, from the ``tokenizer.json`` that a worker sends.

    Text is data, never instructions: ``encode_special_tokens`` makes the characters ``<|im_end|>`` ordinary text
    tokens, so no headline can close the prompt. Thread-safe; both ways of encoding release the interpreter lock.
    """

    def __init__(self, file: bytes, tokenizer_hash: str) -> None:
        try:
            self._tokenizer = Tokenizer.from_str(file.decode("utf-8"))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception for a bad file
            raise TokenizerFileError(f"cannot load the tokenizer file {tokenizer_hash[:12]}: {error}") from None
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._joint = array("I", self._tokenizer.encode(JOINT, add_special_tokens=False).ids)
        self.tokenizer_hash = tokenizer_hash

    def encode(self, texts: list[str], limit: int) -> list[Tokens]:
        """Encode texts; of one that has more than ``limit`` tokens, its head and its tail.

        Args:
            texts: any text, however long.
            limit: most tokens of one text.
        """
        room = limit * CHARS_PER_TOKEN
        shortened = [text if len(text) <= room else "" for text in texts]
        encodings = self._tokenizer.encode_batch_fast(shortened, add_special_tokens=False)
        encoded: list[Tokens] = []
        for text, short, encoding in zip(texts, shortened, encodings, strict=True):
            ids = encoding.ids
            if len(ids) > limit or len(short) < len(text):
                encoded.append(self._cut(text, limit))
            else:
                encoded.append(Tokens(pack_tokens(ids), len(ids), False))
        return encoded

    def encode_long(self, text: str) -> LongText:
        """Encode a text whole, however long, with the place of each token.

        Slab by slab: reading ids and offsets holds the interpreter lock, half a millisecond for a slab and fifty for
        400,000 characters at once.
        """
        ids, starts, ends = array("I"), array("I"), array("I")
        for begin, end in slabs(text):
            # encode() keeps the interpreter lock, encode_batch() does not.
            encoding = self._tokenizer.encode_batch([text[begin:end]], add_special_tokens=False)[0]
            ids.extend(encoding.ids)
            for start, stop in encoding.offsets:
                starts.append(start + begin)
                ends.append(stop + begin)
        return LongText(ids, starts, ends)

    def shorten(self, text: str, encoded: LongText, limit: int) -> Tokens:
        """Return a text that is encoded already as one piece of at most ``limit`` tokens."""
        if len(encoded) <= limit:
            return Tokens(encoded.ids.tobytes(), len(encoded), False)
        return self._joined(text, encoded, text, encoded, limit)

    def _cut(self, text: str, limit: int) -> Tokens:
        if len(text) <= limit * CHARS_PER_TOKEN:
            encoded = self.encode_long(text)
            return self._joined(text, encoded, text, encoded, limit)
        # Two pieces that never meet, since the text is longer than both together.
        head_chars = ceil(limit * HEAD_SHARE) * CHARS_PER_TOKEN
        head, tail = text[:head_chars], text[head_chars - limit * CHARS_PER_TOKEN :]
        return self._joined(head, self.encode_long(head), tail, self.encode_long(tail), limit)

    def _joined(self, head: str, head_ids: LongText, tail: str, tail_ids: LongText, limit: int) -> Tokens:
        """Keep about two thirds from the head and the rest from the tail, with a visible joint between them."""
        room = limit - len(self._joint)
        if limit < LEAST_FOR_TAIL or room < LEAST_FOR_TAIL // 2:
            ids = _head(head, head_ids, limit)
        else:
            for_head = int(room * HEAD_SHARE)
            ids = _head(head, head_ids, for_head) + self._joint + _tail(tail, tail_ids, room - for_head)
        return Tokens(ids.tobytes(), len(ids), True)


def _head(text: str, encoded: LongText, most: int) -> array[int]:
    count = between_characters(encoded.starts, encoded.ends, most)
    end = sentence_end(text, encoded.ends[count - 1]) if count else 0
    kept = bisect_right(encoded.ends, end, 0, count)
    return encoded.ids[: kept or most]


def _tail(text: str, encoded: LongText, most: int) -> array[int]:
    starts, ends = encoded.starts, encoded.ends
    first = max(len(encoded) - most, 0)
    while 0 < first < len(encoded) and starts[first] < ends[first - 1]:
        first += 1
    if first == len(encoded):
        return array("I")
    begin = sentence_start(text, starts[first])
    return encoded.ids[bisect_right(ends, begin, first) :]


def between_characters(starts: Sequence[int], ends: Sequence[int], index: int) -> int:
    """Return the last place at or before ``index`` where no character is cut: a rare one can be several tokens."""
    index = min(index, len(starts))
    while 0 < index < len(starts) and starts[index] < ends[index - 1]:
        index -= 1
    return index


def sentence_end(text: str, end: int) -> int:
    """Return where to cut ``text`` so that at most ``end`` characters stay.

    After a whole sentence where one ends in the second half of the room, else after a whole word, else at ``end``.
    """
    at_least = int(end * _MIN_KEPT)
    best = last_sentence_end(text, 0, end)
    if best > at_least:
        return best
    space = max(text.rfind(" ", at_least, end), text.rfind("\n", at_least, end))
    return space if space > at_least else end


def last_sentence_end(text: str, start: int, end: int) -> int:
    """Return the end of the last sentence that ends within these characters, or 0."""
    best = 0
    for match in _SENTENCE_END.finditer(text, start, min(len(text), end + 1)):
        if match.end() <= end:
            best = match.end()
    return best


def sentence_start(text: str, start: int) -> int:
    """Return where to cut ``text`` so that what is kept begins at ``start`` or later.

    Before a whole sentence where one begins in the first half of what would be kept, else before a whole word.
    """
    at_most = start + int((len(text) - start) * (1 - _MIN_KEPT))
    for match in _SENTENCE_END.finditer(text, max(start - 1, 0), at_most):
        if match.end() >= start:
            return match.end()
    places = [place for place in (text.find(" ", start, at_most), text.find("\n", start, at_most)) if place >= 0]
    return min(places, default=start)
