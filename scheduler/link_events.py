"""What the worker link tells its scheduler."""

from __future__ import annotations

from typing import Protocol

from schemas.frames import Failure, Hello, Result, Started, StepReport, TokenizerFile


class LinkEvents(Protocol):
    """What the scheduler wants to hear; all of it is called from the event loop and must not block."""

    def accepts(self, hello: Hello) -> str | None:
        """Return why a worker cannot serve here, or None when it can."""

    def needs_tokenizer(self, hello: Hello) -> bool:
        """Return whether the worker must send its tokenizer file before it gets work."""

    def tokenizer_file(self, worker_id: str, file: TokenizerFile) -> str | None:
        """Take a tokenizer file; returns why it is of no use, or None."""

    def worker_joined(self, hello: Hello) -> None:
        """A worker is ready for work."""

    def worker_away(self, worker_id: str) -> None:
        """A worker has no connection; it must get nothing new."""

    def worker_lost(self, worker_id: str) -> None:
        """A worker stays away; what it had must be given to others, and may have killed it."""

    def worker_back(self, worker_id: str) -> list[int]:
        """A worker that was away goes on; returns what was given to others meanwhile and is to be aborted."""

    def worker_left(self, worker_id: str, reason: str, *, died: bool) -> None:
        """A worker is gone; what it had must be given to others."""

    def heartbeat(self, worker_id: str, request_ids: list[int]) -> list[int]:
        """A worker says what it has; returns what it has to abort."""

    def started(self, worker_id: str, started: list[Started]) -> None:
        """Requests produced their first token."""

    def results(self, worker_id: str, results: list[Result]) -> None:
        """Requests are done."""

    def failures(self, worker_id: str, failures: list[Failure]) -> None:
        """Requests ended without an answer."""

    def steps(self, worker_id: str, report: StepReport) -> None:
        """The engine made steps."""
