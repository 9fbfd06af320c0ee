"""What goes into one engine step: pure arithmetic, shared by the simulated engine and vLLM's.

The most urgent class (priority 0) goes first in every step, but no more of it at once than leaves everything in the
step on time: a burst is packed, deadline first, at the moment when the step is put together and its start is known.
What is left of the time until the tightest deadline is given to the lower classes: first to their decodes, which are
cheap and produce, then to their prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from schemas.frames import StepPolicy

MARGIN_SECONDS = 0.005
"""Kept free before every deadline: the answer's way through detokenising, sockets and two processes."""
MODEL_ERROR = 0.15
"""Least that is kept free as well, as a fraction of all predicted time: single steps scatter around the fitted line."""
MOST_ERROR = 1.0
"""Most of it. Steps that take twice what the model says call for another model, not for a larger reserve."""
ERROR_STEP = 0.03
"""What a step that took longer than predicted with its reserve adds to the reserve."""
ERROR_SHARE = 0.02
"""Share of steps that may take that long: where the reserve neither grows nor shrinks (a quantile tracker)."""
PACK_ERROR = 0.005
PACK_MARGIN_SECONDS = 0.0007
"""The same two for a step that urgent work has to itself. Little is kept free there, since every per cent is an answer
of a burst that will not be on time, and since only the last part of a burst runs that close to its deadline."""
NEARLY = 0.8
"""Share of the time to the tightest deadline from which a step of urgent work counts as full."""
FIRST_PART = 0.85
"""What such a step takes of it. All results of a step come at its end, so a burst in one step is on time together or
late together: in the simulator, with steps that scatter by 3 %, 6 of 20 bursts came late as a whole. The rest goes into
a step of its own and ends a step later, so the first part keeps that step's time as its reserve."""
WORTH_SPLITTING = 5.0
"""Steps that take less than this many times what one more step costs stay whole: its fixed cost, and where answers have
more than one token, a step more for the answers of the second part, in which the weights are read for them alone."""
HOLD_SECONDS = 0.5
"""Longest time in a row that lower classes stand still for urgent work. A bulk event has seconds, so one stop of this
length is harmless; without a bound an urgent class above its capacity would stop them for good."""
RELEASE_TOKENS = 128
"""Least prefill of a step that ends such a stop, whatever the policy says: a valve shut by a wrong model must still
let the work through that corrects the model."""
GRAIN_NS = 10_000_000
"""Deadlines within the same ten milliseconds are one burst, in which requests keep the order of their arrival here."""
SHORTEST_CHUNK = 16
"""Prompt tokens below which a chunk is not worth its place: it would hold up the step and hardly move its prompt."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Urgent:
    """One request of the most urgent class that gets its tokens in the next step or soon after.

    Leave out what cannot run at all (no free sequence slot, grammar not compiled yet): holding others back for it
    helps nobody, and may keep it out for ever.

    Args:
        prefill_tokens: prompt tokens that are not computed yet and not in the prefix cache; 0 while it decodes.
        output_tokens: answer tokens it can still produce; each takes a step, the last prefill step gives the first.
        deadline_ns: nanoseconds since the epoch.
        context_tokens: what each token after the first reads from the KV cache.
    """

    prefill_tokens: int
    deadline_ns: int
    output_tokens: int = 1
    context_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lower:
    """The less urgent work in the engine, without the requests of a guaranteed floor.

    Args:
        prefill_tokens: prompt tokens they could compute now.
        decodes: sequences that would produce a token.
        kv_tokens: tokens in the KV cache that these decodes read.
    """

    prefill_tokens: int
    decodes: int
    kv_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Free:
    """Work that is never held and holds nothing: the guaranteed floor of the lower classes."""

    prefill_tokens: int = 0
    decodes: int = 0
    kv_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowance:
    """What may go into one step.

    Args:
        lower_prefill_tokens: most prompt tokens that the lower classes may compute, all together.
        lower_decodes: whether their decodes run.
        urgent: per urgent request, in the order in which they were given, whether it takes part.
    """

    lower_prefill_tokens: int
    lower_decodes: bool
    urgent: tuple[bool, ...] = ()


NOTHING = Free()


class StepGate:
    """Decides step by step; its state is since when lower classes stand still, and how far predictions were off.

    Args:
        step_tokens: most tokens of one step (``max_num_batched_tokens``).
        hold_seconds: see `HOLD_SECONDS`.
    """

    def __init__(self, step_tokens: int, hold_seconds: float = HOLD_SECONDS) -> None:
        self._step_tokens = step_tokens
        self._hold_ns = int(hold_seconds * 1e9)
        self.error = MODEL_ERROR
        """Fraction of predicted time that is kept free; see `observe`."""
        self._prefill_held_ns: int | None = None
        self._decodes_held_ns: int | None = None

    def allow(
        self,
        policy: StepPolicy,
        urgent: Sequence[Urgent],
        lower: Lower,
        starts_ns: int,
        free: Free = NOTHING,
    ) -> Allowance:
        """Return what the lower classes may do in the step that is being put together.

        Args:
            policy: the worker's step-time model and the valve. One with numbers that mean nothing opens the gate.
            urgent: the most urgent requests in the engine; those past their deadline hold nothing.
            lower: what could be held.
            starts_ns: when the step will begin, in nanoseconds since the epoch: now, or when the step that is
                already running ends.
            free: what is never held.
        """
        own_tokens = sum(request.prefill_tokens for request in urgent) + free.prefill_tokens
        decoding = sum(1 for request in urgent if not request.prefill_tokens) + free.decodes
        room = max(0, self._step_tokens - own_tokens - decoding - lower.decodes)
        if not usable(policy):
            everyone = (True,) * len(urgent)
            opened = Allowance(lower_prefill_tokens=room, lower_decodes=True, urgent=everyone)
            return self._remember(lower, opened, starts_ns)
        tokens = min(room, policy.lower_step_tokens)
        spare = self._spare(policy, urgent, starts_ns, free)
        decodes = True
        if spare is not None:
            running = lower.decodes * policy.decode_seconds + lower.kv_tokens * policy.kv_token_seconds
            # They run together or not at all, so they may take what the later steps would have: in each one's share
            # they would fit nowhere.
            decodes = running <= spare[0]
            left = spare[1] - running
            if not decodes or left < 0:
                tokens = 0
            elif tokens * policy.prefill_token_seconds > left:
                tokens = int(left / policy.prefill_token_seconds)
        if tokens < min(SHORTEST_CHUNK, lower.prefill_tokens):
            tokens = 0
        if self._held_too_long(self._prefill_held_ns, starts_ns):
            tokens = min(room, max(policy.lower_step_tokens, RELEASE_TOKENS))
        decodes = decodes or self._held_too_long(self._decodes_held_ns, starts_ns)
        packed = self._pack(policy, urgent, starts_ns, free)
        allowance = Allowance(lower_prefill_tokens=tokens, lower_decodes=decodes, urgent=packed)
        return self._remember(lower, allowance, starts_ns)

    def _pack(self, policy: StepPolicy, urgent: Sequence[Urgent], starts_ns: int, free: Free) -> tuple[bool, ...]:
        """Return which urgent requests share this step: as many as still end on time together, deadline first.

        All results of a step come at its end, so one request too many makes all of them late. What cannot be on time
        any more takes part only when nothing that can is kept waiting or made late by it.
        """
        error = 1 + PACK_ERROR
        answering = [request for request in urgent if not request.prefill_tokens]
        beside = free.decodes * policy.decode_seconds + free.kv_tokens * policy.kv_token_seconds
        # What is being answered runs beside the prompts.
        decodes = sum(policy.decode_seconds + r.context_tokens * policy.kv_token_seconds for r in answering)
        alone = (policy.step_seconds + beside + decodes) * error + PACK_MARGIN_SECONDS
        # Each token after the first takes a step more, in which nothing may hide the reading of the weights.
        after = {n: error * _answer_seconds(policy, answering, beside, n) for n in set(map(_further, urgent))}
        slack = [(r.deadline_ns - starts_ns) / 1e9 - alone - after[_further(r)] for r in urgent]
        costs = [_prompt_seconds(policy, request) * error for request in urgent]
        late = [s < cost for s, cost in zip(slack, costs, strict=True)]
        takes = [not request.prefill_tokens for request in urgent]
        ends: dict[int, float] = {}
        # What is being answered needs this step as well, and those after it: prompts that join must leave it in time.
        # An answer that is a little late by this reckoning may still be on time: then nothing joins it.
        hopeless = [s < -MODEL_ERROR * (alone + after[_further(r)]) for s, r in zip(slack, urgent, strict=True)]
        alive = [
            max(s, 0.0) for s, r, gone in zip(slack, urgent, hopeless, strict=True) if not (r.prefill_tokens or gone)
        ]
        seconds = free.prefill_tokens * policy.prefill_token_seconds * error
        tightest = min(alive, default=float("inf"))
        # So many decodes hide behind the reading of the weights in the steps that follow.
        unhidden = (len(answering) + free.decodes + 1) * policy.decode_seconds - policy.decode_step_seconds
        order = sorted(range(len(urgent)), key=lambda i: (late[i], urgent[i].deadline_ns // GRAIN_NS, i))
        for i in order:
            if takes[i]:
                continue
            ends_at = seconds + costs[i] + _further(urgent[i]) * min(max(unhidden, 0.0), policy.decode_seconds) * error
            if ends_at > (tightest if late[i] else min(tightest, slack[i])):
                continue
            takes[i] = True
            seconds = ends[i] = ends_at
            unhidden += policy.decode_seconds
            if not late[i]:
                tightest = min(tightest, slack[i])
        if not any(takes):
            return (True,) * len(urgent)
        fixed = policy.step_seconds + (policy.decode_step_seconds if any(map(_further, urgent)) else 0.0)
        if seconds > NEARLY * tightest and seconds > WORTH_SPLITTING * fixed:
            first = tuple(t and ends.get(i, 0.0) <= FIRST_PART * seconds for i, t in enumerate(takes))
            return first if any(first) else tuple(takes)
        return tuple(takes)

    def observe(self, predicted_seconds: float, seconds: float) -> None:
        """Learn from a step how far predictions can be trusted on this machine, now."""
        if not (isfinite(predicted_seconds) and isfinite(seconds) and predicted_seconds > 0 and seconds > 0):
            return
        if seconds > predicted_seconds * (1 + self.error):
            self.error = min(self.error + ERROR_STEP, MOST_ERROR)
        else:
            self.error = max(self.error - ERROR_STEP * ERROR_SHARE / (1 - ERROR_SHARE), MODEL_ERROR)

    def _spare(
        self, policy: StepPolicy, urgent: Sequence[Urgent], starts_ns: int, free: Free
    ) -> tuple[float, float] | None:
        """Return the seconds that all steps of the urgent work may take beyond it, and each of them its share.

        None when no deadline counts.
        """
        alive = sorted((r for r in urgent if r.deadline_ns > starts_ns), key=lambda r: r.deadline_ns)
        if not alive:
            return None
        # What runs beside them in each step, whatever is decided here.
        beside = free.decodes * policy.decode_seconds + free.kv_tokens * policy.kv_token_seconds
        beside += sum(
            policy.decode_seconds + request.context_tokens * policy.kv_token_seconds
            for request in urgent
            if not request.prefill_tokens
        )
        tokens = free.prefill_tokens
        spare: tuple[float, float] | None = None
        for request in alive:
            tokens += request.prefill_tokens
            prefills = -(-tokens // self._step_tokens) if request.prefill_tokens else 0
            answers = request.output_tokens - (1 if prefills else 0)
            steps = max(1, prefills + answers)
            work = steps * (policy.step_seconds + beside) + tokens * policy.prefill_token_seconds
            work += min(steps, answers) * policy.decode_step_seconds
            predictable = ((request.deadline_ns - starts_ns) / 1e9 - MARGIN_SECONDS) / (1 + self.error)
            left = predictable - work
            spare = (left, left / steps) if spare is None else (min(spare[0], left), min(spare[1], left / steps))
        return spare

    def _held_too_long(self, since_ns: int | None, now_ns: int) -> bool:
        return since_ns is not None and now_ns - since_ns >= self._hold_ns

    def _remember(self, lower: Lower, allowance: Allowance, now_ns: int) -> Allowance:
        held = lower.prefill_tokens > 0 and allowance.lower_prefill_tokens <= 0
        self._prefill_held_ns = _since(self._prefill_held_ns, now_ns) if held else None
        held = lower.decodes > 0 and not allowance.lower_decodes
        self._decodes_held_ns = _since(self._decodes_held_ns, now_ns) if held else None
        return allowance


def _further(request: Urgent) -> int:
    """Return the steps that a request needs after this one."""
    return max(request.output_tokens - 1, 0)


def _answer_seconds(policy: StepPolicy, answering: Sequence[Urgent], beside: float, steps: int) -> float:
    """Return what so many steps take after this one, with nothing in them but the answers that go on."""
    weights = max(policy.decode_step_seconds, len(answering) * policy.decode_seconds)
    reads = sum(min(steps, _further(request)) * request.context_tokens for request in answering)
    return steps * (policy.step_seconds + weights + beside) + reads * policy.kv_token_seconds


def _prompt_seconds(policy: StepPolicy, request: Urgent) -> float:
    """Return what a prompt adds to this step, and what its answer reads in those that follow."""
    reads = _further(request) * request.context_tokens * policy.kv_token_seconds
    return request.prefill_tokens * policy.prefill_token_seconds + reads


def usable(policy: StepPolicy) -> bool:
    """Return whether a policy's numbers can be calculated with: finite and not negative."""
    seconds = (
        policy.step_seconds,
        policy.prefill_token_seconds,
        policy.decode_seconds,
        policy.kv_token_seconds,
        policy.decode_step_seconds,
    )
    return policy.lower_step_tokens >= 0 and all(isfinite(value) and value >= 0 for value in seconds)


def _since(held_ns: int | None, now_ns: int) -> int:
    """Return the start of a stop. A clock that was set back restarts it, so that it still ends."""
    return now_ns if held_ns is None or held_ns > now_ns else held_ns
