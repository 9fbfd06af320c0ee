"""The step logic of a simulated continuous-batching engine: pure state, no clock and no I/O.

It follows vLLM's V1 scheduler in what matters to an outside scheduler: running requests go first in the order of
their admission, waiting ones by (priority, arrival); a prefill takes at most ``long_prefill_token_threshold`` tokens
of a step; KV blocks are taken as tokens are computed; when they run out, the least urgent running request is put back
and starts over.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.frames import Limits


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What one step takes, in seconds: ``step + prefill tokens * prefill_token + decodes * decode``."""

    step: float
    prefill_token: float
    decode: float

    @property
    def nothing(self) -> bool:
        """Whether every step is free."""
        return not (self.step or self.prefill_token or self.decode)


@dataclass(kw_only=True, slots=True, eq=False)
class Sequence:
    """One request inside the engine.

    Args:
        shared_tokens: leading prompt tokens whose blocks the prefix cache holds for everybody.
        computed: prompt and output tokens whose keys and values are in the cache.
        produced: output tokens so far.
        blocks: KV blocks of its own.
    """

    request_id: int
    priority: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    arrival: int = 0
    computed: int = 0
    produced: int = 0
    blocks: int = 0

    @property
    def missing(self) -> int:
        """Tokens to compute before the next output token: the prompt's rest, or the last output token."""
        return self.prompt_tokens + self.produced - self.computed

    @property
    def rank(self) -> tuple[int, int]:
        """Order among waiting requests; the smallest is admitted first and preempted last."""
        return (self.priority, self.arrival)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One engine step, decided but not yet run.

    Args:
        work: each sequence with the tokens it computes.
        admitted: sequences that run for the first time or again.
        preempted: ids of sequences that were put back.
    """

    work: list[tuple[Sequence, int]]
    admitted: list[Sequence]
    preempted: list[int]
    prefill_tokens: int
    decode_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Produced:
    """What a step gave: ids with their first token and ids that are done (an id can be in both)."""

    first: list[int]
    finished: list[int]
    output_tokens: int


@dataclass(slots=True)
class SimCore:
    """Requests, sequence slots and KV blocks of one engine.

    Args:
        limits: see `schemas.frames.Limits`; never exceeded by any step.
        cached_blocks: blocks that the shared prefixes keep for good.
    """

    limits: Limits
    cached_blocks: int = 0
    _running: list[Sequence] = field(default_factory=list)
    _waiting: list[tuple[int, int, Sequence]] = field(default_factory=list)
    _sequences: dict[int, Sequence] = field(default_factory=dict)
    _arrivals: int = 0
    _used: int = 0

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

    def schedule(self) -> Step | None:
        """Decide the next step and take the KV blocks it needs; none when there is nothing to do."""
        budget = self.limits.max_num_batched_tokens
        work: list[tuple[Sequence, int]] = []
        preempted: list[Sequence] = []
        for sequence in list(self._running):
            tokens = self._chunk(sequence, budget)
            # A sequence that an earlier one has pushed out has left the running list.
            if not tokens or sequence not in self._running:
                continue
            if self._take(sequence, tokens, preempted):
                work.append((sequence, tokens))
                budget -= tokens
        pushed_out = {id(s) for s in preempted}
        budget += sum(tokens for s, tokens in work if id(s) in pushed_out)
        work = [(s, tokens) for s, tokens in work if id(s) not in pushed_out]
        admitted: list[Sequence] = []
        while not preempted and self._waiting and budget and len(self._running) < self.limits.max_num_seqs:
            sequence = self._waiting[0][2]
            sequence.computed = self._shared_full(sequence.shared_tokens)
            tokens = self._chunk(sequence, budget)
            if not self._grow(sequence, tokens):
                sequence.computed = 0
                break
            heapq.heappop(self._waiting)
            self._running.append(sequence)
            admitted.append(sequence)
            work.append((sequence, tokens))
            budget -= tokens
        for sequence in preempted:
            heapq.heappush(self._waiting, (*sequence.rank, sequence))
        if not work:
            return None
        decodes = sum(1 for sequence, _ in work if _decoding(sequence))
        total = sum(tokens for _, tokens in work)
        return Step(
            work=work,
            admitted=admitted,
            preempted=[s.request_id for s in preempted],
            prefill_tokens=total - decodes,
            decode_tokens=decodes,
        )

    def apply(self, step: Step) -> Produced:
        """Account for a step that has run; sequences that were aborted meanwhile are skipped."""
        first: list[int] = []
        finished: list[int] = []
        output_tokens = 0
        for sequence, tokens in step.work:
            if self._sequences.get(sequence.request_id) is not sequence:
                continue
            sequence.computed += tokens
            if sequence.missing:
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
                self._free(self._sequences.pop(request_id))
            self._running = [s for s in self._running if s.request_id in self._sequences]
        return Produced(first=first, finished=finished, output_tokens=output_tokens)

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        return min(sequence.missing, self.limits.long_prefill_token_threshold, budget)

    def _take(self, sequence: Sequence, tokens: int, preempted: list[Sequence]) -> bool:
        """Get blocks for a running sequence, pushing out the least urgent ones if need be."""
        while not self._grow(sequence, tokens):
            victim = max(self._running, key=lambda s: s.rank)
            self._running.remove(victim)
            self._free(victim)
            victim.computed = 0
            preempted.append(victim)
            if victim is sequence:
                return False
        return True

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        needed = self._blocks_for(sequence.computed + tokens, sequence.shared_tokens) - sequence.blocks
        if self._used + needed > self.limits.kv_blocks:
            return False
        sequence.blocks += needed
        self._used += needed
        return True

    def _free(self, sequence: Sequence) -> None:
        self._used -= sequence.blocks
        sequence.blocks = 0

    def _blocks_for(self, tokens: int, shared_tokens: int) -> int:
        """Blocks of its own that a sequence of so many tokens needs."""
        own = tokens - self._shared_full(shared_tokens)
        return -(-own // self.limits.block_size)

    def _shared_full(self, shared_tokens: int) -> int:
        """Tokens of the shared prefix that fill whole blocks; only whole blocks are shared."""
        return shared_tokens // self.limits.block_size * self.limits.block_size


def _decoding(sequence: Sequence) -> bool:
    return sequence.produced > 0 and sequence.missing == 1
