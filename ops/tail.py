"""Follow a result topic: one line a record for people, one JSON object a line for programs."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from ops.latency import total_ns
from ops.percentiles import NS_PER_MS
from ops.results import TopicReader, header
from ops.text import shortened, visible
from schemas.codec import decode_json
from schemas.enums import Direction, SignalKind
from schemas.errors import DecodeError
from schemas.records import Expired, Signal
from schemas.settings import KafkaSettings
from schemas.topics import (
    HEADER_ERROR_FIELD,
    HEADER_ERROR_KIND,
    HEADER_ERROR_MESSAGE,
    HEADER_SOURCE_OFFSET,
    HEADER_SOURCE_PARTITION,
    HEADER_SOURCE_TOPIC,
)

POLL_MS = 250
"""How long one fetch waits, which is also how soon Ctrl-C is seen."""
COLORS = {Direction.BULLISH: "green", Direction.BEARISH: "red", Direction.NEUTRAL: "default"}


async def follow(
    kafka: KafkaSettings, topic: str, stop: asyncio.Event, *, from_beginning: bool, limit: int | None, as_json: bool
) -> None:
    """Print the records of ``signals``, ``expired`` or ``dead-letters`` until ``stop`` or ``limit``.

    Raises:
        UnavailableError: Kafka does not answer, or the topic does not exist.
    """
    names = {
        "signals": kafka.topics.signals,
        "expired": kafka.topics.expired,
        "dead-letters": kafka.topics.dead_letters,
    }
    console = Console(highlight=False, soft_wrap=True)
    left = limit
    async with TopicReader(kafka, [names[topic]], from_beginning=from_beginning) as reader:
        while not stop.is_set() and left != 0:
            for record in await reader.read(POLL_MS, left):
                if as_json:
                    sys.stdout.write(_json_line(topic, record) + "\n")
                else:
                    console.print(_line(topic, record))
                left = None if left is None else left - 1
            sys.stdout.flush()


def _json_line(topic: str, record: Any) -> str:
    if topic != "dead-letters":
        # Through the JSON module, which escapes what a terminal could act on.
        try:
            return json.dumps(json.loads(record.value))
        except ValueError:
            return json.dumps({"undecodable": repr(record.value)})
    value = bytes(record.value or b"")
    return json.dumps(
        {
            "headers": {key: bytes(v or b"").decode("utf-8", "replace") for key, v in record.headers},
            "key": None if record.key is None else bytes(record.key).decode("utf-8", "replace"),
            "value_base64": base64.b64encode(value).decode("ascii"),
        }
    )


def _line(topic: str, record: Any) -> Text:
    if topic == "dead-letters":
        return _dead_letter_line(record)
    try:
        if topic == "expired":
            return _expired_line(decode_json(record.value, Expired))
        return signal_line(decode_json(record.value, Signal))
    except DecodeError as error:
        return Text(visible(f"{record.topic}[{record.partition}]@{record.offset}: {error}"), style="red")


def signal_line(signal: Signal, text: str = "") -> Text:
    """Return one signal as one line: class, direction, score, latency, instruments, and the text or the event id."""
    total = total_ns(signal.stamps)
    took = "      -   " if total is None else f"{total / NS_PER_MS:8.0f} ms"
    line = Text(f"{visible(signal.service_class):<9}")
    if signal.kind is SignalKind.RETRACTION:
        line.append(f"{'retraction':<16}", style="yellow")
    else:
        line.append(f"{signal.direction.value:<9}{signal.score:+.2f}  ", style=COLORS[signal.direction])
    line.append(f"{took} {'late' if signal.late else '':<5}", style="red" if signal.late else "")
    if signal.filing is not None and (signal.filing.partial or signal.filing.missing_parts):
        line.append(f"partial {signal.filing.coverage:.0%} ", style="yellow")
    line.append(f"{shortened(' '.join(signal.instruments) or '-', 20):<21}{shortened(text or signal.event_id, 80)}")
    return line


def _expired_line(expired: Expired) -> Text:
    age = f"{expired.age_ns / NS_PER_MS:.0f} ms"
    text = f"{expired.service_class:<9}{age:>11} at {expired.stage.value:<15}{expired.event_id}  {expired.reason}"
    return Text(visible(text))


def _dead_letter_line(record: Any) -> Text:
    source = f"{header(record, HEADER_SOURCE_TOPIC)}[{header(record, HEADER_SOURCE_PARTITION)}]"
    where = f"{source}@{header(record, HEADER_SOURCE_OFFSET)}"
    field = header(record, HEADER_ERROR_FIELD) or "record"
    text = f"{header(record, HEADER_ERROR_KIND):<22} {field}: {header(record, HEADER_ERROR_MESSAGE)}"
    return Text(f"{visible(where):<28} {shortened(text, 200)}")
