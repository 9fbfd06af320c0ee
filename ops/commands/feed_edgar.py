"""``tapewire feed edgar``."""

from __future__ import annotations

from typing import Annotated

import typer

from ops.commands.options import Config, Json, needs_extra, settings_of
from ops.runtime import run


def register(feed_app: typer.Typer) -> None:
    """Add the command."""
    feed_app.command("edgar")(feed_edgar)


def feed_edgar(
    *,
    once: Annotated[bool, typer.Option("--once", help="Look at the current feed once, then end.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="End after this many filings.")] = None,
    user_agent: Annotated[str | None, typer.Option(help="edgar.user_agent: who is asking, with a contact.")] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Publish what is filed with the SEC, as it is filed, until Ctrl-C."""
    settings = settings_of(config, {"edgar": {"user_agent": user_agent}})
    with needs_extra("feeds"):
        from ops.feed_edgar import feed

    run(lambda stop: feed(settings, stop, once=once, limit=limit, as_json=as_json))
