"""The figures of ``tapewire bench overhead``, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from rich.table import Table

from ops.text import stdout_console


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to run.

    Args:
        events: of each throughput run.
        rate: events/s of each latency run.
        seconds: length of a latency run.
        queued: events queued for the memory figure.
    """

    events: int
    rate: float
    seconds: float
    queued: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """From the broker's append of an event, in milliseconds.

    Args:
        p50_ms, p99_ms: to the append of its signal.
        read_p50_ms, read_p99_ms: to the moment at which a consumer of committed records has it.
    """

    p50_ms: float
    p99_ms: float
    read_p50_ms: float
    read_p99_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Mode:
    """One mode of delivery.

    Args:
        events_per_s: events in, signals out, sustained.
        latency: at the plan's rate.
    """

    events_per_s: float
    latency: Latency


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """The figures of one run.

    Args:
        broker: which broker it was.
        bare_events_per_s: the plain aiokafka loop (`ops.bench.bare`).
        default: at least once.
        transactional: signals and offsets in one transaction; none where it was not run.
        rss_mb_idle, rss_mb_queued: resident memory of the scheduler process, in MB (10^6 bytes).
    """

    broker: str
    plan: Plan
    bare_events_per_s: float
    default: Mode
    transactional: Mode | None
    rss_mb_idle: float
    rss_mb_queued: float

    def as_dict(self) -> dict[str, object]:
        """Return the figures under the names of the JSON output."""
        shown: dict[str, object] = {
            "broker": self.broker,
            "bare_events_per_s": round(self.bare_events_per_s),
            **self._mode(self.default),
            "rss_mb_idle": round(self.rss_mb_idle, 1),
            f"rss_mb_{self.plan.queued // 1000}k_queued": round(self.rss_mb_queued, 1),
        }
        if self.transactional is not None:
            shown["transactional"] = self._mode(self.transactional)
        return shown

    def _mode(self, mode: Mode) -> dict[str, object]:
        return {
            "events_per_s": round(mode.events_per_s),
            "ratio": round(mode.events_per_s / self.bare_events_per_s, 3),
            f"at_{self.plan.rate:g}_per_s": asdict(mode.latency),
        }


def table(result: Overhead) -> None:
    """Print the figures for people."""
    shown = Table(title=f"tapewire bench overhead, {result.broker}", title_justify="left")
    shown.add_column("figure")
    modes = [("default", result.default)]
    if result.transactional is not None:
        modes.append(("transactional", result.transactional))
    for name, _ in modes:
        shown.add_column(name, justify="right")
    rate = f"{result.plan.rate:g}/s"
    rows: tuple[tuple[str, Callable[[Mode], str]], ...] = (
        ("events in, signals out", lambda m: f"{m.events_per_s:,.0f}/s"),
        ("ratio to the bare aiokafka loop", lambda m: f"{m.events_per_s / result.bare_events_per_s:.2f}"),
        (f"append to append at {rate}, p50", lambda m: f"{m.latency.p50_ms:.0f} ms"),
        (f"append to append at {rate}, p99", lambda m: f"{m.latency.p99_ms:.0f} ms"),
        (f"append to read committed at {rate}, p50", lambda m: f"{m.latency.read_p50_ms:.0f} ms"),
        (f"append to read committed at {rate}, p99", lambda m: f"{m.latency.read_p99_ms:.0f} ms"),
    )
    for name, figure in rows:
        shown.add_row(name, *(figure(mode) for _, mode in modes))
    shown.add_section()
    for name, value in (
        ("bare aiokafka loop", f"{result.bare_events_per_s:,.0f}/s"),
        ("scheduler memory, idle", f"{result.rss_mb_idle:.0f} MB"),
        (f"scheduler memory, {result.plan.queued:,} queued", f"{result.rss_mb_queued:.0f} MB"),
    ):
        shown.add_row(name, value)
    stdout_console().print(shown)
