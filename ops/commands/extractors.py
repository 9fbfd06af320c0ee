"""Commands about extractors: ``tapewire extractors ls | check``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ops.commands.options import Config, EngineName, Json, Model, settings_of
from ops.config import Settings
from ops.runtime import EXIT_FAILED, run
from ops.text import stdout_console, visible

extractors_app = typer.Typer(no_args_is_help=True, help="What is asked about a text: list and check extractors.")

Own = Annotated[
    Path | None, typer.Option("--extractors", help="worker.extractors: directory with extractor files of your own.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(extractors_app, name="extractors")


def _settings(config: Path | None, **worker: Any) -> Settings:
    given = {name: str(value) for name, value in worker.items() if value is not None}
    return settings_of(config, {"worker": given} if given else None)


@extractors_app.command("ls")
def ls(*, extractors: Own = None, as_json: Json = False, config: Config = None) -> None:
    """List the shipped extractors and your own, with their heads and labels."""
    from ops.extractors import listed

    found = listed(_settings(config, extractors=extractors))
    if as_json:
        sys.stdout.write(json.dumps([each.as_dict() for each in found]) + "\n")
        return
    table = Table("extractor", "version", "classes", "answer", "heads")
    for each in found:
        heads = "\n".join(f"{head}: {', '.join(labels)}" for head, labels in each.heads.items())
        table.add_row(each.name, each.version, ", ".join(each.classes) or "-", each.answer, escape(heads))
    stdout_console().print(table)


@extractors_app.command("check")
def check(
    *,
    model: Model = None,
    engine: EngineName = None,
    extractors: Own = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Whether a model can answer every extractor: labels of one token, grammars, names; exits 1 when not."""
    from ops import extractors as work

    # Who names a model wants to know about that model; the simulated engine would not look at it.
    engine = engine or ("vllm" if model is not None else None)
    settings = _settings(config, model=model, engine=engine, extractors=extractors)
    with Console(stderr=True).status("") as status:
        result = run(
            lambda _: work.check(settings, lambda state, detail: status.update(escape(f"{state.value} {detail}"))),
            drains=False,
        )
    if as_json:
        sys.stdout.write(json.dumps(result.as_dict()) + "\n")
    else:
        table = Table("extractor", "prompt", "shared", "answer", "", title=f"under {escape(visible(result.model))}")
        for each in result.extractors:
            numbers = ("", "", "") if each.problem else (each.prompt_tokens, each.shared_tokens, each.answer_tokens)
            verdict = f"{visible(each.file)}: {visible(each.problem)}" if each.problem else "ok"
            table.add_row(each.name, *(str(number) for number in numbers), escape(verdict))
        stdout_console().print(table, "prompts and answers in tokens")
        if not result.grammars:
            sys.stdout.write("grammars not checked: that takes vLLM\n")
        for name in result.missing:
            sys.stdout.write(f"a service class names the extractor {visible(name)!r}, which there is not\n")
    if not result.passed:
        raise typer.Exit(EXIT_FAILED)
