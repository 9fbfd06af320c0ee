"""One simulated worker in virtual time: an engine's steps, one behind the other, some of them scheduled ahead."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from schemas.frames import FEW_PROMPT_TOKENS, Limits, StepPolicy, StepReport
from workers.sim_core import Costs, Produced, SimCore, Step
from workers.sim_core import Sequence as EngineSequence
from workers.step_gate import StepGate

REPORT_NS = 100_000_000
"""Least time between step reports, as a worker process keeps it."""
IDLE_NS = 1_000_000
"""Time after which an engine whose gate holds everything looks again."""


@dataclass(slots=True)
class Totals:
    """What an engine did: steps, their seconds and their tokens."""

    steps: int = 0
    decode_steps: int = 0
    seconds: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0
    preempted: int = 0

    def add(self, step: Step, seconds: float) -> None:
        """Count a step."""
        self.steps += 1
        self.decode_steps += step.prefill_tokens < FEW_PROMPT_TOKENS
        self.seconds += seconds
        self.prefill_tokens += step.prefill_tokens
        self.decode_tokens += step.decode_tokens
        self.kv_tokens += step.kv_tokens
        self.preempted += len(step.preempted)


@dataclass(slots=True)
class VirtualWorker:
    """An engine and the worker around it.

    Args:
        name: its worker id.
        costs: what its steps take.
        run_ahead: see `ops.sim.profiles.Profile`.
        noise: likewise.
        rng: draws the noise.
        gated: whether the step gate works in it.
    """

    name: str
    limits: Limits
    costs: Costs
    run_ahead: int
    noise: float
    rng: random.Random
    shared_blocks: int
    gated: bool = False
    core: SimCore = field(init=False)
    totals: Totals = field(default_factory=Totals)
    started_steps: int = 0
    lost: dict[int | str, int] = field(default_factory=dict)
    _ahead: deque[Step] = field(default_factory=deque)
    _running: Step | None = None
    _seconds: float = 0.0
    _ends_ns: int = 0
    _unreported: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        gate = StepGate(self.limits.max_num_batched_tokens) if self.gated else None
        self.core = SimCore(self.limits, self.shared_blocks, gate)

    @property
    def busy(self) -> bool:
        """Whether a step is running."""
        return self._running is not None

    @property
    def has_work(self) -> bool:
        """Whether any request is in the engine."""
        return bool(self.core.running or self.core.waiting)

    def receive(
        self, requests: Sequence[EngineSequence], aborts: Iterable[int], policy: StepPolicy | None = None
    ) -> None:
        """Take what a scheduler sent."""
        if policy is not None:
            self.core.policy = policy
        gone = set(aborts)
        if gone:
            for sequence in self.core.sequences:
                if sequence.request_id in gone and sequence.content is not None:
                    self.lost[sequence.content] = progress(sequence)
            self.core.abort(gone)
        for sequence in requests:
            self.core.add(sequence)

    def begin(self, now_ns: int) -> tuple[Step, int] | None:
        """Start the next step; returns it and when it ends, or None when nothing can run."""
        step = self._ahead.popleft() if self._ahead else self.core.schedule(now_ns)
        if step is None:
            return None
        self._running = step
        self.started_steps += 1
        self._seconds = max(0.2, self.rng.gauss(1.0, self.noise)) * self.costs.seconds(step)
        end = self._ends_ns = now_ns + max(1, int(self._seconds * 1e9))
        # Nobody knows when a step will end; what is scheduled ahead has to do with what it should take.
        expected = now_ns + int(self.costs.seconds(step) * 1e9)
        while len(self._ahead) < self.run_ahead:
            following = self.core.schedule(expected)
            if following is None:
                break
            self._ahead.append(following)
        return step, end

    def committed_ns(self, now_ns: int) -> int:
        """Return when the steps end that are already decided."""
        if self._running is None:
            return now_ns
        ahead = sum(self.costs.seconds(step) for step in self._ahead)
        return max(now_ns, self._ends_ns + int(ahead * 1e9))

    def end(self) -> Produced:
        """End the running step."""
        step = self._running
        assert step is not None  # noqa: S101 - the driver ends only what it began
        self._running = None
        self.totals.add(step, self._seconds)
        self._unreported.add(step, self._seconds)
        return self.core.apply(step)

    def report(self) -> StepReport | None:
        """Return what was done since the last report, or None when that is nothing."""
        done = self._unreported
        if not done.steps:
            return None
        self._unreported = Totals()
        return StepReport(
            session="",
            steps=done.steps,
            seconds=done.seconds,
            prefill_tokens=done.prefill_tokens,
            decode_tokens=done.decode_tokens,
            running=self.core.running,
            waiting=self.core.waiting,
            kv_usage=self.core.used_blocks / self.limits.kv_blocks,
            decode_steps=done.decode_steps,
        )


def progress(sequence: EngineSequence) -> int:
    """Return how many tokens of its own a sequence has computed."""
    return max(0, sequence.computed - sequence.shared_tokens)
