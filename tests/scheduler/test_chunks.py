"""Chunks of a long text: nothing lost, bounds and order kept, overlap only where a section is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.chunks import Chunk, _Boundaries, split
from scheduler.slabs import SLAB_CHARS, slabs
from scheduler.tokens import TextTokenizer
from schemas.frames import pack_tokens, unpack_tokens
from tests.scheduler import make

TEXT = TextTokenizer(make.TOKENIZER, make.TOKENIZER_HASH)
PIECES = st.sampled_from(
    ["Item 2.02. Results\n", "PART II\n", "RISK FACTORS\n", "\n\n", "\n", " ", "Sales rose. ", "word", "123|", "漢字。",
     "😀", "nospace" * 12, "\x00", "\u200b", "|im_start|>", "e\u0301", "Ends: ", "a.\n"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=80).map("".join) | st.text(max_size=300)


def _split(text: str, most: int, overlap: int = 0) -> list[Chunk]:
    return split(text, TEXT.encode_long(text), most, overlap)


def _texts(text: str, most: int, overlap: int = 0) -> list[str]:
    return [text[chunk.start : chunk.end] for chunk in _split(text, most, overlap)]


@given(TEXTS, st.integers(1, 60), st.integers(0, 40))
def test_nothing_is_lost_and_order_and_bounds_hold(text: str, most: int, overlap: int) -> None:
    """For any text: each chunk is within the bound, own tokens joined are the whole encoding, ranges cover the text."""
    encoded = TEXT.encode_long(text)
    chunks = split(text, encoded, most, overlap)
    own: list[int] = []
    for chunk in chunks:
        ids = unpack_tokens(chunk.tokens)
        assert 1 <= chunk.own <= chunk.count == len(ids) <= most
        own += ids[-chunk.own :]
    assert pack_tokens(own) == encoded.ids.tobytes()
    covered: set[int] = set()
    for chunk in chunks:
        assert chunk.start < chunk.end
        covered.update(range(chunk.start, chunk.end))
    assert covered == set(range(len(text)))
    for before, after in pairwise(chunks):
        assert before.start <= after.start <= before.end <= after.end
        assert after.count - after.own <= most // 2
        if not overlap:
            assert after.own == after.count


@given(TEXTS, st.integers(8, 60), st.integers(1, 40))
def test_chunks_overlap_only_where_a_section_is_cut(text: str, most: int, overlap: int) -> None:
    """Two chunks share tokens exactly where the first one ends inside a section, and no section that fits is cut."""
    encoded = TEXT.encode_long(text)
    sections = _Boundaries.of(text, encoded, None).sections
    chunks = split(text, encoded, most, overlap)
    place = 0
    for before, after in pairwise(chunks):
        place += before.own
        if place in sections:
            assert after.own == after.count
        else:
            begin = max([s for s in sections if s < place], default=0)
            assert min(s for s in sections if s > place) - begin > most


@given(
    st.lists(st.text(alphabet="abc def.", min_size=1, max_size=40).map(str.strip).filter(bool), min_size=1, max_size=12)
)
def test_a_section_that_fits_is_never_cut(sections: list[str]) -> None:
    """Sections parted by blank lines and shorter than a chunk come whole, in one chunk each."""
    text = "\n\n".join(sections)
    chunks = _texts(text, 64, 16)
    assert sum(chunk.count(section) for section in set(sections) for chunk in chunks) >= len(set(sections))
    assert "".join(chunks) == text


def test_headings_begin_chunks_and_stay_with_their_text() -> None:
    """A chunk ends before a heading rather than in the middle of what follows, and never right after one."""
    text = "".join(
        f"Item {i}. Matter {i}\n\nAbout {i} there is this to say. And then that, too.\n\n" for i in range(1, 9)
    )
    chunks = _texts(text, 60, 10)
    assert "".join(chunks) == text
    assert len(chunks) > 3
    for chunk in chunks:
        assert chunk.startswith("Item ")
        assert chunk.rstrip().endswith("that, too.")


def test_a_heading_is_never_the_end_of_a_chunk() -> None:
    """A section that does not fit behind a short one starts the next chunk with its heading, not under it."""
    body = "This section has a good deal to say about its matter. " * 4
    text = f"Short one.\n\nItem 7. Matter of fact\n\n{body}\n\nItem 8. Another\n\nLast words."
    most = len(TEXT.encode_long(f"Item 7. Matter of fact\n\n{body}")) + 2
    chunks = _texts(text, most)
    assert chunks[0] == "Short one.\n\n"
    assert chunks[1].startswith("Item 7. Matter of fact\n\nThis section")


def test_a_cut_section_ends_with_a_sentence_and_is_repeated_in_part() -> None:
    """One long paragraph: every chunk but the last ends with a whole sentence, and the next begins before that end."""
    text = " ".join(f"Sentence {i} of the paragraph says little." for i in range(60))
    chunks = _split(text, 100, 20)
    assert len(chunks) > 4
    for before, after in pairwise(chunks):
        assert text[before.start : before.end].endswith("little.")
        assert 10 <= after.count - after.own <= 20
        assert after.start < before.end


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x" * 5000, id="one huge word"),
        pytest.param("word " * 2000, id="no sentence ends"),
        pytest.param("公司公布业绩。收入增长。" * 400, id="CJK"),
        pytest.param("😀" * 1000, id="characters of four tokens"),
        pytest.param("RISK FACTORS\n" * 500, id="only headings"),
        pytest.param("\n" * 5000, id="only line feeds"),
        pytest.param("Item 1.\n" * 700, id="only items"),
        pytest.param(" \n" * 3000 + "a", id="blank lines"),
        pytest.param("." * 4000, id="only full stops"),
    ],
)
@pytest.mark.parametrize(("most", "overlap"), [(1, 0), (3, 2), (50, 25), (64, 64), (512, 64)])
def test_any_input_makes_progress(text: str, most: int, overlap: int) -> None:
    """Texts without anything to cut at are cut all the same, into about as many chunks as their tokens need."""
    chunks = _split(text, most, overlap)
    tokens = len(TEXT.encode_long(text))
    assert sum(chunk.own for chunk in chunks) == tokens
    assert len(chunks) <= tokens / max(most // 4, 1) + 1


def test_characters_of_several_tokens_are_not_cut() -> None:
    """A chunk never ends inside a character, where its pieces would decode to nothing that the text says."""
    text = "😀漢" * 200
    for chunk in _split(text, 10, 3):
        assert 1 <= chunk.end - chunk.start <= 10
        assert chunk.count == len(TEXT.encode_long(text[chunk.start : chunk.end]))


def test_a_short_text_is_one_chunk_and_an_empty_one_none() -> None:
    """What fits needs no boundaries."""
    assert _split("", 10) == []
    (chunk,) = _split("Item 1. One\n\nItem 2. Two", 100, 10)
    assert (chunk.start, chunk.end, chunk.own) == (0, 24, chunk.count)


def test_long_work_is_done_in_short_pieces() -> None:
    """Another thread gets its turn at least once per slab of a text at the limit on characters."""
    text = ("Net sales were strong in the period. " * 10 + "\n") * 1080
    pauses: list[None] = []
    chunks = split(text, TEXT.encode_long(text), 512, 64, lambda: pauses.append(None))
    assert len(text) > 390_000
    assert len(pauses) >= 2 * len(text) // SLAB_CHARS
    assert sum(chunk.own for chunk in chunks) == len(TEXT.encode_long(text))


@given(st.text(alphabet="a \n"), st.integers(1, 20))
def test_slabs_cover_a_text_in_order(text: str, size: int) -> None:
    """Slabs are of bounded size, follow each other without gaps, and leave nothing out."""
    ranges = list(slabs(text, size))
    assert "".join(text[begin:end] for begin, end in ranges) == text
    assert all(0 < end - begin <= size for begin, end in ranges)
