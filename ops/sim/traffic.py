"""Simulated traffic: what arrives when, fixed by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from schemas.settings import ClassSettings

NS = 1_000_000_000
FLASH, STANDARD, BULK = 0, 1, 2
CLASSES = (
    ClassSettings(name="flash", slo_ms=150, toxic_ms=250, extractor="headline"),
    ClassSettings(name="standard", slo_ms=1000, extractor="headline"),
    ClassSettings(name="bulk", slo_ms=5000, extractor="filing"),
)
CPU_CLASSES = (
    ClassSettings(name="flash", slo_ms=550, extractor="headline"),
    ClassSettings(name="standard", slo_ms=5_000, extractor="headline"),
    ClassSettings(name="bulk", slo_ms=60_000, extractor="filing"),
)
"""Service classes for two CPU cores, where a headline with its three answer tokens takes 0.16 s when it is alone: what
150 ms are on a GPU. No toxic age, so that no policy looks better by giving up what is late."""
HEADLINE_TOKENS = (64, 128)
FILING_TOKENS = (512, 2048)
"""The founding article's mix, both ends included."""


HEADLINE_OUTPUT = 3
"""Tokens of a headline's answer: one for each head of the shipped extractor."""


class Arrival(NamedTuple):
    """One event.

    Args:
        at_ns: nanoseconds since the simulation's start.
        text_tokens: without the prompt around it.
        output_tokens: of the answer.
    """

    at_ns: int
    class_index: int
    text_tokens: int
    output_tokens: int


def headline(rng: random.Random, at_ns: int) -> Arrival:
    """Return a headline, answered with a label token per head."""
    return Arrival(at_ns, FLASH, rng.randint(*HEADLINE_TOKENS), HEADLINE_OUTPUT)


def filing(rng: random.Random, at_ns: int, output_tokens: int = 128) -> Arrival:
    """Return a filing's section."""
    return Arrival(at_ns, BULK, rng.randint(*FILING_TOKENS), output_tokens)


def poisson(rng: random.Random, per_second: float, start: float, end: float) -> Iterator[int]:
    """Yield arrival times in nanoseconds; ``start`` and ``end`` in seconds."""
    at = start
    while per_second > 0:
        at += rng.expovariate(per_second)
        if at >= end:
            return
        yield int(at * NS)
