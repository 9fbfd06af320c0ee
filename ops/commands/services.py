"""Commands that run services: scheduler, worker, everything on one machine, and the demo."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import structlog
import typer

from ops.commands.options import Config, EngineName, Json, Model, settings_of
from ops.runtime import EXIT_FAILED, leave, run, say


class DemoEngine(StrEnum):
    """What the demo runs on; each has a profile with service levels that it can meet."""

    VLLM = "vllm"
    SIM = "sim"
    GPU = "gpu"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(demo)
    app.command()(up)
    app.command()(scheduler)
    app.command()(worker)


def demo(
    *,
    engine: Annotated[
        DemoEngine,
        typer.Option(help="vllm: a real small model on the CPU. sim: no model. gpu: vLLM and a model of yours."),
    ] = DemoEngine.VLLM,
    model: Model = None,
    events: Annotated[int | None, typer.Option(min=1, help="Feed this many of the sample events.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Headlines a second; else the profile's.")] = None,
    with_bad_records: Annotated[
        bool, typer.Option("--with-bad-records", help="Also publish every kind of broken record.")
    ] = False,
    run_dir: Annotated[
        Path | None, typer.Option(help="Directory for logs and the effective configuration of this run.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Run the whole path on this machine with sample events: nothing needs to be set up."""
    from ops.demo import DemoOptions, run_demo

    options = DemoOptions(
        engine=engine.value,
        model=model,
        events=events,
        rate=rate,
        with_bad_records=with_bad_records,
        run_dir=run_dir,
        as_json=as_json,
    )
    overrides = {
        "worker": {"engine": "sim" if engine is DemoEngine.SIM else "vllm", "model": model},
    }
    settings = settings_of(config, overrides, profile=f"demo_{engine.value}")
    raise typer.Exit(run(lambda stop: run_demo(settings, options, stop)))


def up(
    *,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Start an embedded broker and Valkey instead of using kafka and redis.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 1,
    engine: EngineName = None,
    model: Model = None,
    run_dir: Annotated[Path | None, typer.Option(help="Directory for the logs of this run.")] = None,
    config: Config = None,
) -> None:
    """Run topics, scheduler and workers on this machine until Ctrl-C."""
    from ops.up import UpOptions, run_up

    settings = settings_of(config, {"worker": {"engine": engine, "model": model}})
    options = UpOptions(embedded=embedded, workers=workers, run_dir=run_dir)
    run(lambda stop: run_up(settings, options, stop))


def scheduler(
    *,
    metrics_port: Annotated[
        int | None, typer.Option(help="scheduler.metrics_port: Prometheus metrics; 0 for none.")
    ] = None,
    scheduler_id: Annotated[str | None, typer.Option("--id", help="scheduler.id")] = None,
    config: Config = None,
) -> None:
    """Run one scheduler: topics in, work to the workers, signals out."""
    settings = settings_of(config, {"scheduler": {"id": scheduler_id, "metrics_port": metrics_port}})
    from scheduler.service import serve

    async def main(stop: asyncio.Event) -> None:
        await serve(settings.scheduler, settings.kafka, settings.redis, settings.link, stop)

    run(main)


def worker(
    *,
    engine: EngineName = None,
    model: Model = None,
    worker_id: Annotated[str | None, typer.Option("--id", help="worker.id")] = None,
    connect: Annotated[
        str | None, typer.Option(help="link.address: where the scheduler listens, for example tcp://host:7421.")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="link.keys: directory of CURVE keys.")] = None,
    config: Config = None,
) -> None:
    """Run one worker with an engine of its own; it may start before its scheduler."""
    overrides = {
        "worker": {"engine": engine, "model": model, "id": worker_id},
        "link": {"address": connect, "keys": keys},
    }
    settings = settings_of(config, overrides)
    from workers.engine import EngineDiedError, WorkerState
    from workers.process import serve

    log = structlog.get_logger()

    async def main(stop: asyncio.Event) -> None:
        # Who waits for the engine reads these events: a person, or the demo's progress display.
        def tell(state: WorkerState, detail: str) -> None:
            log.info("worker_state", state=state.value, detail=detail)

        try:
            await serve(settings.worker, settings.link, stop, on_state=tell)
        except EngineDiedError as error:
            say(str(error))
            leave(EXIT_FAILED)

    run(main)
    leave()
