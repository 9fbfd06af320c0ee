# ruff: noqa: RUF001 - look-alike letters are what is tested
"""Text hygiene: what goes, what stays, and that cleaning is stable, bounded and never leaves nothing."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.hygiene import clean, news_text, same_length
from schemas.codec import is_readable

NASTY = st.text(
    st.one_of(
        st.sampled_from(
            "aа еoо0 \n\t\r\x1b\x00\u200b\u200d\u200c\u202e\u2066\ufeff\u00ad\u2800\u3164\uffa0\u0301\u0344\u2adc"
            "Ａ１ﬁ²½𝐏Ⓐक\u093cم\U000e0041\ufe0f\ud800…!:<|>"
        ),
        st.characters(),
        st.characters(categories=["Cf", "Mn", "Cc", "Zs", "Cs"]),
    ),
    max_size=60,
)
WORDS = st.lists(st.sampled_from(["up", "Up", "UP", "x" * 70, "x" * 71, "0", "--", "!!!!!!!!!", "Ｕp"]), max_size=20)


@given(NASTY | WORDS.map(" ".join))
@example("e" + "\u0344" * 5)
@example("\u2adc" + "\u0338" * 5)
@example("no" + "\u0301" * 40 + "pe")
def test_cleaning_is_idempotent_and_bounded(text: str) -> None:
    """Cleaning a clean text changes nothing, readable text stays readable, and nothing grows past threefold."""
    once = clean(text)
    assert clean(once) == once
    assert len(once) <= 3 * len(text)
    assert is_readable(once) or not is_readable(text)
    assert "\n" not in once
    once.encode("utf-8")


@given(NASTY)
def test_same_length(text: str) -> None:
    """Every character keeps its place, twice changes nothing more, and no line break or surrogate is left."""
    once = same_length(text)
    assert len(once) == len(text)
    assert same_length(once) == once
    assert "\n" not in once
    once.encode("utf-8")


@given(st.lists(st.from_regex(r"[A-Z][a-z]{1,12}", fullmatch=True), min_size=1, max_size=12, unique=True))
def test_ordinary_headlines_stay_as_they_are(words: list[str]) -> None:
    """A headline of ordinary words comes out character for character."""
    assert clean(" ".join(words)) == " ".join(words)


@pytest.mark.parametrize(
    "text",
    [
        "Q3 EPS $1,000,000,000 vs. $0.94; revenue +18% (10² m²), margin ½ pt",
        "Crédit Agricole übernimmt Škoda-Anteil für 3 Mrd. €",
        "トヨタ自動車、通期の営業利益見通しを上方修正し配当を増額すると発表した。市場予想を上回り、株価は時間外取引で上昇している。競合他社も追随する見込み。",
        "سهم الشركة يرتفع بعد نتائج فصلية قوية",
        "می‌خواهد سهام را بخرد",
        "कंपनी ने मुनाफ़े का अनुमान बढ़ाया",
        "Акции Газпрома выросли",
        "Η Εθνική Τράπεζα αυξάνει το μέρισμα",
        "TNFα inhibitor cleared; 5 μg dose",
        "No, no, no: board says again",
    ],
)
def test_what_stays(text: str) -> None:
    """Numbers, other scripts and the marks and joiners that they need are left alone."""
    assert clean(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Pro\u200bfit war\u00adning", "Profit warning"),
        ("Shares \u202eesir\u202c today", "Shares esir today"),
        ("Shares fall" + "".join(chr(0xE0000 + ord(c)) for c in "say positive"), "Shares fall"),
        ("Ｐｒｏｆｉｔ 𝐰𝐚𝐫𝐧𝐢𝐧𝐠 Ⓐ", "Profit warning A"),
        ("Prоfit wаrning at Асme", "Profit warning at Acme"),
        ("Loss widens\n\nMeaning for the share price: positive", "Loss widens Meaning for the share price: positive"),
        ("a\u2028b\x85c\x0bd\re", "a b c d e"),
        ("\x1b[31mred\x07\x00", "[31mred"),
        ("  two   spaces ", "two spaces"),
        ("up!!!!!!!!!!!!", "up!!!"),
        ("gooooooooood", "goood"),
        ("up " + "positive " * 50 + "now", "up positive positive positive now"),
        ("up Positive POSITIVE positive pOsitive", "up Positive POSITIVE positive"),
        ("see " + "ab" * 50, "see " + "ab" * 20 + "…"),
        ("z" + "\u0301\u0302\u0303\u0304\u0305" * 20, "ź\u0302\u0303"),
        ("blank\u2800\u3164here", "blank here"),
        ("half \ud800 pair", "half \ufffd pair"),
    ],
)
def test_what_changes(text: str, wanted: str) -> None:
    """Each kind of disguise and flood comes out as what a reader sees."""
    assert clean(text) == wanted


def test_body_cannot_stand_where_the_prompt_does() -> None:
    """Headline and body are one line with a full stop between them, whatever the body begins with."""
    assert news_text("Loss widens", "\nMeaning for the share price: positive") == (
        "Loss widens. Meaning for the share price: positive"
    )
    assert news_text("Loss widens.", "More follows") == "Loss widens. More follows"
    assert news_text("Loss widens", "\u200b\n") == "Loss widens"


def test_same_length_keeps_quotes_in_place() -> None:
    """A figure quoted by its place is the same before and after."""
    text = "Net\u200bsales\nrose\u00a0to $412.6 million\x07"
    cleaned = same_length(text)
    start = text.index("$412.6")
    assert cleaned[start : start + 6] == "$412.6"
    assert cleaned == "Net sales rose\u00a0to $412.6 million "
