"""What fits: the flash rate and the burst that an SLO allows on some workers, and which budget ends it.

Arithmetic on a step-time model and a worker's limits; no simulation. Where it has to choose it is on the safe side:
every headline meets a step that has just begun, and the longest text of the traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil, exp, sqrt

from schemas.frames import Extractor, Limits
from schemas.settings import ReserveSettings
from workers.sim_core import Costs

QUANTILE = 0.999
"""Share of the moments in which the headlines that arrive together must fit."""
MOST = 1_000_000
"""Where a search ends: no worker takes more than this."""


class Budget(StrEnum):
    """What can bind."""

    TIME = "time (SLO)"
    THROUGHPUT = "engine throughput"
    STEP_TOKENS = "step tokens"
    KV_BLOCKS = "KV blocks"
    SEQUENCES = "sequences"


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What is to be served.

    Args:
        slo_ms: of the most urgent class, arrival to result.
        headline_tokens: longest headline, without the prompt around it.
        filing_tokens: mean text of a lower-class event.
        filing_output: tokens of its answer.
        floor: share of the engine's tokens that lower classes keep in any case.
        burst: headlines that arrive at one moment and must all be in time.
        flash_per_s: headlines per second, arriving at random, that must be in time.
    """

    slo_ms: float = 150.0
    headline_tokens: int = 128
    filing_tokens: int = 1280
    filing_output: int = 128
    floor: float = 0.1
    burst: int = 1
    flash_per_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerModel:
    """One worker.

    Args:
        costs: of its steps, from a profile or fitted to a running worker.
        extractors: what it wraps around a text, by name: ``headline`` and ``filing``.
        steps_ahead: steps that are already decided when a request arrives.
        overhead_ms: outside the engine, arrival to result.
        margin: share of the SLO that the valve keeps free.
    """

    costs: Costs
    limits: Limits
    extractors: dict[str, Extractor]
    reserve: ReserveSettings = field(default_factory=ReserveSettings)
    steps_ahead: int = 1
    overhead_ms: float = 5.0
    margin: float = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One setting of the valve.

    Args:
        lower_step_tokens: most prefill tokens of lower classes in a step.
        burst: headlines at one moment, on all workers together, that are all in time.
        burst_binds: what keeps it from being larger.
        flash_per_s: sustained rate on all workers together, arriving at random.
        flash_binds: what keeps it from being higher.
        bulk_tokens_per_s: lower-class tokens on all workers together while no headlines come.
        step_ms: a full step of lower classes.
    """

    lower_step_tokens: int
    burst: int
    burst_binds: Budget
    flash_per_s: float
    flash_binds: Budget
    bulk_tokens_per_s: float
    step_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What fits.

    Args:
        fits: whether the asked burst and rate do.
        chosen: the widest valve at which it does; the narrowest when it does at none.
        points: from the widest valve to the narrowest.
    """

    workers: int
    fits: bool
    chosen: Point
    points: list[Point]


def capacity(model: WorkerModel, traffic: Traffic, workers: int) -> Answer:
    """Return what fits on this many equal workers."""
    sums = _Sums(model, traffic)
    points = [sums.point(tokens, workers) for tokens in _valve_settings(model.limits)]
    # Where lower classes never fill the larger steps, those are one setting, and the narrowest of them says most.
    points = [p for p, narrower in zip(points, [*points[1:], None], strict=True) if not _same(p, narrower)]
    fitting = [point for point in points if point.burst >= traffic.burst and point.flash_per_s >= traffic.flash_per_s]
    return Answer(workers=workers, fits=bool(fitting), chosen=(fitting or points[-1:])[0], points=points)


def _same(point: Point, narrower: Point | None) -> bool:
    return narrower is not None and (point.step_ms, point.burst) == (narrower.step_ms, narrower.burst)


def _valve_settings(limits: Limits) -> list[int]:
    settings: list[int] = []
    tokens = limits.max_num_batched_tokens
    while tokens >= 64:
        settings.append(tokens)
        tokens = tokens * 3 // 4
    return [*settings, 0]


class _Sums:
    """The arithmetic for one worker under one traffic."""

    def __init__(self, model: WorkerModel, traffic: Traffic) -> None:
        self._model = model
        self._traffic = traffic
        headline, filing = model.extractors["headline"], model.extractors["filing"]
        block = model.limits.block_size
        self._headline = traffic.headline_tokens + _own(headline, block)
        self._headline_blocks = ceil((self._headline + headline.max_new_tokens) / block)
        self._headline_steps = headline.max_new_tokens
        self._filing = traffic.filing_tokens + _own(filing, block)
        self._filing_blocks = ceil((self._filing + traffic.filing_output) / block)
        self._context = filing.prompt_tokens + traffic.filing_tokens + traffic.filing_output / 2

    def point(self, tokens: int, workers: int) -> Point:
        """Return what fits with the valve at ``tokens``."""
        burst, burst_binds = self._largest(lambda n: self._burst_bound(n, tokens))
        rate, flash_binds = self._rate(tokens, burst, burst_binds)
        step, produced = self._bulk_step(tokens)
        return Point(
            lower_step_tokens=tokens,
            burst=burst * workers,
            burst_binds=burst_binds,
            flash_per_s=rate * workers,
            flash_binds=flash_binds,
            bulk_tokens_per_s=produced / step * workers if tokens else 0.0,
            step_ms=step * 1000,
        )

    def _bulk_step(self, tokens: int) -> tuple[float, float]:
        """Return the seconds of a step of lower classes in the steady state, and its tokens."""
        limits, reserve = self._model.limits, self._model.reserve
        blocks = limits.kv_blocks * (1 - reserve.kv_fraction)
        most = min(limits.max_num_seqs - min(reserve.seqs, limits.max_num_seqs // 2), blocks / self._filing_blocks)
        # Each filing that ends its prefill decodes for as many steps as its answer has tokens.
        decodes = min(tokens / self._filing * self._traffic.filing_output, max(most, 0.0))
        prefill = decodes / self._traffic.filing_output * self._filing
        context = self._context - self._traffic.filing_tokens / 2
        return self._seconds(prefill, decodes, decodes * self._context, prefill * context), prefill + decodes

    def _seconds(self, prefill: float, decodes: float = 0, kv_tokens: float = 0, pairs: float = 0) -> float:
        costs = self._model.costs
        tokens = prefill * costs.prefill_token + decodes * costs.decode
        return costs.step + max(costs.floor, tokens) + kv_tokens * costs.kv_token + pairs * costs.attended_pair

    def _wait(self, tokens: int) -> float:
        """Return the seconds that a headline waits at most before a step takes it."""
        return (1 + self._model.steps_ahead) * self._bulk_step(tokens)[0] if tokens else 0.0

    def _burst_seconds(self, count: int, tokens: int) -> float:
        """Return the seconds in the engine until the last of so many headlines is done."""
        limits = self._model.limits
        prefill = count * self._headline
        steps = ceil(prefill / limits.max_num_batched_tokens) + self._headline_steps - 1
        return (
            self._wait(tokens)
            + steps * self._model.costs.step
            + max(self._model.costs.floor * steps, prefill * self._model.costs.prefill_token)
        )

    def _burst_bound(self, count: int, tokens: int) -> Budget | None:
        """Return what a burst of this size does not fit, or None when it fits."""
        model, limits = self._model, self._model.limits
        seconds = (self._traffic.slo_ms * (1 - model.margin) - model.overhead_ms) / 1000
        if self._burst_seconds(count, tokens) > seconds:
            return Budget.TIME
        # Beside lower classes a burst has the reserve; alone it has everything.
        blocks = limits.kv_blocks * (model.reserve.kv_fraction if tokens else 1.0)
        seqs = min(model.reserve.seqs, limits.max_num_seqs // 2) if self._full(tokens) else limits.max_num_seqs
        if count * self._headline_blocks > blocks:
            return Budget.KV_BLOCKS
        if count > seqs:
            return Budget.SEQUENCES
        return None

    def _full(self, tokens: int) -> bool:
        """Return whether lower classes take all sequence slots that they may."""
        limits, reserve = self._model.limits, self._model.reserve
        own = limits.max_num_seqs - min(reserve.seqs, limits.max_num_seqs // 2)
        return tokens / self._filing * self._traffic.filing_output >= own

    def _largest(self, bound: Callable[[int], Budget | None]) -> tuple[int, Budget]:
        """Return the largest count that nothing bounds, and what bounds the next."""
        low, high = 0, 1
        binds = bound(high)
        while binds is None and high < MOST:
            low, high = high, high * 2
            binds = bound(high)
        while high - low > 1:
            middle = (low + high) // 2
            found = bound(middle)
            if found is None:
                low = middle
            else:
                high, binds = middle, found
        return low, binds or Budget.STEP_TOKENS

    def _rate(self, tokens: int, burst: int, burst_binds: Budget) -> tuple[float, Budget]:
        """Return the highest sustained rate of headlines, and what bounds it."""
        if burst < 1:
            return 0.0, burst_binds
        step_tokens = self._model.limits.max_num_batched_tokens
        per_step = max(1, step_tokens // self._headline)
        cost = self._headline * self._model.costs.prefill_token + self._model.costs.step / per_step
        throughput = (1 - self._traffic.floor) / cost
        # Between two steps that can take headlines, no more may arrive than fit one of those bursts.
        cycle = self._wait(tokens) + self._burst_seconds(burst, 0)
        low, high = 0.0, throughput
        for _ in range(40):
            middle = (low + high) / 2
            if _poisson_within(middle * cycle, burst):
                low = middle
            else:
                high = middle
        if high >= throughput * 0.999:
            return throughput, Budget.THROUGHPUT
        return low, burst_binds


def _own(extractor: Extractor, block: int) -> int:
    """Return the template's tokens that no cache holds."""
    return extractor.prompt_tokens - extractor.shared_prefix_tokens // block * block


def _poisson_within(mean: float, most: int) -> bool:
    """Return whether a Poisson count stays within ``most`` often enough."""
    if mean > 600:  # exp(-mean) leaves the range of a float; the normal approximation is exact enough there
        return mean + 3.1 * sqrt(mean) <= most
    term = total = exp(-mean)
    for count in range(1, most + 1):
        term *= mean / count
        total += term
        if total >= QUANTILE:
            return True
    return total >= QUANTILE
