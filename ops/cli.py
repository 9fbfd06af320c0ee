"""The ``tapewire`` command."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from ops.bench.cli import app as bench_app
from ops.commands import data, dlq, extractors, look, plan, quality, services
from ops.commands.options import DEBUG_FLAG, debugging
from ops.runtime import Forced, Interrupted, exit_code_of, interruptible, leave
from ops.streams import OutputError, prepare_streams, silence_stdout
from ops.supervisor import die_with_parent

app = typer.Typer(
    name="tapewire",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (services, data, dlq, look, plan, quality, extractors):
    module.register(app)
app.add_typer(bench_app, name="bench")


def _print_version(*, wanted: bool) -> None:
    if wanted:
        try:
            found = version("tapewire")
        except PackageNotFoundError:
            found = "(not installed)"
        sys.stdout.write(f"tapewire {found}\n")
        raise typer.Exit


@app.callback()
def _root(
    *,
    debug: Annotated[bool, typer.Option(DEBUG_FLAG, help="Tracebacks and debug logs.")] = False,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=lambda value: _print_version(wanted=value),
        ),
    ] = False,
) -> None:
    """News and SEC filings on Kafka in, trading signals out, each inside its deadline."""


def main() -> None:
    """Run the command line; every error becomes a message and an exit code here."""
    prepare_streams()
    die_with_parent()
    interruptible()
    try:
        try:
            app(prog_name="tapewire")
        except SystemExit as ended:
            # An exit hook of torch's or vLLM's has nothing to save; they took 3.7 s after `eval`'s last line.
            if "torch" in sys.modules and isinstance(ended.code, int | None):
                leave(ended.code or 0)
            raise
        finally:
            # Here, where a failure can still be told: the interpreter's own flush at its end only prints a traceback.
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone (`tapewire tail signals | head`); nothing is wrong.
        silence_stdout()
        sys.exit(0)
    except OutputError as error:
        silence_stdout()
        sys.exit(exit_code_of(error, debug=debugging()))
    except (Exception, asyncio.CancelledError, Interrupted, Forced) as error:  # noqa: BLE001 - the one place that ends every error
        sys.exit(exit_code_of(error, debug=debugging()))
