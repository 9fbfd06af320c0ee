"""The reliability plot of ``tapewire eval``: how often answers of a confidence are right, and how many there are."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    from ops.quality.evaluate import Evaluation


def check_plotting() -> None:
    """Fail early when plots cannot be drawn.

    Raises:
        UnavailableError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UnavailableError("matplotlib", "--plot", "pip install 'tapewire[plots]'")


def draw(path: Path, found: Evaluation) -> None:
    """Write the plot as PNG, whatever the file's name ends in.

    Raises:
        ConfigError: the file cannot be written.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 6.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    above.plot([0, 1], [0, 1], linestyle=":", color="black", linewidth=1, label="calibrated")
    confidences = [each.confidence for each in found.bins]
    above.plot(confidences, [each.accuracy for each in found.bins], marker="o", label="answers")
    above.axhline(found.majority, linestyle="--", color="grey", linewidth=1, label="most frequent label")
    above.set_ylabel("share that is right")
    above.set_ylim(0, 1)
    above.set_title(
        f"{found.plan.extractor}, {found.plan.head}, {found.model}, calibration {found.calibration.value}\n"
        f"{found.n} texts, accuracy {found.scores.accuracy:.2f}, expected calibration error {found.scores.ece:.3f}",
        fontsize="medium",
    )
    above.legend(fontsize="small")
    below.bar(confidences, [each.count for each in found.bins], width=0.04)
    below.set_xlabel("confidence")
    below.set_ylabel("answers")
    below.set_xlim(0, 1)
    try:
        figure.savefig(path, dpi=120, format="png")
    except (OSError, ValueError) as error:
        raise ConfigError("--plot", f"{path}: {error}") from None
