from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from producers.edgar.parts import cut


def test_parts_end_between_blocks() -> None:
    """A block that still fits is not divided."""
    assert list(cut(["a" * 40, "b" * 40, "c" * 40], 90)) == [f"{'a' * 40}\n{'b' * 40}", "c" * 40]


def test_long_blocks_are_cut_after_a_sentence() -> None:
    """A block over the bound is cut where a sentence ends, not inside a word."""
    line = "First sentence of it here. Second sentence follows. Third one."
    assert list(cut([line], 40)) == ["First sentence of it here.", "Second sentence follows. Third one."]


def test_words_without_a_sentence() -> None:
    """Without a sentence's end the cut falls between words; without words, at the bound."""
    assert list(cut(["aaaa bbbb cccc dddd"], 10)) == ["aaaa bbbb", "cccc dddd"]
    assert list(cut(["a" * 25], 10)) == ["a" * 10, "a" * 10, "a" * 5]


@given(lines=st.lists(st.text(alphabet="ab .;\u00e9\n", max_size=120), max_size=12), most=st.integers(1, 60))
def test_parts_are_bounded_and_hold_everything(lines: list[str], most: int) -> None:
    """No part is over the bound, and together they hold every character but blanks, in order."""
    parts = list(cut(lines, most))
    assert all(0 < len(part) <= most or not part.strip() for part in parts)
    assert "".join("".join(parts).split()) == "".join("".join(lines).split())
