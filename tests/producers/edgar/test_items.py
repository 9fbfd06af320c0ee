from __future__ import annotations

import pytest

from producers.edgar.items import code_of_title, heading_of, merged


@pytest.mark.parametrize(
    ("title", "filed", "code"),
    [
        ("Results of Operations and Financial Condition", "2023-03-15", "2.02"),
        ("Results of Operations and Financial Condition", "2003-05-01", "12"),
        ("Other Events", "2024-03-08", "8.01"),
        ("Other events", "2001-03-08", "5"),
        ("Financial Statements and Exhibits", "2004-08-23", "9.01"),
        ("Financial statements, pro forma financial information and exhibits", "2004-08-22", "7"),
        ("Departure of Directors or Principal Officers; Election of Directors", "2005-04-27", "5.02"),
        ("Departure of Directors or Certain Officers; Election of Directors", "2025-04-27", "5.02"),
        ("Non-Reliance on Previously Issued Financial Statements or a Related Audit Report", "2025-04-15", "4.02"),
        ("Changes in Registrant's Certifying Accountant", "2025-04-15", "4.01"),
        ("Material Cybersecurity Incidents", "2024-01-05", "1.05"),
        ("2.02", "2024-01-05", "2.02"),
        ("Something that no item is called", "2024-01-05", ""),
    ],
)
def test_titles_become_the_codes_of_their_time(title: str, filed: str, code: str) -> None:
    """A header's item title, old wordings included, gives the number that it had on the day of filing."""
    assert code_of_title(title, "8-K", filed) == code


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Item 2.02 Results of Operations and Financial Condition.",
            ("2.02", "Results of Operations and Financial Condition."),
        ),
        ("ITEM 5.02. DEPARTURE OF DIRECTORS", ("5.02", "DEPARTURE OF DIRECTORS")),
        ("Item - 5.02", ("5.02", "")),
        ("Item: 5.02 Departure", ("5.02", "Departure")),
        ("Item 2. 02 Results", ("2.02", "Results")),
        ("Item 9.01(d). Exhibits", ("9.01", "(d). Exhibits")),
        ("Item 8.01 | Other Events.", ("8.01", "Other Events.")),
        ("\u2022 Item 7.01\u2014Regulation FD Disclosure", ("7.01", "Regulation FD Disclosure")),
        ("Item 2.02 of this Current Report shall not be deemed filed", None),
        ("Item 2.02 and Item 9.01", None),
        ("Items are listed below", None),
        ("Item 6.66 Nothing", None),
        ("The information in Item 2.02 is furnished", None),
        ("Item 7. Financial Statements", None),
    ],
)
def test_headings_of_decimal_items(line: str, expected: tuple[str, str] | None) -> None:
    """The spellings that filers use are headings; a sentence that mentions an item is none."""
    assert heading_of(line, decimal=True) == expected


def test_headings_of_old_items() -> None:
    """Before August 2004 one digit is a heading and a decimal item is not."""
    assert heading_of("Item 5.  Other Events", decimal=False) == ("5", "Other Events")
    assert heading_of("ITEM 12. RESULTS OF OPERATIONS", decimal=False) == ("12", "RESULTS OF OPERATIONS")
    assert heading_of("Item 2.02 Results", decimal=False) is None
    assert heading_of("Item 13. Nothing", decimal=False) is None


def test_header_and_body_are_merged() -> None:
    """Neither list is complete: both together, each code once, in the order of their numbers."""
    assert merged(("8.01",), ("9.01", "8.01")) == ["8.01", "9.01"]
    assert merged(("12", "7"), ()) == ["7", "12"]
