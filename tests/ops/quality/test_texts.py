"""Files of texts and labels: what is read, and what is told about lines that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.quality.texts import Item, read_texts, with_labels
from schemas.errors import ConfigError, ErrorKind

LABELS = ["bullish", "bearish", "neutral"]


async def test_lines_and_what_is_wrong_with_them(tmp_path: Path) -> None:
    """Good lines are kept in order, each bad one is told with its number, its kind and its field."""
    lines = [
        '{"text": "up", "label": "positive", "more": 1}',
        "",
        "not json",
        '{"label": "neutral"}',
        '{"text": 3, "label": "neutral"}',
        '{"text": "no label"}',
        '{"text": "\\u200b ", "label": "neutral"}',
        '{"text": "flat", "label": "neutral"}',
        '{"text": "odd", "label": "sideways"}',
        '{"text": "' + "x" * (512 * 1024) + '", "label": "neutral"}',
        '{"text": "down", "label": "bearish"}',
    ]
    path = tmp_path / "f.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = with_labels(await read_texts(path, labelled=True), LABELS)
    assert found.items == [Item(1, "up", "bullish"), Item(8, "flat", "neutral"), Item(11, "down", "bearish")]
    assert [(each.number, each.error.kind, each.error.field) for each in found.bad] == [
        (3, ErrorKind.NOT_JSON, ""),
        (4, ErrorKind.MISSING_FIELD, "text"),
        (5, ErrorKind.WRONG_TYPE, "text"),
        (6, ErrorKind.MISSING_FIELD, "label"),
        (7, ErrorKind.EMPTY_TEXT, "text"),
        (9, ErrorKind.UNKNOWN_LABEL, "label"),
        (10, ErrorKind.RECORD_TOO_LARGE, ""),
    ]
    assert "line 9" in str(found.bad[5])
    assert "'sideways'" in str(found.bad[5])


async def test_own_label_goes_before_its_synonym(tmp_path: Path) -> None:
    """A head with a label `positive` of its own keeps it."""
    path = tmp_path / "f.jsonl"
    path.write_text('{"text": "up", "label": "positive"}\n')
    found = with_labels(await read_texts(path, labelled=True), ["positive", "bullish"])
    assert found.items[0].label == "positive"


async def test_labels_are_not_looked_at_where_none_are_wanted(tmp_path: Path) -> None:
    """Unlabelled text can come from a labelled file, whatever its labels are."""
    path = tmp_path / "f.jsonl"
    path.write_text('{"text": "up"}\n{"text": "down", "label": 7}\n')
    assert [item.text for item in (await read_texts(path, labelled=False)).items] == ["up", "down"]


async def test_limit(tmp_path: Path) -> None:
    """Only as many lines as asked for are read."""
    path = tmp_path / "f.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n')
    assert [item.text for item in (await read_texts(path, labelled=False, limit=2)).items] == ["a", "b"]


async def test_nothing_usable(tmp_path: Path) -> None:
    """A file without one usable line is an error that tells the first bad one; so is one that is not there."""
    path = tmp_path / "f.jsonl"
    path.write_text("oops\n")
    with pytest.raises(ConfigError, match="line 1: not_json"):
        await read_texts(path, labelled=True)
    with pytest.raises(ConfigError, match="No such file"):
        await read_texts(tmp_path / "none", labelled=True)
