from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from producers.edgar.sections import COVER, EXHIBIT_INDEX, SIGNATURES, sections

LONG = "Text of the section that goes on for a while. " * 5


def _names(form: str, lines: list[str], *, decimal: bool | None = None) -> list[str]:
    return [section.name for section in sections(form, lines, decimal=decimal)]


def test_items_of_a_quarterly_report() -> None:
    """Items are told apart by their part, and the table of contents is no section of its own."""
    lines = [
        "FORM 10-Q",
        "Part I",
        "Item 1. Financial Statements: Page 1",
        "Item 2. Management's Discussion and Analysis: Page 13",
        "Part II",
        "Item 1. Legal Proceedings: Page 19",
        "Item 3. Defaults Upon Senior Securities: Page 20",
        "PART I \u2014 FINANCIAL INFORMATION",
        "Item 1. Financial Statements",
        LONG,
        "Item 2. Management's Discussion and Analysis",
        LONG,
        "PART II \u2014 OTHER INFORMATION",
        "Item 1. Legal Proceedings",
        LONG,
        "Item 3. Defaults Upon Senior Securities",
        "None.",
        "SIGNATURES",
        "Signed.",
        "Exhibit Index",
    ]
    assert _names("10-Q", lines) == [
        COVER,
        "Part I, Item 1 Financial Statements",
        "Part I, Item 2 Management's Discussion and Analysis",
        "Part II, Item 1 Legal Proceedings",
        "Part II, Item 3 Defaults Upon Senior Securities",
        SIGNATURES,
        EXHIBIT_INDEX,
    ]


def test_items_of_an_annual_report() -> None:
    """Letters belong to the item, a title may stand on the line below, and a mention in a sentence is no heading."""
    lines = [
        "ITEM 1A.",
        "RISK FACTORS",
        LONG,
        "Item 7 of this report describes results.",
        "Item 7A | Market Risk",
        LONG,
    ]
    assert _names("10-K/A", lines) == ["Item 1A RISK FACTORS", "Item 7A Market Risk"]


def test_items_of_a_current_report() -> None:
    """Each 8-K section knows its code."""
    lines = [
        "Cover",
        "Item 2.02 Results",
        LONG,
        "Item 2.02 of this report",
        "Item 9.01. Exhibits",
        "(d)",
        "SIGNATURE",
        "x",
    ]
    found = sections("8-K", lines, decimal=True)
    assert [(section.name, section.item) for section in found] == [
        (COVER, ""),
        ("Item 2.02 Results", "2.02"),
        ("Item 9.01 Exhibits", "9.01"),
        (SIGNATURES, ""),
    ]


def test_whole_numbers_among_decimal_items_are_dropped() -> None:
    """Where the era is unknown, decimal items show it, and a stray "Item 5" is no item of the filing."""
    assert [s.item for s in sections("8-K", ["Item 5. Something", LONG, "Item 8.01 Other Events", LONG])] == [
        "",
        "8.01",
    ]


def test_other_forms_are_one_section() -> None:
    """A form without numbered items is not cut."""
    assert _names("S-1", ["Item 1. Not an item here", LONG]) == [""]
    assert _names("8-K", []) == []


_LINE = st.one_of(
    st.sampled_from(
        ["PART I", "Part II - Other", "Item 1. Business", "Item 1A", "SIGNATURES", "Item 2.02 Results", "x"]
    ),
    st.text(max_size=40),
)


@given(form=st.sampled_from(["10-K", "10-Q/A", "8-K", "6-K"]), lines=st.lists(_LINE, max_size=60))
def test_sections_cover_every_line_once(form: str, lines: list[str]) -> None:
    """Whatever the lines, sections follow each other without a gap and nothing of the document is lost."""
    found = sections(form, lines)
    assert [number for section in found for number in range(section.start, section.end)] == list(range(len(lines)))
