"""Prompts: extractors compiled once to token ids, around which only the text changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from schemas.errors import ConfigError, ErrorKind, TapewireError
from schemas.frames import TOKEN_BYTES, Extractor, TokenIds, unpack_tokens
from workers.answer_words import AnswerWords
from workers.engine import RequestError
from workers.extractor_files import DIRECTION, ExtractorFile, Head, Template

ANSWER_SLACK_TOKENS = 12
"""Room beyond the longest JSON answer as the tokenizer would write it: the grammar allows other splits, and the end of
the sequence is a token too."""


class ExtractorError(TapewireError):
    """An extractor does not work with this model; the others may.

    Args:
        path: its file.
        reason: what does not fit, with head, label and model.
    """

    def __init__(self, path: Path, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """One extractor under one tokenizer.

    Args:
        path: its file.
        version: see `Template.version`.
        prefix: ids of the static part before the text: the same for every request, so prefix caching hits.
        suffix: ids of what follows the text.
        heads: per head and label the id of the token that says it; empty for a JSON answer.
        vocab_size: ids from here on do not exist in the model.
        max_new_tokens: longest answer, in tokens.
        answer_words: what is hidden in a text; none where the extractor does not want it.
    """

    path: Path
    template: Template
    version: str
    prefix: list[int]
    suffix: list[int]
    heads: dict[str, dict[str, int]]
    vocab_size: int
    max_new_tokens: int
    answer_words: AnswerWords | None = None

    @property
    def name(self) -> str:
        """The extractor's name."""
        return self.template.name

    @property
    def label_ids(self) -> list[int]:
        """Every token that an answer of label tokens may have, each once."""
        return sorted({token_id for labels in self.heads.values() for token_id in labels.values()})

    @property
    def grammar(self) -> str:
        """EBNF of an answer of label tokens: one word of each head, in the order of the heads."""
        heads = self.template.heads
        rules = [f"root ::= {' '.join(f'head{number}' for number in range(len(heads)))}"]
        rules += [
            f"head{number} ::= {' | '.join(json.dumps(word) for word in head.labels.values())}"
            for number, head in enumerate(heads)
        ]
        return "\n".join(rules)

    @property
    def extractor(self) -> Extractor:
        """What the scheduler has to know."""
        return Extractor(
            name=self.template.name,
            prompt_version=self.version,
            prompt_tokens=len(self.prefix) + len(self.suffix),
            shared_prefix_tokens=len(self.prefix),
            max_new_tokens=self.max_new_tokens,
            heads=self.template.labels,
            chunk_tokens=self.template.chunk_tokens,
            overlap_tokens=self.template.overlap_tokens,
        )

    def assemble(self, text: TokenIds, max_model_len: int) -> list[int]:
        """Put the prompt around a text, its answer words hidden; as many ids as the scheduler counted.

        Args:
            text: packed ids, as the request frame carries them.
            max_model_len: prompt plus answer, in tokens.

        Raises:
            RequestError: the text is empty, longer than the context or holds ids that the model does not have.
        """
        if len(text) % TOKEN_BYTES:
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
        if self.answer_words is not None:
            ids = self.answer_words.hide(ids)
        return [*self.prefix, *ids, *self.suffix]


def compile_prompt(file: ExtractorFile, tokenizer: Tokenizer, model: str, *, exact: bool = True) -> Prompt:
    """Compile an extractor under a model's tokenizer.

    Args:
        file: the extractor.
        tokenizer: the model's.
        model: its name, for the error.
        exact: each label must be one token. An engine that only imitates a model does without.

    Raises:
        ExtractorError: the tokenizer has no single token for a label.
    """
    template = file.template
    prefix = _begin_of_sequence(tokenizer) + _ids(tokenizer, template.intro)
    lead, ask, close = (_ids(tokenizer, part) for part in (template.lead, template.ask, template.close))
    # An example is joined from ids at the same seams as a request, so the model sees the pattern it will complete.
    for example in template.examples:
        answer = [token_id for piece in template.answer(example.answer) for token_id in _ids(tokenizer, piece)]
        prefix += [*lead, *_ids(tokenizer, example.text), *ask, *answer, *close]
    heads = _label_ids(file, tokenizer, model) if exact else _first_ids(template.heads, tokenizer)
    return Prompt(
        path=file.path,
        template=template,
        version=template.version,
        prefix=prefix + lead,
        suffix=ask,
        heads=heads,
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
        max_new_tokens=len(heads) if heads else _longest_object(template, tokenizer),
        answer_words=AnswerWords(tokenizer, _direction_words(template)) if template.hide_answer_words else None,
    )


def compile_prompts(
    files: Iterable[ExtractorFile], tokenizer: Tokenizer, model: str, *, exact: bool = True
) -> tuple[dict[str, Prompt], list[ExtractorError]]:
    """Compile extractors, by name; those that do not fit the model come back as errors."""
    prompts: dict[str, Prompt] = {}
    refused: list[ExtractorError] = []
    for file in files:
        try:
            prompts[file.template.name] = compile_prompt(file, tokenizer, model, exact=exact)
        except ExtractorError as error:
            refused.append(error)
    return prompts, refused


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


def _label_ids(file: ExtractorFile, tokenizer: Tokenizer, model: str) -> dict[str, dict[str, int]]:
    """Find each label's token where it will stand: behind the question and the answers to the heads before it."""
    before = file.template.ask
    found: dict[str, dict[str, int]] = {}
    for head in file.template.heads:
        found[head.name] = {}
        known = _ids(tokenizer, before)
        for label, word in head.labels.items():
            ids = _ids(tokenizer, before + word)
            alone = _ids(tokenizer, word)
            if len(alone) != 1 or ids != [*known, *alone]:
                where = f"head {head.name}, label {label!r}"
                reason = f"{where}: {word!r} is the tokens {alone} in the tokenizer of {model}"
                if len(alone) == 1:
                    reason += f", but {ids[-3:]} where it stands, which is behind {known[-2:]}"
                raise ExtractorError(file.path, f"{reason}; it must be exactly one token there")
            found[head.name][label] = alone[0]
        if len(set(found[head.name].values())) != len(head.labels):
            reason = f"head {head.name}: the tokenizer of {model} gives two labels the same token"
            raise ExtractorError(file.path, reason)
        before += next(iter(head.labels.values()))
    return found


def _direction_words(template: Template) -> Iterable[str]:
    """Return the words that answer the direction, which is what an attack is after."""
    if not template.heads:
        return template.labels[DIRECTION]
    return next(head.labels.values() for head in template.heads if head.name == DIRECTION)


def _first_ids(heads: Iterable[Head], tokenizer: Tokenizer) -> dict[str, dict[str, int]]:
    return {head.name: {label: _ids(tokenizer, word)[0] for label, word in head.labels.items()} for head in heads}


def _longest_object(template: Template, tokenizer: Tokenizer) -> int:
    longest = {
        name: max(labels, key=lambda label: len(_ids(tokenizer, label))) for name, labels in template.labels.items()
    }
    return len(_ids(tokenizer, template.answer(longest)[0])) + ANSWER_SLACK_TOKENS
