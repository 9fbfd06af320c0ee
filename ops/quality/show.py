"""What the quality commands print for people."""

from __future__ import annotations

from math import exp

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ops.quality.calibrate import FEW_LABELS, FEW_TEXTS, Outcome
from ops.quality.evaluate import FAILURES_KEPT, Evaluation, Mode
from ops.quality.texts import LineError
from ops.runtime import say
from ops.text import stdout_console, visible

BAD_LINES_KEPT = 20
"""Bad lines that are told one by one."""


def show_bad_lines(bad: list[LineError]) -> None:
    """Say on stderr which lines were passed over."""
    for error in bad[:BAD_LINES_KEPT]:
        say(f"{error}")
    if len(bad) > BAD_LINES_KEPT:
        say(f"and {len(bad) - BAD_LINES_KEPT} more bad lines")


def show_failures(failed: list[str]) -> None:
    """Say on stderr which texts have no answer."""
    for line in failed[:FAILURES_KEPT]:
        say(line)
    if len(failed) > FAILURES_KEPT:
        say(f"and {len(failed) - FAILURES_KEPT} more texts without an answer")


def show_evaluation(found: Evaluation) -> None:
    """Print the figures as tables."""
    console = stdout_console()
    plan = found.plan
    console.print(
        f"{escape(visible(found.model))} {found.model_revision[:12]}, {found.prompt_version}, head {plan.head}: "
        f"{found.n} texts, {len(found.failed)} without an answer, {len(found.bad)} bad lines"
    )
    if len(found.labels) < len(found.head_labels):
        console.print(
            f"The file has only {', '.join(found.labels)} of {', '.join(found.head_labels)}: answers are read over "
            "those alone (--all-labels for the contrary)."
        )
    if plan.mode is Mode.STORED and found.calibration is Mode.NONE:
        console.print("No calibration is stored for this model and prompt: `tapewire calibrate` makes one.")
    _scores(console, found)
    _reliability(console, found)
    latency = Table("label", "texts", "p50 ms", "p99 ms", title="latency by right label", title_justify="left")
    for label, figures in found.latency_ms.items():
        latency.add_row(label, f"{figures['n']:.0f}", f"{figures['p50']:.1f}", f"{figures['p99']:.1f}")
    console.print(latency)
    console.print(
        f"{found.decode_steps_per_item:.2f} engine steps and {found.count.prefill_tokens / found.n:.0f} prefill tokens "
        "per text, by the engine's counters"
    )


def _scores(console: Console, found: Evaluation) -> None:
    how = found.calibration.value + (f" {found.calibration_id}" if found.calibration_id else "")
    table = Table("", "plain label scores", f"calibration: {how}", title="scores", title_justify="left")
    rows = {
        "accuracy": "accuracy",
        "macro-F1": "macro_f1",
        "Brier score": "brier",
        "expected calibration error": "ece",
        "log loss": "log_loss",
    }
    for name, attribute in rows.items():
        table.add_row(name, f"{getattr(found.raw, attribute):.3f}", f"{getattr(found.scores, attribute):.3f}")
    table.add_row("always the most frequent label", f"{found.majority:.3f}", f"{found.majority:.3f}")
    accuracy = "none" if found.covered_accuracy is None else f"accuracy {found.covered_accuracy:.3f}"
    table.add_row(f"confidence ≥ {found.plan.threshold:g}", "", f"{found.covered:.1%} of the texts, {accuracy}")
    console.print(table)


def _reliability(console: Console, found: Evaluation) -> None:
    table = Table("confidence", "texts", "mean confidence", "right", title="reliability", title_justify="left")
    for each in found.bins:
        table.add_row(
            f"{each.low:.1f}-{each.high:.1f}", str(each.count), f"{each.confidence:.3f}", f"{each.accuracy:.3f}"
        )
    console.print(table)


def show_calibration(found: Outcome) -> None:
    """Print what was fitted, what it buys, and how a worker takes it up."""
    console = stdout_console()
    made = found.calibration
    console.print(
        f"{made.id}: {escape(visible(made.model))} {made.model_revision[:12]}, {made.prompt_version}, "
        f"from {made.unlabelled} texts, {made.labelled} labels ({escape(visible(made.source))})"
    )
    table = Table("head", "label", "prior", "temperature", title="priors", title_justify="left")
    for name, head in made.heads.items():
        for number, (label, prior) in enumerate(zip(head.labels, head.log_priors, strict=True)):
            first = number == 0
            table.add_row(
                escape(name) if first else "",
                escape(label),
                f"{exp(prior):.4f}",
                f"{head.temperature:.3f}" if first else "",
            )
    console.print(table)
    if found.before is not None and found.after is not None:
        console.print(
            f"{found.head}, on labels that the temperature has not seen: "
            f"accuracy {found.before.accuracy:.3f} -> {found.after.accuracy:.3f}, "
            f"expected calibration error {found.before.ece:.3f} -> {found.after.ece:.3f}"
        )
    if made.unlabelled < FEW_TEXTS:
        say(f"{made.unlabelled} texts are few for priors; {FEW_TEXTS} and more are better")
    if 0 < made.labelled < FEW_LABELS:
        say(f"{made.labelled} labels are few for a temperature; {FEW_LABELS} and more are better")
    directory = found.path.parent
    console.print(f"wrote {escape(visible(str(found.path)))}", soft_wrap=True)
    console.print(
        f"A worker takes it up at its next start with worker.calibrations = {escape(repr(str(directory)))} in "
        f"tapewire.toml, or TAPEWIRE_WORKER__CALIBRATIONS={escape(visible(str(directory)))}.",
        soft_wrap=True,
    )
