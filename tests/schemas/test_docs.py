"""The page that other teams build on says what the code does."""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path

import pytest
from msgspec import Struct

from schemas import topics
from schemas.codec import decode_filing, decode_json, decode_news
from schemas.enums import Stage
from schemas.errors import ErrorKind
from schemas.records import Expired, FilingEvent, FilingReading, NewsEvent, Signal

PAGE = (Path(__file__).parents[2] / "docs" / "schemas.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under one heading."""
    _, _, rest = PAGE.partition(f"\n## {title}\n")
    assert rest, title
    return rest.partition("\n## ")[0]


def example(title: str) -> bytes:
    """The JSON example under one heading."""
    (found,) = re.findall(r"```json\n(.*?)```", section(title), re.DOTALL)
    return str(found).encode()


def test_the_examples_decode() -> None:
    """Each example on the page is a valid record of its type."""
    assert isinstance(decode_news(example("NewsEvent")), NewsEvent)
    assert isinstance(decode_filing(example("FilingEvent")), FilingEvent)
    assert isinstance(decode_json(example("Signal"), Signal), Signal)
    assert isinstance(decode_json(example("Expired"), Expired), Expired)


@pytest.mark.parametrize("record", [NewsEvent, FilingEvent, Signal, Expired])
def test_every_field_is_described(record: type[Struct]) -> None:
    """No field of a record is missing from its table."""
    rows = [line for line in section(record.__name__).splitlines() if line.startswith("| `")]
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert described == set(record.__struct_fields__)


def test_every_field_of_a_filing_signal_is_described() -> None:
    """What only the signal of a filing has stands in a table of its own."""
    rows = [line for line in section("Filing signals").splitlines() if line.startswith("| `")]
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert described == set(FilingReading.__struct_fields__)


def test_the_example_has_the_id_of_its_event() -> None:
    """Who computes the id as the page says gets the one in the example."""
    signal = decode_json(example("Signal"), Signal)
    text = "\x1f".join([signal.event_id, str(signal.event_version), signal.model_revision, signal.prompt_version])
    assert signal.signal_id == blake2b(text.encode(), digest_size=16).hexdigest()


def test_every_error_kind_is_described() -> None:
    """Whatever a dead letter's header says, the page explains it."""
    assert {kind.value for kind in ErrorKind} <= set(
        re.findall(r"^\| `(\w+)` \|", section("Dead letters"), re.MULTILINE)
    )


def test_every_header_and_stage_is_described() -> None:
    """No header and no stage is left unexplained."""
    words = set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))
    assert {value for name, value in vars(topics).items() if name.startswith("HEADER_")} <= words
    assert {stage.value for stage in Stage} <= words


def test_the_recipe_against_duplicates_works() -> None:
    """The code on the page recognises a duplicate and forgets the oldest id first."""
    (recipe,) = re.findall(r"```python\n(.*?)```", section("Duplicates"), re.DOTALL)
    scope: dict[str, object] = {}
    exec(recipe, scope)  # noqa: S102 - our own page, run to prove it
    is_new = scope["is_new"]
    assert callable(is_new)
    assert [is_new(id_, kept=2) for id_ in ("a", "a", "b", "c", "a", "c")] == [True, False, True, True, True, False]
