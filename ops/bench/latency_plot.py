"""The plot of ``tapewire bench latency``: latency against throughput, and the valve over time."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ops.sim.compare import figures_of, simulate
from ops.sim.policies import Tapewire, make_policy
from ops.sim.profiles import Profile
from ops.sim.scenarios import Scenario
from schemas.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

    from ops.bench.latency import Comparison

STEP_TOKENS = (256, 512, 1024, 2048, 4096, 8192)
"""Step sizes of the frontier: what an operator could set by hand."""
SWEPT = ("engine-priority", "tapewire")


def check_plotting() -> None:
    """Fail early when plots cannot be drawn.

    Raises:
        UnavailableError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UnavailableError("matplotlib", "plot", "pip install 'tapewire[plots]'")


def draw(path: Path, scenario: Scenario, profile: Profile, comparison: Comparison, say: Callable[[str], None]) -> None:
    """Write the plot: one point per policy, a curve per policy over fixed step sizes, and the valve below.

    Raises:
        ConfigError: the file cannot be written.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 8), layout="constrained")
    frontier, valve = figure.subplots(2, 1)
    _frontier(frontier, scenario, profile, comparison, say)
    _valve(valve, scenario, profile, say)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError("plot", f"{path}: {error}") from None


def _frontier(
    axes: Axes, scenario: Scenario, profile: Profile, comparison: Comparison, say: Callable[[str], None]
) -> None:
    for policy in SWEPT:
        xs: list[float] = []
        ys: list[float] = []
        for tokens in STEP_TOKENS:
            if tokens > profile.limits.max_num_batched_tokens:
                break
            say(f"frontier: {policy} with steps of {tokens} tokens")
            fixed = with_step(profile, tokens)
            outcome = simulate(scenario, fixed, make_policy(policy, scenario.classes), scenario.arrivals(profile, 0), 0)
            figures = figures_of(outcome)
            if figures.flash.p99_ms is not None:
                xs.append(figures.bulk.tokens_per_s)
                ys.append(figures.flash.p99_ms)
        axes.plot(xs, ys, marker=".", linewidth=1, alpha=0.6, label=f"{policy}, fixed step sizes")
    for policy, figures in comparison.medians().items():
        if figures.flash.p99_ms is not None:
            axes.plot([figures.bulk.tokens_per_s], [figures.flash.p99_ms], marker="o", linestyle="", label=policy)
    axes.axhline(scenario.classes[0].slo_ms, linestyle=":", color="black", linewidth=1, label="flash SLO")
    axes.set_yscale("log")
    axes.set_xlabel("bulk tokens/s")
    axes.set_ylabel("flash p99, ms")
    axes.set_title(f"{scenario.name}, {profile.name}: latency against throughput")
    axes.legend(fontsize="small")


def _valve(axes: Axes, scenario: Scenario, profile: Profile, say: Callable[[str], None]) -> None:
    say("valve over time")
    outcome = simulate(
        scenario, profile, Tapewire(gated=True, classes=scenario.classes), scenario.arrivals(profile, 0), 0, traced=True
    )
    axes.step(
        [at for at, _ in outcome.policies],
        [policy.lower_step_tokens for _, policy in outcome.policies],
        where="post",
        linewidth=1,
        label="valve: most lower-class prefill tokens of a step",
    )
    axes.plot(
        [step.starts for step in outcome.trace],
        [step.prefill_tokens for step in outcome.trace],
        linestyle="",
        marker=",",
        alpha=0.5,
        label="prefill tokens of each step",
    )
    axes.set_xlabel("seconds")
    axes.set_ylabel("tokens")
    axes.set_ylim(bottom=0)
    axes.set_title("the valve under this load")
    axes.legend(fontsize="small")


def with_step(profile: Profile, tokens: int) -> Profile:
    """Return a profile whose engines never take more tokens in a step, whoever starts them."""
    limits = msgspec.structs.replace(
        profile.limits,
        max_num_batched_tokens=tokens,
        long_prefill_token_threshold=min(tokens, profile.limits.long_prefill_token_threshold),
    )
    ours = profile.tapewire
    threshold = ours.long_prefill_token_threshold
    overrides = msgspec.structs.replace(
        ours,
        max_num_batched_tokens=min(tokens, ours.max_num_batched_tokens or tokens),
        long_prefill_token_threshold=min(tokens, threshold) if threshold is not None else None,
    )
    return msgspec.structs.replace(profile, limits=limits, tapewire=overrides)
