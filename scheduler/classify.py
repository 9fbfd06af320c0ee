"""Classification: the first rule whose conditions all hold gives the service class."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from scheduler.hygiene import news_text
from schemas.records import Event, NewsEvent
from schemas.settings import ClassSettings, RuleSettings

Condition = Callable[[Event, int], bool]
"""Takes an event and the number of tokens of its text."""


class Classifier:
    """Rules compiled once into conditions; rules that can never apply to a kind of event are left out for it.

    Args:
        classes: service classes, most urgent first.
        rules: in order; the last one holds for everything (`SchedulerSettings` checks that).
    """

    def __init__(self, classes: Sequence[ClassSettings], rules: Iterable[RuleSettings]) -> None:
        index = {c.name: i for i, c in enumerate(classes)}
        self._news: list[tuple[int, list[Condition]]] = []
        self._filings: list[tuple[int, list[Condition]]] = []
        for rule in rules:
            compiled = (index[rule.service_class], _conditions(rule))
            if rule.topic != "filings":
                self._news.append(compiled)
            if rule.topic != "news":
                self._filings.append(compiled)

    def classify(self, event: Event, tokens: int) -> int:
        """Return the position of the event's service class in the configuration."""
        for class_index, conditions in self._news if isinstance(event, NewsEvent) else self._filings:
            if all(holds(event, tokens) for holds in conditions):
                return class_index
        raise AssertionError("the last rule holds for every event")


def _conditions(rule: RuleSettings) -> list[Condition]:
    conditions: list[Condition] = []
    if (below := rule.below_tokens) is not None:
        conditions.append(lambda event, tokens: tokens < below)
    if sources := frozenset(rule.sources):
        conditions.append(lambda event, tokens: isinstance(event, NewsEvent) and event.source in sources)
    if (urgency := rule.urgency_at_most) is not None:
        conditions.append(lambda event, tokens: isinstance(event, NewsEvent) and 1 <= event.urgency <= urgency)
    if forms := frozenset(rule.forms):
        conditions.append(lambda event, tokens: not isinstance(event, NewsEvent) and event.form in forms)
    if items := frozenset(rule.items):
        conditions.append(lambda event, tokens: not isinstance(event, NewsEvent) and not items.isdisjoint(event.items))
    if rule.keywords:
        pattern = re.compile("|".join(rf"(?<!\w){re.escape(k)}(?!\w)" for k in rule.keywords), re.IGNORECASE)
        conditions.append(lambda event, tokens: pattern.search(_headline_or_text(event)) is not None)
    return conditions


def _headline_or_text(event: Event) -> str:
    return event.headline if isinstance(event, NewsEvent) else event.text


def clean_news(event: NewsEvent) -> str:
    """Return `text_of` a news event as the model reads it: one line without anything that a reader would not see."""
    return news_text(event.headline, "\n".join(event.changed) or event.body)


def text_of(event: Event) -> str:
    """Return the text of an event as it came: headline and body, or the filing part.

    Of a statement only the changed sentences: they are the news in it.
    """
    if not isinstance(event, NewsEvent):
        return event.text
    body = "\n".join(event.changed) or event.body
    return f"{event.headline}\n{body}" if body else event.headline
