"""The commands for dead letters: list them, look at one, send them again, or leave them."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from ops.commands.options import Config, Json, settings_of
from ops.runtime import EXIT_FAILED, interruptible, run, say
from schemas.errors import ConfigError
from schemas.settings import SchedulerSettings

dlq_app = typer.Typer(no_args_is_help=True, help="List, show, retry and drop dead letters.")

Kind = Annotated[str, typer.Option("--kind", help="Only letters of this error kind, for example bad_answer.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Letters, as `tapewire dlq ls` prints their ids.")]
AllOpen = Annotated[bool, typer.Option("--all-open", help="Every open letter.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(dlq_app, name="dlq")


@dlq_app.command("ls")
def dlq_ls(
    *,
    kind: Kind = "",
    source: Annotated[str, typer.Option(help="Only letters from this input topic: news or filings.")] = "",
    since: Annotated[str | None, typer.Option(help="Only letters of the last 2h, 7d …, or since a time.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="List at most this many, the newest.")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="Also letters that are handled.")] = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """List dead letters, the newest first, and count them by kind."""
    settings = settings_of(config)
    from ops.dlq_view import Filter, check_filter, show_list, since_ms

    wanted = Filter(kind=kind, source=source, since_ms=since_ms(since, time.time()), handled=everything)
    check_filter(settings.kafka, wanted)
    run(lambda _: show_list(settings.kafka, wanted, limit, as_json=as_json), drains=False)


@dlq_app.command("show")
def dlq_show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="The letter, as `tapewire dlq ls` prints its id.")],
    *,
    raw: Annotated[bool, typer.Option("--raw", help="Write the exact bytes of the value and nothing else.")] = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Show one dead letter: its headers and its value."""
    settings = settings_of(config)
    from ops.dlq_letters import parse_id
    from ops.dlq_view import show_one

    letter_id = parse_id(letter)
    run(lambda _: show_one(settings.kafka, letter_id, as_json=as_json, raw=raw), drains=False)


@dlq_app.command("retry")
def dlq_retry(
    ids: Ids = None,
    *,
    kind: Kind = "",
    all_open: AllOpen = False,
    now: Annotated[bool, typer.Option("--now", help="Let the events count as received now, not as then.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Publish originals to their input topics again, and mark the letters as handled."""
    _handle(ids, kind, config, all_open=all_open, retries=True, now=now, dry_run=dry_run, yes=yes, as_json=as_json)


@dlq_app.command("drop")
def dlq_drop(
    ids: Ids = None,
    *,
    kind: Kind = "",
    all_open: AllOpen = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Mark letters as handled without publishing anything."""
    _handle(ids, kind, config, all_open=all_open, retries=False, now=False, dry_run=dry_run, yes=yes, as_json=as_json)


def _handle(
    ids: list[str] | None,
    kind: str,
    config: Config,
    *,
    all_open: bool,
    retries: bool,
    now: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    settings = settings_of(config)
    from ops.dlq import Choice, Desk, check_choice, print_plan, print_refusals
    from ops.dlq_letters import parse_id
    from ops.dlq_view import Filter, check_filter

    chosen = tuple(dict.fromkeys(parse_id(text) for text in ids or ()))
    check_choice(chosen, kind, everything=all_open)
    wanted = Filter(kind=kind)
    check_filter(settings.kafka, wanted)
    desk = Desk(settings.kafka, retries=retries, now=now)
    plan = run(lambda _: desk.plan(Choice(ids=chosen, wanted=wanted)), drains=False)
    if plan.chosen and not dry_run and not yes and not sys.stdin.isatty():
        raise _nobody(len(plan.chosen))
    if retries and not now and plan.chosen and (ages := _toxic_ages(settings.scheduler)):
        say(f"events keep the time they were received, so what is too old expires at once: {ages}")
        say("--now lets them count as received now")
    if dry_run:
        print_plan(plan, as_json=as_json)
        raise typer.Exit(EXIT_FAILED if plan.refused else 0)
    done = 0
    if plan.chosen and (yes or _agreed(len(plan.chosen), "retry" if retries else "drop", len(plan.refused))):
        total = len(plan.chosen)
        done = run(lambda stop: desk.carry_out(plan, stop, as_json=as_json))
        say(f"{done} of {total} dead letters {'retried' if retries else 'dropped'}")
        if done + len(plan.refused) < total:
            say("stopped; the rest stays open")
    elif not plan.chosen and not plan.refused:
        say("there is no such open dead letter")
    print_refusals(plan, as_json=as_json)
    raise typer.Exit(EXIT_FAILED if plan.refused else 0)


def _agreed(count: int, what: str, refused: int) -> bool:
    interruptible()
    but = f" ({refused} more cannot be)" if refused else ""
    try:
        return typer.confirm(f"{what} {count} dead letters{but}?", err=True)
    except typer.Abort:
        # The end of the input; Ctrl-C is `Interrupted`.
        raise _nobody(count) from None


def _nobody(count: int) -> ConfigError:
    reason = f"{count} dead letters are meant, and nobody can be asked: give --yes, or --dry-run to look"
    return ConfigError("--yes", reason)


def _toxic_ages(scheduler: SchedulerSettings) -> str:
    return ", ".join(f"{c.name} after {c.toxic_ms:g} ms" for c in scheduler.classes if c.toxic_ms is not None)
