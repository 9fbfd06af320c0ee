"""The founding article's model, as its code has it."""

from __future__ import annotations

import random

import pytest

from ops.sim import article
from ops.sim.driver import Window
from ops.sim.policies import ArticleBatcher, Job
from ops.sim.traffic import BULK, FLASH, Arrival

WINDOW = Window(begin=0, end=2, cap=300, until_done=True)


def test_one_headline_alone_misses_its_own_sla() -> None:
    """In the article's engine a headline of 64 tokens alone takes 153.6 ms, above the 150 ms it is meant to meet."""
    assert article.batch_seconds([Arrival(0, FLASH, 64, 16)]) == pytest.approx(0.1536)


def test_an_urgent_batch_takes_two_at_most_of_the_others() -> None:
    """With a headline in front the batch ends at two requests as soon as a filing would be the third."""
    batcher = ArticleBatcher(max_batch=8, token_budget=4096)
    for number, class_index in enumerate([FLASH, BULK, BULK, BULK]):
        batcher.arrive(Job(number, Arrival(0, class_index, 100, 16)), 0)
    assert [job.number for job in batcher.next_batch()] == [0, 1]
    assert [job.number for job in batcher.next_batch()] == [2, 3]
    assert batcher.next_batch() == []


def test_a_batch_keeps_to_its_token_budget_and_reads_on() -> None:
    """A request that does not fit is left out for a smaller one behind it."""
    batcher = ArticleBatcher(max_batch=8, token_budget=1000)
    for number, tokens in enumerate([600, 600, 200]):
        batcher.arrive(Job(number, Arrival(0, BULK, tokens, 16)), 0)
    assert [job.number for job in batcher.next_batch()] == [0, 2]


@pytest.mark.parametrize("batcher", article.BATCHERS)
def test_its_code_misses_every_sla(batcher: str) -> None:
    """Over twenty seeds both of its configurations answer not one headline in time, whatever it publishes."""
    max_batch, token_budget = article.BATCHERS[batcher]
    for seed in range(20):
        arrivals = article.traffic(random.Random(seed))
        outcome = article.run_article(arrivals, WINDOW, max_batch=max_batch, token_budget=token_budget)
        flash = [job for job in outcome.jobs if job.arrival.class_index == FLASH]
        assert all(job.done_ns for job in outcome.jobs)
        assert all(job.latency_ns > 150_000_000 for job in flash)
