"""Clean text: what is repaired, what is removed, what stays, and what is said about it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.clean import clean, clean_line


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        ("Dellâ€™s leadership", "Dell\u2019s leadership"),
        ("lower the range to 1 to 1â\x80\x911/4 percent", "lower the range to 1 to 1\u20111/4 percent"),
        ("CafÃ© de Colombia raises Â£5 million", "Café de Colombia raises £5 million"),
        ("\x93guidance\x94 cut", "“guidance” cut"),
    ],
)
def test_certain_mojibake_is_repaired_and_recorded(broken: str, repaired: str) -> None:
    """UTF-8 that was read in another encoding, and Windows quotation marks read as controls, come back as written."""
    cleaned = clean(broken)
    assert cleaned.text == repaired
    assert cleaned.changes == ("mojibake",)


@pytest.mark.parametrize(
    "text", ["Müller à Paris", "SÃO PAULO", "ÄÖÜ ß", "l\u2019été", "Cambrios被Gartner評選為「最酷供應商」"]
)
def test_text_that_only_looks_unusual_is_left_alone(text: str) -> None:
    """Accents, capitals with tildes and other scripts are no mojibake."""
    assert clean(text).text == text
    assert clean(text).changes == ()


def test_an_uncertain_repair_is_not_made() -> None:
    """A sequence that lost a byte could stand for several characters, so it stays as it came."""
    assert clean("Zürich â€ Genf").text == "Zürich â€ Genf"


def test_mojibake_is_repaired_beside_a_script_it_cannot_come_from() -> None:
    """A line of Chinese does not keep the next line from its repair."""
    assert clean("評選\nDellâ€™s").text == "評選\nDell\u2019s"


def test_controls_and_invisible_characters_are_removed_and_counted() -> None:
    """Terminal escapes, NUL, zero-width blanks, direction overrides and tag characters are gone, with their number."""
    cleaned = clean("EPS\x1b[31m\x00 \u200bbeats\u202e \U000e0041\ufeffestimates")
    assert cleaned.text == "EPS[31m beats estimates"
    assert cleaned.changes == ("controls=2", "invisible=4")


def test_joiners_stay_where_a_script_needs_them() -> None:
    """Persian keeps its zero-width non-joiner, Latin text loses it."""
    assert clean("\u0645\u06cc\u200c\u062e\u0648").text == "\u0645\u06cc\u200c\u062e\u0648"
    assert clean("pro\u200cfit").text == "profit"


def test_a_long_run_of_combining_marks_is_cut_before_it_is_sorted() -> None:
    """A hundred thousand marks on a letter, which take minutes to normalise, become eight."""
    cleaned = clean("x" + "\u0301" * 50_000 + "\u0316" * 50_000)
    assert len(cleaned.text) <= 9
    assert cleaned.changes == ("combining_marks=99992",)


def test_blanks_and_line_breaks_are_plain() -> None:
    """Every kind of blank is a space, every kind of line break a line feed, and there is no run of either."""
    assert clean("a\r\nb\u2028c\xa0\u3000d\n\n\n\n e ").text == "a\nb\nc d\n\ne"
    assert clean_line("a\r\n  b\tc").text == "a b c"


@given(st.text(alphabet=st.characters(), max_size=200))
def test_clean_text_is_clean_for_good(text: str) -> None:
    """Whatever comes in, what comes out is normalised, encodes as UTF-8, has no control, and stays as it is."""
    cleaned = clean(text).text
    cleaned.encode()
    assert unicodedata.is_normalized("NFC", cleaned)
    assert not any(unicodedata.category(char) in {"Cc", "Cs"} and char != "\n" for char in cleaned)
    again = clean(cleaned)
    assert not [change for change in again.changes if change != "mojibake"]
