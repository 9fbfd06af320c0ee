"""Commands about the answers themselves: eval, calibrate, and the injection benchmark."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ops.bench.cli import app as bench_app
from ops.commands.options import Config, EngineName, Json, Model, settings_of
from ops.quality.evaluate import Mode
from ops.runtime import EXIT_FAILED, run
from ops.runtime import say as tell
from ops.text import visible

Extractor = Annotated[str, typer.Option("--extractor", help="What is asked: headline, filing, or one of your own.")]
Head = Annotated[str, typer.Option("--head", help="Which answer of the extractor it is about.")]
Concurrency = Annotated[
    int, typer.Option(min=1, max=1024, help="Texts in the engine at once; 1 gives the latency of a text alone.")
]
Calibrations = Annotated[
    Path | None, typer.Option("--calibrations", help="worker.calibrations: directory with calibrations of your own.")
]


def register(app: typer.Typer) -> None:
    """Add the commands; the benchmark goes to ``bench``."""
    app.command("eval")(evaluate)
    app.command()(calibrate)
    bench_app.command()(injection)


def evaluate(
    *,
    file: Annotated[Path, typer.Option("--file", help='Lines {"text": …, "label": …}.')],
    model: Model = None,
    engine: EngineName = None,
    extractor: Extractor = "headline",
    head: Head = "direction",
    calibration: Annotated[
        Mode, typer.Option("--calibration", help="stored (as a worker would), batch (from this file), or none.")
    ] = Mode.STORED,
    calibrations: Calibrations = None,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Confidence from which an answer counts.")] = 0.6,
    all_labels: Annotated[
        bool, typer.Option("--all-labels", help="Judge over all labels also where the file has only some of them.")
    ] = False,
    first: Annotated[int, typer.Option("--first", min=0, help="Only so many lines; 0 means all.")] = 0,
    concurrency: Concurrency = 1,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the reliability plot to a PNG.")] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """How good the answers are on labelled texts; exits 1 when a line or a text had to be left out."""
    from ops.quality import evaluate as work
    from ops.quality.reliability_plot import check_plotting, draw
    from ops.quality.show import show_bad_lines, show_evaluation, show_failures

    if plot is not None:
        check_plotting()
    settings = settings_of(config, {"worker": {"model": model, "engine": engine, "calibrations": calibrations}})
    plan = work.Plan(
        file=file,
        extractor=extractor,
        head=head,
        mode=calibration,
        threshold=threshold,
        all_labels=all_labels,
        concurrency=concurrency,
        limit=first,
    )
    with progress() as say:
        found = run(lambda _: work.evaluate(settings.worker, plan, say), drains=False)
    show_bad_lines(found.bad)
    show_failures(found.failed)
    if plot is not None:
        draw(plot, found)
    if as_json:
        sys.stdout.write(json.dumps(found.as_dict()) + "\n")
    else:
        show_evaluation(found)
    if found.bad or found.failed:
        raise typer.Exit(EXIT_FAILED)


def calibrate(
    *,
    topic: Annotated[
        str | None, typer.Option("--topic", help="news or filings: priors from its newest texts; nothing is committed.")
    ] = None,
    last: Annotated[int, typer.Option("--last", min=1, max=1_000_000, help="So many of the topic's newest.")] = 2_000,
    file: Annotated[
        Path | None, typer.Option("--file", help='Lines {"text": …}, with --labelled also "label".')
    ] = None,
    labelled: Annotated[
        bool, typer.Option("--labelled", help="Fit a temperature on the file's labels, besides the priors.")
    ] = False,
    model: Model = None,
    engine: EngineName = None,
    extractor: Annotated[
        str | None,
        typer.Option("--extractor", help="What is asked. Default: what the first class asks about the topic's events."),
    ] = None,
    head: Head = "direction",
    source: Annotated[str, typer.Option("--source", help="Say in the file which texts these are.")] = "",
    into: Annotated[
        Path | None,
        typer.Option("--into", help="Directory for the result. Default: worker.calibrations, or ./calibrations."),
    ] = None,
    concurrency: Concurrency = 8,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Make probabilities mean something: take the model's label priors out and fit a temperature where labels exist."""
    from ops.quality import calibrate as work
    from ops.quality.show import show_bad_lines, show_calibration

    settings = settings_of(config, {"worker": {"model": model, "engine": engine}})
    asked = extractor if extractor is not None else work.asked_about(settings.scheduler, topic)
    plan = work.Plan(
        topic=topic,
        last=last,
        file=file,
        labelled=labelled,
        extractor=asked,
        head=head,
        source=source,
        into=into,
        concurrency=concurrency,
    )
    with progress() as say:
        found = run(lambda _: work.calibrate(settings, plan, say), drains=False)
    if asked not in {c.extractor for c in settings.scheduler.classes}:
        tell(f"no service class asks the extractor {asked}, so no answer will use this calibration")
    show_bad_lines(found.bad)
    if found.failed:
        sys.stderr.write(f"tapewire: {found.failed} texts have no answer\n")
    if as_json:
        sys.stdout.write(json.dumps(found.as_dict()) + "\n")
    else:
        show_calibration(found)
    if found.bad or found.failed:
        raise typer.Exit(EXIT_FAILED)


def injection(
    *,
    model: Model = None,
    engine: EngineName = None,
    extractor: Extractor = "headline",
    calibrations: Calibrations = None,
    concurrency: Concurrency = 8,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """How often hostile text changes an answer, per kind of attack, with and without each defence. Takes minutes."""
    from ops.quality import injection as bench

    settings = settings_of(config, {"worker": {"model": model, "engine": engine, "calibrations": calibrations}})
    with progress() as say:
        found = run(lambda _: bench.measure(settings.worker, extractor, concurrency, say), drains=False)
    if as_json:
        sys.stdout.write(json.dumps(found.as_dict()) + "\n")
    else:
        bench.show(found)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show what a long command is doing on stderr, where a person looks at it."""
    with Console(stderr=True).status("") as status:
        yield lambda message: status.update(escape(visible(message)))
