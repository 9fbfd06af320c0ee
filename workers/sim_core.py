"""The step logic of a simulated continuous-batching engine: pure state, no clock and no I/O.

It follows vLLM's V1 scheduler (0.32) in what matters to an outside scheduler: running requests go first in the order
of their admission, waiting ones by (priority, arrival); a prefill takes at most ``long_prefill_token_threshold``
tokens of a step unless it is alone; a request is admitted when its whole prompt fits the free KV blocks; when blocks
run out, the least urgent running request is put back and starts over with what the prefix cache still has of it. A
step may be scheduled before the one ahead of it has run, as vLLM's asynchronous scheduling does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.frames import Limits, StepPolicy
from workers.sim_cache import FreedPrompts
from workers.step_gate import Allowance, Free, Lower, StepGate, Urgent

URGENT = 0
"""The priority that the step gate works for."""
LOOK_PAST = 64
"""Held requests that an admission looks past for one that is not held."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What one step takes, in seconds.

    ``step + max(floor, prefill tokens * prefill_token + decodes * decode) + KV tokens * kv_token +
    attended pairs * attended_pair``

    Args:
        floor: time to read the weights once; arithmetic hides behind it and it behind arithmetic.
        kv_token: per token in the KV cache that a decode reads.
        attended_pair: per pair of a prefill token and a token before it.
    """

    step: float
    prefill_token: float
    decode: float
    kv_token: float = 0.0
    attended_pair: float = 0.0
    floor: float = 0.0

    @property
    def nothing(self) -> bool:
        """Whether every step is free."""
        return not any((self.step, self.prefill_token, self.decode, self.kv_token, self.attended_pair, self.floor))

    def seconds(self, step: Step) -> float:
        """Return how long a step takes."""
        tokens = step.prefill_tokens * self.prefill_token + step.decode_tokens * self.decode
        reads = step.kv_tokens * self.kv_token + step.attended_pairs * self.attended_pair
        return self.step + max(self.floor, tokens) + reads


@dataclass(kw_only=True, slots=True, eq=False)
class Sequence:
    """One request inside the engine.

    Args:
        shared_tokens: leading prompt tokens whose blocks the prefix cache holds for everybody.
        deadline_ns: for the step gate.
        floor: never held by the step gate (see `schemas.frames.Request`).
        content: names the prompt, so that a request that comes back finds its blocks; None means it never does.
        computed: prompt and output tokens whose keys and values are in the cache, or will be after the steps that
            are scheduled.
        scheduled: output tokens that scheduled steps have produced or will produce.
        produced: output tokens of steps that have run.
        blocks: KV blocks of its own.
        room: tokens that its blocks and the shared ones hold.
    """

    request_id: int
    priority: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    deadline_ns: int = 0
    floor: bool = False
    content: int | str | None = None
    arrival: int = 0
    computed: int = 0
    scheduled: int = 0
    produced: int = 0
    blocks: int = 0
    room: int = 0

    @property
    def missing(self) -> int:
        """Tokens to compute before the next output token: the prompt's rest, or the last output token."""
        return self.prompt_tokens + self.scheduled - self.computed

    @property
    def decoding(self) -> bool:
        """Whether the next step computes the output token before."""
        return self.scheduled > 0 and self.missing == 1

    @property
    def ending(self) -> bool:
        """Whether its last output token is scheduled."""
        return self.scheduled >= self.output_tokens

    @property
    def held(self) -> bool:
        """Whether the step gate may hold it."""
        return self.priority > URGENT and not self.floor

    @property
    def rank(self) -> tuple[int, int]:
        """Order among waiting requests; the smallest is admitted first and preempted last."""
        return (self.priority, self.arrival)


@dataclass(kw_only=True, slots=True)
class Step:
    """One engine step, decided but not yet run.

    Args:
        work: each sequence with the tokens it computes and whether that gives an output token.
        admitted: sequences that run for the first time or again.
        preempted: ids of sequences that were put back.
        kv_tokens: tokens in the KV cache that its decodes read.
        attended_pairs: pairs of a prefill token and a token before it.
    """

    work: list[tuple[Sequence, int, bool]] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    prefill_tokens: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0
    attended_pairs: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Produced:
    """What a step gave: ids with their first token and ids that are done (an id can be in both)."""

    first: list[int]
    finished: list[int]
    output_tokens: int


@dataclass(slots=True)
class _Draft:
    """A step in the making.

    Args:
        budget: tokens that it still takes.
        chunk: most prefill tokens of one request.
        held_tokens: prefill tokens that held requests may still have.
        held_decodes: whether held requests decode.
        excluded: urgent requests that the gate keeps for a later step.
    """

    budget: int
    chunk: int
    held_tokens: int
    held_decodes: bool = True
    excluded: frozenset[int] = frozenset()
    preempted: list[Sequence] = field(default_factory=list)
    step: Step = field(default_factory=Step)


@dataclass(slots=True)
class SimCore:
    """Requests, sequence slots and KV blocks of one engine.

    Args:
        limits: see `schemas.frames.Limits`; never exceeded by any step.
        cached_blocks: blocks that the shared prefixes keep for good.
        gate: keeps less urgent work out of steps that urgent work needs; it acts once there is a ``policy``.
    """

    limits: Limits
    cached_blocks: int = 0
    gate: StepGate | None = None
    policy: StepPolicy | None = None
    _running: list[Sequence] = field(default_factory=list)
    _waiting: list[tuple[int, int, Sequence]] = field(default_factory=list)
    _sequences: dict[int, Sequence] = field(default_factory=dict)
    _freed: FreedPrompts = field(default_factory=FreedPrompts)
    _arrivals: int = 0
    _used: int = 0
    _asked: list[int] = field(default_factory=list)
    """Ids of the urgent requests in the order in which the gate was asked about them."""

    def __post_init__(self) -> None:
        self._used = self.cached_blocks

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._sequences) - len(self._running)

    @property
    def used_blocks(self) -> int:
        """KV blocks in use, shared ones included."""
        return self._used

    @property
    def sequences(self) -> Iterable[Sequence]:
        """Every request that has not ended."""
        return self._sequences.values()

    def fits(self, prompt_tokens: int, output_tokens: int, shared_tokens: int) -> bool:
        """Whether a request could run if it had the engine for itself."""
        if prompt_tokens + output_tokens > self.limits.max_model_len:
            return False
        own = self._blocks_for(prompt_tokens + output_tokens, shared_tokens)
        return own + self.cached_blocks <= self.limits.kv_blocks

    def add(self, sequence: Sequence) -> None:
        """Queue a request that `fits`."""
        sequence.arrival = self._arrivals
        self._arrivals += 1
        self._sequences[sequence.request_id] = sequence
        heapq.heappush(self._waiting, (*sequence.rank, sequence))

    def abort(self, request_ids: Iterable[int]) -> None:
        """Forget requests and free what they hold; unknown ids are ignored."""
        gone = [self._sequences.pop(i) for i in set(request_ids) if i in self._sequences]
        if not gone:
            return
        for sequence in gone:
            self._free(sequence)
        self._running = [s for s in self._running if s.request_id in self._sequences]
        self._waiting = [entry for entry in self._waiting if entry[2].request_id in self._sequences]
        heapq.heapify(self._waiting)

    def schedule(self, starts_ns: int = 0) -> Step | None:
        """Decide the next step and take the KV blocks it needs; none when there is nothing to do.

        Args:
            starts_ns: when it will begin, for the step gate.
        """
        limits = self.limits
        alone = len(self._sequences) == 1
        draft = _Draft(
            budget=limits.max_num_batched_tokens,
            chunk=limits.max_num_batched_tokens if alone else limits.long_prefill_token_threshold,
            held_tokens=limits.max_num_batched_tokens,
        )
        allowance = self._allowance(starts_ns)
        if allowance is None:
            self._run(self._running, draft)
            self._admit(draft, lowest=None)
        else:
            draft.held_tokens = allowance.lower_prefill_tokens
            draft.held_decodes = allowance.lower_decodes
            draft.excluded = self._excluded(allowance)
            running = self._running
            self._run([s for s in running if s.priority == URGENT], draft)
            self._admit(draft, lowest=URGENT)
            self._run([s for s in running if s.priority != URGENT], draft)
            self._admit(draft, lowest=None)
        for sequence in draft.preempted:
            heapq.heappush(self._waiting, (*sequence.rank, sequence))
        return draft.step if draft.step.work else None

    def apply(self, step: Step) -> Produced:
        """Account for a step that has run; sequences that were aborted meanwhile are skipped."""
        first: list[int] = []
        finished: list[int] = []
        output_tokens = 0
        sequences = self._sequences
        for sequence, _, emits in step.work:
            if not emits or sequences.get(sequence.request_id) is not sequence:
                continue
            sequence.produced += 1
            output_tokens += 1
            # A preempted sequence recomputes its outputs too, so it never has its first token twice.
            if sequence.produced == 1:
                first.append(sequence.request_id)
            if sequence.produced >= sequence.output_tokens:
                finished.append(sequence.request_id)
        if finished:
            for request_id in finished:
                self._free(sequences.pop(request_id))
            self._running = [s for s in self._running if s.request_id in sequences]
        return Produced(first=first, finished=finished, output_tokens=output_tokens)

    # One step

    def _allowance(self, starts_ns: int) -> Allowance | None:
        """Ask the gate; None when there is none."""
        if self.gate is None or self.policy is None:
            return None
        urgent: list[Urgent] = []
        asked: list[int] = []
        held, free = [0, 0, 0], [0, 0, 0]
        for sequence in self._running:
            if sequence.ending:
                continue
            decoding = sequence.decoding
            if sequence.priority == URGENT:
                urgent.append(_urgent(sequence, 0 if decoding else sequence.missing))
                asked.append(sequence.request_id)
                continue
            side = held if sequence.held else free
            if decoding:
                side[1] += 1
                side[2] += sequence.computed
            else:
                side[0] += sequence.missing
        slots = self.limits.max_num_seqs - len(self._running)
        if slots > 0:
            waiting = [entry[2] for entry in sorted(e for e in self._waiting if e[0] == URGENT)]
            for sequence in waiting[:slots]:
                urgent.append(_urgent(sequence, sequence.missing - self._cached(sequence)))
                asked.append(sequence.request_id)
            held[0] += sum(s.missing for _, _, s in self._waiting[:slots] if s.held)
        self._asked = asked
        return self.gate.allow(
            self.policy,
            urgent,
            Lower(prefill_tokens=held[0], decodes=held[1], kv_tokens=held[2]),
            starts_ns,
            Free(prefill_tokens=free[0], decodes=free[1], kv_tokens=free[2]),
        )

    def _excluded(self, allowance: Allowance) -> frozenset[int]:
        """Return the urgent requests that the gate keeps for a later step."""
        if all(allowance.urgent):
            return frozenset()
        return frozenset(i for i, takes in zip(self._asked, allowance.urgent, strict=True) if not takes)

    def _run(self, sequences: Iterable[Sequence], draft: _Draft) -> None:
        """Give running sequences their tokens."""
        step = draft.step
        work = step.work
        for sequence in list(sequences):
            if draft.budget <= 0:
                return
            computed = sequence.computed
            missing = sequence.prompt_tokens + sequence.scheduled - computed
            # One whose last token is scheduled has nothing left; a preempted one has left the running list.
            if sequence.scheduled >= sequence.output_tokens or (draft.preempted and sequence in draft.preempted):
                continue
            if sequence.request_id in draft.excluded:
                continue
            if missing == 1 and sequence.scheduled:
                if not draft.held_decodes and sequence.held:
                    continue
                if computed >= sequence.room and not self._take(sequence, 1, draft):
                    continue
                sequence.computed = computed + 1
                sequence.scheduled += 1
                draft.budget -= 1
                step.decode_tokens += 1
                step.kv_tokens += computed
                work.append((sequence, 1, True))
                continue
            tokens = min(missing, draft.chunk, draft.budget)
            if sequence.held:
                tokens = min(tokens, draft.held_tokens)
            if tokens > 0 and self._take(sequence, tokens, draft):
                self._compute(sequence, tokens, draft)

    def _admit(self, draft: _Draft, lowest: int | None) -> None:
        """Let waiting sequences in, as long as tokens, slots and blocks last; down to a priority, if one is given."""
        skipped: list[tuple[int, int, Sequence]] = []
        waiting = self._waiting
        while not draft.preempted and waiting and draft.budget > 0 and len(self._running) < self.limits.max_num_seqs:
            priority, _, sequence = waiting[0]
            if lowest is not None and priority > lowest:
                break
            if sequence.request_id in draft.excluded:
                skipped.append(heapq.heappop(waiting))
                continue
            if sequence.held and draft.held_tokens <= 0:
                if len(skipped) >= LOOK_PAST:
                    break
                skipped.append(heapq.heappop(waiting))
                continue
            sequence.computed = self._cached(sequence)
            tokens = min(sequence.missing, draft.chunk, draft.budget)
            if sequence.held:
                tokens = min(tokens, draft.held_tokens)
            whole = self._blocks_for(sequence.prompt_tokens + sequence.scheduled, sequence.shared_tokens)
            if self._used + whole > self.limits.kv_blocks or not self._grow(sequence, tokens):
                sequence.computed = 0
                break
            heapq.heappop(waiting)
            self._freed.forget(sequence.content)
            self._running.append(sequence)
            draft.step.admitted.append(sequence)
            self._compute(sequence, tokens, draft)
        for entry in skipped:
            heapq.heappush(waiting, entry)

    def _compute(self, sequence: Sequence, tokens: int, draft: _Draft) -> None:
        """Put a chunk of a prompt into the step."""
        draft.step.attended_pairs += _pairs(sequence.computed, tokens)
        sequence.computed += tokens
        emits = not sequence.missing
        sequence.scheduled += emits
        draft.budget -= tokens
        draft.step.prefill_tokens += tokens
        if sequence.held:
            draft.held_tokens -= tokens
        draft.step.work.append((sequence, tokens, emits))

    def _take(self, sequence: Sequence, tokens: int, draft: _Draft) -> bool:
        """Get blocks for a running sequence, pushing out the least urgent ones if need be."""
        while not self._grow(sequence, tokens):
            # One whose last token is on its way gives its blocks back by itself, and could not start over.
            victim = max((s for s in self._running if not s.ending), key=lambda s: s.rank)
            self._put_back(victim, draft)
            if victim is sequence:
                return False
        return True

    def _put_back(self, victim: Sequence, draft: _Draft) -> None:
        """Preempt a sequence, taking back what this step had given it."""
        step = draft.step
        self._running.remove(victim)
        for entry in step.work:
            sequence, tokens, emits = entry
            if sequence is victim:
                step.work.remove(entry)
                victim.computed -= tokens
                victim.scheduled -= emits
                draft.budget += tokens
                if tokens == 1 and victim.decoding:
                    step.decode_tokens -= 1
                    step.kv_tokens -= victim.computed
                else:
                    step.prefill_tokens -= tokens
                    step.attended_pairs -= _pairs(victim.computed, tokens)
                    draft.held_tokens += tokens if victim.held else 0
                break
        self._free(victim)
        victim.computed = 0
        draft.preempted.append(victim)
        step.preempted.append(victim.request_id)

    # KV blocks

    def _cached(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that the prefix cache holds; the last one must be computed in any case."""
        shared = self._shared_full(sequence.shared_tokens)
        if sequence.content is None:
            return shared
        block = self.limits.block_size
        most = (sequence.missing + sequence.computed - 1) // block - shared // block
        return shared + min(self._freed.blocks(sequence.content), max(0, most)) * block

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        needed = self._blocks_for(sequence.computed + tokens, sequence.shared_tokens) - sequence.blocks
        if needed <= 0:
            return True
        if self._used + needed > self.limits.kv_blocks:
            return False
        sequence.blocks += needed
        sequence.room = self._shared_full(sequence.shared_tokens) + sequence.blocks * self.limits.block_size
        self._used += needed
        self._freed.allocated += needed
        return True

    def _free(self, sequence: Sequence) -> None:
        if sequence.content is not None and not sequence.ending:
            shared = self._shared_full(sequence.shared_tokens)
            full = (sequence.computed - shared) // self.limits.block_size
            self._freed.add(sequence.content, full, self.limits.kv_blocks - self._used)
        self._used -= sequence.blocks
        sequence.blocks = 0
        sequence.room = 0

    def _blocks_for(self, tokens: int, shared_tokens: int) -> int:
        """Blocks of its own that a sequence of so many tokens needs."""
        own = tokens - self._shared_full(shared_tokens)
        return -(-own // self.limits.block_size)

    def _shared_full(self, shared_tokens: int) -> int:
        """Tokens of the shared prefix that fill whole blocks; only whole blocks are shared."""
        return shared_tokens // self.limits.block_size * self.limits.block_size


def _pairs(before: int, tokens: int) -> int:
    """Return the pairs that the attention of a chunk looks at: each token with all that precede it."""
    return tokens * before + tokens * (tokens - 1) // 2


def _urgent(sequence: Sequence, prefill_tokens: int) -> Urgent:
    return Urgent(
        prefill_tokens=prefill_tokens,
        deadline_ns=sequence.deadline_ns,
        output_tokens=sequence.output_tokens - sequence.scheduled,
        context_tokens=sequence.prompt_tokens + sequence.scheduled,
    )
