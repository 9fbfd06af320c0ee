"""``tapewire calibrate``: label priors from unlabelled texts, a temperature from labelled ones, stored as one file.

One head at a time. Taking the priors out makes all labels equally frequent over the texts, which suits a direction and
ruins a head whose labels are not: of 166 FiQA headlines with a known kind of event, SmolLM2-135M's own label is right
for 57 %, and for 36 % after its priors were taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ops.config import Settings
from ops.quality.ask import Asker, Reply, Say, asking
from ops.quality.evaluate import head_labels, restricted
from ops.quality.fit import cross_fitted, fit, with_temperature
from ops.quality.metrics import Judged, Scores, scores
from ops.quality.texts import Item, LineError, TextFile, check_usable, read_texts, with_labels
from ops.quality.topic import newest_texts
from schemas.errors import ConfigError, UnavailableError
from schemas.settings import SchedulerSettings
from workers.calibration import (
    SETTING,
    SHIPPED,
    Calibration,
    HeadCalibration,
    find,
    load_calibrations,
    save_calibration,
)

DIRECTORY = Path("calibrations")
"""Where calibrations go when no setting says."""
FEW_TEXTS = 200
"""Below this many texts the priors are shaky: the mean log probability of a label has a standard deviation of about
one between headlines (SmolLM2-135M), so 200 texts give it to within 0.07."""
FEW_LABELS = 100
"""Below this many labels the temperature is shaky."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to calibrate on.

    Args:
        topic: ``news`` or ``filings``, for the priors; none when only a file is given.
        last: newest records of the topic.
        file: texts for the priors where no topic is given; with ``labelled`` also labels for the temperature.
        labelled: the file has labels.
        extractor: what is asked.
        head: which answer is calibrated; the labels are of it.
        source: which texts these are, for people; empty means what the flags say.
        into: directory for the result; none means the configured one.
        concurrency: texts in the engine at once.
    """

    topic: str | None
    last: int
    file: Path | None
    labelled: bool
    extractor: str
    head: str
    source: str
    into: Path | None
    concurrency: int


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What came of it.

    Args:
        calibration: as it was saved.
        path: where.
        head: that was calibrated.
        before, after: scores of the labelled texts with the plain label scores, and calibrated by a temperature that
            was fitted on other texts; none without labels.
        bad: lines that were passed over.
        passed_over: records of the topic that could not be used.
        failed: texts without an answer.
    """

    calibration: Calibration
    path: Path
    head: str
    before: Scores | None = None
    after: Scores | None = None
    bad: list[LineError] = field(default_factory=list)
    passed_over: int = 0
    failed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        made = self.calibration
        return {
            "calibration_id": made.id,
            "path": str(self.path),
            "model": made.model,
            "model_revision": made.model_revision,
            "extractor": made.extractor,
            "prompt_version": made.prompt_version,
            "unlabelled": made.unlabelled,
            "labelled": made.labelled,
            "heads": {
                name: {"log_priors": dict(zip(h.labels, h.log_priors, strict=True)), "temperature": h.temperature}
                for name, h in made.heads.items()
            },
            "before": _plain(self.before),
            "after": _plain(self.after),
            "bad_lines": len(self.bad),
            "passed_over": self.passed_over,
            "failed": self.failed,
        }


@dataclass(slots=True)
class _Texts:
    """What the priors and the temperature are made from."""

    unlabelled: list[str]
    labelled: list[Item]
    source: str
    bad: list[LineError] = field(default_factory=list)
    passed_over: int = 0


async def calibrate(settings: Settings, plan: Plan, say: Say) -> Outcome:
    """Read texts, ask the engine about them, fit, and save.

    Raises:
        ConfigError: a flag, a setting or the file is wrong.
        UnavailableError: Kafka or the model is not there, or no text was answered.
        EngineDiedError: the engine is gone.
    """
    check_plan(plan)
    directory = plan.into or settings.worker.calibrations or DIRECTORY
    known = _known(settings, directory)
    texts = await _read(settings, plan, say)
    async with asking(settings.worker, plan.extractor, say) as asker:
        labels = head_labels(asker, plan.head)
        _keep_known_labels(plan, texts, labels)
        replies, _ = await asker.ask(texts.unlabelled, concurrency=plan.concurrency, say=say)
        # A file of labelled texts gives the priors too when no topic does: one pass is enough for both.
        judged = replies if plan.topic is None else await _ask_labelled(asker, plan, texts, say)
    answered = [reply for reply in replies if plan.head in reply.raw]
    if not answered:
        raise UnavailableError("the engine", "--extractor", f"no text was answered; {_why(replies)}")
    head = fit([reply.raw[plan.head] for reply in answered], labels)
    before = after = None
    pairs = [(i, r.raw[plan.head]) for i, r in zip(texts.labelled, judged, strict=False) if plan.head in r.raw]
    if pairs:
        head, before, after = _with_labels(head, pairs, plan.head)
    info = asker.description.info
    old = find(known, info.model_revision, asker.extractor.prompt_version)
    # What other heads have had so far stays; a worker takes one calibration for all heads of an extractor.
    heads = {**(old.heads if old is not None else {}), plan.head: head}
    calibration = Calibration(
        model_revision=info.model_revision,
        prompt_version=asker.extractor.prompt_version,
        heads=heads,
        model=info.model,
        extractor=plan.extractor,
        source=plan.source or texts.source,
        unlabelled=len(answered),
        labelled=len(pairs),
        made_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    return Outcome(
        calibration=calibration,
        path=save_calibration(calibration, directory),
        head=plan.head,
        before=before,
        after=after,
        bad=texts.bad,
        passed_over=texts.passed_over,
        failed=sum(plan.head not in reply.raw for reply in [*replies, *([] if judged is replies else judged)]),
    )


def asked_about(scheduler: SchedulerSettings, topic: str | None) -> str:
    """Return the extractor of the first class that a rule sends a topic's events to.

    Args:
        scheduler: classes and rules.
        topic: ``news`` or ``filings``; none, where only a file says what the texts are, means news.
    """
    extractors = {c.name: c.extractor for c in scheduler.classes}
    for rule in scheduler.rules:
        # A condition that only the other kind of event can meet makes the rule one for that kind.
        others = (rule.sources, rule.urgency_at_most) if topic == "filings" else (rule.forms, rule.items)
        if rule.topic in (None, topic or "news") and not any(others):
            return extractors[rule.service_class]
    raise AssertionError("the last rule holds for every event")


def _known(settings: Settings, directory: Path) -> list[Calibration]:
    """Return what is stored so far, and make the directory: that it cannot be made is better told before the work."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(SETTING, f"{directory}: {error.strerror or error}") from None
    configured = [settings.worker.calibrations] if settings.worker.calibrations not in (None, directory) else []
    return load_calibrations([SHIPPED, *configured, directory])


def check_plan(plan: Plan) -> None:
    """Check the flags against each other.

    Raises:
        ConfigError: nothing to calibrate on, or two answers to one question.
    """
    if plan.topic is None and plan.file is None:
        raise ConfigError("--topic", "give a topic (news, filings), a file, or both")
    if plan.topic not in (None, "news", "filings"):
        raise ConfigError("--topic", f"{plan.topic!r} is neither news nor filings")
    if plan.topic is not None and plan.file is not None and not plan.labelled:
        raise ConfigError("--file", "beside a topic, a file is for its labels: add --labelled")
    if plan.labelled and plan.file is None:
        raise ConfigError("--labelled", "labels come from a file: add --file")


async def _read(settings: Settings, plan: Plan, say: Say) -> _Texts:
    file = await read_texts(plan.file, labelled=plan.labelled) if plan.file is not None else None
    labelled = file.items if file is not None and plan.labelled else []
    bad = file.bad if file is not None else []
    name = plan.file.name if plan.file is not None else ""
    if plan.topic is None:
        assert file is not None  # noqa: S101 - `check_plan` saw to it
        return _Texts([item.text for item in file.items], labelled, f"file {name}", bad)
    topic = await newest_texts(settings.kafka, plan.topic, plan.last, say)
    source = f"topic {plan.topic}" + (f", labels of file {name}" if name else "")
    return _Texts(topic.texts, labelled, source, bad, topic.passed_over)


def _keep_known_labels(plan: Plan, texts: _Texts, labels: Sequence[str]) -> None:
    """Drop labelled lines whose label the head does not have."""
    if not plan.labelled or plan.file is None:
        return
    known = with_labels(TextFile(texts.labelled, texts.bad), labels)
    check_usable(plan.file, known)
    texts.labelled, texts.bad = known.items, known.bad
    if plan.topic is None:
        texts.unlabelled = [item.text for item in known.items]


async def _ask_labelled(asker: Asker, plan: Plan, texts: _Texts, say: Say) -> list[Reply]:
    replies, _ = await asker.ask([item.text for item in texts.labelled], concurrency=plan.concurrency, say=say)
    return replies


def _with_labels(
    head: HeadCalibration, pairs: Sequence[tuple[Item, dict[str, float]]], name: str
) -> tuple[HeadCalibration, Scores, Scores]:
    """Return the head with its temperature, and the scores without any calibration and with a cross-fitted one."""
    truth = [item.label for item, _ in pairs]
    present = [label for label in head.labels if label in truth]
    labels = present if len(present) > 1 else head.labels
    spreads = [restricted(spread, labels) for _, spread in pairs]
    crossed = cross_fitted(head, [item.text for item, _ in pairs], spreads, truth)
    before = scores([Judged(spread, label) for spread, label in zip(spreads, truth, strict=True)])
    after = scores(
        [Judged(h.apply(name, spread), label) for h, spread, label in zip(crossed, spreads, truth, strict=True)]
    )
    return with_temperature(head, spreads, truth), before, after


def _why(replies: Sequence[Reply]) -> str:
    failure = next((reply.failure for reply in replies if reply.failure is not None), None)
    return f"{failure.kind}: {failure.message}" if failure is not None else "it has no heads"


def _plain(found: Scores | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {name: round(getattr(found, name), 4) for name in ("accuracy", "macro_f1", "brier", "ece", "log_loss")}
