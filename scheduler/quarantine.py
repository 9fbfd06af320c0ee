"""Which of the requests in flight at a worker's death has killed it. Pure: counts deaths, nothing else."""

from __future__ import annotations

from scheduler.work import Work

MAX_DEATHS = 2
"""Deaths with a request in flight before it is under suspicion: one malformed grammar kills an engine with all that it
has (vllm#43920), and would kill the next one too, for ever."""


def blame(lost: list[Work]) -> Work | None:
    """Count a worker's death for what it had in flight, and return the request to quarantine, or None.

    A hundred other requests die with the one that kills. So the second death names one only when nothing else was there
    both times; otherwise those that were become suspects, of which no worker gets two at a time, and the next death
    with one of them in flight names it. A death that has been explained does not count against the others.
    """
    for work in lost:
        work.deaths += 1
    suspects = [work for work in lost if work.suspect] or [work for work in lost if work.deaths >= MAX_DEATHS]
    if len(suspects) == 1:
        for work in lost:
            work.deaths -= work is not suspects[0]
        return suspects[0]
    for work in suspects:
        work.suspect = True
    return None
