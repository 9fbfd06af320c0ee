"""The command that answers how much fits: ``tapewire capacity``."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from ops.commands.options import Config, Json, settings_of
from ops.runtime import run


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(capacity)


def capacity(
    *,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Engine profile: a name, or a .toml file. Default: h100-8b.")
    ] = None,
    worker: Annotated[
        str | None, typer.Option("--worker", help="A running worker's id: use the model fitted to its steps instead.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=100_000, help="Number of such workers.")] = 1,
    slo_ms: Annotated[float | None, typer.Option(min=1, help="Flash SLO; the configuration's own.")] = None,
    burst: Annotated[int, typer.Option(min=1, help="Headlines at one moment that must all be in time.")] = 1,
    flash_rate: Annotated[float, typer.Option(min=0, help="Headlines per second that must be in time.")] = 0.0,
    headline_tokens: Annotated[int, typer.Option(min=1, help="Longest headline.")] = 128,
    filing_tokens: Annotated[int, typer.Option(min=1, help="Mean text of a filing's section.")] = 1280,
    filing_output: Annotated[int, typer.Option(min=1, help="Tokens of its answer.")] = 128,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Which flash rate and burst fit the SLO on N workers, what that leaves for bulk, and which budget binds."""
    from ops import capacity as sums
    from ops.capacity_report import as_dict, from_profile, from_status, table
    from schemas.errors import ConfigError

    if profile and worker:
        raise ConfigError("--worker", "a profile and a running worker are two answers; give one of them")
    settings = settings_of(config)
    scheduler = settings.scheduler
    flash = scheduler.classes[0]
    traffic = sums.Traffic(
        slo_ms=slo_ms if slo_ms is not None else flash.slo_ms,
        headline_tokens=headline_tokens,
        filing_tokens=filing_tokens,
        filing_output=filing_output,
        floor=sum(c.floor for c in scheduler.classes[1:]),
        burst=burst,
        flash_per_s=flash_rate,
    )
    model = (
        run(lambda _: from_status(settings, worker), drains=False)
        if worker
        else from_profile(profile or "h100-8b", scheduler)
    )
    answer = sums.capacity(model, traffic, workers)
    if as_json:
        sys.stdout.write(json.dumps(as_dict(answer, traffic)) + "\n")
    else:
        table(answer, traffic)
