"""Run one command's coroutine: event loop, Ctrl-C that drains, a second one that forces, and errors for people."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, NoReturn, TypeVar

from ops.text import visible
from schemas.errors import ConfigError, DecisionError, TapewireError, UnavailableError

MESSAGE_PREFIX = "tapewire: "
"""Starts every message for people on stderr."""

EXIT_FAILED = 1
EXIT_USER = 2
"""Something that the operator must mend: configuration, an unreachable service, a missing model."""
EXIT_DECISION = 3
"""A person must decide how to go on; starting again would end the same way."""
EXIT_DEFECT = 70
"""EX_SOFTWARE of sysexits.h: an error that we did not foresee."""
EXIT_FORCED = 130

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_SIGNAL_SECONDS = 0.5
"""A second signal within this time is the first once more: `timeout` and shells signal a process and its group."""

T = TypeVar("T")


class Interrupted(BaseException):
    """SIGINT or SIGTERM came before a command had anything to drain."""


class Forced(BaseException):
    """A second SIGINT or SIGTERM came while draining."""


def interruptible() -> None:
    """Make SIGINT and SIGTERM end the process cleanly from its first line on; `run` takes them over later."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise Interrupted

    for number in STOP_SIGNALS:
        signal.signal(number, interrupt)


def run(main: Callable[[asyncio.Event], Coroutine[Any, Any, T]], *, drains: bool = True) -> T:
    """Run ``main(stop)`` on uvloop; the first SIGINT or SIGTERM sets ``stop``, the second cancels.

    Args:
        main: the command.
        drains: it looks at ``stop``. One that has nothing to drain is cancelled by the first signal.

    Raises:
        Interrupted: a signal came, and there was nothing to drain.
        Forced: a second signal came.
        TapewireError: whatever ``main`` raised.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_with_signals(main, drains=drains))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # not on Windows
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _with_signals(main: Callable[[asyncio.Event], Coroutine[Any, Any, T]], *, drains: bool) -> T:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main(stop))
    forced = False
    first_at = 0.0

    def on_signal() -> None:
        nonlocal forced, first_at
        if not stop.is_set():
            first_at = loop.time()
            stop.set()
            if not drains:
                task.cancel()
        elif loop.time() - first_at > SAME_SIGNAL_SECONDS:
            forced = True
            task.cancel()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        return await task
    except asyncio.CancelledError:
        if forced:
            raise Forced from None
        if stop.is_set() and not drains:
            raise Interrupted from None
        raise
    finally:
        # Nothing is left to drain: the next signal may end what remains of the process.
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


async def until(stop: asyncio.Event, seconds: float) -> bool:
    """Wait until ``stop`` is set or the time is over; return whether it is set."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
    return stop.is_set()


def leave(code: int = 0) -> NoReturn:
    """End the process at once, after everything was closed in order.

    Taking down an interpreter that holds torch and vLLM takes seconds that a drain within ten seconds does not have,
    nor a worker whose work waits for its next life: 18 s without this, 2 s with it, on two busy cores.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def say(message: str) -> None:
    """Write one message for people on stderr, safe whatever text it carries."""
    shown = "\n".join(visible(line) for line in message.splitlines())
    sys.stderr.write(f"{MESSAGE_PREFIX}{shown}\n")
    sys.stderr.flush()


def exit_code_of(error: BaseException, *, debug: bool) -> int:
    """Report an error that ends the process and return its exit code; a traceback comes with ``--debug`` alone."""
    if isinstance(error, Interrupted):
        say("interrupted before there was anything to drain")
        return 0
    if isinstance(error, Forced):
        say("stopped at once on the second signal; what was running will run again")
        return EXIT_FORCED
    if debug:
        traceback.print_exception(error)
    if isinstance(error, TapewireError):
        say(str(error))
        if isinstance(error, DecisionError):
            return EXIT_DECISION
        return EXIT_USER if isinstance(error, ConfigError | UnavailableError) else EXIT_FAILED
    name = type(error).__name__
    say(f"unexpected {name}: {error}")
    if not debug:
        say("this is a defect; `tapewire --debug …` shows the traceback to report")
    return EXIT_DEFECT
