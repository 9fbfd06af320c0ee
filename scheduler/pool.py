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
URGENT = 0
"""Position of the most urgent class."""
NEVER_NS = 2**62
"""A time that does not come."""


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
    _slacks: list[tuple[int, int]] = field(default_factory=list)
    _added_ns: int = 0
    _wait_seconds: float = 0.0
    _step_seconds: float = 0.0
    _answer_seconds: float = 0.0
    policy: StepPolicy | None = None
    """The last policy that went to the worker."""
    away: bool = False
    """It has no connection, so nothing new goes there."""

    def observe(self, report: StepReport) -> bool:
        """Learn from a step report; False when it is nonsense."""
        return self.model.observe(report, self.budget.limits)

    def delays(self, use: Use) -> bool:
        """Return whether urgent requests that are here would miss their time if this one joined their step."""
        if self.gated:
            return False  # the gate would keep it for the next one
        slacks = self._slacks
        while slacks and slacks[0][1] not in self.in_flight:
            heapq.heappop(slacks)
        return bool(slacks) and slacks[0][0] - self._added_ns < self._cost_ns(use)

    def trusts(self, work: Work) -> bool:
        """Return whether work may come here: of two requests that may each kill an engine, one at a time."""
        return not work.suspect or not any(other.suspect for other in self.in_flight.values())

    def promise(self, request_id: int, use: Use, slack_ns: int) -> None:
        """Note an urgent request that goes to this worker.

        Args:
            request_id: of the dispatch.
            use: what it takes; everything urgent that is here ends later by that much.
            slack_ns: from when it should be done to when it has to be.
        """
        if self.gated:
            return  # the gate sees to it that nobody is delayed
        self._added_ns += self._cost_ns(use)
        if 0 <= slack_ns < NEVER_NS // 2:  # what is too late in any case, or has no limit, must not keep others out
            heapq.heappush(self._slacks, (slack_ns + self._added_ns, request_id))

    def _cost_ns(self, use: Use) -> int:
        return int(use.prompt_tokens * self.model.costs.prefill_token * NANOSECONDS)

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
            decode_step_seconds=costs.decode_step,
        )
        if self.policy is not None and _alike(self.policy, policy):
            return None
        self.policy = policy
        return policy

    def in_the_way(self, use: Use) -> list[Work] | None:
        """Return the less urgent work that has to make way for an urgent request, the newest first.

        Only what has produced nothing and is no guaranteed share can be taken back; None when that is not enough.
        """
        budget = self.budget
        freed: list[int] = []
        victims: list[Work] = []
        newest = iter(reversed(self.in_flight.values()))
        while not budget.holds(use, without=freed) and len(freed) < budget.seqs:
            for work in newest:
                if work.class_index != URGENT and not work.productive and not work.floor:
                    victims.append(work)
                    freed.append(work.request_id)
                    break
            else:
                return None
        return victims

    def would_hold_but_for_urgent(self, extractor: str, token_count: int) -> bool:
        """Return whether only urgent requests are in the way of a less urgent text: they are soon done."""
        if token_count > self.budget.text_limit(extractor):
            return False
        urgent = [work.request_id for work in self.in_flight.values() if work.class_index == URGENT]
        use = self.budget.use_of(extractor, token_count, urgent=False)
        return bool(urgent) and self.budget.holds(use, without=urgent)

    def begin_plan(self, now_ns: int, urgent_tokens: int | None) -> None:
        """Look at the engine once per plan: what runs there, and what less urgent work may take of its steps.

        Args:
            now_ns: the time of the plan.
            urgent_tokens: urgent prompt tokens that wait for a worker; None when it takes no urgent work.
        """
        budget, costs = self.budget, self.model.costs
        if urgent_tokens is None:
            budget.lower_step_tokens = budget.limits.max_num_batched_tokens
            return
        decodes, kv = budget.lower_decodes, budget.kv_tokens
        before = min(budget.lower_prefill, budget.lower_step_tokens)
        waiting = min(urgent_tokens + budget.urgent_tokens, budget.limits.max_num_batched_tokens)
        budget.lower_step_tokens = self.valve.read(now_ns, costs, waiting, decodes, kv)
        if self.gated:
            # The engine itself keeps out of a step what would make it late, at the moment when its start is known:
            # better to let it choose from a little too much than to leave it with too little.
            self._wait_seconds = 0.0
            self._step_seconds = costs.step
            self._answer_seconds = costs.seconds(0, 1)
        else:
            carried = min(budget.lower_prefill, budget.lower_step_tokens)
            self._step_seconds = self._answer_seconds = costs.seconds(carried, decodes, kv)
            # The step that runs may have only begun, and those decided ahead come before ours.
            in_the_way = 1 + self.steps_ahead if self.in_flight else 0
            self._wait_seconds = in_the_way * costs.seconds(before, decodes, kv)

    def urgent_finish_ns(self, now_ns: int, use: Use) -> int:
        """Return when an urgent request would be done that goes to this worker now.

        With a step gate only urgent work shares the steps that follow, and what is late does not get in the way of
        what is not; without one every step is as full as the valve lets it be.
        """
        budget = self.budget
        tokens = budget.urgent_tokens + use.prompt_tokens
        if use.late or not self.gated:
            tokens += budget.late_tokens
        steps = tokens // budget.limits.max_num_batched_tokens + 1
        seconds = self._wait_seconds + steps * self._step_seconds + tokens * self.model.costs.prefill_token
        seconds += (use.answer_tokens - 1) * self._answer_seconds
        return now_ns + int((seconds + self.overhead_seconds) * NANOSECONDS)

    def least_seconds(self, use: Use) -> float:
        """Return what an urgent request costs with the engine to itself: no plan can be faster."""
        costs = self.model.costs
        return costs.seconds(use.prompt_tokens) + (use.answer_tokens - 1) * costs.seconds(0, 1)

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
        and near(old.decode_step_seconds, new.decode_step_seconds)
    )
