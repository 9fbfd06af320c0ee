"""What one worker can hold at any moment: step tokens, KV blocks and sequences, each with the urgent reserve.

Three inequalities (vLLM's own priority policy enforces none of them: it only orders its waiting queue):

1. ``lower-class prefills * min(prompt, threshold) + running decodes + reserve <= max_num_batched_tokens``
2. ``sum(ceil((prompt + max_new - shared prefix) / block)) + reserve <= blocks``
3. ``running + reserve <= max_num_seqs``

The most urgent class counts against the full limits, every other class against the limits less the reserve.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from schemas.frames import Extractor, Limits
from schemas.settings import ReserveSettings

URGENT_STEPS = 2
"""Engine steps that the most urgent class may fill ahead. With one, the engine would idle between its last result
and our next dispatch; with more, a later headline with an earlier deadline could not overtake any more."""


@dataclass(slots=True)
class Use:
    """What one request takes from a worker's budgets.

    Args:
        step_tokens: tokens it takes from every step: a chunk while it is prefilling, one while it decodes.
        kv_blocks: KV blocks it can grow to.
        urgent: it belongs to the most urgent class.
    """

    step_tokens: int
    kv_blocks: int
    urgent: bool


class WorkerBudget:
    """The budgets of one worker and what is taken from them.

    Args:
        limits: what the engine can hold.
        extractors: what the worker wraps around a text, by name.
        reserve: the part that only the most urgent class may use.
    """

    def __init__(self, limits: Limits, extractors: dict[str, Extractor], reserve: ReserveSettings) -> None:
        self.limits = limits
        self.extractors = extractors
        shared = sum(e.shared_prefix_tokens // limits.block_size for e in extractors.values())
        self._kv_total = max(1, limits.kv_blocks - shared)
        self._kv_reserve = int(self._kv_total * reserve.kv_fraction)
        # A reserve as large as the budget would shut every other class out for ever.
        self._step_reserve = min(reserve.step_tokens, limits.max_num_batched_tokens // 2)
        self._seq_reserve = min(reserve.seqs, limits.max_num_seqs // 2)
        self.step_tokens = 0
        self.kv_blocks = 0
        self.seqs = 0
        self._uses: dict[int, Use] = {}

    def __len__(self) -> int:
        return self.seqs

    def text_limit(self, extractor: str) -> int:
        """Return the longest text, in tokens, that fits the model with this extractor's template and answer."""
        wrap = self.extractors[extractor]
        return self.limits.max_model_len - wrap.prompt_tokens - wrap.max_new_tokens

    def use_of(self, extractor: str, token_count: int, *, urgent: bool) -> Use:
        """Return what a text of ``token_count`` tokens takes."""
        wrap = self.extractors[extractor]
        block = self.limits.block_size
        cached = wrap.shared_prefix_tokens // block * block
        prompt = wrap.prompt_tokens + token_count
        return Use(
            step_tokens=min(prompt - cached, self.limits.long_prefill_token_threshold),
            kv_blocks=ceil((prompt + wrap.max_new_tokens - cached) / block),
            urgent=urgent,
        )

    def fits(self, use: Use) -> bool:
        """Return whether a request may start now."""
        if not self.seqs:
            # Alone in the engine anything goes that fits the model: a request larger than the limit less the
            # reserve would otherwise wait for ever.
            return True
        limits = self.limits
        if use.urgent:
            step, kv, seqs = limits.max_num_batched_tokens * URGENT_STEPS, self._kv_total, limits.max_num_seqs
        else:
            step = limits.max_num_batched_tokens - self._step_reserve
            kv = self._kv_total - self._kv_reserve
            seqs = limits.max_num_seqs - self._seq_reserve
        return self.seqs < seqs and self.step_tokens + use.step_tokens <= step and self.kv_blocks + use.kv_blocks <= kv

    def take(self, request_id: int, use: Use) -> None:
        """Reserve for a request that is being dispatched."""
        self._uses[request_id] = use
        self.seqs += 1
        self.step_tokens += use.step_tokens
        self.kv_blocks += use.kv_blocks

    def prefilled(self, request_id: int) -> None:
        """Note that a request's prefill is over: from now on it takes one token from every step."""
        use = self._uses.get(request_id)
        if use is not None and use.step_tokens > 1:
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
