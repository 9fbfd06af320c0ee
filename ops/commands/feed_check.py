"""``tapewire feed check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.commands.options import Config, Json, needs_extra, settings_of
from ops.runtime import run
from schemas.codec import Limits


def register(feed_app: typer.Typer) -> None:
    """Add the command."""
    feed_app.command("check")(feed_check)


def feed_check(
    paths: Annotated[list[Path], typer.Argument(help="Files of any format that a feed reads, or directories of them.")],
    *,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Parse local files without publishing; print each one's events in short, or why it is rejected."""
    settings = settings_of(config)
    with needs_extra("feeds"):
        from ops.feed_check import check
        from producers.edgar.service import load_tickers

    bounds = settings.scheduler.limits
    limits = Limits(
        record_bytes=bounds.record_bytes, headline_chars=bounds.headline_chars, text_chars=bounds.text_chars
    )
    tickers = run(lambda _: load_tickers(settings.edgar, None), drains=False)
    raise typer.Exit(check(paths, settings.edgar, limits, tickers, as_json=as_json))
