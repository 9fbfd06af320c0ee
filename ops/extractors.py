"""What extractors there are, and whether a model can answer them: the work behind ``tapewire extractors``."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import dataclass, field
from typing import Any

from ops.config import Settings
from scheduler.workers import MIN_TEXT_TOKENS as SCHEDULERS_MIN_TEXT_TOKENS
from schemas.settings import WorkerSettings
from workers.engine import OnState
from workers.extractor_files import ExtractorFile, load_extractors
from workers.models import resolve_model
from workers.prompts import ExtractorError, Prompt, compile_prompt, load_tokenizer
from workers.sim_engine import NAME as SIM
from workers.sim_engine import TOKENIZER
from workers.vllm_engine import MIN_TEXT_TOKENS, check_context, prepare_environment


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One extractor as its file says it.

    Args:
        classes: service classes of the configuration that ask it.
    """

    name: str
    version: str
    file: str
    heads: dict[str, list[str]]
    answer: str
    classes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """One extractor under one model.

    Args:
        prompt_tokens: of the prompt without the text.
        shared_tokens: of its front, which every request shares.
        answer_tokens: longest answer, each a decode step.
        problem: why it does not work; empty when it does.
    """

    name: str
    file: str
    prompt_tokens: int = 0
    shared_tokens: int = 0
    answer_tokens: int = 0
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """All extractors under one model.

    Args:
        grammars: whether the grammars were checked too, which takes vLLM.
        missing: extractors that service classes name and that there are not.
    """

    model: str
    extractors: list[Checked]
    grammars: bool
    missing: list[str]

    @property
    def passed(self) -> bool:
        """Whether every extractor works and every class has its own."""
        return not self.missing and not any(each.problem for each in self.extractors)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "model": self.model,
            "passed": self.passed,
            "grammars_checked": self.grammars,
            "missing": self.missing,
            "extractors": [each.as_dict() for each in self.extractors],
        }


def listed(settings: Settings) -> list[Listed]:
    """Return the shipped extractors and the user's.

    Raises:
        ConfigError: a file is not an extractor.
    """
    return [
        Listed(
            name=file.template.name,
            version=file.template.version,
            file=str(file.path),
            heads=file.template.labels,
            answer="labels" if file.template.heads else "json",
            classes=[c.name for c in settings.scheduler.classes if c.extractor == file.template.name],
        )
        for file in load_extractors(settings.worker.extractors)
    ]


async def check(settings: Settings, on_state: OnState) -> Check:
    """Compile every extractor under the model of the settings; its weights are not loaded.

    Args:
        settings: model, engine and the directory of the user's extractors.
        on_state: told what takes long.

    Raises:
        ConfigError: a file is not an extractor, the model is wrong, or its context is shorter than
            ``worker.max_model_len``.
        UnavailableError: the model is missing.
    """
    files = load_extractors(settings.worker.extractors)
    if settings.worker.engine == SIM:
        model: str = SIM
        tokenizer = load_tokenizer(TOKENIZER.read_bytes(), str(TOKENIZER))
    else:
        found = await resolve_model(settings.worker.model, on_state)
        model, tokenizer = found.name, load_tokenizer(found.tokenizer_json, str(found.directory))
        check_context(settings.worker, found, {})
    exact = settings.worker.engine != SIM
    grammars = exact and importlib.util.find_spec("vllm") is not None
    checked: list[Checked] = []
    for file in files:
        try:
            prompt = compile_prompt(file, tokenizer, model, exact=exact)
        except ExtractorError as error:
            checked.append(_refused(file, error.reason))
            continue
        problem = _length_problem(prompt, settings.worker)
        if not problem and grammars:
            problem = await asyncio.to_thread(_grammar_problem, prompt)
        checked.append(_refused(file, problem) if problem else _passed(prompt))
    names = {file.template.name for file in files}
    missing = sorted({c.extractor for c in settings.scheduler.classes} - names)
    return Check(model=model, extractors=checked, grammars=grammars, missing=missing)


def _length_problem(prompt: Prompt, worker: WorkerSettings) -> str | None:
    # vLLM's worker does not start below its least text; of the simulated one the scheduler leaves the extractor out.
    text = SCHEDULERS_MIN_TEXT_TOKENS if worker.engine == SIM else MIN_TEXT_TOKENS
    fixed, answer = prompt.extractor.prompt_tokens, prompt.max_new_tokens
    if fixed + answer + text <= worker.max_model_len:
        return None
    parts = f"prompt {fixed} + answer {answer} + at least {text} of text"
    return f"{parts} = {fixed + answer + text} tokens; worker.max_model_len is {worker.max_model_len}"


def _grammar_problem(prompt: Prompt) -> str | None:
    prepare_environment()
    from workers.vllm_backend import grammar_problem

    return grammar_problem(prompt)


def _refused(file: ExtractorFile, problem: str) -> Checked:
    return Checked(name=file.template.name, file=str(file.path), problem=problem)


def _passed(prompt: Prompt) -> Checked:
    extractor = prompt.extractor
    return Checked(
        name=extractor.name,
        file=str(prompt.path),
        prompt_tokens=extractor.prompt_tokens,
        shared_tokens=extractor.shared_prefix_tokens,
        answer_tokens=extractor.max_new_tokens,
    )
