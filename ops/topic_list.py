"""The ``topics`` commands: create what is missing, list what is there."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from rich.table import Table

from ops.text import stdout_console
from ops.topics import describe_topics, ensure_topics, topic_names
from schemas.settings import KafkaSettings


async def create(kafka: KafkaSettings, *, as_json: bool) -> None:
    """Create the topics that do not exist and print their names.

    Raises:
        UnavailableError: Kafka does not answer.
        ConfigError: it cannot create them as configured.
    """
    created = await ensure_topics(kafka)
    if as_json:
        there = [name for name in topic_names(kafka) if name not in created]
        sys.stdout.write(json.dumps({"created": created, "existing": there}) + "\n")
        return
    for name in topic_names(kafka):
        sys.stdout.write(f"{name}: {'created' if name in created else 'was there'}\n")


async def show(kafka: KafkaSettings, *, as_json: bool) -> bool:
    """Print the topics; return whether all of them exist.

    Raises:
        UnavailableError: Kafka does not answer.
    """
    found = {info.name: info for info in await describe_topics(kafka)}
    missing = [name for name in topic_names(kafka) if name not in found]
    if as_json:
        topics = [asdict(info) for info in found.values()]
        sys.stdout.write(json.dumps({"topics": topics, "missing": missing}) + "\n")
        return not missing
    table = Table()
    for heading in ("topic", "partitions", "replication", "timestamps", "largest record"):
        table.add_column(heading)
    for name in topic_names(kafka):
        info = found.get(name)
        if info is None:
            table.add_row(name, "missing", "", "", "", style="red")
            continue
        leaderless = f" ({info.leaderless} without leader)" if info.leaderless else ""
        table.add_row(
            name,
            f"{info.partitions}{leaderless}",
            str(info.replication),
            info.timestamp_type,
            f"{info.max_message_bytes:,} bytes",
        )
    stdout_console().print(table)
    return not missing
