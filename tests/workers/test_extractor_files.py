"""Extractors as data: what a file may say, and what is refused with the file and the field."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from schemas.enums import Direction
from schemas.errors import ConfigError
from workers.extractor_files import MOST_BYTES, SHIPPED, Template, load_extractors, read_extractor

HEAD = 'name="x"\nintro=""\nlead=""\nask=""\nclose=""\n'
DIRECTION = '[[heads]]\nname="direction"\n[heads.labels]\nbullish=" up"\nbearish=" down"\nneutral=" flat"\n'
SCHEMA = '[output.properties.direction]\nenum=["bullish","bearish","neutral"]\n'


def shipped() -> dict[str, Template]:
    """Return the shipped extractors by name."""
    return {file.template.name: file.template for file in load_extractors()}


def test_shipped_extractors() -> None:
    """There is one extractor for headlines and one for filings, each with the heads that signals promise."""
    templates = shipped()
    assert {name: list(template.labels) for name, template in templates.items()} == {
        "headline": ["direction", "event_type", "relevance"],
        "filing": ["direction", "event_type", "guidance", "material"],
    }
    assert len(templates["headline"].labels["event_type"]) == 16
    assert set(templates["filing"].labels["guidance"]) == {"raised", "lowered", "affirmed", "none"}
    assert templates["headline"].chunk_tokens == 0
    assert templates["filing"].chunk_tokens > templates["filing"].overlap_tokens > 0


def test_examples_cover_every_direction() -> None:
    """Each shipped extractor shows every direction at least once, so none is unheard of."""
    for template in shipped().values():
        assert {example.answer["direction"] for example in template.examples} == set(Direction)


def test_version_is_deterministic_and_tells_changes_apart() -> None:
    """Loading twice gives the same versions; a change to anything that shapes an answer gives another."""
    once = {name: template.version for name, template in shipped().items()}
    assert once == {name: template.version for name, template in shipped().items()}
    headline = shipped()["headline"]
    direction, *rest = headline.heads
    changed = [
        msgspec.structs.replace(headline, examples=headline.examples[1:]),
        msgspec.structs.replace(headline, heads=[direction, *reversed(rest)]),
        msgspec.structs.replace(headline, ask=headline.ask + " "),
        msgspec.structs.replace(headline, chunk_tokens=100),
        msgspec.structs.replace(headline, hide_answer_words=not headline.hide_answer_words),
        msgspec.structs.replace(
            headline,
            heads=[
                msgspec.structs.replace(direction, labels=dict(reversed(direction.labels.items()))),
                *rest,
            ],
        ),
    ]
    assert len({template.version for template in changed} | set(once.values())) == len(changed) + len(once)


def test_users_bring_their_own(tmp_path: Path) -> None:
    """A file in the user's directory is one more extractor, without a line of code."""
    (tmp_path / "mine.toml").write_text(HEAD + DIRECTION)
    assert [file.template.name for file in load_extractors(tmp_path)] == ["filing", "headline", "x"]
    assert load_extractors(tmp_path)[-1].path == tmp_path / "mine.toml"


def test_names_do_not_clash_silently(tmp_path: Path) -> None:
    """A user's extractor with a shipped name is refused, and the message names both files."""
    (tmp_path / "mine.toml").write_text(HEAD.replace('"x"', '"headline"') + DIRECTION)
    with pytest.raises(ConfigError) as caught:
        load_extractors(tmp_path)
    assert str(tmp_path / "mine.toml") in str(caught.value)
    assert str(SHIPPED / "headline.toml") in str(caught.value)


def test_a_missing_directory(tmp_path: Path) -> None:
    """A directory that is not there is said, not passed over."""
    with pytest.raises(ConfigError, match="nowhere is not a directory"):
        load_extractors(tmp_path / "nowhere")


def test_a_schema_is_closed(tmp_path: Path) -> None:
    """Whatever a file says, every property of a JSON answer is required and no other may be written."""
    path = tmp_path / "x.toml"
    path.write_text(
        HEAD + "[output]\nadditionalProperties=true\n" + SCHEMA + '[output.properties.size]\nenum=["a","b"]'
    )
    template = read_extractor(path)
    assert template.json_schema["required"] == ["direction", "size"]
    assert template.json_schema["additionalProperties"] is False
    assert template.labels == {"direction": ["bullish", "bearish", "neutral"], "size": ["a", "b"]}
    assert template.answer({"direction": "bullish", "size": "a"}) == ['{"direction":"bullish","size":"a"}']


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("name = 1", "Expected `str`"),
        ("nonsense", "x.toml"),
        ("\xff", "x.toml"),
        (HEAD, "exactly one of heads and output"),
        (HEAD + DIRECTION + SCHEMA, "exactly one of heads and output"),
        (HEAD + DIRECTION + "[more]\n", "unknown field `more`"),
        (HEAD.replace('"x"', '"X y"') + DIRECTION, "name: 'X y'"),
        (HEAD + DIRECTION.replace("neutral", "level"), "the first head must be 'direction'"),
        (HEAD + DIRECTION.replace('"direction"', '"way"'), "the first head must be 'direction'"),
        (HEAD + DIRECTION + DIRECTION, "two heads have the same name"),
        (HEAD + DIRECTION.replace(" flat", " up"), "two labels have the same word"),
        (HEAD + DIRECTION.replace(" flat", ""), "a label has no word"),
        (HEAD + DIRECTION + '[[heads]]\nname="size"\n[heads.labels]\nbig=" big"', "head size: 1 labels"),
        (
            HEAD + DIRECTION + '[[heads]]\nname="size"\n[heads.labels]\nbig=" big"\nupper=" upper"',
            "' up' of head direction is how ' upper' begins",
        ),
        (HEAD + DIRECTION.replace("neutral=", '"n\\n"='), "the first head must be"),
        (HEAD + DIRECTION + '[[heads]]\nname="size"\n[heads.labels]\n"a\\"b"=" a"\nb=" b"', "the label 'a\"b'"),
        ("overlap_tokens=9\nchunk_tokens=10\n" + HEAD + DIRECTION, "overlap_tokens"),
        (HEAD + DIRECTION + '[[examples]]\ntext="t"\nanswer={}', r"examples\[0\].answer: must have direction"),
        (
            HEAD + DIRECTION + '[[examples]]\ntext="t"\nanswer={direction="sideways"}',
            r"examples\[0\].answer.direction: 'sideways'",
        ),
        (HEAD + "[output]\ntype='array'", "schema of an object"),
        (HEAD + SCHEMA + '[output.properties.why]\ntype="string"', "output.properties.why: must have an enum"),
        (
            HEAD + SCHEMA + '[output.properties.why]\nenum=["a","a"]',
            "why: a value stands there twice",
        ),
        (HEAD + "#" * MOST_BYTES, "larger than"),
    ],
)
def test_a_wrong_file_names_file_and_field(tmp_path: Path, content: str, problem: str) -> None:
    """A file that is no extractor is one configuration error with its path and what is wrong."""
    path = tmp_path / "x.toml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigError, match=problem) as caught:
        load_extractors(tmp_path)
    assert str(path) in str(caught.value)
    assert caught.value.setting == "worker.extractors"


def test_another_head_may_share_words(tmp_path: Path) -> None:
    """The same word in two heads is no trouble: the grammar knows whose turn it is."""
    (tmp_path / "x.toml").write_text(HEAD + DIRECTION + '[[heads]]\nname="size"\n[heads.labels]\nbig=" up"\nsmall=" s"')
    assert "x" in {file.template.name for file in load_extractors(tmp_path)}
