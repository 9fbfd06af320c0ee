"""Extractors as data: what an extractor's file may say, read from ``*.toml`` and checked before any model is there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from schemas.enums import Direction
from schemas.errors import ConfigError

SHIPPED = Path(__file__).with_name("extractors")
"""Extractors that come with the package."""
SETTING = "worker.extractors"

DIRECTION = "direction"
"""The head that every extractor has, because every signal has a direction."""
EVENT_TYPE = "event_type"
"""The head whose best label stands in a signal's field of that name."""
ASSEMBLY = 3
"""Version of the rules by which a file becomes token ids and an answer is constrained; part of every prompt version."""

MOST_BYTES = 256 * 1024
"""Of a file. A prompt is a few hundred tokens; a larger file is something else."""
MOST_HEADS = 8
"""Each head is a decode step."""
MOST_LABELS = 64
"""Of one head; each is a number in every signal."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _./&-]{0,63}")
"""A label stands in signals, in metrics and between quotes in a JSON answer."""


class Head(Struct, frozen=True, forbid_unknown_fields=True):
    """One question.

    Args:
        labels: per label, as signals carry it, the word that the model says for it: one token, with its space.
    """

    name: str
    labels: dict[str, str]


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """One invented text with its right answer: a label per head."""

    text: str
    answer: dict[str, str]


class Template(Struct, frozen=True, forbid_unknown_fields=True):
    """One extractor, as its file says it.

    Args:
        name: what a service class of the configuration calls it.
        intro: the instruction, once, at the very front.
        lead: what stands before each text.
        ask: what stands between a text and its answer.
        close: what stands after an example's answer.
        examples: texts with their answers.
        heads: what is asked, in the order in which it is answered, ``direction`` first. One label token per head.
        output: instead of heads: the JSON Schema of an object that the answer is, every property an ``enum``.
        chunk_tokens: longest piece of a text that is asked about at once; 0 when a text is never split.
        overlap_tokens: tokens that two neighbouring pieces share where a section had to be cut.
        hide_answer_words: words that answer the direction are blanks for the model where a text uses them as an answer
            (`workers.answer_words`).
    """

    name: str
    intro: str
    lead: str
    ask: str
    close: str
    examples: list[Example] = []
    heads: list[Head] = []
    output: dict[str, Any] = {}
    chunk_tokens: int = 0
    overlap_tokens: int = 0
    hide_answer_words: bool = False

    @property
    def labels(self) -> dict[str, list[str]]:
        """Per head its labels, whichever way they are answered."""
        if self.heads:
            return {head.name: list(head.labels) for head in self.heads}
        return {name: list(value["enum"]) for name, value in self.output["properties"].items()}

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of a JSON answer: every property required, and no others."""
        fixed = {"type": "object", "required": list(self.output["properties"]), "additionalProperties": False}
        return {**self.output, **fixed}

    def answer(self, labels: dict[str, str]) -> list[str]:
        """Write an answer the way the model is meant to, in the pieces that are encoded each on its own."""
        if self.heads:
            return [head.labels[labels[head.name]] for head in self.heads]
        return [msgspec.json.encode({name: labels[name] for name in self.labels}).decode()]

    @property
    def version(self) -> str:
        """Name and a hash over everything that shapes the answers, equal on every machine."""
        # As a list: the order of the heads and labels is part of it, while the order of a file's tables is not.
        heads = [[head.name, list(head.labels.items())] for head in self.heads]
        content = msgspec.json.encode([ASSEMBLY, self, heads], order="deterministic")
        return f"{self.name}-{blake2b(content, digest_size=4).hexdigest()}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractorFile:
    """An extractor and the file it was read from."""

    path: Path
    template: Template


def load_extractors(own: Path | None = None) -> list[ExtractorFile]:
    """Read and check the shipped extractors and those of a directory, in the order of their names.

    Args:
        own: the user's directory.

    Raises:
        ConfigError: the directory is missing, a file is not an extractor or has a name that another one has; the
            message names file and field.
    """
    if own is not None and not own.is_dir():
        raise ConfigError(SETTING, f"{own} is not a directory")
    found: dict[str, ExtractorFile] = {}
    for directory in (SHIPPED, *([own] if own is not None else [])):
        for path in sorted(directory.glob("*.toml")):
            template = read_extractor(path)
            if other := found.get(template.name):
                reason = f"the name {template.name!r} is taken by {other.path}; call yours something else"
                raise ConfigError(SETTING, f"{path}: {reason}")
            found[template.name] = ExtractorFile(path=path, template=template)
    return [found[name] for name in sorted(found)]


def read_extractor(path: Path) -> Template:
    """Read one file.

    Raises:
        ConfigError: it cannot be read or is not an extractor; the message names file and field.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(SETTING, f"{path}: larger than {MOST_BYTES} bytes, so it is no extractor")
        template = msgspec.toml.decode(content, type=Template)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(SETTING, f"{path}: {error}") from None
    for problem in _problems(template):
        raise ConfigError(SETTING, f"{path}: {problem}")
    return template


def _problems(template: Template) -> Iterator[str]:
    """Yield what is wrong with an extractor, the first of which is told."""
    if not _NAME.fullmatch(template.name):
        yield f"name: {template.name!r} is not up to 64 small letters, digits, - and _"
    if bool(template.heads) == bool(template.output):
        yield "exactly one of heads and output must be there"
    yield from _output_problems(template.output) if template.output else _head_problems(template.heads)
    yield from _common_problems(template.labels)
    if template.chunk_tokens < 0 or not 0 <= template.overlap_tokens <= template.chunk_tokens // 2:
        yield "overlap_tokens: must lie between 0 and half of chunk_tokens"
    for number, example in enumerate(template.examples):
        if set(example.answer) != set(template.labels):
            yield f"examples[{number}].answer: must have {', '.join(template.labels)}"
        for head, label in example.answer.items():
            if label not in template.labels[head]:
                yield f"examples[{number}].answer.{head}: {label!r} is not one of its labels"


def _common_problems(heads: dict[str, list[str]]) -> Iterator[str]:
    if len(heads) > MOST_HEADS:
        yield f"{len(heads)} heads; at most {MOST_HEADS}"
    if next(iter(heads), "") != DIRECTION or set(heads[DIRECTION]) != set(Direction):
        yield f"the first head must be {DIRECTION!r}, with the labels {', '.join(Direction)}"
    for name, labels in heads.items():
        if not _NAME.fullmatch(name):
            yield f"head {name!r}: its name is not up to 64 small letters, digits, - and _"
        if not 2 <= len(labels) <= MOST_LABELS:
            yield f"head {name}: {len(labels)} labels; 2 to {MOST_LABELS} are needed"
        for label in labels:
            if not _LABEL.fullmatch(label):
                yield f"head {name}: the label {label!r} is not up to 64 letters, digits, spaces and _ . / & -"


def _head_problems(heads: Sequence[Head]) -> Iterator[str]:
    names = [head.name for head in heads]
    if len(set(names)) != len(names):
        yield "two heads have the same name"
    for head in heads:
        words = list(head.labels.values())
        if not all(words):
            yield f"head {head.name}: a label has no word"
        if len(set(words)) != len(words):
            yield f"head {head.name}: two labels have the same word"
    for word, head, other, longer in _stuck(heads):
        yield f"head {head.name}: {word!r} of head {other.name} is how {longer!r} begins; take another word"


def _stuck(heads: Sequence[Head]) -> Iterable[tuple[str, Head, Head, str]]:
    """Yield words on which an answer could get stuck.

    A grammar works on characters and lets a word's beginning pass; only label tokens are allowed. A beginning that is
    a token of another head, but no label of this one, would be followed by nothing that is allowed.
    """
    for head in heads:
        words = set(head.labels.values())
        for other in heads:
            for word in set(other.labels.values()) - words:
                for longer in words:
                    if longer.startswith(word):
                        yield word, head, other, longer


def _output_problems(output: dict[str, Any]) -> Iterator[str]:
    """Check that a schema has nothing but closed lists; whether a grammar can be made of it, only the engine knows."""
    properties = output.get("properties")
    if output.get("type", "object") != "object" or not isinstance(properties, dict) or not properties:
        yield "output: must be the schema of an object with properties"
        return
    for name, value in properties.items():
        values = value.get("enum") if isinstance(value, dict) else None
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            yield f"output.properties.{name}: must have an enum of strings; nothing open is ever written by a model"
        elif len(set(values)) != len(values):
            yield f"output.properties.{name}: a value stands there twice"
