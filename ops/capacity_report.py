"""Where ``tapewire capacity`` takes a worker's model from, and how it shows the answer."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from ops.capacity import Answer, Point, Traffic, WorkerModel
from ops.config import Settings
from ops.redis_client import redis_client
from ops.sim.profiles import load_profile
from schemas.codec import decode_json
from schemas.errors import ConfigError, DecodeError
from schemas.settings import SchedulerSettings
from schemas.status import SchedulerStatus
from workers.sim_core import Costs


def from_profile(name: str, scheduler: SchedulerSettings) -> WorkerModel:
    """Return the model of an engine profile, started as a worker of Tapewire is.

    Raises:
        ConfigError: there is no such profile.
    """
    profile = load_profile(name)
    return WorkerModel(
        costs=profile.step_costs(),
        limits=profile.engine_limits(tapewire=True),
        extractors=profile.wraps(),
        reserve=scheduler.reserve,
        steps_ahead=profile.run_ahead,
        overhead_ms=scheduler.valve.overhead_ms,
        margin=scheduler.valve.margin,
    )


async def from_status(settings: Settings, worker_id: str) -> WorkerModel:
    """Return the model that a scheduler has fitted to a running worker, from its status in Redis.

    Raises:
        UnavailableError: Redis cannot be used.
        ConfigError: no scheduler has such a worker, or it lacks an extractor.
    """
    known: list[str] = []
    async with redis_client(settings.redis) as redis:
        async for key in redis.scan_iter(match=settings.kafka.topics.status_key("*"), count=1000):
            try:
                status = decode_json(await redis.get(key) or b"", SchedulerStatus)
            except DecodeError:
                continue
            for worker in status.workers:
                known.append(worker.worker_id)
                fitted = worker.fitted
                if worker.worker_id != worker_id or fitted is None:
                    continue
                extractors = {e.name: e for e in fitted.extractors}
                if missing := {"headline", "filing"} - extractors.keys():
                    raise ConfigError("--worker", f"{worker_id} has no extractor {', '.join(sorted(missing))}")
                return WorkerModel(
                    costs=Costs(
                        step=fitted.step_seconds,
                        prefill_token=fitted.prefill_token_seconds,
                        decode=fitted.decode_seconds,
                        kv_token=fitted.kv_token_seconds,
                    ),
                    limits=fitted.limits,
                    extractors=extractors,
                    reserve=settings.scheduler.reserve,
                    steps_ahead=fitted.steps_ahead,
                    overhead_ms=settings.scheduler.valve.overhead_ms,
                    margin=settings.scheduler.valve.margin,
                )
    found = f"running workers: {', '.join(sorted(known))}" if known else "no scheduler has a worker"
    raise ConfigError("--worker", f"no scheduler knows {worker_id!r}; {found}")


def as_dict(answer: Answer, traffic: Traffic) -> dict[str, object]:
    """Return the object of the JSON output."""
    return {
        "workers": answer.workers,
        "traffic": asdict(traffic),
        "fits": answer.fits,
        "chosen": _point(answer.chosen),
        "points": [_point(point) for point in answer.points],
    }


def table(answer: Answer, traffic: Traffic) -> None:
    """Print the answer for people."""
    console = Console()
    count = f"{answer.workers} worker{'s' if answer.workers > 1 else ''}"
    chosen = answer.chosen
    wanted = f"a burst of {traffic.burst} and {traffic.flash_per_s:g} headlines/s within {traffic.slo_ms:g} ms"
    if answer.fits:
        console.print(f"{count}: {wanted} fits")
    else:
        console.print(f"{count}: {wanted} does not fit, whatever bulk gets")
    console.print(
        f"  largest burst {chosen.burst:,} (bound by {chosen.burst_binds}), "
        f"flash up to {chosen.flash_per_s:,.0f}/s (bound by {chosen.flash_binds})"
    )
    console.print(
        f"  bulk {chosen.bulk_tokens_per_s:,.0f} tokens/s between headlines, "
        f"with {chosen.lower_step_tokens:,} of its tokens in a step of {chosen.step_ms:.0f} ms"
    )
    shown = Table(title="what a narrower or wider valve would give", title_justify="left")
    for column in ("bulk tokens/step", "step ms", "burst", "flash/s", "bulk tokens/s", "burst bound by"):
        shown.add_column(column, justify="right")
    for point in answer.points:
        shown.add_row(
            f"{point.lower_step_tokens:,}",
            f"{point.step_ms:.0f}",
            f"{point.burst:,}",
            f"{point.flash_per_s:,.0f}",
            f"{point.bulk_tokens_per_s:,.0f}",
            str(point.burst_binds),
        )
    console.print(shown)


def _point(point: Point) -> dict[str, object]:
    return {k: round(v, 2) if isinstance(v, float) else v for k, v in asdict(point).items()}
