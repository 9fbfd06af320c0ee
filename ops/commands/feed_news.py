"""The command that feeds news from wires, feeds, vendors and central banks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ops.commands.options import Config, Json, needs_extra, settings_of
from ops.runtime import run
from schemas.errors import ConfigError


def register(feed_app: typer.Typer) -> None:
    """Add the command."""
    feed_app.command("news")(feed_news)


def feed_news(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Files and directories to read; without any, the sources of the configuration."),
    ] = None,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Go on with what comes into the directories.")] = False,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Publish news: RSS, Atom, ninjs, NewsML, JSON Lines, vendors that push, central banks' statements."""
    settings = settings_of(config)
    if watch and not paths:
        raise ConfigError("--watch", "name the directories to watch; configured directories are always watched")
    with needs_extra("feeds"):
        from ops.feed_news import FeedNewsOptions
        from ops.feed_news import feed_news as feed
    options = FeedNewsOptions(paths=tuple(paths or ()), watch=watch, as_json=as_json)
    raise typer.Exit(run(lambda stop: feed(settings, options, stop)))
