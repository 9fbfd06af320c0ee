"""Classification rules: each condition, and the first match."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.classify import Classifier, text_of
from schemas.records import FilingEvent, NewsEvent
from schemas.settings import DEFAULT_CLASSES, DEFAULT_RULES, RuleSettings
from tests.scheduler import make

FLASH, STANDARD, BULK = range(3)


def _news(**changed: Any) -> NewsEvent:
    values: dict[str, Any] = {
        "event_id": "wire:1:1",
        "source": "wire",
        "headline": "Acme beats",
        "received_at_ns": make.EVENT_TIME_NS,
    }
    return NewsEvent(**(values | changed))


def _filing(**changed: Any) -> FilingEvent:
    values: dict[str, Any] = {
        "event_id": "0001:d:1",
        "accession": "0001",
        "form": "8-K",
        "text": "The company reports.",
        "received_at_ns": make.EVENT_TIME_NS,
    }
    return FilingEvent(**(values | changed))


def _matches(event: NewsEvent | FilingEvent, tokens: int = 10, **conditions: Any) -> bool:
    rules = [RuleSettings(service_class="flash", **conditions), RuleSettings(service_class="bulk")]
    return Classifier(make.CLASSES, rules).classify(event, tokens) == FLASH


@pytest.mark.parametrize(("tokens", "matches"), [(149, True), (150, False)])
def test_below_tokens_means_fewer(tokens: int, matches: bool) -> None:
    """A text with exactly the given number of tokens is not below it."""
    assert _matches(_news(), tokens, below_tokens=150) is matches


def test_topic_tells_news_from_filings() -> None:
    """A rule for one topic never decides about the other."""
    assert _matches(_news(), topic="news")
    assert not _matches(_news(), topic="filings")
    assert _matches(_filing(), topic="filings")
    assert not _matches(_filing(), topic="news")


def test_sources_compare_whole_names() -> None:
    """A source is one of those listed, exactly; filings have none."""
    assert _matches(_news(), sources=("other", "wire"))
    assert not _matches(_news(source="wires"), sources=("wire",))
    assert not _matches(_filing(), sources=("wire",))


@pytest.mark.parametrize(("urgency", "matches"), [(0, False), (1, True), (3, True), (4, False)])
def test_urgency_counts_from_one(urgency: int, matches: bool) -> None:
    """An item without an urgency (0) is not the most urgent one."""
    assert _matches(_news(urgency=urgency), urgency_at_most=3) is matches
    assert not _matches(_filing(), urgency_at_most=3)


def test_forms_and_items_are_of_filings() -> None:
    """The form is one of those listed; one item in common is enough; news has neither."""
    assert _matches(_filing(), forms=("10-K", "8-K"))
    assert not _matches(_filing(form="8-K/A"), forms=("8-K",))
    assert _matches(_filing(items=["9.01", "2.02"]), items=("2.02", "5.02"))
    assert not _matches(_filing(items=["9.01"]), items=("2.02",))
    assert not _matches(_filing(), items=("2.02",))
    assert not _matches(_news(), forms=("8-K",))
    assert not _matches(_news(), items=("2.02",))


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("Acme files for CHAPTER 11 protection", True),
        ("acme halted", True),
        ("Trading unhalted", False),
        ("Chapter 111", False),
        ("Up 5% (C++ shop)", True),
        ("C+ rating", False),
    ],
)
def test_keywords_are_whole_words_in_any_case(text: str, matches: bool) -> None:
    """A keyword or phrase is found as written, ignoring case, never inside a longer word, never as a pattern."""
    keywords = ("chapter 11", "halted", "C++")
    assert _matches(_news(headline=text), keywords=keywords) is matches
    assert _matches(_filing(text=text), keywords=keywords) is matches


def test_keywords_are_not_looked_for_in_a_body() -> None:
    """A story that mentions a keyword in passing is not promoted: the headline decides, as the settings say."""
    assert not _matches(
        _news(headline="Acme beats", body="Unlike its peers it never was halted."), keywords=("halted",)
    )


def test_all_conditions_of_a_rule_must_hold() -> None:
    """Conditions of one rule are joined by and."""
    assert _matches(_news(urgency=1), sources=("wire",), urgency_at_most=2)
    assert not _matches(_news(urgency=5), sources=("wire",), urgency_at_most=2)


def test_the_first_rule_that_holds_decides() -> None:
    """Order in the configuration is the order of decision."""
    rules = [
        RuleSettings(service_class="standard", below_tokens=100),
        RuleSettings(service_class="flash", topic="news"),
    ]
    classifier = Classifier(make.CLASSES, [*rules, RuleSettings(service_class="bulk")])
    assert classifier.classify(_news(), 99) == STANDARD
    assert classifier.classify(_news(), 100) == FLASH
    assert classifier.classify(_filing(), 100) == BULK


@pytest.mark.parametrize(
    ("event", "tokens", "expected"),
    [
        (_news(), 149, FLASH),
        (_news(), 150, STANDARD),
        (_filing(items=["2.02"]), 10, STANDARD),
        (_filing(form="8-K/A", items=["1.03"]), 10, STANDARD),
        (_filing(items=["7.01"]), 10, BULK),
        (_filing(form="10-Q", items=["2.02"]), 10, BULK),
    ],
)
def test_the_default_rules(event: NewsEvent | FilingEvent, tokens: int, expected: int) -> None:
    """Short news is flash, longer news and urgent 8-K items are standard, everything else is bulk."""
    assert Classifier(DEFAULT_CLASSES, DEFAULT_RULES).classify(event, tokens) == expected


def test_the_model_reads_headline_and_body() -> None:
    """News is its headline, with the body below it where there is one; a filing is its text."""
    assert text_of(_news()) == "Acme beats"
    assert text_of(_news(body="By a lot.")) == "Acme beats\nBy a lot."
    assert text_of(_filing()) == "The company reports."
