"""``tapewire bench planner``: what one decision of the planner costs, with few and with many events queued."""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from rich.console import Console
from rich.table import Table

from ops.percentiles import percentile
from ops.sim.policies import EPOCH_NS, valve_settings
from ops.sim.profiles import Profile, load_profile
from ops.sim.traffic import BULK, CLASSES, FILING_TOKENS, FLASH, HEADLINE_TOKENS, STANDARD
from scheduler.budgets import WorkerBudget
from scheduler.planner import Planner
from scheduler.work import Origin, Work
from schemas.settings import ReserveSettings

TURN_NS = 5_000_000
"""Simulated time between two turns."""
TURNS = 3_000
"""Turns that are measured: in each a headline comes, a filing or headline ends, and the planner plans."""
STANDARD_SHARE = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Microseconds of CPU time.

    Args:
        queued: events that wait all the time.
        decision_us: mean of `Planner.plan` per event that it dispatched or expired.
        plan_p99_us: of one call of `Planner.plan`.
        enqueue_us: mean of `Planner.add`.
        finish_us: mean of `Planner.finish`.
    """

    queued: int
    decision_us: float
    plan_p99_us: float
    enqueue_us: float
    finish_us: float


def measure(sizes: Sequence[int], workers: int = 1, seed: int = 0) -> list[Cost]:
    """Measure with each of these numbers of events queued, the collector of cyclic garbage off as in a scheduler."""
    profile = load_profile("h100-8b")
    costs: list[Cost] = []
    for size in sizes:
        gc.collect()
        gc.disable()
        try:
            costs.append(_Turns(profile, size, workers, seed).run())
        finally:
            gc.enable()
    return costs


def growth(costs: Sequence[Cost]) -> float:
    """Return the decision's cost at the largest queue to that at the smallest."""
    return costs[-1].decision_us / costs[0].decision_us


def as_dict(costs: Sequence[Cost]) -> dict[str, object]:
    """Return the object of the JSON output."""
    sizes = [{k: round(v, 3) for k, v in asdict(cost).items()} for cost in costs]
    return {"sizes": sizes, "growth": round(growth(costs), 3)}


def table(costs: Sequence[Cost], console: Console) -> None:
    """Print the costs for people."""
    shown = Table(title="tapewire bench planner, microseconds of CPU time", title_justify="left")
    for column in ("queued", "per decision", "plan p99", "enqueue", "finish"):
        shown.add_column(column, justify="right")
    for cost in costs:
        shown.add_row(
            f"{cost.queued:,}",
            f"{cost.decision_us:.1f}",
            f"{cost.plan_p99_us:.1f}",
            f"{cost.enqueue_us:.2f}",
            f"{cost.finish_us:.2f}",
        )
    console.print(shown)
    console.print(f"a decision costs {growth(costs):.2f} times as much with the most as with the least queued")


class _Turns:
    """One planner in a steady state: what leaves is replaced, so that the queues keep their length."""

    def __init__(self, profile: Profile, queued: int, workers: int, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - a benchmark, fixed by its seed
        self._queued = queued
        self._now = EPOCH_NS
        self._number = 0
        self._flying: deque[tuple[str, int]] = deque()
        self._fresh: list[tuple[str, int]] = []
        self._urgent: list[tuple[str, int]] = []
        self._planner = Planner(CLASSES, valve_settings(profile))
        for index in range(workers):
            limits = profile.engine_limits(tapewire=True)
            budget = WorkerBudget(limits, profile.wraps(), ReserveSettings(), gated=True)
            self._planner.add_worker(f"w{index}", budget, gated=True, steps_ahead=profile.run_ahead)

    def run(self) -> Cost:
        planner = self._planner
        while planner.total_queued < self._queued:
            planner.add(self._lower())
        self._take(self._now)
        planned: list[int] = []
        added: list[int] = []
        finished: list[int] = []
        decisions = 0
        clock = time.thread_time_ns  # not wall time: another process on this core is not the planner's cost
        for _ in range(TURNS):
            self._now += TURN_NS
            new = [self._work(FLASH)] + [self._lower() for _ in range(self._queued - planner.total_queued)]
            before = clock()
            for work in new:
                planner.add(work)
            added.append((clock() - before) // len(new))
            ended = self._urgent + ([self._flying.popleft()] if self._flying else [])
            for worker, request_id in self._fresh:
                planner.prefilled(worker, request_id)
            before = clock()
            for worker, request_id in ended:
                planner.finish(worker, request_id)
            if ended:
                finished.append((clock() - before) // len(ended))
            before = clock()
            done = self._take(self._now)
            planned.append(clock() - before)
            decisions += done
        ordered = sorted(planned)
        return Cost(
            queued=self._queued,
            decision_us=sum(planned) / max(decisions, 1) / 1000,
            plan_p99_us=percentile(ordered, 99) / 1000,
            enqueue_us=fmean(added) / 1000,
            finish_us=fmean(finished) / 1000 if finished else 0.0,
        )

    def _take(self, now_ns: int) -> int:
        plan = self._planner.plan(now_ns)
        # What was dispatched in this turn has its first token in the next; for a headline that is its end.
        self._urgent = [(worker, work.request_id) for work, worker in plan.dispatches if work.class_index == FLASH]
        self._fresh = [(worker, work.request_id) for work, worker in plan.dispatches if work.class_index != FLASH]
        self._flying.extend(self._fresh)
        return len(plan.dispatches) + len(plan.expired)

    def _lower(self) -> Work:
        return self._work(STANDARD if self._rng.random() < STANDARD_SHARE else BULK)

    def _work(self, class_index: int) -> Work:
        self._number += 1
        service_class = CLASSES[class_index]
        tokens = self._rng.randint(*(FILING_TOKENS if class_index == BULK else HEADLINE_TOKENS))
        toxic_ms = service_class.toxic_ms
        return Work(
            origin=Origin("bench", 0, self._number, 1),
            event_id="",
            class_index=class_index,
            tokens=b"",
            token_count=tokens,
            truncated=False,
            event_time_ns=self._now,
            deadline_ns=self._now + int(service_class.slo_ms * 1e6) + self._rng.randint(0, 1_000_000),
            toxic_ns=self._now + int(toxic_ms * 1e6) if toxic_ms is not None else 0,
            record=b"",
            appended_ns=self._now,
            consumed_ns=self._now,
        )
