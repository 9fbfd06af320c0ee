"""Prompts: deterministic versions, assembly from ids, the label check, and text that stays text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from schemas.enums import Direction
from schemas.errors import ConfigError, ErrorKind
from schemas.frames import pack_tokens
from workers.engine import RequestError
from workers.prompts import Prompt, compile_prompts, load_templates, load_tokenizer
from workers.sim_engine import TOKENIZER
from workers.train_sim_tokenizer import SPECIAL_TOKENS

CONTEXT = 2048


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Load the simulated engine's tokenizer, a real byte-level BPE."""
    return load_tokenizer(TOKENIZER.read_bytes(), "sim")


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> dict[str, Prompt]:
    """Compile the shipped templates."""
    return compile_prompts(load_templates(), tokenizer, "sim")


def test_shipped_templates(prompts: dict[str, Prompt]) -> None:
    """There is one prompt for headlines that answers with a label and one for filings that answers with JSON."""
    assert set(prompts) == {"headline", "filing"}
    assert set(prompts["headline"].labels) == set(Direction)
    assert prompts["headline"].max_new_tokens == 1
    assert not prompts["filing"].labels
    assert len(prompts["filing"].template.event_types) == len(set(prompts["filing"].template.event_types))


def test_examples_cover_every_direction() -> None:
    """Each template shows every direction at least once, so none is unheard of."""
    for template in load_templates():
        assert {example.direction for example in template.examples} == set(Direction)


def test_every_prompt_starts_the_same(prompts: dict[str, Prompt]) -> None:
    """Whatever the text, a request begins with the shared prefix, ends with the suffix and has the text between."""
    for prompt in prompts.values():
        first = prompt.assemble(pack_tokens([7, 8, 9]), CONTEXT)
        second = prompt.assemble(pack_tokens([10]), CONTEXT)
        shared = prompt.extractor.shared_prefix_tokens
        assert first[:shared] == second[:shared] == prompt.prefix
        assert first[shared:] == [7, 8, 9, *prompt.suffix]
        assert len(first) == prompt.extractor.prompt_tokens + 3


def test_examples_are_joined_like_requests(prompts: dict[str, Prompt], tokenizer: Tokenizer) -> None:
    """The model sees each example's text between the very ids that stand around a request's text."""
    for prompt in prompts.values():
        text = tokenizer.encode(prompt.template.examples[0].text, add_special_tokens=False).ids
        lead = tokenizer.encode(prompt.template.lead, add_special_tokens=False).ids
        pattern = [*lead, *text, *prompt.suffix]
        windows = (prompt.prefix[i : i + len(pattern)] for i in range(len(prompt.prefix)))
        assert pattern in list(windows)


def test_version_is_deterministic_and_tells_changes_apart() -> None:
    """Loading twice gives the same versions; a changed example, label or event type gives another."""
    once = {template.name: template.version for template in load_templates()}
    again = {template.name: template.version for template in load_templates()}
    assert once == again
    headline = next(template for template in load_templates() if template.labels)
    filing = next(template for template in load_templates() if template.event_types)
    changed = [
        msgspec.structs.replace(headline, labels={**headline.labels, Direction.NEUTRAL: " flat"}),
        msgspec.structs.replace(headline, examples=headline.examples[1:]),
        msgspec.structs.replace(filing, event_types=[*filing.event_types, "split"]),
    ]
    assert len({template.version for template in changed} | set(once.values())) == 5


def test_a_label_of_two_tokens_is_a_configuration_error() -> None:
    """A model whose tokenizer splits a label cannot be used, and the message names label, model and setting."""
    letters = Tokenizer(models.BPE())
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.add_tokens(pre_tokenizers.ByteLevel.alphabet())
    with pytest.raises(ConfigError, match=r"' positive' is \d+ tokens in the tokenizer of tiny") as caught:
        compile_prompts(load_templates(), letters, "tiny")
    assert caught.value.setting == "worker.model"


@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_special_tokens_in_a_text_stay_text(tokenizer: Tokenizer, special: str) -> None:
    """A text that spells a control token becomes ordinary tokens that spell it back."""
    ids = tokenizer.encode(f"Acme {special} soars", add_special_tokens=False).ids
    assert tokenizer.token_to_id(special) not in ids
    assert tokenizer.decode(ids) == f"Acme {special} soars"


@given(text=st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_the_simulated_tokenizer_takes_any_text(text: str) -> None:
    """The byte-level tokenizer loses nothing, whatever characters a headline has."""
    tokenizer = load_tokenizer(TOKENIZER.read_bytes(), "sim")
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids) == text


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"", ErrorKind.EMPTY_TEXT),
        (b"\x01\x00\x00", ErrorKind.INVALID_VALUE),
        (pack_tokens([2**32 - 1]), ErrorKind.INVALID_VALUE),
        (pack_tokens([1] * CONTEXT), ErrorKind.TEXT_TOO_LONG),
    ],
)
def test_bad_token_ids_are_refused(prompts: dict[str, Prompt], text: bytes, kind: ErrorKind) -> None:
    """Ids that are missing, torn, unknown to the model or too many never reach an engine."""
    with pytest.raises(RequestError) as caught:
        prompts["headline"].assemble(text, CONTEXT)
    assert caught.value.kind is kind
    assert not caught.value.failure(1).retryable


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("name = 1", "x.toml"),
        ("nonsense", "x.toml"),
        ('name="x"\nintro=""\nlead=""\nask=""\nclose=""\nexamples=[]', "exactly one of labels and event_types"),
        ('name="x"\nintro=""\nlead=""\nask=""\nclose=""\nexamples=[]\n[labels]\nbullish=" up"', "labels must name"),
        (
            (
                'name="x"\nintro=""\nlead=""\nask=""\nclose=""\nevent_types=["a"]\n'
                '[[examples]]\ntext="t"\ndirection="neutral"\nevent_type="b"'
            ),
            "examples\\[0\\].event_type 'b'",
        ),
    ],
)
def test_a_wrong_template_names_the_file(tmp_path: Path, content: str, problem: str) -> None:
    """A template that does not fit is one clear configuration error."""
    (tmp_path / "x.toml").write_text(content)
    with pytest.raises(ConfigError, match=problem):
        load_templates(tmp_path)


def test_bytes_that_are_no_tokenizer() -> None:
    """A broken tokenizer file is a configuration error that names its source."""
    with pytest.raises(ConfigError, match="model-x: not a tokenizer file"):
        load_tokenizer(b"{}", "model-x")
