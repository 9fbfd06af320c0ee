"""``tapewire eval``: an engine's answers to labelled texts, calibrated the way asked for, and what they are worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ops.percentiles import percentile
from ops.quality.ask import Asker, Reply, Say, StepCount, asking
from ops.quality.fit import Spread, cross_fitted, fit
from ops.quality.metrics import Bin, Judged, Scores, coverage, majority, reliability, scores
from ops.quality.texts import Item, LineError, TextFile, check_usable, read_texts, with_labels
from schemas.errors import ConfigError, UnavailableError
from schemas.settings import WorkerSettings
from workers.calibration import SHIPPED, Calibration, HeadCalibration, check, find, load_calibrations

FAILURES_KEPT = 20
"""Failed texts that are told one by one."""


class Mode(StrEnum):
    """Which calibration the probabilities go through."""

    STORED = "stored"
    """The one that a worker with these settings would use."""
    BATCH = "batch"
    """Priors from the texts of the file itself, and a temperature fitted on the labels of the other items."""
    NONE = "none"
    """None: the label scores as the model gives them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to evaluate.

    Args:
        file: labelled lines.
        extractor: what is asked.
        head: which of its answers is judged.
        mode: calibration.
        threshold: confidence from which an answer would be acted on.
        all_labels: judge over all labels of the head, also where the file has only some of them.
        concurrency: see `ops.quality.ask.Asker.ask`.
        limit: most texts; 0 means all.
    """

    file: Path
    extractor: str = "headline"
    head: str = "direction"
    mode: Mode = Mode.STORED
    threshold: float = 0.6
    all_labels: bool = False
    concurrency: int = 1
    limit: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What came out.

    Args:
        labels: those that the answers were judged over; fewer than ``head_labels`` when the file has only some.
        calibration: the mode, which is ``none`` when nothing is stored for this model and prompt.
        calibration_id: of a stored one.
        scores: after calibration; ``raw`` are those of the plain label scores.
        majority: accuracy of always answering the file's most frequent label.
        covered, covered_accuracy: share of the answers at least ``threshold`` confident, and their accuracy.
        latency_ms: per right label: number of texts, p50 and p99 from submission to answer.
        count: the engine's own counters over all texts.
    """

    plan: Plan
    model: str
    model_revision: str
    prompt_version: str
    head_labels: list[str]
    labels: list[str]
    calibration: Mode
    calibration_id: str
    temperature: float
    n: int
    failed: list[str]
    bad: list[LineError]
    scores: Scores
    raw: Scores
    bins: list[Bin]
    majority: float
    covered: float
    covered_accuracy: float | None
    latency_ms: dict[str, dict[str, float]]
    count: StepCount

    @property
    def decode_steps_per_item(self) -> float:
        """Engine steps per text, by the engine's counters; below one where texts share steps."""
        return self.count.steps / self.n

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        rounded = {name: round(value, 4) for name, value in asdict(self.scores).items()}
        return {
            "n": self.n,
            **rounded,
            "majority": round(self.majority, 4),
            "decode_steps_per_item": round(self.decode_steps_per_item, 3),
            "prefill_tokens_per_item": round(self.count.prefill_tokens / self.n, 1),
            "threshold": self.plan.threshold,
            "coverage": round(self.covered, 4),
            "coverage_accuracy": None if self.covered_accuracy is None else round(self.covered_accuracy, 4),
            "calibration": self.calibration.value,
            "calibration_id": self.calibration_id,
            "temperature": round(self.temperature, 4),
            "raw": {name: round(value, 4) for name, value in asdict(self.raw).items()},
            "reliability": [asdict(each) for each in self.bins],
            "latency_ms": self.latency_ms,
            "extractor": self.plan.extractor,
            "head": self.plan.head,
            "labels": self.labels,
            "restricted": len(self.labels) < len(self.head_labels),
            "model": self.model,
            "model_revision": self.model_revision,
            "prompt_version": self.prompt_version,
            "failed": len(self.failed),
            "bad_lines": [
                {
                    "line": each.number,
                    "kind": each.error.kind.value,
                    "field": each.error.field,
                    "reason": each.error.reason,
                }
                for each in self.bad
            ],
        }


async def evaluate(worker: WorkerSettings, plan: Plan, say: Say) -> Evaluation:
    """Ask about every line of a file and judge the answers.

    Raises:
        ConfigError: the file, a setting, the extractor or the head is wrong.
        UnavailableError: the model or a package is missing, or no text was answered.
        EngineDiedError: the engine is gone.
    """
    file = await read_texts(plan.file, labelled=True, limit=plan.limit)
    stored = stored_calibrations(worker)
    async with asking(worker, plan.extractor, say) as asker:
        labels = head_labels(asker, plan.head)
        file = with_labels(file, labels)
        check_usable(plan.file, file)
        texts = [item.text for item in file.items]
        replies, count = await asker.ask(texts, concurrency=plan.concurrency, say=say)
    return judge(plan, file, replies, count, asker, stored)


def head_labels(asker: Asker, head: str) -> list[str]:
    """Return the labels of a head.

    Raises:
        ConfigError: the extractor has no such head.
    """
    if head not in asker.heads:
        raise ConfigError("--head", f"{asker.extractor.name} has no head {head!r}; it has {', '.join(asker.heads)}")
    return asker.heads[head]


def stored_calibrations(worker: WorkerSettings) -> list[Calibration]:
    """Return the calibrations that a worker with these settings would have to choose from.

    Raises:
        ConfigError: a file is wrong.
    """
    return load_calibrations([SHIPPED, *([worker.calibrations] if worker.calibrations else [])])


def judge(
    plan: Plan, file: TextFile, replies: Sequence[Reply], count: StepCount, asker: Asker, stored: list[Calibration]
) -> Evaluation:
    """Turn answers into figures.

    Raises:
        UnavailableError: not one text was answered with the head.
    """
    info = asker.description.info
    all_labels = head_labels(asker, plan.head)
    answered = [(item, reply) for item, reply in zip(file.items, replies, strict=True) if plan.head in reply.raw]
    failed = [
        _failure(item, reply, plan.head)
        for item, reply in zip(file.items, replies, strict=True)
        if plan.head not in reply.raw
    ]
    if not answered:
        raise UnavailableError("the engine", "--head", f"no text was answered; {failed[0]}")
    found = find(stored, info.model_revision, asker.extractor.prompt_version) if plan.mode is Mode.STORED else None
    if found is not None:
        check(found, asker.heads)
    truth = [item.label for item, _ in answered]
    labels = all_labels if plan.all_labels else [label for label in all_labels if label in truth]
    # One label alone would always be right.
    labels = labels if len(labels) > 1 else all_labels
    spreads = [restricted(reply.raw[plan.head], labels) for _, reply in answered]
    heads, mode = _calibrations(plan, found, [item for item, _ in answered], spreads, labels)
    raw = [Judged(spread, label) for spread, label in zip(spreads, truth, strict=True)]
    judged = [
        Judged(head.apply(plan.head, spread) if head is not None else spread, label)
        for head, spread, label in zip(heads, spreads, truth, strict=True)
    ]
    covered, covered_accuracy = coverage(judged, plan.threshold)
    used = [head.temperature for head in heads if head is not None]
    return Evaluation(
        plan=plan,
        model=info.model,
        model_revision=info.model_revision,
        prompt_version=asker.extractor.prompt_version,
        head_labels=all_labels,
        labels=labels,
        calibration=mode,
        calibration_id=found.id if found is not None and mode is Mode.STORED else "",
        temperature=sum(used) / len(used) if used else 1.0,
        n=len(answered),
        failed=failed,
        bad=file.bad,
        scores=scores(judged),
        raw=scores(raw),
        bins=reliability(judged),
        majority=majority(truth),
        covered=covered,
        covered_accuracy=covered_accuracy,
        latency_ms=_latency(answered),
        count=count,
    )


def restricted(spread: Spread, labels: Sequence[str]) -> dict[str, float]:
    """Return the distribution over some of its labels, summing to 1; an even one where they had nothing."""
    total = sum(spread[label] for label in labels)
    return {label: spread[label] / total if total > 0 else 1 / len(labels) for label in labels}


def _calibrations(
    plan: Plan, found: Calibration | None, items: Sequence[Item], spreads: list[dict[str, float]], labels: list[str]
) -> tuple[Sequence[HeadCalibration | None], Mode]:
    """Return the calibration of each item, and the mode that it came to."""
    if plan.mode is Mode.BATCH:
        texts, truth = [item.text for item in items], [item.label for item in items]
        return cross_fitted(fit(spreads, labels), texts, spreads, truth), Mode.BATCH
    if found is not None and plan.head in found.heads:
        return [found.heads[plan.head]] * len(items), Mode.STORED
    return [None] * len(items), Mode.NONE


def _failure(item: Item, reply: Reply, head: str) -> str:
    if reply.failure is not None:
        return f"line {item.number}: {reply.failure.kind}: {reply.failure.message}"
    return f"line {item.number}: the answer has no distribution for {head}"


def _latency(answered: Sequence[tuple[Item, Reply]]) -> dict[str, dict[str, float]]:
    per_label: dict[str, list[float]] = {}
    for item, reply in answered:
        per_label.setdefault(item.label, []).append(reply.seconds * 1e3)
    return {
        label: {
            "n": len(values),
            "p50": round(percentile(sorted(values), 50), 1),
            "p99": round(percentile(sorted(values), 99), 1),
        }
        for label, values in sorted(per_label.items())
    }
