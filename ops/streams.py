"""Stdin, stdout and stderr as every command needs them: open, and with a failed write told as what it is."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from schemas.errors import TapewireError

STANDARD = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))


class OutputError(TapewireError):
    """Stdout does not take what a command prints: the disk is full, the terminal has gone."""


class _Stdout(io.FileIO):
    def write(self, data: Any, /) -> Any:
        try:
            return super().write(data)
        except BrokenPipeError:
            # The reader has had enough, which is no failure.
            raise
        except OSError as error:
            raise OutputError(f"cannot write to stdout: {error.strerror or error}") from None


def prepare_streams() -> None:
    """Open the standard streams that are closed on /dev/null, and let stdout raise `OutputError`.

    A socket or an epoll that got descriptor 0, 1 or 2 makes uvloop abort the process when it closes it, and one that
    is 1 or 2 would be written to by the next message.
    """
    for number, name, mode in STANDARD:
        try:
            os.fstat(number)
        except OSError:
            # The lowest free descriptor is this one, since those below it are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - a descriptor, open to the end
    was = sys.stdout
    was.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Stdout(1, "w", closefd=False)),
        encoding=was.encoding,
        errors=was.errors,
        line_buffering=was.isatty(),
    )


def silence_stdout() -> None:
    """Send what is still to be written to /dev/null: nobody reads it, and the interpreter flushes it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
