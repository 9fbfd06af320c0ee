"""What travels with a request into vLLM's engine process, inside ``SamplingParams.extra_args``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from schemas.frames import Request, StepPolicy

KEY = "tapewire"
"""Our entry in ``extra_args``; vLLM hands the others to connectors that we do not use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepNote:
    """What the step scheduler knows about one request.

    Args:
        urgent: of the most urgent class.
        floor: of a lower class's guaranteed share.
        deadline_ns: nanoseconds since the epoch.
        cached_tokens: leading prompt tokens that the prefix cache holds for every request.
        policy: how steps are split from this request's arrival on; None keeps what holds.
    """

    urgent: bool
    floor: bool
    deadline_ns: int
    cached_tokens: int
    policy: StepPolicy | None = None

    @property
    def held(self) -> bool:
        """Whether this is work that can be held back."""
        return not (self.urgent or self.floor)

    def extra_args(self) -> dict[str, Any]:
        """Return the note as plain values, which pass any serialiser."""
        policy = self.policy
        values = None
        if policy is not None:
            values = [
                policy.lower_step_tokens,
                policy.step_seconds,
                policy.prefill_token_seconds,
                policy.decode_seconds,
                policy.kv_token_seconds,
                policy.decode_step_seconds,
            ]
        return {KEY: [self.urgent, self.floor, self.deadline_ns, self.cached_tokens, values]}


def note_for(request: Request, cached_tokens: int, policy: StepPolicy | None) -> StepNote:
    """Return the note for a request from the scheduler."""
    return StepNote(
        urgent=request.priority == 0,
        floor=request.floor,
        deadline_ns=request.deadline_ns,
        cached_tokens=cached_tokens,
        policy=policy,
    )


def engine_priority(request: Request) -> int:
    """Return vLLM's priority: that of the class, with each guaranteed share right behind the most urgent class.

    vLLM stops admitting at the first waiting request that gets no tokens, so a share that is never held must not stand
    behind work that is.
    """
    if request.priority <= 0:
        return 0
    return 1 if request.floor else request.priority + 1


def read_note(extra_args: Mapping[str, Any] | None) -> StepNote | None:
    """Read the note of a request inside the engine process; None when it has none, as in the warm-up."""
    values = extra_args.get(KEY) if extra_args else None
    if values is None:
        return None
    urgent, floor, deadline_ns, cached_tokens, policy = values
    return StepNote(
        urgent=urgent,
        floor=floor,
        deadline_ns=deadline_ns,
        cached_tokens=cached_tokens,
        policy=None if policy is None else _policy(*policy),
    )


def _policy(
    tokens: int, step: float, prefill_token: float, decode: float, kv_token: float, decode_step: float
) -> StepPolicy:
    return StepPolicy(
        lower_step_tokens=tokens,
        step_seconds=step,
        prefill_token_seconds=prefill_token,
        decode_seconds=decode,
        kv_token_seconds=kv_token,
        decode_step_seconds=decode_step,
    )
