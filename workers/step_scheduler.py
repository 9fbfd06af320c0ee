"""vLLM's scheduler with the step gate: keeps less urgent work out of the steps that an urgent request needs.

vLLM gives every step's tokens to the running requests in the order of their admission, then to the waiting ones; its
``priority`` policy only orders the latter. Everything stays as vLLM does it here, except that each request's share of a
step passes through `StepScheduler._reserve_prefill_lookahead` once more, where a held request gets none: vLLM goes
on with the next one, as it does for a request that a step has no room for.

This module is imported inside vLLM's engine process. `workers.step_scheduler_check` says beforehand whether the
installed vLLM works the way that is relied on here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from schemas.frames import StepPolicy
from workers.step_gate import Allowance, Free, Lower, StepGate, Urgent
from workers.step_notes import StepNote, read_note

READY = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
"""A waiting request in another state waits for something that tokens cannot give it, like a grammar."""


class _Ahead(NamedTuple):
    """A step that was scheduled and has not ended (nanoseconds)."""

    scheduled_ns: int
    predicted_ns: int
    ends_ns: int


class StepScheduler(Scheduler):  # type: ignore[misc]  # vLLM is not followed by mypy, so its classes are Any
    """Step by step: look at what is in the engine, ask the gate, let vLLM schedule within the answer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.clock_ns = time.time_ns
        """Nanoseconds since the epoch, as in every deadline."""
        self.gate = StepGate(self.max_num_scheduled_tokens)
        self._policy: StepPolicy | None = None
        self._notes: dict[str, StepNote] = {}
        self._first: dict[str, Any] = {}
        self._blocked: set[str] = set()
        self._allowance: Allowance | None = None
        self._left = 0
        self._excluded: frozenset[str] = frozenset()
        self._ends: deque[_Ahead] = deque()
        self._ended_ns = 0

    # What vLLM calls

    def add_request(self, request: Any) -> None:
        """Take a request with its note; see vLLM's `SchedulerInterface.add_request`."""
        params = request.sampling_params
        note = read_note(params.extra_args if params is not None else None)
        if note is not None:
            self._notes[request.request_id] = note
            if not note.held:
                self._first[request.request_id] = request
            if note.policy is not None:
                self._policy = note.policy
        super().add_request(request)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Put the next step together; see vLLM's `SchedulerInterface.schedule`."""
        now_ns = self.clock_ns()
        starts_ns = max(now_ns, self._ends[-1].ends_ns) if self._ends else now_ns
        waiting = self._open(starts_ns)
        output = super().schedule(*args, **kwargs)
        scheduled = output.num_scheduled_tokens
        # What got nothing although others were held for it is kept out by something else, as a full KV cache.
        # Holding them any longer could keep it out for ever.
        self._blocked.update(i for i in waiting if i not in scheduled and i not in self._excluded)
        predicted_ns = self._predicted_ns(scheduled)
        self._ends.append(_Ahead(now_ns, predicted_ns, starts_ns + predicted_ns))
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take what a step produced; see vLLM's `SchedulerInterface.update_from_output`."""
        if self._ends:
            now_ns, step = self.clock_ns(), self._ends.popleft()
            # The step began when it was scheduled, or when the one before had ended.
            self.gate.observe(step.predicted_ns / 1e9, (now_ns - max(step.scheduled_ns, self._ended_ns)) / 1e9)
            self._ended_ns = now_ns
            # A step that was scheduled ahead begins now, not when that was predicted.
            delay = now_ns - step.ends_ns
            self._ends = deque(ahead._replace(ends_ns=ahead.ends_ns + delay) for ahead in self._ends)
        return super().update_from_output(scheduler_output, model_runner_output)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Forget a request that ended on any path; called by vLLM once for each."""
        self._notes.pop(request.request_id, None)
        self._first.pop(request.request_id, None)
        self._blocked.discard(request.request_id)
        return super()._free_request(request, *args, **kwargs)

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Return how many tokens of this step a request gets; vLLM asks once for each before it allocates blocks."""
        tokens = int(super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens))
        allowance = self._allowance
        if allowance is None:
            return tokens
        if request.request_id in self._excluded:
            return 0
        note = self._notes.get(request.request_id)
        if note is None or not note.held:
            return tokens
        if tokens == 1 and num_computed_tokens >= request.num_prompt_tokens:
            return tokens if allowance.lower_decodes else 0
        tokens = min(tokens, self._left)
        self._left -= tokens
        return tokens

    # What a step may hold

    def _open(self, starts_ns: int) -> list[str]:
        """Ask the gate about the step that begins then; returns the waiting requests that others are held for."""
        self._allowance = None
        self._excluded = frozenset()
        policy = self._policy
        if policy is None:
            return []
        urgent: list[Urgent] = []
        asked: list[str] = []
        lower_prefill = lower_decodes = lower_kv = free_prefill = free_decodes = free_kv = 0
        for request in self.running:
            left = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
            if left <= 0 or _complete(request):
                continue
            decodes = left == 1 and request.num_computed_tokens >= request.num_prompt_tokens
            note = self._notes.get(request.request_id)
            if note is not None and note.urgent:
                self._blocked.discard(request.request_id)
                urgent.append(_urgent(request, note, 0 if decodes else left))
                asked.append(request.request_id)
            elif note is None or note.floor:
                free_prefill += 0 if decodes else left
                free_decodes += decodes
                free_kv += request.num_computed_tokens if decodes else 0
            else:
                lower_prefill += 0 if decodes else left
                lower_decodes += decodes
                lower_kv += request.num_computed_tokens if decodes else 0
        waiting: list[str] = []
        for request, note in self._admissible():
            left = max(1, request.num_tokens - (request.num_computed_tokens or note.cached_tokens))
            if note.urgent:
                urgent.append(_urgent(request, note, left))
                asked.append(request.request_id)
                waiting.append(request.request_id)
            else:
                free_prefill += left
        if len(self.waiting) > sum(request.status != RequestStatus.RUNNING for request in self._first.values()):
            lower_prefill += self.max_num_scheduled_tokens
        self._allowance = self.gate.allow(
            policy,
            urgent,
            Lower(prefill_tokens=lower_prefill, decodes=lower_decodes, kv_tokens=lower_kv),
            starts_ns,
            Free(prefill_tokens=free_prefill, decodes=free_decodes, kv_tokens=free_kv),
        )
        self._left = self._allowance.lower_prefill_tokens
        self._excluded = frozenset(i for i, takes in zip(asked, self._allowance.urgent, strict=True) if not takes)
        return waiting

    def _admissible(self) -> Iterator[tuple[Any, StepNote]]:
        """Yield the waiting requests that are never held and that have a sequence slot, in the order of arrival."""
        slots = self.max_num_running_reqs - len(self.running)
        for request_id, request in self._first.items():
            if slots <= 0:
                return
            if request.status in READY and request_id not in self._blocked:
                slots -= 1
                yield request, self._notes[request_id]

    def _predicted_ns(self, scheduled: dict[str, int]) -> int:
        policy = self._policy
        if policy is None:
            return 0
        decodes = [request_id for request_id, tokens in scheduled.items() if tokens == 1]
        seconds = policy.step_seconds if scheduled else 0.0
        prefill = (sum(scheduled.values()) - len(decodes)) * policy.prefill_token_seconds
        seconds += max(prefill, policy.decode_step_seconds) if scheduled else 0.0
        seconds += len(decodes) * policy.decode_seconds
        seconds += sum(self.requests[i].num_computed_tokens for i in decodes) * policy.kv_token_seconds
        return int(seconds * 1e9)


class AsyncStepScheduler(StepScheduler, AsyncScheduler):  # type: ignore[misc]  # as above
    """The same for vLLM's asynchronous scheduling, which puts a step together while the one before still runs."""


def _complete(request: Any) -> bool:
    """Return whether the step in flight gives a request its last token, by vLLM's own rule for running ahead."""
    ahead = request.num_output_placeholders
    if not ahead:
        return False
    return bool(request.num_computed_tokens + 2 - ahead >= request.num_prompt_tokens + request.max_tokens)


def _urgent(request: Any, note: StepNote, prefill_tokens: int) -> Urgent:
    produced = request.num_output_tokens + request.num_output_placeholders
    return Urgent(
        prefill_tokens=prefill_tokens,
        deadline_ns=note.deadline_ns,
        output_tokens=max(1, request.max_tokens - produced),
        context_tokens=request.num_prompt_tokens + produced,
    )
