"""What the demo shows while it runs: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ops.accounts import Accounts
from ops.tail import signal_line
from ops.text import visible
from schemas.status import SchedulerStatus

PLAIN_SECONDS = 10.0
"""How often the plain view repeats itself while nothing but time passes."""
REFRESH_PER_SECOND = 4
HEADINGS = ("class", "SLO", "arrived", "waiting", "in flight", "signals", "expired", "p50", "p99", "within SLO")


@dataclass(kw_only=True, slots=True)
class DemoState:
    """Everything a view shows; the demo changes it as it goes.

    Args:
        phase, detail: what is going on, for a person who waits.
        to_publish: events that the feed will publish.
        published: events that it has published.
        texts: headline, or company and section, per event id.
    """

    accounts: Accounts
    note: str = ""
    phase: str = "starting"
    detail: str = ""
    phase_began: float = 0.0
    to_publish: int = 0
    published: int = 0
    texts: Mapping[str, str] = field(default_factory=dict)
    status: SchedulerStatus | None = None

    def enter(self, phase: str, detail: str = "") -> None:
        """Begin a phase, or go on with the same one in another detail."""
        self.detail = detail
        if phase != self.phase:
            self.phase, self.phase_began = phase, time.monotonic()

    @property
    def doing(self) -> str:
        """Phase, how long it has lasted, and its detail, in one line."""
        seconds = time.monotonic() - self.phase_began
        return visible(f"{self.phase}, {seconds:.0f} s{f': {self.detail}' if self.detail else ''}")

    @property
    def progress(self) -> str:
        """Counts in one line."""
        outcomes = ", ".join(f"{count} {outcome.value}" for outcome, count in sorted(self.accounts.outcomes.items()))
        return f"{self.published} of {self.to_publish} events published; ended: {outcomes or 'none yet'}"


class View(Protocol):
    """Shows a `DemoState`."""

    def refresh(self) -> None:
        """Show it as it is now; called several times a second."""


@contextmanager
def open_view(state: DemoState) -> Iterator[View]:
    """Show the state on stderr, so that stdout has nothing but the summary."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _PlainView(state)
        return
    live = _LiveView(state)
    with Live(live, console=console, refresh_per_second=REFRESH_PER_SECOND, redirect_stdout=False):
        yield live


class _PlainView:
    def __init__(self, state: DemoState) -> None:
        self._state = state
        self._phase = ("", "")
        self._told = 0.0

    def refresh(self) -> None:
        now = time.monotonic()
        phase = (self._state.phase, self._state.detail)
        if phase == self._phase and now - self._told < PLAIN_SECONDS:
            return
        if not self._told:
            sys.stderr.write(f"demo: {self._state.note}\n")
        self._phase, self._told = phase, now
        counts = f" ({self._state.progress})" if self._state.to_publish else ""
        sys.stderr.write(f"demo: {self._state.doing}{counts}\n")
        sys.stderr.flush()


class _LiveView:
    """Rendered by rich's own thread from the state as it stands."""

    def __init__(self, state: DemoState) -> None:
        self._state = state
        self._spinner = Spinner("dots")

    def refresh(self) -> None:
        """Do nothing: `Live` calls for the next picture by itself."""

    def __rich__(self) -> RenderableType:
        state = self._state
        self._spinner.update(text=Text(state.doing))
        parts: list[RenderableType] = [Text(state.note, style="dim"), self._spinner]
        if state.to_publish:
            parts += [class_table(state), Text(state.progress), *_last_signals(state)]
        for part in parts:
            if isinstance(part, Text):
                part.no_wrap, part.overflow = True, "ellipsis"
        return Group(*parts)


def class_table(state: DemoState) -> Table:
    """Return one row per service class."""
    table = Table()
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "class" else "right")
    live = {c.name: c for c in state.status.classes} if state.status else {}
    for name, account in state.accounts.classes.items():
        now, figures = live.get(name), account.figures()
        table.add_row(
            name,
            f"{account.slo_ms:g} ms",
            *([str(now.arrived), str(now.queued), str(now.in_flight)] if now else ["-", "-", "-"]),
            str(account.signals),
            str(account.expired),
            *(_cell(figures[key], "{:.0f} ms") for key in ("p50_ms", "p99_ms")),
            _cell(figures["attained"], "{:.1%}"),
        )
    return table


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _last_signals(state: DemoState) -> list[Text]:
    return [signal_line(signal, state.texts.get(signal.event_id, "")) for signal in list(state.accounts.last_signals)]


def summary_text(summary: dict[str, Any]) -> str:
    """Return the summary for people."""
    engine = summary["engine"]
    counts = "{signals} signals, {expired} expired, {dead_letters} dead letters; {lost} lost, {duplicates} duplicates"
    lines = [
        f"{summary['events']} events ended as {counts.format(**summary)}",
        f"{summary['stamps_in_redis']} stamps in Redis",
        visible(f"engine {engine['name']} {engine['version']}, model {engine['model']}"),
    ]
    for name, c in summary["classes"].items():
        p50, p99 = _cell(c["p50_ms"], "{:.0f} ms"), _cell(c["p99_ms"], "{:.0f} ms")
        within = _cell(c["attained"], "{:.1%}")
        lines.append(f"  {name:<9} {c['count']:>5} events  p50 {p50}  p99 {p99}  within {c['slo_ms']:g} ms: {within}")
    return "\n".join(lines)
