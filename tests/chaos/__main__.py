"""``python -m tests.chaos``: run the bench from the command line."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import structlog
from rich.console import Console

from ops.logs import configure
from ops.runtime import say
from schemas.errors import TapewireError
from schemas.settings import LogSettings
from tests.chaos.bench import Bench, dump, handle_signals, keep_logs, plan_lines
from tests.chaos.plan import FaultKind, Options
from tests.chaos.report import Run, show, write
from tests.chaos.system import clean_environment

SOAK_SECONDS = 24 * 3600.0
"""A soak ends with its events."""
LONGEST_PARENT = 60
"""Characters of the path of the directory for temporary files."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="of load; quiet and ledger come on top")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of plan and events; the time by default")
    parser.add_argument(
        "--rate", type=float, help="events/s; 0 for as many as the schedulers take (the soak's default)"
    )
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1, help="brokers")
    parser.add_argument("--faults", type=_faults, default=tuple(FaultKind), help="kinds, separated by commas")
    parser.add_argument("--delivery", choices=("at_least_once", "transactional"), default="at_least_once")
    parser.add_argument("--soak", type=int, default=0, metavar="EVENTS", help="no faults; ends after so many events")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write report, fault log and all logs here")
    parser.add_argument("--json", action="store_true", dest="as_json", help="end stdout with one JSON object")
    parser.add_argument("--plan", action="store_true", help="print the plan and end")
    return parser.parse_args(arguments)


def _faults(text: str) -> tuple[FaultKind, ...]:
    try:
        return tuple(FaultKind(name.strip()) for name in text.split(",") if name.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: kinds are {', '.join(FaultKind)}") from None


def options_of(flags: argparse.Namespace) -> Options:
    """Return the options that the flags mean."""
    soak = flags.soak > 0
    return Options(
        seed=flags.seed,
        seconds=SOAK_SECONDS if soak else flags.minutes * 60,
        rate=flags.rate if flags.rate is not None else (0.0 if soak else 400.0),
        nodes=flags.nodes,
        faults=() if soak else flags.faults,
        delivery=flags.delivery,
        events=flags.soak,
    )


async def _run(options: Options, scratch: Path, console: Console) -> Run:
    def tell(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    bench = Bench(options, scratch, tell)
    handle_signals(bench)
    for line in plan_lines(options, bench.plan):
        tell(line)
    return await bench.run()


def main() -> int:
    """Run; the exit code is 1 when anything was lost, 2 when the run could not be done."""
    flags = parse()
    options = options_of(flags)
    console = Console(stderr=flags.as_json, highlight=False)
    if flags.plan:
        from tests.chaos.plan import make_plan

        for line in plan_lines(options, make_plan(options)):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return 0
    clean_environment()
    if flags.report is not None:
        flags.report.mkdir(parents=True, exist_ok=True)
    # Sockets are in it, and the path of one has about a hundred bytes.
    parent = None if len(tempfile.gettempdir()) < LONGEST_PARENT else "/tmp"  # noqa: S108 - the directory in it is private
    with tempfile.TemporaryDirectory(prefix="tapewire-chaos-", dir=parent, ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        with (scratch / "bench.log").open("w", encoding="utf-8") as log:
            configure(LogSettings(level="info", format="json"), log)
            try:
                run = asyncio.run(_run(options, scratch, console))
            except TapewireError as error:
                say(str(error))
                return 2
            finally:
                if flags.report is not None:
                    keep_logs(scratch, flags.report)
                logging.getLogger().handlers.clear()
                structlog.reset_defaults()
        show(run, console)
        if flags.report is not None:
            write(run, flags.report)
    if flags.as_json:
        sys.stdout.write(dump(run) + "\n")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
