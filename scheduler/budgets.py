"""What one worker can hold at any moment: step tokens, KV blocks and sequences, each with the urgent reserve.

Three inequalities (vLLM's own priority policy enforces none of them: it only orders its waiting queue):

1. ``prefill chunks + running decodes + reserve <= max_num_batched_tokens``, and the less urgent chunks among them
   within what the valve allows (`scheduler.valve`)
2. ``sum(ceil((prompt + max_new - shared prefix) / block)) + reserve <= blocks``
3. ``running + reserve <= max_num_seqs``

The most urgent class counts against the full limits, every other class against the limits less the reserve.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil

from schemas.frames import Extractor, Limits
from schemas.settings import ReserveSettings

URGENT_STEPS = 2
"""Engine steps that the most urgent class may fill ahead. With one, the engine would idle between its last result
and our next dispatch; with more, a later headline with an earlier deadline could not overtake any more."""
CHUNKS_AHEAD = 4.0
"""With a step gate the engine itself keeps less urgent prefill within the valve, so somewhat more than one step's
worth may lie ready there: a prefill that ends does not leave a gap until our next dispatch arrives."""


@dataclass(slots=True)
class Use:
    """What one request takes from a worker's budgets.

    Args:
        step_tokens: tokens it takes from every step: a chunk while it is prefilling, one while it decodes.
        prompt_tokens: prompt tokens that have to be computed (the cached prefix is not among them).
        kv_blocks: KV blocks it can grow to.
        urgent: it belongs to the most urgent class.
        answer_tokens: longest answer; the step that ends the prefill gives the first token, each other takes a step.
        late: it is urgent and can no longer meet its deadline.
        prefilling: it has not produced its first token.
    """

    step_tokens: int
    prompt_tokens: int
    kv_blocks: int
    urgent: bool
    answer_tokens: int = 1
    late: bool = False
    prefilling: bool = True


class WorkerBudget:
    """The budgets of one worker and what is taken from them.

    Args:
        limits: what the engine can hold.
        extractors: what the worker wraps around a text, by name.
        reserve: the part that only the most urgent class may use.
        gated: the engine has a step gate.
    """

    def __init__(
        self, limits: Limits, extractors: dict[str, Extractor], reserve: ReserveSettings, *, gated: bool = False
    ) -> None:
        self.limits = limits
        self.extractors = extractors
        shared = sum(e.shared_prefix_tokens // limits.block_size for e in extractors.values())
        self._kv_total = max(1, limits.kv_blocks - shared)
        self._kv_reserve = int(self._kv_total * reserve.kv_fraction)
        # A reserve as large as the budget would shut every other class out for ever.
        self._step_reserve = min(reserve.step_tokens, limits.max_num_batched_tokens // 2)
        self._seq_reserve = min(reserve.seqs, limits.max_num_seqs // 2)
        self._ahead = CHUNKS_AHEAD if gated else 1.0
        self.lower_step_tokens = limits.max_num_batched_tokens
        """Less urgent prefill tokens per step that the valve allows."""
        self.step_tokens = 0
        self.lower_prefill = 0
        """Step tokens of less urgent requests that are prefilling."""
        self.lower_decodes = 0
        self.urgent_tokens = 0
        """Prompt tokens of urgent requests that are not done and may be on time."""
        self.late_tokens = 0
        """Prompt tokens of urgent requests that are not done and cannot be on time."""
        self.kv_blocks = 0
        self.seqs = 0
        self._uses: dict[int, Use] = {}
        most = limits.max_model_len
        self._text_limits = {n: most - e.prompt_tokens - e.max_new_tokens for n, e in extractors.items()}

    def __len__(self) -> int:
        return self.seqs

    @property
    def kv_tokens(self) -> int:
        """Tokens that the requests in flight can grow to in the KV cache."""
        return self.kv_blocks * self.limits.block_size

    def text_limit(self, extractor: str) -> int:
        """Return the longest text, in tokens, that fits the model with this extractor's template and answer."""
        return self._text_limits[extractor]

    def use_of(self, extractor: str, token_count: int, *, urgent: bool, late: bool = False) -> Use:
        """Return what a text of ``token_count`` tokens takes."""
        wrap = self.extractors[extractor]
        block = self.limits.block_size
        cached = wrap.shared_prefix_tokens // block * block
        fresh = wrap.prompt_tokens + token_count - cached
        return Use(
            step_tokens=min(fresh, self.limits.long_prefill_token_threshold),
            prompt_tokens=fresh,
            kv_blocks=ceil((fresh + wrap.max_new_tokens) / block),
            urgent=urgent,
            answer_tokens=wrap.max_new_tokens,
            late=late,
        )

    def fits(self, use: Use) -> bool:
        """Return whether a request may start now."""
        if not self.seqs:
            # Alone in the engine anything goes that fits the model: a request larger than the limit less the
            # reserve would otherwise wait for ever.
            return True
        return self.holds(use) and self._fits_step(use)

    def holds(self, use: Use, without: Collection[int] = ()) -> bool:
        """Return whether slots and KV blocks are free.

        Args:
            use: of the request that asks.
            without: requests in flight that would make way.
        """
        limits = self.limits
        kv, seqs = (self._kv_total, limits.max_num_seqs) if use.urgent else self._lower_space()
        freed = sum(self._uses[request_id].kv_blocks for request_id in without) if without else 0
        return self.seqs - len(without) < seqs and self.kv_blocks - freed + use.kv_blocks <= kv

    def _lower_space(self) -> tuple[int, int]:
        return self._kv_total - self._kv_reserve, self.limits.max_num_seqs - self._seq_reserve

    def _fits_step(self, use: Use) -> bool:
        most = self.limits.max_num_batched_tokens
        if use.urgent:
            return self.step_tokens + use.step_tokens <= most * URGENT_STEPS
        if self.step_tokens + use.step_tokens > most - self._step_reserve:
            return False
        # One at a time may always prefill, however little the valve allows: its chunk is the engine's threshold.
        return not self.lower_prefill or self.lower_prefill + use.step_tokens <= self.lower_step_tokens * self._ahead

    def take(self, request_id: int, use: Use) -> None:
        """Reserve for a request that is being dispatched."""
        self._uses[request_id] = use
        self.seqs += 1
        self.step_tokens += use.step_tokens
        self.kv_blocks += use.kv_blocks
        if use.urgent:
            self._count_urgent(use, use.prompt_tokens)
        else:
            self.lower_prefill += use.step_tokens

    def _count_urgent(self, use: Use, tokens: int) -> None:
        if use.late:
            self.late_tokens += tokens
        else:
            self.urgent_tokens += tokens

    def prefilled(self, request_id: int) -> None:
        """Note that a request's prefill is over: from now on it takes one token from every step."""
        use = self._uses.get(request_id)
        if use is None or not use.prefilling:
            return
        use.prefilling = False
        if use.urgent:
            self._count_urgent(use, -use.prompt_tokens)
            use.prompt_tokens = 0
        else:
            self.lower_prefill -= use.step_tokens
            self.lower_decodes += 1
        self.step_tokens -= use.step_tokens - 1
        use.step_tokens = 1

    def release(self, request_id: int) -> None:
        """Give back what a request had; nothing happens when it has nothing."""
        use = self._uses.pop(request_id, None)
        if use is None:
            return
        self.seqs -= 1
        self.step_tokens -= use.step_tokens
        self.kv_blocks -= use.kv_blocks
        if use.urgent:
            self._count_urgent(use, -use.prompt_tokens)
        elif use.prefilling:
            self.lower_prefill -= use.step_tokens
        else:
            self.lower_decodes -= 1
