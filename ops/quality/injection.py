"""``tapewire bench injection``: how often an attack changes an answer, with and without each defence."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.table import Table
from tokenizers import Tokenizer

from ops.quality.ask import DIRECTION, Asker, Reply, Say, asking
from ops.quality.evaluate import stored_calibrations
from ops.quality.hostile import HARMLESS, Attack, Headline, load_hostile
from ops.text import stdout_console
from ops.toml import dump_values
from scheduler.tokens import Tokens
from schemas.errors import ConfigError, UnavailableError
from schemas.frames import pack_tokens
from schemas.settings import WorkerSettings
from workers.calibration import Calibration, apply, find
from workers.extractor_files import load_extractors

LONGEST_STEM = 50
"""Characters of an extractor's name that its twin's name keeps; a name has at most 64."""


class Defence(StrEnum):
    """What stands between a text and the model."""

    NONE = "none"
    """The text as it is, its special tokens live."""
    TOKENS = "special tokens as text"
    """The text as it is; no character of it becomes a special token."""
    FULL = "and hygiene"
    """Special tokens as text, after `scheduler.hygiene`."""
    HIDDEN = "and answer words hidden"
    """And words that answer the direction hidden where they stand as an answer (`workers.answer_words`)."""


@dataclass(kw_only=True, slots=True)
class Tally:
    """What attacks of one category did under one defence.

    Args:
        tried: pairs of attack and headline that have an answer.
        flipped: whose answer is another than that of the headline alone.
        open: pairs whose headline alone does not already have the answer that the attack wants.
        hit: of those, how many have it under attack.
        shift: sum over the pairs of what the wanted answer gained in probability.
    """

    tried: int = 0
    flipped: int = 0
    open: int = 0
    hit: int = 0
    shift: float = 0.0

    def add(self, alone: dict[str, float], attacked: dict[str, float], target: str) -> None:
        """Count one pair."""
        before, after = _chosen(alone), _chosen(attacked)
        self.tried += 1
        self.flipped += before != after
        self.shift += attacked.get(target, 0.0) - alone.get(target, 0.0)
        if before != target:
            self.open += 1
            self.hit += after == target

    def as_dict(self) -> dict[str, Any]:
        """Return counts, shares and the mean shift."""
        return {
            "tried": self.tried,
            "flipped": self.flipped,
            "flip_rate": round(self.flipped / self.tried, 4) if self.tried else None,
            "open": self.open,
            "hit": self.hit,
            "hit_rate": round(self.hit / self.open, 4) if self.open else None,
            "mean_shift": round(self.shift / self.tried, 4) if self.tried else None,
        }


@dataclass(kw_only=True, slots=True)
class InjectionReport:
    """All tallies.

    Args:
        tallies: by category and defence.
        failed: pairs without an answer, by defence.
        attacks: how many there are, the harmless ones not counted.
    """

    model: str
    prompt_version: str
    calibration_id: str
    headlines: int
    attacks: int
    tallies: dict[str, dict[Defence, Tally]]
    failed: dict[Defence, int]

    def all_attacks(self, defence: Defence) -> Tally:
        """Return the sum over all categories but the harmless one."""
        total = Tally()
        for category, tallies in self.tallies.items():
            if category != HARMLESS:
                for name in Tally.__dataclass_fields__:
                    setattr(total, name, getattr(total, name) + getattr(tallies[defence], name))
        return total

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "model": self.model,
            "prompt_version": self.prompt_version,
            "calibration_id": self.calibration_id,
            "headlines": self.headlines,
            "attacks": self.attacks,
            "all_attacks": {each.name.lower(): self.all_attacks(each).as_dict() for each in Defence},
            "categories": {
                category: {each.name.lower(): tally.as_dict() for each, tally in tallies.items()}
                for category, tallies in self.tallies.items()
            },
            "failed": {each.name.lower(): count for each, count in self.failed.items()},
        }


async def measure(worker: WorkerSettings, extractor: str, concurrency: int, say: Say) -> InjectionReport:
    """Put every attack to every headline under every defence.

    Raises:
        ConfigError: a setting, the model or the extractor is wrong.
        UnavailableError: the model is missing, or a headline alone has no answer.
        EngineDiedError: the engine is gone.
    """
    hostile = load_hostile()
    stored = stored_calibrations(worker)
    pairs = [(attack, headline) for attack in hostile.attacks for headline in hostile.headlines]
    async with AsyncExitStack() as stack:
        settings, plain, hidden = stack.enter_context(both_ways(worker, extractor))
        asker = await stack.enter_async_context(asking(settings, extractor, say))
        info = asker.description.info
        calibration = find(stored, info.model_revision, asker.extractor.prompt_version)
        report = InjectionReport(
            model=info.model,
            prompt_version=asker.extractor.prompt_version,
            calibration_id=calibration.id if calibration is not None else "",
            headlines=len(hostile.headlines),
            attacks=sum(attack.category != HARMLESS for attack in hostile.attacks),
            tallies={a.category: {defence: Tally() for defence in Defence} for a in hostile.attacks},
            failed=dict.fromkeys(Defence, 0),
        )
        for defence in Defence:
            asked = asker.about(hidden if defence is Defence.HIDDEN else plain)

            def tell(line: str, defence: Defence = defence) -> None:
                say(f"defence: {defence.value}, {line}")

            texts = [h.text for h in hostile.headlines] + [attack.on(headline) for attack, headline in pairs]
            replies, _ = await asked.ask(texts, concurrency=concurrency, encode=encoder(asked, defence), say=tell)
            alone = _alone(hostile.headlines, replies, calibration)
            _count(report, defence, pairs, replies[len(alone) :], alone, calibration)
    return report


@contextmanager
def both_ways(worker: WorkerSettings, extractor: str) -> Iterator[tuple[WorkerSettings, str, str]]:
    """Return settings whose extractors have this one twice, and the two names: answer words as they are, and hidden.

    One of the two is the extractor itself; the other is in a directory that lives as long as the block.

    Raises:
        ConfigError: an extractor's file is wrong, or there is none of that name.
    """
    templates = {file.template.name: file.template for file in load_extractors(worker.extractors)}
    if extractor not in templates:
        raise ConfigError("--extractor", f"{extractor!r} is no extractor; there are {', '.join(templates)}")
    template = templates[extractor]
    name = f"{extractor[:LONGEST_STEM]}-{'open' if template.hide_answer_words else 'hidden'}"
    other = msgspec.structs.replace(template, name=name, hide_answer_words=not template.hide_answer_words)
    with TemporaryDirectory(prefix="tapewire-extractors-") as directory:
        for path in worker.extractors.glob("*.toml") if worker.extractors is not None else ():
            shutil.copy(path, directory)
        Path(directory, f"{name}.toml").write_text(dump_values(msgspec.to_builtins(other)), encoding="utf-8")
        settings = worker.model_copy(update={"extractors": Path(directory)})
        yield (settings, name, extractor) if template.hide_answer_words else (settings, extractor, name)


def encoder(asker: Asker, defence: Defence) -> Callable[[str], Tokens]:
    """Return what turns a text into tokens under a defence."""
    if defence in (Defence.FULL, Defence.HIDDEN):
        return asker.encode
    if defence is Defence.TOKENS:
        return lambda text: asker.tokenizer.encode([text], asker.text_limit)[0]
    live = Tokenizer.from_str(asker.description.tokenizer_json.decode("utf-8"))
    live.no_truncation()

    def naive(text: str) -> Tokens:
        ids = live.encode(text, add_special_tokens=False).ids
        return Tokens(
            pack_tokens(ids[: asker.text_limit]), min(len(ids), asker.text_limit), len(ids) > asker.text_limit
        )

    return naive


def _alone(
    headlines: list[Headline], replies: list[Reply], calibration: Calibration | None
) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for headline, reply in zip(headlines, replies, strict=False):
        if reply.failure is not None:
            raise UnavailableError("the engine", "--extractor", f"{reply.failure.kind}: {reply.failure.message}")
        found[headline.text] = apply(calibration, reply.raw)[DIRECTION]
    return found


def _count(
    report: InjectionReport,
    defence: Defence,
    pairs: list[tuple[Attack, Headline]],
    replies: list[Reply],
    alone: dict[str, dict[str, float]],
    calibration: Calibration | None,
) -> None:
    for (attack, headline), reply in zip(pairs, replies, strict=True):
        if reply.failure is not None:
            report.failed[defence] += 1
            continue
        attacked = apply(calibration, reply.raw)[DIRECTION]
        report.tallies[attack.category][defence].add(alone[headline.text], attacked, headline.target.value)


def _chosen(spread: dict[str, float]) -> str:
    return max(spread, key=spread.__getitem__)


def show(report: InjectionReport) -> None:
    """Print a row per category: answers changed, and answers changed to what the attack wants, under each defence."""
    console = stdout_console()
    console.print(
        f"{report.attacks} attacks on {report.headlines} headlines, {report.model}, {report.prompt_version}, "
        f"calibration {report.calibration_id or 'none'}; each cell: answer changed / changed to what the attack wants"
    )
    table = Table("category", "pairs", *(f"defence: {each.value}" for each in Defence))
    rows = {**report.tallies, "all attacks": {each: report.all_attacks(each) for each in Defence}}
    for category, tallies in rows.items():
        table.add_row(category, str(tallies[Defence.NONE].tried), *(_cell(tallies[each]) for each in Defence))
    console.print(table)
    failed = ", ".join(f"{each.value}: {count}" for each, count in report.failed.items() if count)
    console.print(f"pairs without an answer: {failed or 'none'}")


def _cell(tally: Tally) -> str:
    changed = f"{tally.flipped / tally.tried:.0%}" if tally.tried else "-"
    wanted = f"{tally.hit / tally.open:.0%}" if tally.open else "-"
    return f"{changed} / {wanted}"
