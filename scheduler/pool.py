"""One worker as the planner sees it: what it takes, what it holds, how long its steps take, when it would be done."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from scheduler.budgets import Use, WorkerBudget
from scheduler.step_model import StepModel
from scheduler.valve import Valve
from scheduler.work import Work
from schemas.frames import StepPolicy, StepReport

NANOSECONDS = 1_000_000_000


@dataclass(slots=True)
class PoolWorker:
    """One worker.

    Args:
        takes: positions of the classes that it takes.
        lends: positions of the classes that it takes only while nobody else has room.
        gated: its engine has a step gate.
        steps_ahead: steps that are already decided when a request arrives.
        overhead_seconds: what comes on top of the engine's time: the link, and publishing.
        in_flight: what it has, by request id; in order of dispatch.
    """

    worker_id: str
    budget: WorkerBudget
    model: StepModel
    valve: Valve
    takes: frozenset[int]
    lends: frozenset[int]
    gated: bool = False
    steps_ahead: int = 0
    overhead_seconds: float = 0.0
    in_flight: dict[int, Work] = field(default_factory=dict)
    _limits: list[tuple[int, int]] = field(default_factory=list)
    policy: StepPolicy | None = None
    """The last policy that went to the worker."""

    def observe(self, report: StepReport) -> bool:
        """Learn from a step report; False when it is nonsense."""
        limits = self.budget.limits
        return self.model.observe(report, limits.kv_blocks * limits.block_size)

    def read_valve(self, now_ns: int, urgent_tokens: int) -> None:
        """Set what less urgent work may take of a step, given the urgent prompt tokens that wait."""
        budget = self.budget
        waiting = urgent_tokens + budget.urgent_tokens
        budget.lower_step_tokens = self.valve.read(
            now_ns, self.model.costs, waiting, budget.lower_decodes, budget.kv_tokens
        )

    def promise(self, request_id: int, limit_ns: int) -> None:
        """Note by when an urgent request that goes to this worker has to be done."""
        heapq.heappush(self._limits, (limit_ns, request_id))

    def tightest_ns(self) -> int | None:
        """Return the earliest time by which some urgent request here has to be done, or None.

        Whatever joins the worker's next step makes all urgent requests in it end later.
        """
        limits = self._limits
        while limits and limits[0][1] not in self.in_flight:
            heapq.heappop(limits)
        return limits[0][0] if limits else None

    def next_policy(self) -> StepPolicy | None:
        """Return what the engine's step scheduler needs to know, or None when it knows it well enough already."""
        if not self.gated:
            return None
        costs = self.model.costs
        policy = StepPolicy(
            lower_step_tokens=self.budget.lower_step_tokens,
            step_seconds=costs.step,
            prefill_token_seconds=costs.prefill_token,
            decode_seconds=costs.decode,
            kv_token_seconds=costs.kv_token,
        )
        if self.policy is not None and _alike(self.policy, policy):
            return None
        self.policy = policy
        return policy

    def urgent_finish_ns(self, now_ns: int, use: Use) -> int:
        """Return when an urgent request would be done that goes to this worker now.

        What runs is half over on average; with a step gate only urgent work shares the steps that follow, without
        one every one of them is as full as the valve lets it be.
        """
        budget, costs = self.budget, self.model.costs
        tokens = budget.urgent_tokens + use.prompt_tokens
        most = budget.limits.max_num_batched_tokens
        full_steps = tokens // most
        steps = full_steps + 1
        decodes, kv = budget.lower_decodes, budget.kv_tokens
        seconds = steps * costs.seconds(0, decodes, kv) + tokens * costs.prefill_token
        if budget.lower_prefill:
            carried = costs.seconds(min(budget.lower_prefill, budget.lower_step_tokens), decodes, kv)
            seconds += (0.5 + self.steps_ahead) * carried
            if not self.gated:
                seconds += steps * min(budget.lower_prefill, budget.lower_step_tokens) * costs.prefill_token
        elif budget.urgent_tokens or decodes:
            seconds += (0.5 + self.steps_ahead) * costs.seconds(min(budget.urgent_tokens, most), decodes, kv)
        return now_ns + int((seconds + self.overhead_seconds) * NANOSECONDS)

    def least_seconds(self, use: Use) -> float:
        """Return what an urgent request costs with the engine to itself: no plan can be faster."""
        return self.model.costs.seconds(use.prompt_tokens)

    def load(self) -> float:
        """Return how full the next step is, as a share of what the engine can take."""
        return self.budget.step_tokens / self.budget.limits.max_num_batched_tokens


def _alike(old: StepPolicy, new: StepPolicy) -> bool:
    """Return whether two policies differ by less than an engine could tell."""

    def near(a: float, b: float) -> bool:
        return abs(a - b) <= 0.05 * max(abs(a), abs(b))

    return (
        near(old.lower_step_tokens, new.lower_step_tokens)
        and near(old.step_seconds, new.step_seconds)
        and near(old.prefill_token_seconds, new.prefill_token_seconds)
        and near(old.decode_seconds, new.decode_seconds)
        and near(old.kv_token_seconds, new.kv_token_seconds)
    )
