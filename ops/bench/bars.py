"""The bars that the scheduler has to reach, per scenario, checked against the median figures of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ops.bench.figures import Figures

OURS = "tapewire"
BASELINE = "fcfs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One bar and the value that was reached."""

    name: str
    reached: str
    target: str
    met: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the bars look at.

    Args:
        policies: median figures by policy.
        extras: per extra measure of our own policy, its value of every seed.
        attained: share of all urgent events of all seeds that were attained, ours.
    """

    policies: Mapping[str, Figures]
    extras: Mapping[str, Sequence[float]]
    attained: float

    @property
    def ours(self) -> Figures:
        """Our own figures."""
        return self.policies[OURS]

    def middle(self, extra: str) -> float:
        """Return the median of an extra measure."""
        return median(self.extras[extra])

    def worst(self, extra: str) -> float:
        """Return the largest value of an extra measure."""
        return max(self.extras[extra])


def at_least(name: str, value: float, target: float, unit: str = "", digits: int = 4) -> Bar:
    """Return a bar that large values meet."""
    return Bar(name=name, reached=f"{value:.{digits}g}{unit}", target=f">= {target:g}{unit}", met=bool(value >= target))


def at_most(name: str, value: float | None, target: float, unit: str = "", digits: int = 4) -> Bar:
    """Return a bar that small values meet; no value at all does not."""
    reached = "none" if value is None else f"{value:.{digits}g}{unit}"
    return Bar(name=name, reached=reached, target=f"<= {target:.4g}{unit}", met=value is not None and value <= target)


def _flash_slo(measured: Measured) -> list[Bar]:
    return [
        at_least("flash attained, median", measured.ours.flash.attained, 0.999),
        at_least("flash attained, all seeds together", measured.attained, 0.999),
        at_most("flash p99", measured.ours.flash.p99_ms, 150, " ms"),
    ]


def _throughput(measured: Measured, share: float) -> Bar:
    base = measured.policies[BASELINE].bulk.tokens_per_s
    ours = measured.ours.bulk.tokens_per_s
    return at_least("bulk tokens/s to fcfs", ours / base if base else 0.0, share)


def _mixed(measured: Measured) -> list[Bar]:
    return [*_flash_slo(measured), _throughput(measured, 0.95)]


def _burst(measured: Measured) -> list[Bar]:
    return [
        at_most("makespan to tokens and steps alone", measured.middle("makespan_ratio"), 1.15),
        at_most("results past the toxic age, worst seed", measured.worst("past_toxic"), 0),
        at_least("on time to the most any order gives", measured.middle("on_time_ratio"), 0.95),
    ]


def _long(measured: Measured) -> list[Bar]:
    return [at_most("steps a headline waits, worst seed", measured.worst("waited_steps"), 1)]


def _overload(measured: Measured) -> list[Bar]:
    return [
        at_least("bulk's share of the tokens", measured.middle("lower_share"), 0.1),
        at_most("headlines without an outcome, worst seed", measured.worst("lost"), 0),
        at_most("headlines held, to those of one toxic age, worst seed", measured.worst("held_ratio"), 1.5),
    ]


def _flood(measured: Measured) -> list[Bar]:
    return _flash_slo(measured)[:2]


def _cpu(measured: Measured) -> list[Bar]:
    ours, base = measured.ours, measured.policies[BASELINE]
    p99 = ours.flash.p99_ms
    return [
        at_most("flash p99 to 1/20 of fcfs", p99, (base.flash.p99_ms or 0.0) / 20, " ms"),
        at_most("flash p99 to 4 x its isolated median", p99, 4 * (ours.isolated_p50_ms or 0.0), " ms"),
        _throughput(measured, 0.85),
    ]


BARS: dict[str, Callable[[Measured], list[Bar]]] = {
    "mixed": _mixed,
    "burst-idle": _burst,
    "burst-loaded": _burst,
    "long-document": _long,
    "flash-overload": _overload,
    "bulk-flood": _flood,
    "cpu": _cpu,
}
