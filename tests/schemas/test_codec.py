from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct

from schemas.codec import (
    NANOSECONDS_2000,
    NANOSECONDS_2200,
    SHOWN_CHARS,
    Limits,
    decode_filing,
    decode_json,
    decode_news,
    encode_json,
)
from schemas.enums import NewsStatus
from schemas.errors import DecodeError, ErrorKind
from schemas.records import Expired, FilingEvent, NewsEvent, Signal, StampEntry
from tests.schemas import strategies

TIME = 1_773_063_000_000_000_000
NEWS: dict[str, Any] = {
    "event_id": "wire:story-1:1",
    "source": "wire",
    "headline": "Profit doubles",
    "received_at_ns": TIME,
}
FILING: dict[str, Any] = {
    "event_id": "0001-26-1:d8k:1",
    "accession": "0001-26-1",
    "form": "8-K",
    "text": "Results rose.",
    "received_at_ns": TIME,
}
DECODERS: tuple[Callable[[bytes], object], ...] = (
    decode_news,
    decode_filing,
    lambda raw: decode_json(raw, Signal),
    lambda raw: decode_json(raw, Expired),
    lambda raw: decode_json(raw, StampEntry),
)


def news(**changes: Any) -> bytes:
    """The smallest valid news record with changes."""
    return json.dumps({**NEWS, **changes}).encode()


def filing(**changes: Any) -> bytes:
    """The smallest valid filing record with changes."""
    return json.dumps({**FILING, **changes}).encode()


def without(record: dict[str, Any], field: str) -> bytes:
    """A record that lacks one field."""
    return json.dumps({name: value for name, value in record.items() if name != field}).encode()


def error_of(decode: Callable[[bytes], object], raw: bytes) -> DecodeError:
    """The error that a decoder raises."""
    with pytest.raises(DecodeError) as caught:
        decode(raw)
    return caught.value


def decoded_or_error(decode: Callable[[bytes], object], raw: bytes) -> DecodeError | None:
    """None if the bytes decode, otherwise the error."""
    try:
        decode(raw)
    except DecodeError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("raw", "kind", "field"),
    [
        (b"", ErrorKind.NOT_JSON, ""),
        (b"profit doubles", ErrorKind.NOT_JSON, ""),
        (news()[:-1], ErrorKind.NOT_JSON, ""),
        (news() + b"}", ErrorKind.NOT_JSON, ""),
        (b"\xef\xbb\xbf" + news(), ErrorKind.NOT_JSON, ""),
        (news(headline="half \ud83d"), ErrorKind.NOT_JSON, ""),
        (news(headline="half \ude00 pair"), ErrorKind.NOT_JSON, ""),
        (news(headline="Gewinn gro\u00df").decode("unicode_escape").encode("latin-1"), ErrorKind.NOT_UTF8, ""),
        (news().decode().encode("utf-16"), ErrorKind.NOT_UTF8, ""),
        (b"null", ErrorKind.WRONG_TYPE, ""),
        (b"[1]", ErrorKind.WRONG_TYPE, ""),
        (news(headline=7), ErrorKind.WRONG_TYPE, "headline"),
        (news(headline=None), ErrorKind.WRONG_TYPE, "headline"),
        (news(received_at_ns=str(TIME)), ErrorKind.WRONG_TYPE, "received_at_ns"),
        (news(received_at_ns=1.5e18), ErrorKind.WRONG_TYPE, "received_at_ns"),
        (news(received_at_ns=True), ErrorKind.WRONG_TYPE, "received_at_ns"),
        (news(instruments="ABC"), ErrorKind.WRONG_TYPE, "instruments"),
        (news(instruments=["ABC", 7]), ErrorKind.WRONG_TYPE, "instruments[1]"),
        (news(status=3), ErrorKind.WRONG_TYPE, "status"),
        (news(schema_version="1"), ErrorKind.WRONG_TYPE, "schema_version"),
        (without(NEWS, "event_id"), ErrorKind.MISSING_FIELD, "event_id"),
        (without(NEWS, "source"), ErrorKind.MISSING_FIELD, "source"),
        (without(NEWS, "headline"), ErrorKind.MISSING_FIELD, "headline"),
        (without(NEWS, "received_at_ns"), ErrorKind.MISSING_FIELD, "received_at_ns"),
        (news(event_id=""), ErrorKind.INVALID_VALUE, "event_id"),
        (news(event_id="x" * 257), ErrorKind.INVALID_VALUE, "event_id"),
        (news(event_id="wire:a\nb:1"), ErrorKind.INVALID_VALUE, "event_id"),
        (news(event_id="wire:a:1\n"), ErrorKind.INVALID_VALUE, "event_id"),
        (news(source="a\u001fb"), ErrorKind.INVALID_VALUE, "source"),
        (news(supersedes=""), ErrorKind.INVALID_VALUE, "supersedes"),
        (news(instruments=["ABC", "", "DEF"]), ErrorKind.INVALID_VALUE, "instruments[1]"),
        (news(urgency=10), ErrorKind.INVALID_VALUE, "urgency"),
        (news(urgency=-1), ErrorKind.INVALID_VALUE, "urgency"),
        (news(version=0), ErrorKind.INVALID_VALUE, "version"),
        (news(version=2**31), ErrorKind.INVALID_VALUE, "version"),
        (news(status="retracted"), ErrorKind.INVALID_VALUE, "status"),
        (news(language="x" * 257), ErrorKind.INVALID_VALUE, "language"),
        (news(received_at_ns=0), ErrorKind.INVALID_VALUE, "received_at_ns"),
        (news(received_at_ns=TIME // 1_000_000), ErrorKind.INVALID_VALUE, "received_at_ns"),
        (news(received_at_ns=10**30), ErrorKind.INVALID_VALUE, "received_at_ns"),
        (news(published_at_ns=TIME // 1_000_000_000), ErrorKind.INVALID_VALUE, "published_at_ns"),
        (news(embargo_until_ns=-5), ErrorKind.INVALID_VALUE, "embargo_until_ns"),
        (news(headline=""), ErrorKind.EMPTY_TEXT, "headline"),
        (news(headline=" \t\n"), ErrorKind.EMPTY_TEXT, "headline"),
        (news(headline="\u200b \u200b \u200b"), ErrorKind.EMPTY_TEXT, "headline"),
        (news(headline="\u202a\ufeff\u00ad\u2800\u3164\u0301"), ErrorKind.EMPTY_TEXT, "headline"),
        (news(headline="x" * 20_001), ErrorKind.TEXT_TOO_LONG, "headline"),
        (news(headline="x" * 20_001, status="killed"), ErrorKind.TEXT_TOO_LONG, "headline"),
        (news(body="x" * 400_001), ErrorKind.TEXT_TOO_LONG, "body"),
        (news(url="x" * 1_000_000), ErrorKind.RECORD_TOO_LARGE, ""),
        (news(schema_version=2), ErrorKind.UNKNOWN_SCHEMA_VERSION, "schema_version"),
        (news(schema_version=0), ErrorKind.UNKNOWN_SCHEMA_VERSION, "schema_version"),
        (news(schema_version=10**30), ErrorKind.UNKNOWN_SCHEMA_VERSION, "schema_version"),
        (news(schema_version=2, headline={"text": "moved"}), ErrorKind.UNKNOWN_SCHEMA_VERSION, "schema_version"),
        (b'{"schema_version": 2}', ErrorKind.UNKNOWN_SCHEMA_VERSION, "schema_version"),
    ],
)
def test_news_error_is_typed_and_names_the_field(raw: bytes, kind: ErrorKind, field: str) -> None:
    """Each way a news record can be wrong gives its own kind and the field at fault."""
    error = error_of(decode_news, raw)
    assert (error.kind, error.field) == (kind, field)
    assert error.reason


@pytest.mark.parametrize(
    ("raw", "kind", "field"),
    [
        (b"{", ErrorKind.NOT_JSON, ""),
        (b"\xff\xfe", ErrorKind.NOT_UTF8, ""),
        (filing(text=["a"]), ErrorKind.WRONG_TYPE, "text"),
        (filing(items=[2.02]), ErrorKind.WRONG_TYPE, "items[0]"),
        (without(FILING, "accession"), ErrorKind.MISSING_FIELD, "accession"),
        (without(FILING, "form"), ErrorKind.MISSING_FIELD, "form"),
        (without(FILING, "text"), ErrorKind.MISSING_FIELD, "text"),
        (filing(part=3, parts=2), ErrorKind.INVALID_VALUE, "part"),
        (filing(part=0), ErrorKind.INVALID_VALUE, "part"),
        (filing(accepted_at_ns=1), ErrorKind.INVALID_VALUE, "accepted_at_ns"),
        (filing(text="\u200b"), ErrorKind.EMPTY_TEXT, "text"),
        (filing(text="x" * 400_001), ErrorKind.TEXT_TOO_LONG, "text"),
        (filing(text="x" * 600_000), ErrorKind.RECORD_TOO_LARGE, ""),
        (filing(schema_version=9), ErrorKind.UNKNOWN_SCHEMA_VERSION, "schema_version"),
    ],
)
def test_filing_error_is_typed_and_names_the_field(raw: bytes, kind: ErrorKind, field: str) -> None:
    """Each way a filing record can be wrong gives its own kind and the field at fault."""
    error = error_of(decode_filing, raw)
    assert (error.kind, error.field) == (kind, field)
    assert error.reason


@pytest.mark.parametrize("brackets", [b"[" * 200_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 50_000])
@pytest.mark.parametrize("before", [b'{"ignored":', b'{"headline":5,"ignored":'])
def test_deep_nesting_is_a_decode_error(before: bytes, brackets: bytes) -> None:
    """Brackets nested past Python's recursion limit end as a decode error, wherever they stand."""
    assert error_of(decode_news, before + brackets).kind in {ErrorKind.NOT_JSON, ErrorKind.WRONG_TYPE}


@pytest.mark.parametrize(
    "value",
    ["Expected `int`, got `str`", "x - at `$.headline`", "Object missing required field `source`", "a\nb\x1b[31m"],
)
def test_a_wrong_value_cannot_imitate_another_error(value: str) -> None:
    """A status that reads like one of the decoder's own messages is still an invalid status, quoted in one line."""
    error = error_of(decode_news, news(status=value))
    assert (error.kind, error.field) == (ErrorKind.INVALID_VALUE, "status")
    assert error.reason.isprintable()


@pytest.mark.parametrize(
    "raw", [news(status="y" * 100_000), news(received_at_ns=10**4000), news(schema_version=10**4000)]
)
def test_an_error_quotes_little_of_a_huge_value(raw: bytes) -> None:
    """The reason goes into a record header, so it stays short however long the wrong value is."""
    assert len(error_of(decode_news, raw).reason) < SHOWN_CHARS + 120


@pytest.mark.parametrize("digits", [4299, 4300, 4301, 4302, 10_000])
def test_numbers_past_pythons_digit_limit_are_decode_errors(digits: int) -> None:
    """A number with more digits than Python converts to text does not escape as a ValueError."""
    assert sys.get_int_max_str_digits() == 4300
    raw = b'{"schema_version":' + b"9" * digits + b"}"
    assert error_of(decode_news, raw).field == "schema_version"


def test_a_wrong_stamp_name_is_found_in_its_field() -> None:
    """An unknown stage among the stamps of an output record names the stamps."""
    raw = encode_json(
        {"event_id": "a", "service_class": "b", "outcome": "c", "late": False, "slo_ns": 1, "stamps": {"x": 1}}
    )
    error = error_of(lambda data: decode_json(data, StampEntry), raw)
    assert (error.kind, error.field) == (ErrorKind.INVALID_VALUE, "stamps")


def test_defaults_fill_what_a_record_leaves_out() -> None:
    """The shortest news and filing records decode, with the defaults that the schema documents."""
    event = decode_news(news())
    assert (event.version, event.language, event.status, event.urgency) == (1, "en", NewsStatus.USABLE, 0)
    assert (event.published_at_ns, event.instruments, event.supersedes, event.schema_version) == (0, [], None, 1)
    part = decode_filing(filing())
    assert (part.part, part.parts, part.items, part.ciks, part.accepted_at_ns) == (1, 1, [], [], 0)


def test_unknown_fields_are_ignored() -> None:
    """A producer that is ahead of us may add fields; the rest of its record is read."""
    assert decode_news(news(sentiment={"a": [1, 2]}, mood=None)) == decode_news(news())
    assert decode_filing(filing(exhibits=["99.1"])) == decode_filing(filing())


def test_a_killed_story_may_have_an_empty_headline() -> None:
    """A kill takes a story back and need not repeat it."""
    assert decode_news(news(headline="", status="killed")).headline == ""


def test_limits_are_taken_from_the_caller() -> None:
    """The bounds of the configuration apply, not the defaults."""
    tight = Limits(record_bytes=200, headline_chars=5, text_chars=3)
    assert error_of(lambda raw: decode_news(raw, tight), news(headline="sixsix")).kind is ErrorKind.TEXT_TOO_LONG
    assert error_of(lambda raw: decode_filing(raw, tight), filing(text="four")).kind is ErrorKind.TEXT_TOO_LONG
    assert error_of(lambda raw: decode_news(raw, tight), news(url="u" * 200)).kind is ErrorKind.RECORD_TOO_LARGE


@pytest.mark.parametrize("time", [NANOSECONDS_2000, NANOSECONDS_2200])
def test_the_first_and_the_last_time_are_valid(time: int) -> None:
    """The bounds on times are inclusive."""
    assert decode_news(news(received_at_ns=time)).received_at_ns == time


@given(strategies.news)
def test_news_survives_the_round_trip(event: NewsEvent) -> None:
    """Any valid news event comes back equal from its own bytes."""
    assert decode_news(encode_json(event)) == event


@given(strategies.filings)
def test_filings_survive_the_round_trip(event: FilingEvent) -> None:
    """Any valid filing event comes back equal from its own bytes."""
    assert decode_filing(encode_json(event)) == event


@given(strategies.signals | strategies.expired | strategies.stamp_entries)
def test_output_records_survive_the_round_trip(record: Struct) -> None:
    """Any output record comes back equal from its own bytes."""
    assert decode_json(encode_json(record), type(record)) == record


@given(st.binary(max_size=300), st.sampled_from(DECODERS))
@example(b'"\xff"', decode_news)
def test_arbitrary_bytes_raise_nothing_but_decode_errors(raw: bytes, decode: Callable[[bytes], object]) -> None:
    """No bytes make a decoder raise anything but its typed error."""
    with pytest.raises(DecodeError):
        decode(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted({*NewsEvent.__struct_fields__, *FilingEvent.__struct_fields__})


@given(
    st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4),
    st.sampled_from([(NEWS, decode_news), (FILING, decode_filing)]),
)
def test_arbitrary_values_decode_or_name_a_field(
    changes: dict[str, Any], target: tuple[dict[str, Any], Callable[[bytes], object]]
) -> None:
    """A valid record with any JSON value in any field decodes, or the error names one of the record's fields."""
    record, decode = target
    error = decoded_or_error(decode, json.dumps({**record, **changes}).encode())
    # json.dumps writes NaN and lone surrogates, which are no JSON.
    assert error is None or error.kind is ErrorKind.NOT_JSON or error.field.partition("[")[0] in FIELDS
