"""One run of some traffic through a policy and real vLLM, in real time: the counterpart of `ops.sim.driver`."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ops.bench.real_engine import RealEngine
from ops.sim.driver import Outcome, Step, Window
from ops.sim.policies import Dispatch, Job, Policy
from ops.sim.profiles import Profile
from ops.sim.traffic import CPU_CLASSES as CLASSES
from ops.sim.traffic import FLASH, NS, Arrival
from schemas.frames import Request, StepPolicy, StepReport
from workers.engine import Steps
from workers.step_notes import engine_priority, note_for

WORKER = "real"
FIRST_TOKEN_ID, LAST_TOKEN_ID = 1_000, 40_000
"""Prompts are random tokens from this range: what a model makes of them does not change what they cost."""
PATIENCE = 300.0
"""Seconds without any result after which a run is given up."""
SERIAL = itertools.count()
"""Numbers the runs of a process: makes vLLM's request ids and the prompts unique."""


@dataclass(kw_only=True, slots=True)
class RealRun:
    """One run of some traffic against one engine; ends when all filings and all headlines have ended.

    Headlines that would arrive after the last filing was done are left out: they would meet an idle engine.

    Args:
        engine: warm and idle.
        profile: what the policy is told about the engine.
        policy: fresh, without workers.
        arrivals: in order of time.
    """

    engine: RealEngine
    profile: Profile
    policy: Policy
    arrivals: Sequence[Arrival]
    _serial: int = field(default_factory=lambda: next(SERIAL))
    _began_ns: int = 0
    _began_epoch_ns: int = 0
    _jobs: list[Job] = field(default_factory=list)
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _step_policy: StepPolicy | None = None
    _plan_due: bool = False
    _timer: asyncio.TimerHandle | None = None
    _left: list[int] = field(default_factory=lambda: [0, 0])
    _lower_end_ns: int = 0
    _trace: list[Step] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _failed: BaseException | None = None

    async def run(self) -> Outcome:
        """Run the traffic and return what became of it; the window ends with the last filing."""
        self.policy.add_worker(WORKER, self.profile, ())
        self.engine.sinks[:] = [self._on_steps]
        self._left = [sum(1 for a in self.arrivals if a.class_index != FLASH), 0]
        self._began_ns, self._began_epoch_ns = time.monotonic_ns(), time.time_ns()
        feeder = asyncio.create_task(self._feed())
        try:
            while self._left[0] or self._left[1] or not feeder.done():
                await asyncio.wait_for(self._changed.wait(), PATIENCE)
                self._changed.clear()
                if self._failed is not None:
                    raise self._failed
                if not self._left[0] and self._has_lower:
                    feeder.cancel()
                    await asyncio.gather(feeder, return_exceptions=True)
        finally:
            feeder.cancel()
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(feeder, *self._tasks.values(), return_exceptions=True)
            self.engine.sinks.clear()
        return self._outcome()

    @property
    def _has_lower(self) -> bool:
        return any(a.class_index != FLASH for a in self.arrivals)

    def _outcome(self) -> Outcome:
        ended = self._now()
        end = (self._lower_end_ns or ended) / NS
        window = Window(begin=0.0, end=end, cap=ended / NS, until_done=True)
        done = [(is_lower(job), self._own_tokens(job)) for job in self._jobs if job.done_ns]
        lower_tokens = sum(tokens for lower, tokens in done if lower)
        all_tokens = sum(tokens for _, tokens in done)
        outcome = Outcome(jobs=self._jobs, window=window, lower_tokens=lower_tokens, all_tokens=all_tokens)
        outcome.ended_ns, outcome.steps, outcome.trace = ended, len(self._trace), self._trace
        return outcome

    def _own_tokens(self, job: Job) -> int:
        """Return a request's tokens without the prefix that all of them share, as in a simulated run."""
        wrap = self.profile.extractors[CLASSES[job.arrival.class_index].extractor]
        own = wrap.prompt_tokens - wrap.shared_prefix_tokens
        return own + job.arrival.text_tokens + job.arrival.output_tokens

    def _now(self) -> int:
        return time.monotonic_ns() - self._began_ns

    # The scheduler's side

    async def _feed(self) -> None:
        """Let everything arrive at its time, whatever the engine is doing (open loop)."""
        try:
            for arrival in self.arrivals:
                wait = arrival.at_ns - self._now()
                if wait > 0:
                    await asyncio.sleep(wait / NS)
                job = Job(len(self._jobs), arrival)
                self._jobs.append(job)
                self._left[1] += arrival.class_index == FLASH
                self.policy.arrive(job, self._now())
                self._plan_soon()
        finally:
            self._changed.set()

    def _plan_soon(self) -> None:
        if not self._plan_due:
            self._plan_due = True
            asyncio.get_running_loop().call_soon(self._plan)

    def _plan(self) -> None:
        self._plan_due = False
        now = self._now()
        orders = self.policy.orders(now)
        for job in orders.expired:
            job.expired_ns = now
            self._ended(job)
        self._step_policy = orders.policies.get(WORKER, self._step_policy)
        for request_id in orders.aborts.get(WORKER, []):
            task = self._tasks.pop(request_id, None)
            if task is not None:
                task.cancel()
        for dispatch in orders.dispatches:
            dispatch.job.runs += 1
            self._tasks[dispatch.request_id] = asyncio.create_task(self._run(dispatch))
        wake = self.policy.wakes_at()
        if self._timer is not None:
            self._timer.cancel()
        if wake is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, (wake - now) / NS), self._plan_soon)

    def _ended(self, job: Job) -> None:
        self._left[0 if is_lower(job) else 1] -= 1
        if is_lower(job) and not self._left[0]:
            self._lower_end_ns = self._now()
        self._changed.set()

    # The worker's side

    async def _run(self, dispatch: Dispatch) -> None:
        """Run one request; the policy hears of its first token and of its end."""
        job, request = dispatch.job, self._request(dispatch)
        params = _params(job.arrival.output_tokens)
        if self.engine.gated:
            block = self.engine.limits.block_size
            cached = self.profile.extractors[request.extractor].shared_prefix_tokens // block * block
            params = self.engine.backend.with_note(params, note_for(request, cached, self._step_policy))
        key = f"{self._serial}-{job.number}-{dispatch.request_id}-{job.runs}"
        ids = _prompt(self.profile, job, self._serial)
        try:
            async for _ in self.engine.generate(key, ids, params, engine_priority(request)):
                if not job.first_ns:
                    job.first_ns = self._now()
                    self.policy.started(WORKER, dispatch.request_id)
                    self._plan_soon()
        except Exception as error:  # noqa: BLE001 - told to whoever waits for the run
            self._failed = error
            self._changed.set()
            return
        self._tasks.pop(dispatch.request_id, None)
        now = self._now()
        done = self.policy.finished(WORKER, dispatch.request_id, now)
        if done is not None:
            done.done_ns = now
            self._ended(done)
        self._plan_soon()

    def _request(self, dispatch: Dispatch) -> Request:
        arrival = dispatch.job.arrival
        service_class = CLASSES[arrival.class_index]
        return Request(
            request_id=dispatch.request_id,
            text_tokens=b"",
            service_class=service_class.name,
            priority=dispatch.priority,
            deadline_ns=self._began_epoch_ns + arrival.at_ns + int(service_class.slo_ms * 1e6),
            extractor=service_class.extractor,
            floor=dispatch.floor,
        )

    def _on_steps(self, steps: Steps) -> None:
        """Pass a step's figures on as a worker's report, and keep them."""
        limits = self.engine.limits
        self._trace.append(
            Step(
                worker=WORKER,
                starts=self._now() / NS - steps.seconds,
                seconds=steps.seconds,
                prefill_tokens=steps.prefill_tokens,
                decode_tokens=steps.decode_tokens,
                kv_tokens=round(steps.kv_usage * limits.kv_blocks * limits.block_size),
            )
        )
        self.policy.report(
            WORKER,
            StepReport(
                session="",
                steps=steps.steps,
                seconds=steps.seconds,
                prefill_tokens=steps.prefill_tokens,
                decode_tokens=steps.decode_tokens,
                running=steps.running,
                waiting=steps.waiting,
                kv_usage=steps.kv_usage,
                decode_steps=steps.decode_steps,
            ),
        )
        self._plan_soon()


def is_lower(job: Job) -> bool:
    """Return whether a job is of a lower class than the most urgent one."""
    return job.arrival.class_index != FLASH


def _params(output_tokens: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=output_tokens,
        temperature=0.0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _prompt(profile: Profile, job: Job, run: int) -> list[int]:
    """Return a prompt: the extractor's shared prefix, then tokens that no other run has put into the prefix cache."""
    name = CLASSES[job.arrival.class_index].extractor
    wrap = profile.extractors[name]
    shared, own = random.Random(name), random.Random(f"{run}-{job.number}")  # noqa: S311 - arbitrary text
    own_tokens = wrap.prompt_tokens - wrap.shared_prefix_tokens + job.arrival.text_tokens
    return [
        *(shared.randint(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(wrap.shared_prefix_tokens)),
        *(own.randint(FIRST_TOKEN_ID, LAST_TOKEN_ID) for _ in range(own_tokens)),
    ]
