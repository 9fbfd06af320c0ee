"""What the prefix cache of a simulated engine still has of prompts that left before they were done."""

from __future__ import annotations

from dataclasses import dataclass, field

KEPT = 4096
"""Prompts remembered; far more than any engine has blocks for."""


@dataclass(slots=True)
class FreedPrompts:
    """Blocks of aborted and preempted requests.

    vLLM puts freed blocks at the end of one queue, a request's last block first, and takes new ones from its head:
    a freed block is overwritten once as many blocks have been allocated as were free before it.

    Args:
        allocated: blocks handed out since the start.
    """

    allocated: int = 0
    _kept: dict[int | str, tuple[int, int]] = field(default_factory=dict)

    def add(self, content: int | str, blocks: int, free_before: int) -> None:
        """Note that a prompt's blocks were freed while ``free_before`` others were free."""
        if blocks <= 0:
            return
        self._kept.pop(content, None)
        if len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[content] = (blocks, self.allocated + free_before)

    def blocks(self, content: int | str) -> int:
        """Return how many leading blocks of a prompt are still there."""
        blocks, lasts_until = self._kept.get(content, (0, 0))
        return max(0, blocks - max(0, self.allocated - lasts_until))

    def forget(self, content: int | str | None) -> None:
        """Let a prompt go: a request uses its blocks again."""
        if content is not None:
            self._kept.pop(content, None)
