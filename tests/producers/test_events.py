from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.events import check_suffix, decode_event, repeated, restamped, with_suffix
from schemas.codec import Limits, encode_json
from schemas.errors import ConfigError, DecodeError, ErrorKind
from schemas.records import Event, FilingEvent, NewsEvent
from tests.schemas import strategies
from tests.schemas.golden import FILING, NEWS
from tests.schemas.test_codec import error_of

NOW = 1_800_000_000_000_000_000


@given(strategies.news | strategies.filings)
def test_events_are_told_apart_by_their_fields(event: Event) -> None:
    """Any event decodes from its line to its own type."""
    assert decode_event(encode_json(event)) == event


@pytest.mark.parametrize(
    ("line", "kind", "field"),
    [
        ({"event_id": "a", "title": "b"}, ErrorKind.MISSING_FIELD, "headline"),
        ({"headline": "a", "accession": "b"}, ErrorKind.INVALID_VALUE, "accession"),
        ({"headline": "a"}, ErrorKind.MISSING_FIELD, "event_id"),
        ({"accession": "a"}, ErrorKind.MISSING_FIELD, "event_id"),
        ({"text": "a"}, ErrorKind.MISSING_FIELD, "event_id"),
        ({"headline": {"deep": []}}, ErrorKind.WRONG_TYPE, "headline"),
        ("a string", ErrorKind.WRONG_TYPE, ""),
        ({"headline": "x" * 300}, ErrorKind.RECORD_TOO_LARGE, ""),
    ],
)
def test_a_line_that_is_no_event_names_the_field(line: object, kind: ErrorKind, field: str) -> None:
    """A line that is neither kind of event, both, or a broken one is refused with kind and field."""
    error = error_of(lambda raw: decode_event(raw, Limits(record_bytes=200)), json.dumps(line).encode())
    assert (error.kind, error.field) == (kind, field)


def test_deep_nesting_in_a_line_is_a_decode_error() -> None:
    """Brackets without end in the field that tells the kinds apart are refused like any bad JSON."""
    assert error_of(decode_event, b'{"headline":' + b"[" * 100_000).kind is ErrorKind.NOT_JSON


@given(strategies.news)
def test_restamped_news_keeps_its_distances(event: NewsEvent) -> None:
    """Publication and embargo stay as far from receipt as they were; what was unknown stays unknown."""
    moved = restamped(event, NOW)
    assert isinstance(moved, NewsEvent)
    assert moved.received_at_ns == NOW
    for name in ("published_at_ns", "embargo_until_ns"):
        before, after = getattr(event, name), getattr(moved, name)
        assert after == (before + NOW - event.received_at_ns if before else 0)
    assert (
        msgspec.structs.replace(
            moved,
            received_at_ns=event.received_at_ns,
            published_at_ns=event.published_at_ns,
            embargo_until_ns=event.embargo_until_ns,
        )
        == event
    )


@given(strategies.filings)
def test_restamped_filings_keep_their_distance(event: FilingEvent) -> None:
    """The acceptance stays as far from receipt as it was; nothing else changes."""
    moved = restamped(event, NOW)
    assert isinstance(moved, FilingEvent)
    assert moved.accepted_at_ns == (event.accepted_at_ns + NOW - event.received_at_ns if event.accepted_at_ns else 0)
    assert (
        msgspec.structs.replace(moved, received_at_ns=event.received_at_ns, accepted_at_ns=event.accepted_at_ns)
        == event
    )


def test_a_suffix_goes_into_the_story() -> None:
    """The id keeps its form, and a correction still points at what it corrects."""
    event = with_suffix(NEWS, "r2")
    assert isinstance(event, NewsEvent)
    assert event.event_id == "harborline:20260309-0066-r2:2"
    assert event.supersedes == "harborline:20260309-0066-r2:1"
    assert event.key == "harborline:20260309-0066-r2"
    assert with_suffix(msgspec.structs.replace(NEWS, supersedes=None), "r2") == msgspec.structs.replace(
        event, supersedes=None
    )


def test_a_suffix_goes_into_the_accession() -> None:
    """All parts of a filing stay one filing under the new accession."""
    event = with_suffix(FILING, "r2")
    assert isinstance(event, FilingEvent)
    assert event.event_id == "0009990904-26-000027-r2:d8k:1"
    assert event.key == event.accession == "0009990904-26-000027-r2"


def test_an_id_without_parts_gets_its_suffix_at_the_end() -> None:
    """An id that is not of the usual form is made unique all the same."""
    assert with_suffix(msgspec.structs.replace(NEWS, event_id="bare"), "x").event_id == "bare-x"
    assert with_suffix(msgspec.structs.replace(FILING, event_id="bare"), "x").event_id == "bare-x"


def test_no_suffix_changes_nothing() -> None:
    """Without a suffix the events keep their ids."""
    assert with_suffix(NEWS, "") is NEWS


def test_an_id_that_gets_too_long_is_refused() -> None:
    """An id over the schema's length is a typed error here and not a dead letter later."""
    with pytest.raises(DecodeError, match="event_id"):
        with_suffix(msgspec.structs.replace(NEWS, event_id="x" * 250 + ":1"), "run-12345")


@pytest.mark.parametrize("suffix", ["a:b", "a b", "ä", "x" * 65, "a\n"])
def test_a_suffix_that_breaks_ids_is_refused(suffix: str) -> None:
    """A suffix may hold nothing that takes an id apart."""
    with pytest.raises(ConfigError, match="id_suffix"):
        check_suffix(suffix)


@given(st.integers(0, 20))
def test_repeats_have_unique_ids(count: int) -> None:
    """Going round the same events any number of times never repeats an id, and the first round is unchanged."""
    events: list[Event] = [NEWS, FILING]
    taken = list(repeated(events, count))
    assert len(taken) == len({event.event_id for event in taken}) == count
    assert taken[:2] == events[:count]


def test_repeating_nothing_is_an_error() -> None:
    """There is no way to go round an empty list."""
    with pytest.raises(ValueError, match="no events"):
        list(repeated([], 1))
