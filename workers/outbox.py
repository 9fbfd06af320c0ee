"""What the engine reports, gathered so that one loop turn costs one message whatever its rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from schemas.frames import Failure, Failures, FromWorker, Progress, Result, Results, Started, StepReport
from workers.engine import Steps

STEP_REPORT_SECONDS = 0.1
"""Least time between step reports: a fast engine makes hundreds of steps a second."""


class Outbox:
    """Collects reports and sends them under the current session.

    ``session`` is empty while no scheduler has welcomed the worker.

    Args:
        send: takes a frame; never blocks.
        flushed: called after each flush.
    """

    def __init__(self, send: Callable[[FromWorker], None], flushed: Callable[[], None]) -> None:
        self.session = ""
        self._send = send
        self._flushed = flushed
        self._flush_due = False
        self._started: list[Started] = []
        self._results: list[Result] = []
        self._failures: list[Failure] = []
        self._steps: Steps | None = None
        self._steps_timer: asyncio.TimerHandle | None = None
        self._steps_sent_at = 0.0

    def add_started(self, started: Started) -> None:
        """Send a first token's times at the end of this loop turn."""
        self._started.append(started)
        self._flush_soon()

    def add_result(self, result: Result) -> None:
        """Send a result at the end of this loop turn."""
        self._results.append(result)
        self._flush_soon()

    def add_failure(self, failure: Failure) -> None:
        """Send a failure at the end of this loop turn."""
        self._failures.append(failure)
        self._flush_soon()

    def add_steps(self, steps: Steps) -> None:
        """Add steps to the report that goes out every `STEP_REPORT_SECONDS` at most."""
        before = self._steps
        if before is not None:
            steps = Steps(
                steps=steps.steps + before.steps,
                seconds=steps.seconds + before.seconds,
                prefill_tokens=steps.prefill_tokens + before.prefill_tokens,
                decode_tokens=steps.decode_tokens + before.decode_tokens,
                running=steps.running,
                waiting=steps.waiting,
                kv_usage=steps.kv_usage,
                decode_steps=steps.decode_steps + before.decode_steps,
            )
        self._steps = steps
        if self._steps_timer is None:
            wait = max(0.0, self._steps_sent_at + STEP_REPORT_SECONDS - time.monotonic())
            self._steps_timer = asyncio.get_running_loop().call_later(wait, self._send_steps)

    def flush(self) -> None:
        """Send what has been collected: one frame each of progress, results and failures."""
        self._flush_due = False
        # A first token is told before the result that it belongs to.
        if self._started:
            self._send(Progress(session=self.session, started=self._started))
            self._started = []
        if self._results:
            self._send(Results(session=self.session, results=self._results))
            self._results = []
        if self._failures:
            self._send(Failures(session=self.session, failures=self._failures))
            self._failures = []
        self._flushed()

    def drop_failures(self) -> None:
        """Forget the failures that have not been sent."""
        self._failures = []

    def clear(self) -> None:
        """Forget what has been collected: nobody of the session that it belongs to is there any more."""
        self._started, self._results, self._failures = [], [], []
        self._steps = None
        if self._steps_timer is not None:
            self._steps_timer.cancel()
            self._steps_timer = None

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def _send_steps(self) -> None:
        self._steps_timer = None
        self._steps_sent_at = time.monotonic()
        steps, self._steps = self._steps, None
        if steps is None or not self.session:
            return
        self._send(
            StepReport(
                session=self.session,
                steps=steps.steps,
                seconds=steps.seconds,
                prefill_tokens=steps.prefill_tokens,
                decode_tokens=steps.decode_tokens,
                running=steps.running,
                waiting=steps.waiting,
                kv_usage=steps.kv_usage,
                decode_steps=steps.decode_steps,
            )
        )
