from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from schemas.codec import decode_filing, decode_json, decode_news
from schemas.frames import decode_from_worker, decode_to_worker
from schemas.records import (
    SCHEMA_VERSION,
    SUPPORTED_SCHEMA_VERSIONS,
    Expired,
    FilingEvent,
    NewsEvent,
    Signal,
    StampEntry,
    json_schema,
)
from tests.schemas import golden

GOLDEN = Path(golden.__file__).parent
RECORDS = (NewsEvent, FilingEvent, Signal, Expired, StampEntry)


def test_golden_news_decodes() -> None:
    """A news event as version 1 wrote it is read with every field in place."""
    assert decode_news((GOLDEN / "v1" / "news.json").read_bytes()) == golden.NEWS


def test_golden_news_from_a_feed_decodes() -> None:
    """What a feed handler adds to a news event is read with every field in place."""
    raw = (GOLDEN / "v1" / "news_from_a_feed.json").read_bytes()
    assert decode_news(raw) == golden.NEWS_FROM_A_FEED


def test_golden_filing_decodes() -> None:
    """A filing event as version 1 wrote it is read with every field in place."""
    assert decode_filing((GOLDEN / "v1" / "filing.json").read_bytes()) == golden.FILING


def test_golden_filing_from_a_feed_decodes() -> None:
    """What a feed handler adds to a filing event is read with every field in place."""
    raw = (GOLDEN / "v1" / "filing_from_a_feed.json").read_bytes()
    assert decode_filing(raw) == golden.FILING_FROM_A_FEED


@pytest.mark.parametrize("name", sorted(golden.OUTPUTS))
def test_golden_outputs_decode(name: str) -> None:
    """An output record as version 1 wrote it is read with every field in place."""
    expected = golden.OUTPUTS[name]
    assert decode_json((GOLDEN / "v1" / f"{name}.json").read_bytes(), type(expected)) == expected


@pytest.mark.parametrize("name", sorted(golden.FRAMES))
def test_golden_frames_decode(name: str) -> None:
    """A frame as protocol 1 wrote it (MessagePack in hex) is read with every field in place."""
    raw = bytes.fromhex((GOLDEN / "v1" / "frames" / f"{name}.hex").read_text())
    decode = decode_from_worker if name in golden.WORKER_FRAMES else decode_to_worker
    assert decode(raw) == golden.FRAMES[name]


def test_every_supported_version_has_golden_files() -> None:
    """A version cannot be supported without records of it that are decoded here."""
    assert SCHEMA_VERSION in SUPPORTED_SCHEMA_VERSIONS
    directories = {path.name for path in GOLDEN.iterdir() if re.fullmatch(r"v\d+", path.name)}
    assert directories == {f"v{version}" for version in SUPPORTED_SCHEMA_VERSIONS}


@pytest.mark.parametrize("record", RECORDS)
def test_golden_records_use_every_field(record: type[msgspec.Struct]) -> None:
    """A field that is added without a golden file fails here."""
    inputs = (golden.NEWS, golden.NEWS_FROM_A_FEED, golden.FILING, golden.FILING_FROM_A_FEED)
    examples = [value for value in (*inputs, *golden.OUTPUTS.values()) if isinstance(value, record)]
    defaults = {field.name: field for field in msgspec.structs.fields(record)}
    assert examples
    for name, field in defaults.items():
        if name != "schema_version":
            assert any(getattr(example, name) not in (field.default, [], "") for example in examples), name


@pytest.mark.parametrize("record", RECORDS)
def test_json_schema_describes_every_field(record: type[msgspec.Struct]) -> None:
    """The exported JSON Schema has each field of the record, so other languages can generate types from it."""
    schema = json_schema(record)
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    assert set(definitions[record.__name__]["properties"]) == set(record.__struct_fields__)


@pytest.mark.parametrize(
    ("event_id", "key"),
    [("wire:story-1:2", "wire:story-1"), ("wire:a:b:7", "wire:a:b"), ("bare", "bare"), (":1", ":1")],
)
def test_all_versions_of_a_story_have_one_key(event_id: str, key: str) -> None:
    """The Kafka key leaves out the version, so a correction comes after what it corrects."""
    event = msgspec.structs.replace(golden.NEWS, event_id=event_id)
    assert event.key == key


def test_all_parts_of_a_filing_have_one_key() -> None:
    """The Kafka key of a filing is its accession."""
    assert golden.FILING.key == golden.FILING.accession
