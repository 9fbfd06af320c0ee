"""Commands that move records: the file feed, the tail, the topics."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from ops.commands import feed_check, feed_edgar, feed_news
from ops.commands.options import Config, Json, settings_of
from ops.runtime import run, say

feed_app = typer.Typer(no_args_is_help=True, help="Publish events to the input topics.")
topics_app = typer.Typer(no_args_is_help=True, help="Create and list the topics.")


class TailTopic(StrEnum):
    """The result topics."""

    SIGNALS = "signals"
    EXPIRED = "expired"
    DEAD_LETTERS = "dead-letters"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(feed_app, name="feed")
    feed_edgar.register(feed_app)
    feed_news.register(feed_app)
    feed_check.register(feed_app)
    app.command()(tail)
    app.add_typer(topics_app, name="topics")


def tail(
    topic: Annotated[TailTopic, typer.Argument(help="Which results to follow.")] = TailTopic.SIGNALS,
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start at the oldest record, not the newest.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="End after this many records.")] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Follow a result topic until Ctrl-C; with --json one record a line."""
    settings = settings_of(config)
    from ops.tail import follow

    run(
        lambda stop: follow(
            settings.kafka, topic.value, stop, from_beginning=from_beginning, limit=limit, as_json=as_json
        )
    )


@feed_app.command("file")
def feed_file(
    path: Annotated[str, typer.Argument(help="JSON Lines of news and filing events; - for standard input.")],
    *,
    rate: Annotated[float | None, typer.Option(help="Events a second; as fast as Kafka takes them if absent.")] = None,
    keep_times: Annotated[
        bool, typer.Option("--keep-times", help="Leave the times as recorded, instead of received now.")
    ] = False,
    id_suffix: Annotated[str, typer.Option(help="Added to every story, so that a repeat is no duplicate.")] = "",
    limit: Annotated[int | None, typer.Option(min=1, help="Publish at most this many events.")] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Publish the events of a JSON Lines file; a line that is no event is reported and passed over."""
    settings = settings_of(config)
    from ops.feed import FeedOptions, feed

    options = FeedOptions(
        path=path, rate=rate, keep_times=keep_times, id_suffix=id_suffix, limit=limit, as_json=as_json
    )
    raise typer.Exit(run(lambda stop: feed(settings, options, stop)))


@topics_app.command("create")
def topics_create(*, as_json: Json = False, config: Config = None) -> None:
    """Create those topics that do not exist yet."""
    settings = settings_of(config)
    from ops.topic_list import create

    run(lambda _: create(settings.kafka, as_json=as_json), drains=False)


@topics_app.command("ls")
def topics_ls(*, as_json: Json = False, config: Config = None) -> None:
    """List the deployment's topics, with partitions and replication."""
    settings = settings_of(config)
    from ops.topic_list import show

    if not run(lambda _: show(settings.kafka, as_json=as_json), drains=False):
        say("topics are missing: tapewire topics create")
        sys.exit(2)
