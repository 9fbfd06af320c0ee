"""What an engine loads before its first request: the extractors that fit its model, and their calibrations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog
from tokenizers import Tokenizer

from schemas.errors import ConfigError
from schemas.settings import WorkerSettings
from workers.calibration import SHIPPED, Calibration, check, find, load_calibrations
from workers.extractor_files import SETTING, load_extractors
from workers.prompts import ExtractorError, Prompt, compile_prompts

log = structlog.get_logger()


def load_prompts(
    settings: WorkerSettings, tokenizer: Tokenizer, model: str, *, exact: bool = True
) -> dict[str, Prompt]:
    """Read all extractors and compile those that fit the model; the others are left out with one log line each.

    Args:
        settings: where the user's own are.
        tokenizer: the model's.
        model: its name, for the log.
        exact: see `workers.prompts.compile_prompt`.

    Raises:
        ConfigError: a file is wrong, or no extractor fits.
    """
    prompts, refused = compile_prompts(load_extractors(settings.extractors), tokenizer, model, exact=exact)
    for error in refused:
        leave_out(error)
    require(prompts, refused)
    return prompts


def leave_out(error: ExtractorError) -> None:
    """Say that a worker starts without an extractor. A scheduler that has a class for it refuses the worker."""
    log.error(
        "extractor_left_out",
        file=str(error.path),
        reason=error.reason,
        effect="the worker takes no class that needs it; see `tapewire extractors check`",
    )


def require(prompts: Mapping[str, Prompt], refused: Iterable[ExtractorError]) -> None:
    """Raise what was wrong when no extractor is left.

    Raises:
        ConfigError: none is left.
    """
    if not prompts:
        raise ConfigError(SETTING, "; ".join(str(error) for error in refused))


def load_prompt_calibrations(
    settings: WorkerSettings, model_revision: str, prompts: Mapping[str, Prompt]
) -> dict[str, Calibration]:
    """Return the calibration of each extractor that has one for this model and prompt version.

    Raises:
        ConfigError: a file is wrong, or is for other labels than the extractor has.
    """
    own = [] if settings.calibrations is None else load_calibrations([settings.calibrations])
    known = [*load_calibrations([SHIPPED]), *own]
    found: dict[str, Calibration] = {}
    for name, prompt in prompts.items():
        calibration = find(known, model_revision, prompt.version)
        if calibration is not None:
            check(calibration, prompt.template.labels)
            found[name] = calibration
    used = {calibration.id for calibration in found.values()}
    if ignored := [c.id for c in own if c.id not in used]:
        log.warning(
            "calibrations_ignored",
            ids=ignored,
            reason="made for another model revision or prompt version, or replaced by a newer one",
            model_revision=model_revision,
            prompt_versions=sorted(prompt.version for prompt in prompts.values()),
        )
    log.info("calibrations", **{name: found[name].id if name in found else "none" for name in prompts})
    return found
