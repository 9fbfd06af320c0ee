"""``tapewire bench latency``: policies on the same arrivals, one table; simulated engines or real vLLM."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ops.bench.bars import BARS, BASELINE, OURS, Bar, Measured
from ops.bench.figures import Figures, medians
from ops.sim.article import PUBLISHED
from ops.sim.compare import Run, run_policy
from ops.sim.profiles import Profile, load_profile
from ops.sim.scenarios import SCENARIOS, Scenario
from ops.text import stdout_console
from schemas.errors import ConfigError

Say = Callable[[str], None]
ENGINES = ("sim", "vllm")
REAL = "cpu"
"""The scenario that real vLLM runs: its traffic is made for two cores."""
WIDTH = 118
"""The table's; a pipe would get 80 columns otherwise, and cut every figure."""
COLUMNS = (
    "flash p50", "p99", "max", "in SLO", "expired", "p99/alone", "p99/fcfs", "bulk p99", "tokens/s", "/fcfs"
)  # fmt: skip
"""Ratios are to the policy's own isolated median, and to the policy that submits everything at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What the policies reached in one scenario.

    Args:
        engine: ``sim`` or ``vllm``.
        runs: by policy, one per seed.
    """

    scenario: str
    engine: str
    seeds: int
    runs: Mapping[str, Sequence[Run]]

    def medians(self) -> dict[str, Figures]:
        """Return each policy's median figures."""
        return {policy: medians([run.figures for run in runs]) for policy, runs in self.runs.items()}

    def as_dict(self) -> dict[str, object]:
        """Return the object of the JSON output."""
        return {
            "scenario": self.scenario,
            "engine": self.engine,
            "seeds": self.seeds,
            "policies": {policy: figures.as_dict() for policy, figures in self.medians().items()},
        }

    def bars(self) -> list[Bar]:
        """Return the scenario's bars; none when it has none, or when a policy that they need was not run."""
        check = BARS.get(self.scenario)
        if check is None or OURS not in self.runs or BASELINE not in self.runs:
            return []
        ours = self.runs[OURS]
        flash = [run.figures.flash for run in ours]
        count = sum(f.count for f in flash)
        attained = sum(f.attained * f.count for f in flash) / count if count else 1.0
        extras = {name: [run.extras[name] for run in ours] for name in ours[0].extras}
        return check(Measured(policies=self.medians(), extras=extras, attained=attained))


def scenario_named(name: str) -> Scenario:
    """Return a scenario.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in SCENARIOS:
        raise ConfigError("scenario", f"no scenario is named {name!r}; there are {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def compare(scenario: Scenario, profile: Profile, policies: Sequence[str], seeds: int, say: Say) -> Comparison:
    """Run every policy on the same arrivals in simulated engines.

    Raises:
        ConfigError: a policy that there is not.
    """
    runs: dict[str, list[Run]] = {}
    for policy in policies:
        runs[policy] = []
        for seed in range(seeds):
            say(f"{scenario.name}: {policy}, seed {seed}")
            runs[policy].append(run_policy(scenario, profile, policy, seed))
    return Comparison(scenario=scenario.name, engine="sim", seeds=seeds, runs=runs)


def scenario_names(engine: str, wanted: str | None) -> list[str]:
    """Return the scenarios to run: all of an engine's, the one that is wanted, or the engine's first."""
    names = [REAL] if engine == "vllm" else list(SCENARIOS)
    if wanted == "all":
        return names
    return [wanted or names[0]]


def run(
    name: str,
    *,
    engine: str = "sim",
    profile: str | None = None,
    policies: Sequence[str] | None = None,
    seeds: int = 5,
    plot: Path | None = None,
) -> Comparison:
    """Run a scenario, showing progress on stderr.

    Raises:
        ConfigError: no such scenario, engine, policy or profile.
        UnavailableError: a package is missing.
    """
    scenario = scenario_named(name)
    if engine not in ENGINES:
        raise ConfigError("engine", f"{engine!r} is none of {', '.join(ENGINES)}")
    console = Console(stderr=True)
    with console.status("") as status:

        def say(message: str) -> None:
            status.update(escape(message))

        chosen = policies or scenario.policies
        if engine == "vllm":
            if name != REAL:
                raise ConfigError("scenario", f"{name} is for the simulator; real vLLM runs {REAL}")
            return _real(scenario, chosen, seeds, say)
        figures = load_profile(profile or scenario.profile)
        if plot is not None:
            from ops.bench.latency_plot import check_plotting, draw

            check_plotting()
        comparison = compare(scenario, figures, chosen, seeds, say)
        if plot is not None:
            draw(plot, scenario, figures, comparison, say)
        return comparison


def show(comparison: Comparison, *, as_json: bool, check: bool) -> bool:
    """Print a comparison; returns whether a bar was missed that was asked for."""
    bars = comparison.bars() if check else []
    if as_json:
        sys.stdout.write(json.dumps(comparison.as_dict()) + "\n")
    else:
        console = stdout_console()
        table(comparison, console if console.is_terminal else Console(width=max(WIDTH, console.width)))
    if check:
        # Beside JSON, the bars go where they do not disturb a program.
        bars_table(bars, Console(stderr=as_json))
    return not all(bar.met for bar in bars)


def _real(scenario: Scenario, policies: Sequence[str], seeds: int, say: Say) -> Comparison:
    from ops.bench.real import run_policies

    runs = run_policies(scenario, policies, seeds, say)
    return Comparison(scenario=scenario.name, engine="vllm", seeds=seeds, runs=runs)


def table(comparison: Comparison, console: Console) -> None:
    """Print the figures for people."""
    figures = comparison.medians()
    seeds = f", medians of {comparison.seeds} seeds" if comparison.seeds > 1 else ""
    title = f"tapewire bench latency: {comparison.scenario}, engine {comparison.engine}{seeds}"
    shown = Table(
        title=escape(title), title_justify="left", caption="latencies in milliseconds", caption_justify="left"
    )
    shown.add_column("policy")
    for column in COLUMNS:
        shown.add_column(column, justify="right", no_wrap=True)
    base = figures.get(BASELINE)
    for policy, row in figures.items():
        flash, bulk = row.flash, row.bulk
        shown.add_row(
            escape(policy),
            _ms(flash.p50_ms),
            _ms(flash.p99_ms),
            _ms(flash.max_ms),
            f"{flash.attained:.2%}",
            f"{flash.expired:g}",
            _ratio(flash.p99_ms, row.isolated_p50_ms),
            _ratio(flash.p99_ms, base.flash.p99_ms if base else None),
            _ms(bulk.p99_ms),
            f"{bulk.tokens_per_s:,.0f}",
            _ratio(bulk.tokens_per_s, base.bulk.tokens_per_s if base else None),
        )
    console.print(shown)
    if comparison.scenario == "article":
        _article_table(comparison, console)


def bars_table(bars: Sequence[Bar], console: Console) -> None:
    """Print what was reached against what has to be."""
    shown = Table(title="bars", title_justify="left")
    for column in ("bar", "reached", "target", ""):
        shown.add_column(column)
    for bar in bars:
        shown.add_row(bar.name, bar.reached, bar.target, "met" if bar.met else "MISSED")
    console.print(shown)


def _article_table(comparison: Comparison, console: Console) -> None:
    """Print the article's own figures beside what its code and the policies give."""
    shown = Table(title="in the article's own figures", title_justify="left")
    shown.add_column("run")
    for column in ("flash p99", "all p50", "all p99", "flash late", "answer tokens/s"):
        shown.add_column(column, justify="right")
    for name, values in PUBLISHED.items():
        shown.add_row(
            f"published, {name}",
            _ms(values["flash_p99_ms"]),
            _ms(values["all_p50_ms"]),
            _ms(values["all_p99_ms"]),
            f"{values['late']:g}",
            f"{values['tokens_per_s']:,.0f}",
        )
    for policy, runs in comparison.runs.items():
        figures = medians([run.figures for run in runs])
        extras = {name: _middle([run.extras[name] for run in runs]) for name in runs[0].extras}
        shown.add_row(
            escape(policy),
            _ms(figures.flash.p99_ms),
            _ms(extras["all_p50_ms"]),
            _ms(extras["all_p99_ms"]),
            f"{extras['late']:g} of {figures.flash.count:g}",
            f"{extras['answer_tokens_per_s']:,.0f}",
        )
    console.print(shown)


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{value / base:.3f}"
