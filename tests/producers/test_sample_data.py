from __future__ import annotations

from collections import Counter

import pytest

from producers.sample_data import SAMPLES, sample_events, sample_path
from schemas.enums import NewsStatus
from schemas.errors import ConfigError
from schemas.records import FilingEvent, NewsEvent
from schemas.settings import URGENT_8K_ITEMS


def news() -> list[NewsEvent]:
    """The sample headlines."""
    return [event for event in sample_events("news") if isinstance(event, NewsEvent)]


def filings() -> list[FilingEvent]:
    """The sample filing sections."""
    return [event for event in sample_events("filings") if isinstance(event, FilingEvent)]


def test_there_are_enough_samples_of_each_kind() -> None:
    """Every line is a valid event of its file's kind, and there are as many as promised."""
    assert len(news()) == len(sample_events("news")) >= 220
    assert len(filings()) == len(sample_events("filings")) >= 22
    assert len(sample_events()) == len(news()) + len(filings())


def test_no_sample_repeats_another() -> None:
    """Ids are unique, and neither a headline nor a paragraph of a filing occurs twice."""
    assert max(Counter(event.event_id for event in sample_events()).values()) == 1
    assert max(Counter(event.headline for event in news()).values()) == 1
    paragraphs = Counter(line for event in filings() for line in event.text.splitlines() if len(line) > 60)
    assert max(paragraphs.values()) == 1


def test_headlines_cover_the_hard_cases() -> None:
    """The samples hold long headlines, every urgency, other scripts, hidden characters and chat markers."""
    headlines = [event.headline for event in news()]
    assert sum(len(headline) > 600 for headline in headlines) >= 8
    assert {event.urgency for event in news()} >= {1, 2, 3, 4, 5, 6, 7, 8}
    assert len({event.source for event in news()}) >= 8
    assert len({event.language for event in news()}) >= 10
    for marker in ("<|im_end|>", "\u200b", "\u0301", "\u202e", "\u200d", "🚀", "\uff2f\uff2b", "₹"):
        assert any(marker in headline for headline in headlines), ascii(marker)


def test_corrections_and_kills_follow_what_they_supersede() -> None:
    """A later version names the earlier one, which stands before it in the file."""
    seen: set[str] = set()
    later = [event for event in news() if event.status is not NewsStatus.USABLE]
    for event in news():
        if event.supersedes:
            assert event.supersedes in seen
            assert event.key == event.supersedes.rpartition(":")[0]
        seen.add(event.event_id)
    assert Counter(event.status for event in later) == {NewsStatus.CORRECTED: 3, NewsStatus.KILLED: 3}
    assert all(event.supersedes for event in later)


def test_filings_cover_forms_urgent_items_and_parts() -> None:
    """There are five kinds of forms, urgent and ordinary items, and filings whose parts are all there."""
    forms = {event.form for event in filings()}
    assert forms >= {"10-K", "10-Q", "8-K", "8-K/A", "6-K", "S-1"}
    items = {item for event in filings() for item in event.items}
    assert {"2.02", "4.02", "5.02"} <= items & set(URGENT_8K_ITEMS)
    assert any(event.items and not set(event.items) & set(URGENT_8K_ITEMS) for event in filings())
    parts: dict[str, list[int]] = {}
    for event in filings():
        parts.setdefault(event.accession, []).append(event.part)
        assert event.event_id.startswith(f"{event.accession}:")
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in parts.values())
    assert sum(len(numbers) > 1 for numbers in parts.values()) >= 4


def test_times_are_in_order() -> None:
    """Each file is a tape: receipt times rise, and nothing was published after it was received."""
    for events in (news(), filings()):
        times = [event.received_at_ns for event in events]
        assert times == sorted(times)
    assert all(event.published_at_ns <= event.received_at_ns for event in news())
    assert all(0 < event.accepted_at_ns <= event.received_at_ns for event in filings())


@pytest.mark.parametrize("name", SAMPLES)
def test_the_path_of_a_sample_is_a_file(name: str) -> None:
    """A sample can be handed to anything that takes a path."""
    assert sample_path(name).is_file()


def test_an_unknown_sample_is_named() -> None:
    """Asking for a sample that does not exist says which there are."""
    with pytest.raises(ConfigError, match="news, filings"):
        sample_path("tweets")
