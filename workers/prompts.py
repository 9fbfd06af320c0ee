"""Prompts as data: templates from ``prompts/*.toml``, compiled once to token ids around which only the text changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct
from tokenizers import Tokenizer

from schemas.enums import Direction
from schemas.errors import ConfigError, ErrorKind
from schemas.frames import Extractor, TokenIds, unpack_tokens
from workers.engine import RequestError

TEMPLATES = Path(__file__).with_name("prompts")

ASSEMBLY = 1
"""Version of the rules below by which a template becomes token ids; part of every prompt version."""

ANSWER_SLACK_TOKENS = 12
"""Room beyond the longest answer as the tokenizer would write it: the grammar allows other splits, and the end of the
sequence is a token too."""


class Example(Struct, frozen=True, forbid_unknown_fields=True):
    """One invented text with its right answer."""

    text: str
    direction: Direction
    event_type: str | None = None


class Template(Struct, frozen=True, forbid_unknown_fields=True):
    """One extractor's prompt, as its file says it.

    Args:
        intro: the instruction, once, at the very front.
        lead: what stands before each text.
        ask: what stands between a text and its answer.
        close: what stands after an example's answer.
        labels: per direction one word that must be one token; the answer is one of them.
        event_types: values of ``event_type`` in a JSON answer; either this or ``labels`` is set.
    """

    name: str
    intro: str
    lead: str
    ask: str
    close: str
    examples: list[Example]
    labels: dict[Direction, str] = {}
    event_types: list[str] = []

    def answer(self, direction: Direction, event_type: str | None) -> str:
        """Write an answer the way the model is meant to."""
        if self.labels:
            return self.labels[direction]
        return f'{{"direction":"{direction.value}","event_type":"{event_type}"}}'

    def json_schema(self) -> dict[str, object]:
        """Return the JSON Schema that a JSON answer must satisfy."""
        return {
            "type": "object",
            "properties": {
                "direction": {"enum": [direction.value for direction in Direction]},
                "event_type": {"enum": list(self.event_types)},
            },
            "required": ["direction", "event_type"],
            "additionalProperties": False,
        }

    @property
    def version(self) -> str:
        """Name and a hash over everything that shapes the answers, equal on every machine."""
        content = msgspec.json.encode([ASSEMBLY, self, self.json_schema()], order="deterministic")
        return f"{self.name}-{blake2b(content, digest_size=4).hexdigest()}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One template under one tokenizer.

    Args:
        prefix: ids of the static part before the text: the same for every request, so prefix caching hits.
        suffix: ids of what follows the text.
        labels: per direction the id of its label token; empty for a JSON answer.
        vocab_size: ids from here on do not exist in the model.
        max_new_tokens: longest answer, in tokens.
    """

    template: Template
    prefix: list[int]
    suffix: list[int]
    labels: dict[Direction, int]
    vocab_size: int
    max_new_tokens: int

    @property
    def name(self) -> str:
        """The extractor's name."""
        return self.template.name

    @property
    def extractor(self) -> Extractor:
        """What the scheduler has to know."""
        return Extractor(
            name=self.template.name,
            prompt_version=self.template.version,
            prompt_tokens=len(self.prefix) + len(self.suffix),
            shared_prefix_tokens=len(self.prefix),
            max_new_tokens=self.max_new_tokens,
        )

    def assemble(self, text: TokenIds, max_model_len: int) -> list[int]:
        """Put the template around a text.

        Args:
            text: packed ids, as the request frame carries them.
            max_model_len: prompt plus answer, in tokens.

        Raises:
            RequestError: the text is empty, longer than the context or holds ids that the model does not have.
        """
        if len(text) % 4:
            raise RequestError(ErrorKind.INVALID_VALUE, f"text_tokens has {len(text)} bytes, not four per token")
        ids = unpack_tokens(text)
        if not ids:
            raise RequestError(ErrorKind.EMPTY_TEXT, "text_tokens is empty")
        total = len(self.prefix) + len(ids) + len(self.suffix) + self.max_new_tokens
        if total > max_model_len:
            reason = f"prompt and answer need {total} tokens, the model's context has {max_model_len}"
            raise RequestError(ErrorKind.TEXT_TOO_LONG, reason)
        if max(ids) >= self.vocab_size:
            reason = f"token id {max(ids)} is outside the vocabulary of {self.vocab_size}"
            raise RequestError(ErrorKind.INVALID_VALUE, reason)
        return [*self.prefix, *ids, *self.suffix]


def load_templates(directory: Path = TEMPLATES) -> list[Template]:
    """Read and check every template of a directory, in the order of their names.

    Raises:
        ConfigError: a file is not a template; the message names file and field.
    """
    return [_load(path) for path in sorted(directory.glob("*.toml"))]


def compile_prompts(templates: Iterable[Template], tokenizer: Tokenizer, model: str) -> dict[str, Prompt]:
    """Compile templates under a model's tokenizer, by extractor name.

    Raises:
        ConfigError: the model's tokenizer has no single token for a label.
    """
    return {template.name: _compile(template, tokenizer, model) for template in templates}


def load_tokenizer(tokenizer_json: bytes, source: str) -> Tokenizer:
    """Read a ``tokenizer.json`` so that special tokens written in a text stay text.

    Raises:
        ConfigError: the bytes are no tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_buffer(tokenizer_json)
    except Exception as error:  # noqa: BLE001 - tokenizers raises a bare Exception for any bad file
        raise ConfigError("worker.model", f"{source}: not a tokenizer file: {error}") from None
    tokenizer.encode_special_tokens = True
    return tokenizer


def _load(path: Path) -> Template:
    try:
        template = msgspec.toml.decode(path.read_bytes(), type=Template)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("worker.prompts", f"{path.name}: {error}") from None
    if bool(template.labels) == bool(template.event_types):
        raise ConfigError("worker.prompts", f"{path.name}: exactly one of labels and event_types must be set")
    if template.labels and set(template.labels) != set(Direction):
        raise ConfigError("worker.prompts", f"{path.name}: labels must name {', '.join(Direction)}")
    for number, example in enumerate(template.examples):
        if template.event_types and example.event_type not in template.event_types:
            reason = f"{path.name}: examples[{number}].event_type {example.event_type!r} is not in event_types"
            raise ConfigError("worker.prompts", reason)
    return template


def _compile(template: Template, tokenizer: Tokenizer, model: str) -> Prompt:
    prefix = _begin_of_sequence(tokenizer) + _ids(tokenizer, template.intro)
    lead, ask, close = (_ids(tokenizer, part) for part in (template.lead, template.ask, template.close))
    # An example is joined from ids at the same seams as a request, so the model sees the pattern it will complete.
    for example in template.examples:
        answer = _ids(tokenizer, template.answer(example.direction, example.event_type))
        prefix += [*lead, *_ids(tokenizer, example.text), *ask, *answer, *close]
    labels = {direction: _label_id(tokenizer, word, model) for direction, word in template.labels.items()}
    if len(set(labels.values())) != len(labels):
        raise ConfigError("worker.model", f"the tokenizer of {model} gives two labels the same token")
    return Prompt(
        template=template,
        prefix=prefix + lead,
        suffix=ask,
        labels=labels,
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
        max_new_tokens=1 if labels else _longest_answer(template, tokenizer),
    )


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _begin_of_sequence(tokenizer: Tokenizer) -> list[int]:
    """Return the special tokens that this model wants in front of any text, if there are any."""
    encoding = tokenizer.encode("a", add_special_tokens=True)
    leading: list[int] = []
    for token_id, special in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
        if not special:
            break
        leading.append(token_id)
    return leading


def _label_id(tokenizer: Tokenizer, word: str, model: str) -> int:
    ids = _ids(tokenizer, word)
    if len(ids) != 1:
        reason = f"label {word!r} is {len(ids)} tokens in the tokenizer of {model}, it must be one"
        raise ConfigError("worker.model", reason)
    return ids[0]


def _longest_answer(template: Template, tokenizer: Tokenizer) -> int:
    answers = (template.answer(direction, event) for direction in Direction for event in template.event_types)
    return max(len(_ids(tokenizer, answer)) for answer in answers) + ANSWER_SLACK_TOKENS
