"""Commands that look at things: doctor, latency, the effective configuration, schemas, link keys."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ops.commands.options import Config, Json, settings_of
from ops.config import as_values
from ops.runtime import EXIT_USER, run
from ops.toml import dump_toml
from schemas.errors import ConfigError

config_app = typer.Typer(no_args_is_help=True, help="Show the configuration.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(doctor)
    app.command()(latency)
    app.add_typer(config_app, name="config")
    app.command()(schema)
    app.command()(keys)


def doctor(*, as_json: Json = False, config: Config = None) -> None:
    """Check Kafka, Redis, engine, model and configuration; say what is wrong and how to mend it."""
    from ops.doctor import examine

    if not run(lambda _: examine(config, as_json=as_json), drains=False):
        raise typer.Exit(EXIT_USER)


def latency(
    *,
    last: Annotated[int, typer.Option(min=1, help="Look at this many of the newest outcomes.")] = 10_000,
    event: Annotated[str | None, typer.Option(help="Show the path of one event id.")] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Latency per class and stage (p50, p90, p99), from the stamps in Redis."""
    settings = settings_of(config)
    from ops.latency import report

    run(lambda _: report(settings, last=last, event=event, as_json=as_json), drains=False)


@config_app.command("show")
def config_show(*, as_json: Json = False, config: Config = None) -> None:
    """Print the effective configuration, secrets masked."""
    values = as_values(settings_of(config), secrets=False)
    sys.stdout.write(json.dumps(values) + "\n" if as_json else dump_toml(values))


def schema(name: Annotated[str, typer.Argument(help="news-event, filing-event, signal, expired or stamps.")]) -> None:
    """Print the JSON Schema of a record."""
    from msgspec import Struct

    from schemas import records

    known: dict[str, type[Struct]] = {
        "news-event": records.NewsEvent,
        "filing-event": records.FilingEvent,
        "signal": records.Signal,
        "expired": records.Expired,
        "stamps": records.StampEntry,
    }
    record = known.get(name)
    if record is None:
        raise ConfigError("NAME", f"{name!r} is no record; there are {', '.join(known)}")
    sys.stdout.write(json.dumps(records.json_schema(record), indent=2) + "\n")


def keys(directory: Annotated[Path, typer.Argument(help="Directory to keep the keys in.")]) -> None:
    """Make the CURVE key pairs that a worker link beyond this host needs."""
    from schemas.curve import create_keys

    try:
        written = create_keys(directory)
    except OSError as error:
        raise ConfigError("DIRECTORY", f"{directory}: {error.strerror or error}") from None
    for path in written:
        sys.stdout.write(f"{path}\n")
    if not written:
        sys.stderr.write("tapewire: the keys are there already\n")
