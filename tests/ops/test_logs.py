"""Logs: stable form, no flood from libraries, nothing that hostile text could do to a terminal or a log file."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from ops.logs import RepeatFilter, configure
from ops.text import shortened, visible
from schemas.settings import LogSettings

HOSTILE = "a\nevent=forged \x1b[31mred\x1b[0m \x9b31m \u202egnp.exe\u2028end"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Give the test runner its own logging back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def test_json_logs_are_one_object_a_line() -> None:
    """The machine form has the event's name and its fields, one line each, whatever is in them."""
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    structlog.get_logger().info("event_refused", event_id=HOSTILE, offset=7)
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["event"] == "event_refused"
    assert json.loads(line)["event_id"] == HOSTILE
    assert json.loads(line)["offset"] == 7


def test_console_logs_spell_out_control_characters() -> None:
    """Text from outside adds no line, no escape sequence and no direction override to the console."""
    out = io.StringIO()
    configure(LogSettings(format="console"), out)
    structlog.get_logger().info("event_refused", headline=HOSTILE, nested={"k\n": [HOSTILE]})
    shown = out.getvalue()
    assert shown.count("\n") == 1
    assert "\\x1b[31mred" in shown
    assert not set("\x1b\x9b\u202e\u2028") & set(shown)


def test_levels_hold_for_ours_and_for_libraries() -> None:
    """Below the level nothing is written; a library's info is left out even where ours is shown."""
    out = io.StringIO()
    configure(LogSettings(format="json", level="info"), out)
    structlog.get_logger().debug("ours_debug")
    structlog.get_logger().info("ours_info")
    logging.getLogger("redis").info("fetching")
    logging.getLogger("redis").warning("trouble %s", "here")
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [e["event"] for e in events] == ["ours_info", "library_message"]
    assert events[1]["message"] == "trouble here"
    assert events[1]["logger"] == "redis"


def test_a_flood_of_one_message_is_written_once() -> None:
    """A thousand warnings of one template become one line, whatever their arguments are."""
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    for node in range(1000):
        logging.getLogger("redis.conn").warning("Unable connect to node with id %s", node)
    logging.getLogger("redis.conn").error("another %s", "message")
    assert len(out.getvalue().splitlines()) == 2


@pytest.mark.parametrize("level", ["info", "debug"])
def test_what_aiokafka_says_of_an_outage_is_for_debugging(level: Literal["info", "debug"]) -> None:
    """Its warnings and its errors about a broker that is away are not written; an error that is a defect is."""
    out = io.StringIO()
    configure(LogSettings(format="json", level=level), out)
    kafka = logging.getLogger("aiokafka.client")
    kafka.warning("Got error produce response: %s", "away")
    kafka.error("Unable connect to node with id %s: %s", 1, "refused")
    kafka.error("Unable to update metadata from %s", [1])
    kafka.error("Unexpected error in sender routine")
    written = [json.loads(line)["message"] for line in out.getvalue().splitlines()]
    assert written[-1:] == ["Unexpected error in sender routine"]
    assert len(written) == (4 if level == "debug" else 1)


def test_a_repeated_message_comes_back_with_its_count() -> None:
    """After the quiet time the message is written again and says how many were held back."""
    now = 100.0
    repeats = RepeatFilter(30.0, clock=lambda: now)

    def record() -> logging.LogRecord:
        return logging.LogRecord("aiokafka", logging.WARNING, "f", 1, "broker %s is away", ("x",), None)

    assert repeats.filter(record())
    assert not repeats.filter(record())
    assert not repeats.filter(record())
    now = 131.0
    later = record()
    assert repeats.filter(later)
    assert later.__dict__["repeated"] == 2


def test_the_filter_remembers_a_bounded_number() -> None:
    """A library that formats its messages itself cannot grow the filter without end."""
    repeats = RepeatFilter()
    for number in range(2000):
        assert repeats.filter(logging.LogRecord("l", logging.WARNING, "f", 1, f"m{number}", None, None))
    assert len(repeats._seen) <= 512


def test_an_exception_is_a_field_unless_debugging() -> None:
    """Without ``--debug`` an exception is one field on the event's line; with it the traceback follows."""
    for debug in (False, True):
        out = io.StringIO()
        configure(LogSettings(format="console"), out, debug=debug)
        try:
            int(HOSTILE)
        except ValueError:
            structlog.get_logger().exception("engine_failed")
        assert ("Traceback" in out.getvalue()) is debug
        assert "ValueError" in out.getvalue()
        assert "\x1b" not in out.getvalue()


def test_bad_library_arguments_do_not_raise() -> None:
    """A library whose arguments do not fit its template still gets its line."""
    out = io.StringIO()
    configure(LogSettings(format="json"), out)
    logging.getLogger("lib").warning("%d things", "no number")
    assert "%d things" in json.loads(out.getvalue())["message"]


def test_shown_text_is_bounded() -> None:
    """A headline of any length takes no more than its column."""
    assert shortened("x" * 100, 10) == "x" * 9 + "…"
    assert shortened("\x1b" * 100, 10) == "\\x1b\\x1b\\…"
    assert visible("plain, ünïcode 株") == "plain, ünïcode 株"
