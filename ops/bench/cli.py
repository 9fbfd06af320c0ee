"""``tapewire bench``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ops.commands.options import Config, Json, Model, needs_extra, settings_of
from ops.runtime import run
from ops.text import stdout_console

app = typer.Typer(no_args_is_help=True, help="Measure Tapewire on this machine.")


@app.callback()
def _group() -> None:
    """Keep ``bench`` a group also while it has one command."""


@app.command()
def overhead(
    *,
    kafka: Annotated[
        str | None, typer.Option("--kafka", help="HOST:PORT of a real Kafka; an embedded broker otherwise.")
    ] = None,
    events: Annotated[int, typer.Option(min=2_000, help="Events of the throughput run.")] = 60_000,
    rate: Annotated[float, typer.Option(min=1, help="Events per second of the latency run.")] = 500,
    seconds: Annotated[float, typer.Option(min=1, help="Length of the latency run.")] = 20,
    queued: Annotated[int, typer.Option(min=1_000, help="Events queued for the memory figure.")] = 100_000,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """What Tapewire itself costs: events per second, latency and memory with an engine that takes no time.

    On a real Kafka the transactional mode of delivery is measured beside the default one.
    """
    settings = settings_of(config, {"kafka": {"bootstrap": kafka}} if kafka else None, profile="overhead")
    from ops.bench.overhead import measure
    from ops.bench.overhead_report import Plan, table

    plan = Plan(events=events, rate=rate, seconds=seconds, queued=queued)
    result = run(lambda stop: measure(settings, plan, stop, embedded=kafka is None))
    if result is None:
        sys.stderr.write("tapewire: interrupted, nothing to report\n")
        return
    if as_json:
        sys.stdout.write(json.dumps(result.as_dict()) + "\n")
    else:
        table(result)


@app.command()
def feeds(
    *,
    kafka: Annotated[
        str | None, typer.Option("--kafka", help="HOST:PORT of a real Kafka; an embedded broker otherwise.")
    ] = None,
    filings: Annotated[int, typer.Option(min=1, help="Filings of the poll-to-publish run.")] = 60,
    file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="HTML to measure with; made up otherwise.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """HTML to text, memory of a large filing, and poll to publish against a local stand-in for SEC."""
    settings = settings_of(config, {"kafka": {"bootstrap": kafka}} if kafka else None)
    with needs_extra("feeds"):
        from ops.bench.feeds import measure
        from ops.bench.feeds import table as feeds_table

    figures = run(lambda stop: measure(settings, stop, filings=filings, file=file, embedded=kafka is None))
    if as_json:
        sys.stdout.write(json.dumps(figures.as_dict()) + "\n")
    else:
        feeds_table(figures)


@app.command()
def latency(
    *,
    scenario: Annotated[
        str | None, typer.Option("--scenario", help="Name of a scenario, or all. Default: mixed; cpu with real vLLM.")
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="sim (virtual time) or vllm (real, on this machine).")
    ] = "sim",
    profile: Annotated[
        str | None, typer.Option("--profile", help="Engine profile: a name, or a .toml file; the scenario's own.")
    ] = None,
    policies: Annotated[
        str | None, typer.Option("--policies", help="Policies, separated by commas; the scenario's own.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs with seeds 0 to N-1; medians are shown.")] = 5,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write the latency-throughput frontier to a PNG.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Show each bar of the scenario; exit 1 if one is missed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Latency of urgent events against bulk throughput: Tapewire, vLLM's policies and the article's batcher."""
    from ops.bench import latency as bench

    wanted = tuple(name.strip() for name in policies.split(",") if name.strip()) if policies else None
    names = bench.scenario_names(engine, scenario)
    missed = False
    for name in names:
        comparison = bench.run(name, engine=engine, profile=profile, policies=wanted, seeds=seeds, plot=plot)
        missed |= bench.show(comparison, as_json=as_json, check=check)
    if missed:
        raise typer.Exit(1)


@app.command()
def planner(
    *,
    queued: Annotated[list[int] | None, typer.Option("--queued", min=100, help="Events queued; repeatable.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=1000, help="Workers that the planner chooses from.")] = 1,
    as_json: Json = False,
) -> None:
    """What one scheduling decision costs, with 1,000 and with 100,000 events queued."""
    from rich.console import Console

    from ops.bench import planner as bench

    costs = bench.measure(sorted(queued or [1_000, 100_000]), workers)
    if as_json:
        sys.stdout.write(json.dumps(bench.as_dict(costs)) + "\n")
    else:
        bench.table(costs, Console())


@app.command()
def prompts(
    *,
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", dir_okay=False, help="A tokenizer.json; the simulated engine's otherwise."),
    ] = None,
    as_json: Json = False,
) -> None:
    """What it costs to tokenise headlines and filings and to put prompts around them."""
    from rich.console import Console

    from ops.bench import prompts as bench

    costs = bench.measure(tokenizer)
    if as_json:
        sys.stdout.write(json.dumps(costs.as_dict()) + "\n")
    else:
        bench.table(costs, Console())


@app.command()
def fidelity(
    *,
    policies: Annotated[str, typer.Option("--policies", help="Policies, separated by commas.")] = (
        "fcfs,engine-priority,tapewire"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals.")] = 0,
    as_json: Json = False,
) -> None:
    """How far the simulator is from real vLLM on this machine: the same arrivals on both. Takes minutes."""
    from rich.console import Console
    from rich.markup import escape

    from ops.bench import fidelity as bench

    names = [name.strip() for name in policies.split(",") if name.strip()]
    with Console(stderr=True).status("") as status:
        result = bench.measure(names, seed, lambda message: status.update(escape(message)))
    if as_json:
        sys.stdout.write(json.dumps(result.as_dict()) + "\n")
    else:
        bench.table(result, Console())


@app.command()
def heads(
    *,
    model: Model = None,
    headlines: Annotated[int, typer.Option(min=10, help="Texts per figure.")] = 60,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Two ways to ask all heads of a headline on real vLLM, and whether answers hold under load. Takes minutes."""
    from rich.console import Console
    from rich.markup import escape

    from ops.bench import heads as bench

    settings = settings_of(config, {"worker": {"model": model}} if model else None)
    with Console(stderr=True).status("") as status:
        result = run(
            lambda _: bench.measure(settings, headlines, lambda message: status.update(escape(message))), drains=False
        )
    if as_json:
        sys.stdout.write(json.dumps(result.as_dict()) + "\n")
    else:
        bench.show(result, stdout_console())
