"""Near-duplicate headlines across wires: which are marked, with whose id, and which must not be."""

from __future__ import annotations

from typing import Any

import pytest

from producers.news.duplicates import DuplicateIndex
from schemas.enums import NewsStatus
from schemas.records import NewsEvent
from tests.producers.news.documents import RECEIVED

HOUR = 3600 * 10**9


def event(source: str, headline: str, number: int = 1, **fields: Any) -> NewsEvent:
    """One event of a wire."""
    fields.setdefault("received_at_ns", RECEIVED)
    return NewsEvent(event_id=f"{source}:{number}:1", source=source, headline=headline, **fields)


@pytest.fixture
def index() -> DuplicateIndex:
    """An empty index with the default similarity."""
    return DuplicateIndex(similarity=0.75, window_ns=24 * HOUR)


def test_the_first_ones_id_marks_all_that_follow(index: DuplicateIndex) -> None:
    """Three wires with nearly the same words: the second and the third carry the first one's id."""
    assert index.first(event("a", "Vantor beats third-quarter profit estimates as grid orders surge")) is None
    assert index.first(event("b", "Vantor beats third quarter profit estimates, as grid orders surge")) == "a:1:1"
    assert (
        index.first(event("c", "UPDATE 1-VANTOR BEATS THIRD-QUARTER PROFIT ESTIMATES AS GRID ORDERS SURGE")) == "a:1:1"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            "Central bank raises rates by 25 basis points, signals more hikes",
            "Central bank raises rates by 50 basis points, signals more hikes",
        ),
        ("Vantor beats third-quarter profit estimates", "Vantor misses third-quarter profit estimates"),
        ("Vantor agrees to buy Pell for $4.1 billion", "Orvelle agrees to buy Quillmark for $4.1 billion"),
        ("Trading halt: Pell", "Trading halt: Pell"),
    ],
)
def test_headlines_that_differ_in_what_matters_are_not_marked(index: DuplicateIndex, first: str, second: str) -> None:
    """Another number, the opposite verb, other companies, or too few words to tell: no duplicate."""
    index.first(event("a", first))
    assert index.first(event("b", second)) is None


def test_one_wires_own_stories_are_not_marked(index: DuplicateIndex) -> None:
    """A wire that repeats its own headline has two stories to tell, and a correction is its own story."""
    headline = "Statement of holdings in own shares by the company"
    assert index.first(event("a", headline, 1)) is None
    assert index.first(event("a", headline, 2)) is None


def test_different_instruments_are_different_news(index: DuplicateIndex) -> None:
    """The same routine headline about two companies is no duplicate; where one names none, it is."""
    headline = "Company announces quarterly dividend and share repurchase"
    index.first(event("a", headline, instruments=["VNTR"]))
    assert index.first(event("b", headline, instruments=["PELL"])) is None
    assert index.first(event("c", headline)) is not None


def test_old_headlines_are_forgotten(index: DuplicateIndex) -> None:
    """After the window a headline is news again, by arrival and by the sources' own times."""
    headline = "Vantor beats third-quarter profit estimates as grid orders surge"
    index.first(event("a", headline, published_at_ns=RECEIVED))
    assert index.first(event("b", headline, published_at_ns=RECEIVED - 30 * 24 * HOUR)) is None
    assert index.first(event("c", headline, received_at_ns=RECEIVED + 25 * HOUR)) is None


def test_memory_is_bounded() -> None:
    """The oldest headlines go when there are too many, and the index goes on finding the newer ones."""
    index = DuplicateIndex(similarity=0.75, window_ns=24 * HOUR, most=10)
    for number in range(50):
        index.first(event("a", f"Vantor opens plant number {number} in the eastern region", number))
    assert index.first(event("b", "Vantor opens plant number 1 in the eastern region")) is None
    assert index.first(event("b", "Vantor opens plant number 49 in the eastern region", 2)) == "a:49:1"


def test_kills_are_neither_marked_nor_remembered(index: DuplicateIndex) -> None:
    """A kill's words are not news."""
    headline = "Vantor beats third-quarter profit estimates as grid orders surge"
    assert index.first(event("a", headline, status=NewsStatus.KILLED)) is None
    assert index.first(event("b", headline)) is None
