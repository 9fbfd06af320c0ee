"""Central-bank statements: found in a page, cut to their text, split into sentences, compared."""

from __future__ import annotations

import pytest

from producers.errors import FeedError, FeedErrorKind
from producers.news.item import NO_DEFAULTS
from producers.news.statements import (
    BANKS,
    changed_sentences,
    is_statement,
    sentences,
    statement_bank,
    statement_in_page,
    statement_items,
)
from tests.producers.news import documents as docs
from tests.producers.news.documents import RECEIVED


def test_a_statement_file_is_news_of_the_highest_urgency() -> None:
    """The text of a statement becomes one item: urgency 1, its bank as source, its day in the id, no boilerplate."""
    (fed,) = statement_items(docs.FED_STATEMENT.encode(), NO_DEFAULTS, RECEIVED)
    assert (fed.source, fed.story, fed.urgency) == ("fed", "fed-statement-2022-03-16", 1)
    assert fed.headline == "Federal Reserve issues FOMC statement"
    assert fed.body.endswith("John B. Roe, Vice Chair.")
    (ecb,) = statement_items(docs.ECB_STATEMENT.encode(), NO_DEFAULTS, RECEIVED)
    assert (ecb.source, ecb.story, ecb.urgency) == ("ecb", "ecb-statement-2025-09-11", 1)
    assert "CONTACT" not in ecb.body
    assert "====" not in ecb.body


def test_sentences_end_where_people_end_them() -> None:
    """Initials, abbreviations and decimal points end no sentence; dates and headings are none."""
    text = (
        "11 September 2025\n\nThe U.S. economy grew 2.5 percent. Voting were Jo H. Doe, Chair. It held.\n\nKey rates\n"
    )
    assert sentences(text) == [
        "The U.S. economy grew 2.5 percent.",
        "Voting were Jo H. Doe, Chair.",
        "It held.",
    ]


def test_the_changed_sentences_are_the_news() -> None:
    """New and reworded sentences come in order, dropped ones after them; typography and order change nothing."""
    before = (
        "Activity was solid. Inflation is high. The Committee decided to hold the range at 1-1/4. Risks are balanced."
    )
    after = (
        "Inflation is high. Activity was solid.\n\n"
        "The Committee decided to lower the range to 1\u20111/4. Tariffs cloud the outlook."
    )
    assert changed_sentences(before, after) == [
        "The Committee decided to lower the range to 1\u20111/4.",
        "Tariffs cloud the outlook.",
        "No longer said: Risks are balanced.",
    ]
    assert changed_sentences(before, before.replace("1-1/4", "1\u20111/4").replace(". ", ".\n")) == []


def test_a_statement_is_found_in_its_page() -> None:
    """Menus, scripts, headings and what follows the statement stay out."""
    text = statement_in_page(docs.fed_page(), BANKS["fed"])
    assert sentences(text)[0] == "Indicators of activity have continued to strengthen."
    assert text.endswith("John B. Roe, Vice Chair.")
    assert "menu" not in text


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html><body><h1>503 Service Unavailable</h1></body></html>",
        b"<html><body><p>The Committee decided to.</p></body></html>",
        b"%PDF-1.7 \x00\x01",
        b"<div>" * 5000,
    ],
)
def test_a_page_without_a_statement_is_rejected(page: bytes) -> None:
    """An error page, a PDF or a page that changed its shape is no statement."""
    with pytest.raises(FeedError) as caught:
        statement_in_page(page, BANKS["fed"])
    assert caught.value.kind in (FeedErrorKind.NO_TEXT, FeedErrorKind.MALFORMED)


@pytest.mark.parametrize(
    ("headline", "bank", "is_one"),
    [
        ("Federal Reserve issues FOMC statement", "fed", True),
        ("Federal Reserve Board announces termination of enforcement action", "fed", False),
        ("Minutes of the Federal Open Market Committee", "fed", False),
        ("Monetary policy decisions", "ecb", True),
        ("Philip R. Lane: Outlook for the euro area economy", "ecb", False),
        ("Federal Reserve issues FOMC statement", "", False),
    ],
)
def test_statements_are_told_from_a_banks_other_news(headline: str, bank: str, *, is_one: bool) -> None:
    """Only the headline of a policy statement, in the feed of its own bank, has a statement fetched."""
    assert (statement_bank(headline, bank) is not None) is is_one


@pytest.mark.parametrize(
    "head",
    [b"", b"<html>The Committee decided to change the federal funds rate</html>", b"The committee met.", b"\xff" * 100],
)
def test_other_text_is_no_statement(head: bytes) -> None:
    """Markup, other text and bytes are not taken for a statement."""
    assert not is_statement(head)
