"""Where the time goes: latency per class and stage, and the path of one event, from the stamps in Redis."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rich.table import Table
from rich.text import Text

from ops.config import Settings, masked_url
from ops.percentiles import NS_PER_MS, summary_ms
from ops.redis_client import redis_client
from ops.text import stdout_console, visible
from schemas.codec import decode_json
from schemas.enums import Outcome, Stage
from schemas.errors import DecodeError, TapewireError
from schemas.records import StampEntry, Stamps

PAGE = 2_000
"""Stream entries read at a time, so that neither side holds the whole stream."""
STAGES = tuple(Stage)
STEPS = tuple(pairwise(STAGES))


class UnknownEventError(TapewireError):
    """No stamps of this event are in Redis (any more)."""


@dataclass(kw_only=True, slots=True)
class ClassLatency:
    """The durations of one service class, in nanoseconds."""

    slo_ns: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    attained: int = 0
    totals: list[int] = field(default_factory=list)
    steps: dict[tuple[Stage, Stage], list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, entry: StampEntry) -> None:
        """Take one outcome in; a stage without a stamp leaves its steps out rather than guessed."""
        self.slo_ns = entry.slo_ns
        self.outcomes[entry.outcome] += 1
        for step in STEPS:
            before, after = entry.stamps.get(step[0], 0), entry.stamps.get(step[1], 0)
            if before and after:
                self.steps[step].append(after - before)
        if entry.outcome != Outcome.SIGNAL:
            return
        if not entry.late:
            self.attained += 1
        if (total := total_ns(entry.stamps)) is not None:
            self.totals.append(total)

    def as_json(self) -> dict[str, Any]:
        """Return the figures: milliseconds, and the fraction within the SLO (an expired record is a miss)."""
        judged = self.outcomes[Outcome.SIGNAL] + self.outcomes[Outcome.EXPIRED]
        return {
            "slo_ms": self.slo_ns / NS_PER_MS,
            "outcomes": dict(self.outcomes),
            "attained": self.attained / judged if judged else None,
            "total": summary_ms(self.totals),
            "stages": [
                {"from": before.value, "to": after.value, "count": len(values), **(summary_ms(values) or {})}
                for (before, after), values in self.steps.items()
            ],
        }


def total_ns(stamps: Stamps) -> int | None:
    """Return received to emitted, or none when either stamp is missing."""
    begin, end = stamps.get(Stage.RECEIVED, 0), stamps.get(Stage.EMITTED, 0)
    return end - begin if begin and end else None


def by_class(entries: Iterable[StampEntry]) -> dict[str, ClassLatency]:
    """Sort outcomes into their service classes; newest first, so that the SLO shown is the current one."""
    classes: dict[str, ClassLatency] = {}
    for entry in entries:
        found = classes.setdefault(entry.service_class, ClassLatency())
        slo_ns = found.slo_ns or entry.slo_ns
        found.add(entry)
        found.slo_ns = slo_ns
    return classes


async def read_stamps(client: Any, key: str, last: int | None) -> AsyncIterator[StampEntry | None]:
    """Yield the newest entries first, at most ``last``; none for an entry that is not a stamp entry."""
    end, left = "+", last
    while left is None or left > 0:
        page = await client.xrevrange(key, end, "-", count=PAGE if left is None else min(PAGE, left))
        for _, fields in page:
            try:
                yield decode_json(fields.get(b"d", b""), StampEntry)
            except DecodeError:
                yield None
        if len(page) < PAGE:
            return
        end = f"({page[-1][0].decode()}"
        left = None if left is None else left - len(page)


async def report(settings: Settings, *, last: int, event: str | None, as_json: bool) -> None:
    """Print the latency of the newest outcomes, or of one event.

    Raises:
        UnavailableError: Redis does not answer.
        UnknownEventError: there are no stamps of ``event``.
    """
    key = settings.kafka.topics.stamps_key
    if event is not None:
        await _report_event(settings, key, event, as_json=as_json)
        return
    entries: list[StampEntry] = []
    unreadable = 0
    async with redis_client(settings.redis) as client:
        async for entry in read_stamps(client, key, last):
            if entry is None:
                unreadable += 1
            else:
                entries.append(entry)
    classes = by_class(entries)
    if as_json:
        figures = {name: found.as_json() for name, found in classes.items()}
        _print_json({"entries": len(entries), "unreadable": unreadable, "classes": figures})
        return
    if not entries:
        sys.stdout.write(f"no stamps yet under {key} in Redis at {masked_url(settings.redis.url)}\n")
        return
    order = {c.name: place for place, c in enumerate(settings.scheduler.classes)}
    console = stdout_console()
    for name in sorted(classes, key=lambda n: (order.get(n, len(order)), n)):
        console.print(_table(name, classes[name]))
    if unreadable:
        sys.stderr.write(f"tapewire: {unreadable} entries of {key} could not be read\n")


async def _report_event(settings: Settings, key: str, event: str, *, as_json: bool) -> None:
    async with redis_client(settings.redis) as client:
        found = [e async for e in read_stamps(client, key, None) if e is not None and e.event_id == event]
    if not found:
        raise UnknownEventError(f"no stamps of event {event} under {key}")
    if as_json:
        _print_json({"event_id": event, "outcomes": [_event_json(entry) for entry in found]})
        return
    console = stdout_console()
    for entry in found:
        late = ", late" if entry.late else ""
        title = f"{entry.event_id}: {entry.outcome} in class {entry.service_class}{late}"
        table = Table(title=Text(visible(title)), title_justify="left")
        table.add_column("stage")
        table.add_column("ms since the stamp before", justify="right")
        table.add_column("ms since received", justify="right")
        begin = entry.stamps.get(Stage.RECEIVED)
        before: int | None = None
        for stage, at in _in_order(entry.stamps):
            step = "" if before is None else _ms(at - before)
            table.add_row(stage.value, step, _ms(at - begin) if begin else "")
            before = at
        console.print(table)


def _event_json(entry: StampEntry) -> dict[str, Any]:
    total = total_ns(entry.stamps)
    return {
        "service_class": entry.service_class,
        "outcome": entry.outcome,
        "late": entry.late,
        "slo_ms": entry.slo_ns / NS_PER_MS,
        "total_ms": None if total is None else total / NS_PER_MS,
        "stamps": {stage.value: at for stage, at in _in_order(entry.stamps)},
    }


def _in_order(stamps: Stamps) -> list[tuple[Stage, int]]:
    return [(stage, stamps[stage]) for stage in STAGES if stamps.get(stage)]


def _table(name: str, found: ClassLatency) -> Table:
    figures = found.as_json()
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(found.outcomes.items()))
    attained = figures["attained"]
    share = "" if attained is None else f", {attained:.1%} within the SLO of {figures['slo_ms']:g} ms"
    table = Table(title=Text(visible(f"{name}: {outcomes}{share}")), title_justify="left")
    for heading in ("stage", "count", "p50 ms", "p90 ms", "p99 ms"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    for step in STEPS:
        if values := found.steps.get(step):
            table.add_row(f"{step[0].value} → {step[1].value}", *_cells(values))
    table.add_section()
    table.add_row("received → emitted (signals)", *_cells(found.totals), style="bold")
    return table


def _cells(values: list[int]) -> list[str]:
    figures = summary_ms(values)
    if figures is None:
        return ["0", "-", "-", "-"]
    return [str(len(values)), *(f"{round(value, 1) + 0.0:.1f}" for value in figures.values())]


def _ms(duration_ns: int) -> str:
    return f"{round(duration_ns / NS_PER_MS, 3) + 0.0:.3f}"  # a negative zero helps nobody


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
