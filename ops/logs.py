"""Logs on stderr: structlog events with stable names, and library logs routed through them without a flood."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

from ops.text import visible
from schemas.settings import LogSettings

QUIET_SECONDS = 30.0
"""A library's message with the same template is written at most once in this time; aiokafka logs about 30 warnings
a second while a broker is away."""
REMEMBERED_TEMPLATES = 512
"""Bound on what the filter remembers, for libraries that format their message before they log it."""

KAFKA_LOGGERS = ("aiokafka", "kafka")
"""Loggers whose messages about brokers that come and go are kept from people: our own events say that."""
KAFKA_TROUBLE = (
    "Unable connect",
    "Unable to update metadata",
    "Error sending %s to node",
    "Group Coordinator Request failed",
    "Heartbeat session expired",
    "Heartbeat send request failed",
    "Heartbeat failed",
    "OffsetCommit failed",
    "LeaveGroup request failed",
    "Failed to commit on finallization",
    "Failed fetch messages",
    "Failed fetch offsets",
    "FindCoordinator Request failed",
    "Topic %s not found in cluster metadata",
    "Topic %s is not authorized",
)
"""How aiokafka 0.14 begins what it logs as an error though it goes on by itself, or raises it to us as well."""

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class RepeatFilter(logging.Filter):
    """Let the same logger and template through once in a while, with the number of those held back.

    Args:
        quiet_seconds: how long a repeated message is held back.
        clock: monotonic seconds.
    """

    def __init__(self, quiet_seconds: float = QUIET_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._quiet = quiet_seconds
        self._clock = clock
        self._seen: OrderedDict[tuple[str, int, str], tuple[float, int]] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written; sets ``record.repeated`` to the number held back before it."""
        key = (record.name, record.levelno, str(record.msg))
        now = self._clock()
        since, held = self._seen.get(key, (None, 0))
        if since is not None and now - since < self._quiet:
            self._seen[key] = (since, held + 1)
            return False
        record.repeated = held
        self._seen[key] = (now, 0)
        self._seen.move_to_end(key)
        if len(self._seen) > REMEMBERED_TEMPLATES:
            self._seen.popitem(last=False)
        return True


class KafkaFilter(logging.Filter):
    """Keep what aiokafka says about a broker that is away: it says it thirty times a second, and we say it once."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written."""
        if record.name.partition(".")[0] not in KAFKA_LOGGERS:
            return True
        return record.levelno >= logging.ERROR and not str(record.msg).startswith(KAFKA_TROUBLE)


class LibraryHandler(logging.Handler):
    """Write standard-library log records as structlog events named ``library_message``."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a message that cannot be formatted is reported, never raised."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):
            message = f"{record.msg} (arguments did not fit)"
        fields: dict[str, Any] = {"logger": record.name, "message": message}
        if repeated := getattr(record, "repeated", 0):
            fields["repeated"] = repeated
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields["error"] = f"{type(error).__name__}: {error}"
        structlog.get_logger().log(max(record.levelno, logging.DEBUG), "library_message", **fields)


def configure(settings: LogSettings, stream: TextIO | None = None, *, debug: bool = False) -> None:
    """Set up logging for this process; later calls replace earlier ones.

    Args:
        settings: level and format.
        stream: stderr unless given.
        debug: write tracebacks and debug events whatever the level says.
    """
    out = stream or sys.stderr
    level = logging.DEBUG if debug else LEVELS[settings.level]
    as_json = settings.format == "json" or (settings.format == "auto" and not out.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if debug else _exception_as_field,
            _render_json if as_json else _Console(colors=out.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = LibraryHandler()
    if level > logging.DEBUG:
        handler.addFilter(KafkaFilter())
    handler.addFilter(RepeatFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Libraries talk at info about every fetch; what an operator can act on starts at warning.
    root.setLevel(logging.INFO if debug else max(level, logging.WARNING))
    logging.captureWarnings(capture=True)
    # vLLM would otherwise put a handler of its own on stdout, which belongs to data.
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")


def _exception_as_field(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace ``exc_info`` by one field: a traceback is for ``--debug``."""
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    error = info if isinstance(info, BaseException) else info[1] if isinstance(info, tuple) else None
    if error is not None:
        event.setdefault("error", f"{type(error).__name__}: {error}")
    return event


def _render_json(_: WrappedLogger, __: str, event: EventDict) -> str:
    """One JSON object a line; non-ASCII and control characters are escaped by JSON itself."""
    return json.dumps({"event": event.pop("event", ""), **event}, default=str)


class _Console:
    """Render for people, with everything that could act on a terminal spelt out first."""

    def __init__(self, *, colors: bool) -> None:
        self._renderer = structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=28)

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> str:
        trace = event.pop("exception", "")
        safe = {visible(key): _safe(value) for key, value in event.items()}
        line = self._renderer(logger, name, safe)
        return "\n    ".join([line, *(visible(row) for row in str(trace).splitlines())])


def _safe(value: object) -> object:
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {visible(str(key)): _safe(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_safe(inner) for inner in value]
    return visible(str(value))
