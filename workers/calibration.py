"""Calibrations: what turns a model's own label probabilities into ones that can be trusted, read from JSON files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from schemas.errors import ConfigError, TapewireError

SHIPPED = Path(__file__).with_name("calibrations")
"""Calibrations of the shipped extractors under the model in a wheel."""
SETTING = "worker.calibrations"

LEAST_PROBABILITY = 1e-9
"""What a probability of zero counts as, so that its logarithm exists; float32 log softmax ends near 1e-38, but below
this nothing that a strategy does could differ."""
MOST_LOG = 100.0
"""Largest size of a log prior; a logarithm beyond it is no probability of a label."""
TEMPERATURES = (0.01, 100.0)
"""What a temperature may be. Outside, every answer would be certain, or none would say anything."""
MOST_BYTES = 1 << 20
"""A calibration has a few numbers per label; a larger file is something else."""
DIGITS = 6
"""Decimals that priors and temperatures are kept with: more would be noise, and would make ids differ by rounding."""


class CalibrationError(TapewireError):
    """A distribution does not fit the calibration that it should go through.

    Args:
        head: the head.
        reason: one sentence for a person.
    """

    def __init__(self, head: str, reason: str) -> None:
        self.head = head
        self.reason = reason
        super().__init__(f"head {head}: {reason}")


class HeadCalibration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One head's part.

    Args:
        labels: the head's labels.
        log_priors: per label the mean, over texts, of the natural logarithm of its probability: how much the prompt
            favours it whatever the text says.
        temperature: divides what is left; above 1 the model is too sure of itself.
    """

    labels: list[str]
    log_priors: list[float]
    temperature: float = 1.0

    def apply(self, head: str, raw: Mapping[str, float]) -> dict[str, float]:
        """Return softmax((log raw - log prior) / temperature) over the labels in ``raw``, which sums to 1.

        Args:
            head: its name, for the error.
            raw: probability per label; a part of the labels is taken for all of them.

        Raises:
            CalibrationError: a label is unknown here, or a probability is not between 0 and 1.
        """
        priors = dict(zip(self.labels, self.log_priors, strict=True))
        scores: dict[str, float] = {}
        for label, probability in raw.items():
            if label not in priors:
                raise CalibrationError(head, f"the calibration has no label {label!r}")
            # Not `0 <= p <= 1`: NaN must fail too, and a sum of floats may be an ulp above 1.
            if not -1e-6 <= probability <= 1 + 1e-6:
                raise CalibrationError(head, f"the probability of {label!r} is {probability}")
            scores[label] = (math.log(max(probability, LEAST_PROBABILITY)) - priors[label]) / self.temperature
        return softmax(scores)


class Calibration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one model needs under one prompt.

    Args:
        model_revision: the model's; see `workers.models`.
        prompt_version: the extractor's.
        heads: per head of the extractor; a head that is missing keeps the model's own probabilities.
        model: the model's name, for people.
        extractor: the extractor's name, for people.
        source: which texts it was made from, for people.
        unlabelled: texts that gave the priors.
        labelled: labelled texts that gave the temperatures; 0 when all temperatures are 1.
        made_at: when, ISO 8601 in UTC.
    """

    model_revision: str
    prompt_version: str
    heads: dict[str, HeadCalibration]
    model: str = ""
    extractor: str = ""
    source: str = ""
    unlabelled: int = 0
    labelled: int = 0
    made_at: str = ""

    @property
    def id(self) -> str:
        """``cal-`` and a hash over everything that shapes a probability; where it came from does not count."""
        content = msgspec.json.encode([self.model_revision, self.prompt_version, self.heads], order="deterministic")
        return f"cal-{blake2b(content, digest_size=6).hexdigest()}"


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file before its heads are read, each on its own so that an error can name it."""

    model_revision: str
    prompt_version: str
    heads: dict[str, msgspec.Raw]
    model: str = ""
    extractor: str = ""
    source: str = ""
    unlabelled: int = 0
    labelled: int = 0
    made_at: str = ""


def softmax(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the distribution that has these unnormalised natural logarithms; empty for none."""
    if not scores:
        return {}
    top = max(scores.values())
    weights = {label: math.exp(score - top) for label, score in scores.items()}
    total = sum(weights.values())
    return {label: weight / total for label, weight in weights.items()}


def apply(calibration: Calibration | None, raw: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Calibrate the distributions of one answer.

    Args:
        calibration: none leaves everything as it is.
        raw: per head, probability per label, as the model gave it.

    Raises:
        CalibrationError: a distribution does not fit; see `HeadCalibration.apply`.
    """
    heads = calibration.heads if calibration is not None else {}
    return {head: heads[head].apply(head, spread) if head in heads else dict(spread) for head, spread in raw.items()}


def check(calibration: Calibration, heads: Mapping[str, Sequence[str]]) -> None:
    """Check that a calibration is for these heads and labels, so that `apply` cannot fail on them later.

    Raises:
        ConfigError: it names a head that there is not, or other labels.
    """
    for name, head in calibration.heads.items():
        if name not in heads:
            raise ConfigError(SETTING, f"{calibration.id}: the extractor has no head {name!r}")
        if set(head.labels) != set(heads[name]):
            reason = f"heads.{name}.labels are {sorted(head.labels)}, the extractor has {sorted(heads[name])}"
            raise ConfigError(SETTING, f"{calibration.id}: {reason}")


def find(calibrations: Iterable[Calibration], model_revision: str, prompt_version: str) -> Calibration | None:
    """Return the last calibration for a model and a prompt: the newest of the last directory that has one."""
    wanted = (model_revision, prompt_version)
    found = [c for c in calibrations if (c.model_revision, c.prompt_version) == wanted]
    return found[-1] if found else None


def load_calibrations(directories: Iterable[Path]) -> list[Calibration]:
    """Read every ``*.json`` of some directories, those of a directory from the oldest to the newest.

    Raises:
        ConfigError: a directory is missing, or a file is not a calibration; the message names file and field.
    """
    calibrations: list[Calibration] = []
    for directory in directories:
        if not directory.is_dir():
            raise ConfigError(SETTING, f"{directory} is not a directory")
        read = [load_calibration(path) for path in sorted(directory.glob("*.json"))]
        calibrations += sorted(read, key=lambda calibration: calibration.made_at)
    return calibrations


def load_calibration(path: Path) -> Calibration:
    """Read one file.

    Raises:
        ConfigError: it cannot be read or is not a calibration; the message names file and field.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(SETTING, f"{path}: {error.strerror or error}") from None
    if len(content) > MOST_BYTES:
        raise ConfigError(SETTING, f"{path}: larger than {MOST_BYTES} bytes, so it is no calibration")
    try:
        file_ = msgspec.json.decode(content, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(SETTING, f"{path}: {error}") from None
    heads = {name: _head(path, name, raw) for name, raw in file_.heads.items()}
    fields = {name: getattr(file_, name) for name in _File.__struct_fields__}
    calibration = Calibration(**(fields | {"heads": heads}))
    # The id stands in every signal, so a file that carries one must carry its own.
    if path.stem.startswith("cal-") and path.stem != calibration.id:
        raise ConfigError(SETTING, f"{path}: was changed since it was made; its id is now {calibration.id}, rename it")
    return calibration


def save_calibration(calibration: Calibration, directory: Path) -> Path:
    """Write a calibration as ``<id>.json`` and return the path.

    Raises:
        ConfigError: the directory or the file cannot be written.
    """
    path = directory / f"{calibration.id}.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # A worker that starts meanwhile must never read half a file.
        unfinished = path.with_suffix(".tmp")
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(SETTING, f"{path}: {error.strerror or error}") from None
    return path


def _head(path: Path, name: str, raw: msgspec.Raw) -> HeadCalibration:
    try:
        head = msgspec.json.decode(raw, type=HeadCalibration)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(SETTING, f"{path}: heads.{name}: {error}") from None
    for field, reason in _problems(head):
        raise ConfigError(SETTING, f"{path}: heads.{name}.{field}: {reason}")
    return head


def _problems(head: HeadCalibration) -> Iterable[tuple[str, str]]:
    lowest, highest = TEMPERATURES
    if len(head.labels) < 2:
        yield "labels", "fewer than two"
    if len(set(head.labels)) != len(head.labels):
        yield "labels", "one stands there twice"
    if len(head.log_priors) != len(head.labels):
        yield "log_priors", f"{len(head.log_priors)} numbers for {len(head.labels)} labels"
    if not all(abs(prior) <= MOST_LOG for prior in head.log_priors):
        yield "log_priors", f"not within {MOST_LOG:g} of zero"
    if not lowest <= head.temperature <= highest:
        yield "temperature", f"{head.temperature:g} is not between {lowest:g} and {highest:g}"
