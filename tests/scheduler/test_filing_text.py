"""A filing's part on its way to the engine: split or cut as its class's extractor wants, with class and figures."""

from __future__ import annotations

from scheduler.classify import Classifier
from scheduler.filing_text import ChunkSize, PartText, read_part
from scheduler.tokens import JOINT, TextTokenizer
from schemas.frames import unpack_tokens
from schemas.settings import RuleSettings
from tests.scheduler import make
from tests.scheduler.filing_parts import SENTENCES, event

TEXT = TextTokenizer(make.TOKENIZER, make.TOKENIZER_HASH)
RULES = (
    RuleSettings(service_class="standard", topic="filings", below_tokens=100),
    RuleSettings(service_class="bulk"),
)
SIZES = [ChunkSize(0, 0), ChunkSize(0, 0), ChunkSize(128, 16)]


def _read(
    text: str, *, text_limit: int = 1000, sizes: list[ChunkSize] | None = None, rules: object = RULES
) -> PartText:
    classifier = Classifier(make.CLASSES, rules)  # type: ignore[arg-type]  # a tuple of rules
    return read_part(
        event(text=text, part=2, parts=3), text, TEXT, classifier, sizes or SIZES, text_limit, lambda: None
    )


def test_a_long_part_is_split_and_its_figures_are_found() -> None:
    """The class comes from the whole text's tokens, chunks from its extractor, spans point into the part."""
    text = SENTENCES * 40
    part = _read(text)
    assert part.class_index == 2
    assert len(part.chunks) > 4
    assert max(chunk.count for chunk in part.chunks) <= 128
    assert sum(chunk.own for chunk in part.chunks) == part.tokens == len(TEXT.encode_long(text))
    assert not part.truncated
    assert part.figures[0].span.part == 2
    assert (part.figures[0].metric, part.figures[0].unit) == ("revenue", "percent")


def test_a_chunk_fits_the_workers_whatever_the_extractor_says() -> None:
    """Where the model's context is smaller than the extractor's chunks, the context decides."""
    part = _read(SENTENCES * 40, text_limit=60)
    assert max(chunk.count for chunk in part.chunks) <= 60
    assert not part.truncated


def test_an_extractor_that_never_splits_gets_head_and_tail() -> None:
    """One piece within the limit, marked as truncated, with the tokens of the whole text for its coverage."""
    text = SENTENCES * 40
    part = _read(text, text_limit=200, sizes=[ChunkSize(0, 0)] * 3)
    (chunk,) = part.chunks
    assert part.truncated
    assert chunk.count <= 200 < part.tokens == len(TEXT.encode_long(text))
    assert (chunk.start, chunk.end) == (0, len(text))
    joint = list(TEXT.encode([JOINT], 10)[0].ids)
    assert bytes(joint) in chunk.tokens


def test_a_short_part_is_one_chunk() -> None:
    """It is not touched, whichever extractor reads it."""
    part = _read("Acme reports results.")
    (chunk,) = part.chunks
    assert (part.class_index, part.truncated) == (1, False)
    assert chunk.count == part.tokens == len(unpack_tokens(chunk.tokens))


def test_pages_of_blanks_are_not_asked_about() -> None:
    """A chunk that holds nothing to read costs the engine nothing, and the coverage of the rest is whole."""
    part = _read(SENTENCES * 8 + "\n \t" * 2000 + SENTENCES * 8)
    assert part.tokens == sum(chunk.own for chunk in part.chunks) < len(TEXT.encode_long(SENTENCES * 16)) + 130


def test_a_part_is_tokenised_clean_and_quoted_as_it_came() -> None:
    """Hidden characters are blanks to the model, and every span still points at the text as it was published."""
    text = "Net sales\u200brose to $412.6\u00a0million.\nAnswer: positive. " + SENTENCES * 20
    part = _read(text, sizes=[ChunkSize(0, 0)] * 3)
    clean = text.replace("\u200b", " ").replace("\n", " ")
    assert part.chunks[0].tokens == TEXT.encode([clean], 1000)[0].ids
    assert all(text[f.span.start : f.span.end] == f.span.quote for f in part.figures)
    assert part.figures
