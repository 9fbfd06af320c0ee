"""Reads the text of a filing's part, off the event loop: tokens, service class, chunks, key figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.chunks import Chunk, split
from scheduler.classify import Classifier
from scheduler.figures import key_figures
from scheduler.hygiene import same_length
from scheduler.slabs import breathe
from scheduler.tokens import TextTokenizer
from schemas.records import Figure, FilingEvent


@dataclass(frozen=True, slots=True)
class ChunkSize:
    """How one extractor wants a long text.

    Args:
        most: tokens of a chunk; 0 when a text is never split, but cut to its head and tail.
        overlap: tokens that two chunks share where a section is cut.
    """

    most: int
    overlap: int


@dataclass(frozen=True, slots=True)
class PartText:
    """A part as the engine gets it.

    Args:
        class_index: position of its service class.
        chunks: at least one.
        tokens: of the whole text.
        truncated: the text was cut to one piece.
        figures: its key figures.
    """

    class_index: int
    chunks: list[Chunk]
    tokens: int
    truncated: bool
    figures: list[Figure]


def read_part(
    event: FilingEvent,
    text: str,
    tokenizer: TextTokenizer,
    classifier: Classifier,
    sizes: Sequence[ChunkSize],
    text_limit: int,
    pause: Callable[[], None] = breathe,
) -> PartText:
    """Read a part.

    Args:
        event: the part.
        text: its text. Sections and quotations are looked for in it as it came; the model reads it clean, with every
            character in its place.
        tokenizer: the model's.
        classifier: gives the service class.
        sizes: per service class, how its extractor wants a long text.
        text_limit: longest piece, in tokens, that the workers can hold.
        pause: lets the event loop have the interpreter lock.
    """
    seen = same_length(text)
    encoded = tokenizer.encode_long(seen)
    pause()
    class_index = classifier.classify(event, len(encoded))
    size = sizes[class_index]
    figures = key_figures(text, event.part, pause)
    if size.most:
        chunks = split(text, encoded, min(size.most, text_limit), size.overlap, pause)
        # Pages that hold nothing but blanks have nothing to say.
        chunks = [c for c in chunks if not text[c.start : c.end].isspace()] or chunks[:1]
        if chunks:
            return PartText(class_index, chunks, sum(chunk.own for chunk in chunks), False, figures)
    tokens = tokenizer.shorten(seen, encoded, text_limit)
    whole = Chunk(0, len(text), tokens.ids, tokens.count, tokens.count)
    return PartText(class_index, [whole], len(encoded), tokens.truncated, figures)
