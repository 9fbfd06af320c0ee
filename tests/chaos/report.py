"""Shows a run: one JSON object for machines, a table for people, a Markdown page and the raw logs for the archive."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.memory import Memory
from tests.chaos.plan import Fault, Options
from tests.chaos.processes import Exit
from tests.chaos.verdict import Verdict

JSON_KEYS = frozenset({"seed", "seconds", "events", "faults", "lost", "duplicates", "recovery_s", "max_rss_mb"})
"""What the JSON object always has; it has more."""
SHOWN_LOST = 20
"""Of the lost offsets, in the report; the fault log has all of them."""


@dataclass(kw_only=True)
class Run:
    """What the report says about a run beside the verdict.

    Args:
        seconds: of load.
        input_duplicates: events that the feeder published twice, not knowing that they had arrived.
        vanished: input partitions that end below what the broker had confirmed to the feeder.
        quiet: every input was done before the ledger was read.
        killed_at_stop: processes that did not end by themselves at the end.
    """

    options: Options
    plan: Sequence[Fault]
    broker: str
    seconds: float
    verdict: Verdict
    memory: Memory
    exits: list[Exit]
    input_duplicates: int
    vanished: list[str]
    quiet: bool
    interrupted: bool
    killed_at_stop: list[str]

    @property
    def failed(self) -> bool:
        """Whether anything was lost."""
        return bool(self.verdict.ledger.lost or self.vanished)

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object."""
        verdict, ledger = self.verdict, self.verdict.ledger
        return {
            "seed": self.options.seed,
            "seconds": round(self.seconds, 1),
            "events": ledger.events,
            "faults": verdict.faults,
            "lost": len(ledger.lost),
            "duplicates": verdict.duplicates,
            "recovery_s": verdict.recovery_seconds(),
            "max_rss_mb": self.memory.largest(),
            "conflicts": verdict.conflicts,
            "phantoms": len(ledger.phantoms),
            "outcomes": ledger.outcomes,
            "partial_only": ledger.partial_only,
            "events_per_s": round(ledger.events / self.seconds, 1) if self.seconds else 0.0,
            "recovery_disturbed_s": verdict.recovery_seconds(disturbed=True),
            "longest_stop_s": verdict.longest_stops(),
            "broker_away_s": {
                i.number: round((i.ready_ms - i.began_ms) / 1000, 2) for i in verdict.incidents if i.ready_ms
            },
            "kills": [
                {
                    "fault": kill.number,
                    "target": kill.target,
                    "in_flight": kill.in_flight,
                    "duplicates": kill.duplicates,
                    "redone": kill.redone,
                }
                for kill in verdict.kills
            ],
            "bars": verdict.bars,
            "rss_slope_mb_per_100k": self.memory.slopes(),
            "unplanned_exits": [{"name": e.name, "code": e.code, "last_line": e.last_line[:300]} for e in self.exits],
            "killed_at_stop": self.killed_at_stop,
            "input_duplicates": self.input_duplicates,
            "vanished": self.vanished,
            "quiet": self.quiet,
            "interrupted": self.interrupted,
            "broker": self.broker,
            "repeat": self.options.command(),
        }


def show(run: Run, console: Console) -> None:
    """Print the ledger for people."""
    verdict, ledger = run.verdict, run.verdict.ledger
    table = Table(title=f"chaos ledger, seed {run.options.seed}, {run.broker}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    faults = sum(verdict.faults.values())
    table.add_row("events", f"{ledger.events:,} in {run.seconds:.0f} s")
    table.add_row("faults", f"{faults} ({', '.join(f'{k} {n}' for k, n in verdict.faults.items()) or 'none'})")
    for kind, number in ledger.outcomes.items():
        table.add_row(kind, f"{number:,}")
    table.add_row("lost", f"{len(ledger.lost):,}")
    for cause, number in verdict.duplicates.items() or [("", 0)]:
        table.add_row(f"duplicates {cause}".strip(), f"{number:,}")
    for cause, number in verdict.conflicts.items():
        table.add_row(f"conflicts {cause}", f"{number:,}")
    for kind, times in verdict.recovery_seconds().items():
        table.add_row(f"recovery {kind}", f"p50 {times['p50']:.2f} s, max {times['max']:.2f} s, n {times['n']:.0f}")
    for kind, rss in run.memory.largest().items():
        table.add_row(f"memory of a {kind}, most", f"{rss:.0f} MB")
    if run.exits:
        names = ", ".join(sorted({e.name for e in run.exits}))
        table.add_row("ended by themselves", f"{len(run.exits)} ({names})")
    console.print(table)
    for bar, met in verdict.bars.items():
        console.print(f"{'ok ' if met else 'NOT'}  {bar}", highlight=False, markup=False)
    if run.vanished:
        console.print(f"NOT  confirmed input is gone: {'; '.join(run.vanished)}", highlight=False, markup=False)
    if not run.quiet:
        console.print("NOT  the system did not get quiet before the ledger was read", highlight=False, markup=False)


def write(run: Run, directory: Path) -> None:
    """Write the Markdown page and the fault log."""
    verdict, ledger = run.verdict, run.verdict.ledger
    plain = run.as_dict()
    lines = [
        f"# Chaos run, seed {run.options.seed}",
        "",
        f"`{run.options.command()}` on {run.broker}.",
        "",
        "| measure | value |",
        "|---|---|",
        f"| seconds of load | {run.seconds:.0f} |",
        f"| events | {ledger.events:,} |",
        f"| faults | {sum(verdict.faults.values())} |",
        f"| lost | {len(ledger.lost)} |",
        f"| outcomes | {_words(ledger.outcomes)} |",
        f"| duplicates | {_words(verdict.duplicates) or 0} |",
        f"| conflicts | {_words(verdict.conflicts) or 0} |",
        f"| events the feeder repeated | {run.input_duplicates} |",
        f"| processes that ended by themselves | {len(run.exits)} |",
        f"| memory, most (MB) | {_words(run.memory.largest())} |",
        f"| memory slope (MB per 100,000 events) | {_words(run.memory.slopes())} |",
        "",
        "| bar | met |",
        "|---|---|",
        *(f"| {bar} | {'yes' if met else '**no**'} |" for bar, met in verdict.bars.items()),
        "",
        "Time from a fault to the first new completion that proves it healed, where no other fault was on its path:",
        "",
        "| fault | n | p50 s | max s | longest stop s |",
        "|---|---|---|---|---|",
    ]
    stops = verdict.longest_stops()
    for kind, times in verdict.recovery_seconds().items():
        lines.append(f"| {kind} | {times['n']:.0f} | {times['p50']} | {times['max']} | {stops.get(kind, 0)} |")
    if verdict.kills:
        lines += ["", "| kill | target | in flight | duplicates | redone though committed |", "|---|---|---|---|---|"]
        for kill in verdict.kills:
            known = "unknown" if kill.in_flight is None else kill.in_flight
            lines.append(f"| #{kill.number} | {kill.target} | {known} | {kill.duplicates} | {kill.redone} |")
    if ledger.lost:
        lines += ["", "Lost:", "", *(f"- {s.topic}/{s.partition}/{s.offset}" for s in ledger.lost[:SHOWN_LOST])]
    (directory / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (directory / "result.json").write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    with (directory / "faults.jsonl").open("w", encoding="utf-8") as out:
        for incident in verdict.incidents:
            out.write(json.dumps(incident.as_dict()) + "\n")
    with (directory / "findings.jsonl").open("w", encoding="utf-8") as out:
        for source in ledger.lost:
            out.write(json.dumps({"lost": source}) + "\n")
        for name, repeats in (("duplicate", ledger.duplicates), ("conflict", ledger.conflicts)):
            for repeat in repeats:
                out.write(json.dumps({name: repeat}) + "\n")
        for phantom in ledger.phantoms:
            out.write(json.dumps({"phantom": phantom}) + "\n")
    with (directory / "completions.csv").open("w", encoding="utf-8") as out:
        counted = Counter((o.at_ms // 1000, o.source.topic, o.source.partition) for o in ledger.completions)
        out.write("second,topic,partition,completions\n")
        out.writelines(f"{second},{topic},{n},{count}\n" for (second, topic, n), count in sorted(counted.items()))


def _words(values: dict[str, int] | dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in values.items())
