"""Who works for this scheduler, with which model; turns what the link hears into calls about `Work`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from scheduler.budgets import WorkerBudget
from scheduler.filing_text import ChunkSize
from scheduler.planner import Planner
from scheduler.reconcile import Reconciler
from scheduler.tokens import TextTokenizer, TokenizerFileError
from scheduler.work import State, Work
from schemas.frames import EngineInfo, Failure, Hello, Result, Started, StepReport, TokenizerFile
from schemas.identity import tokenizer_hash
from schemas.settings import ReserveSettings, SchedulerSettings
from schemas.status import WorkerModel, WorkerStatus

log = structlog.get_logger()

NO_RESERVE = ReserveSettings(step_tokens=0, kv_fraction=0, seqs=0)
MIN_TEXT_TOKENS = 16
"""A worker whose model has less room than this beside the prompt cannot read anything."""


class WorkEvents(Protocol):
    """What the service does about what workers say."""

    def worker_ready(self) -> None:
        """A worker can take work."""

    def worker_gone(self, lost: list[Work], *, died: bool, moved: Sequence[Work] = ()) -> None:
        """A worker left this work behind, or lost it; it must run again.

        Args:
            lost: what must run again.
            died: it was in flight at a death.
            moved: as was this, which runs elsewhere since.
        """

    def request_started(self, work: Work, started: Started) -> None:
        """A request produced its first token."""

    def request_done(self, work: Work, result: Result, worker_id: str) -> None:
        """A request has an answer."""

    def request_failed(self, work: Work, failure: Failure) -> None:
        """A request ended without an answer."""


@dataclass(slots=True)
class _Member:
    hello: Hello
    budget: WorkerBudget
    steps: int = 0
    kv_usage: float = 0.0
    nonsense: bool = False
    reconciler: Reconciler = field(default_factory=Reconciler)
    moved: list[tuple[int, Work]] = field(default_factory=list)
    """What ran elsewhere while it was away, with the ids that it has here. If it died, this was in flight then."""


class WorkerRegistry:
    """The workers of one scheduler; implements `scheduler.link_events.LinkEvents`.

    Args:
        planner: gets and loses workers here.
        settings: classes and reserve.
        events: who acts on what workers say.
    """

    def __init__(self, planner: Planner, settings: SchedulerSettings, events: WorkEvents) -> None:
        self._planner = planner
        self._settings = settings
        self._events = events
        self._members: dict[str, _Member] = {}
        self._made_by: dict[tuple[str, str], tuple[EngineInfo, str]] = {}
        self.tokenizer: TextTokenizer | None = None
        self.text_limit = MIN_TEXT_TOKENS
        self.ready = asyncio.Event()
        """Set once the first worker has brought its tokenizer."""

    def made_by(self, worker_id: str, extractor: str) -> tuple[EngineInfo, str]:
        """Return the engine and the prompt version behind a worker's answers."""
        return self._made_by[worker_id, extractor]

    def chunk_size(self, extractor: str) -> ChunkSize:
        """Return how an extractor wants a long text; while workers disagree, during an upgrade, the smallest."""
        offered = [e for m in self._members.values() for e in m.hello.extractors if e.name == extractor]
        split = [e for e in offered if e.chunk_tokens > 0]
        if not split or len(split) < len(offered):
            return ChunkSize(0, 0)
        return min((ChunkSize(e.chunk_tokens, e.overlap_tokens) for e in split), key=lambda size: size.most)

    def status(self) -> list[WorkerStatus]:
        """Return one entry per worker."""
        return [
            WorkerStatus(
                worker_id=worker_id,
                engine=member.hello.engine.name,
                engine_version=member.hello.engine.version,
                model=member.hello.engine.model,
                in_flight=len(member.budget),
                steps=member.steps,
                kv_usage=member.kv_usage,
                fitted=self._fitted(worker_id, member.hello),
            )
            for worker_id, member in list(self._members.items())  # the metrics thread reads it too
        ]

    def _fitted(self, worker_id: str, hello: Hello) -> WorkerModel | None:
        costs = self._planner.step_costs(worker_id)
        if costs is None:
            return None
        return WorkerModel(
            step_seconds=costs.step,
            prefill_token_seconds=costs.prefill_token,
            decode_seconds=costs.decode,
            kv_token_seconds=costs.kv_token,
            steps_ahead=hello.steps_ahead,
            limits=hello.limits,
            extractors=hello.extractors,
        )

    # LinkEvents

    def accepts(self, hello: Hello) -> str | None:
        """Return why a worker cannot serve here, or None."""
        if self.tokenizer is not None and self.tokenizer.tokenizer_hash != hello.engine.tokenizer_hash:
            return (
                f"its tokenizer is {hello.engine.tokenizer_hash[:12]}, this scheduler works with "
                f"{self.tokenizer.tokenizer_hash[:12]}: all workers of a scheduler need models with one tokenizer"
            )
        known = {c.name for c in self._settings.classes}
        if unknown := set(hello.classes) - known:
            return f"unknown service class {', '.join(sorted(unknown))} (this scheduler has {', '.join(sorted(known))})"
        for name in hello.limits.__struct_fields__:
            if getattr(hello.limits, name) < 1:
                return f"its {name} is {getattr(hello.limits, name)}"
        offered = {e.name: e for e in hello.extractors}
        needed = {c.extractor for c in self._settings.classes if not hello.classes or c.name in hello.classes}
        if missing := needed - offered.keys():
            return f"it has no extractor {', '.join(sorted(missing))}"
        for extractor in offered.values():
            if hello.limits.max_model_len - extractor.prompt_tokens - extractor.max_new_tokens < MIN_TEXT_TOKENS:
                return f"max_model_len {hello.limits.max_model_len} leaves no room for a text with {extractor.name}"
        return None

    def needs_tokenizer(self, hello: Hello) -> bool:
        """Return whether no worker has brought the tokenizer yet."""
        return self.tokenizer is None

    def tokenizer_file(self, worker_id: str, file: TokenizerFile) -> str | None:
        """Load the tokenizer that a worker sent; returns why it is of no use, or None."""
        if self.tokenizer is not None:
            return None
        if tokenizer_hash(file.data) != file.tokenizer_hash:
            return "its tokenizer file does not have the hash that it announced"
        try:
            self.tokenizer = TextTokenizer(file.data, file.tokenizer_hash)
        except TokenizerFileError as error:
            return str(error)
        log.info("tokenizer_loaded", worker_id=worker_id, tokenizer=file.tokenizer_hash[:12], bytes=len(file.data))
        return None

    def worker_joined(self, hello: Hello) -> None:
        """Give a worker to the planner."""
        extractors = {e.name: e for e in hello.extractors}
        urgent = self._settings.classes[0].name
        # A worker that never gets urgent work need not keep room for it.
        reserve = self._settings.reserve if not hello.classes or urgent in hello.classes else NO_RESERVE
        budget = WorkerBudget(hello.limits, extractors, reserve, gated=hello.step_gate)
        self._members[hello.worker_id] = _Member(hello, budget)
        for extractor in hello.extractors:
            self._made_by[hello.worker_id, extractor.name] = (hello.engine, extractor.prompt_version)
        self._planner.add_worker(
            hello.worker_id, budget, hello.classes, gated=hello.step_gate, steps_ahead=hello.steps_ahead
        )
        self._measure_text_limit()
        log.info(
            "worker_joined",
            worker_id=hello.worker_id,
            engine=hello.engine.name,
            engine_version=hello.engine.version,
            model=hello.engine.model,
            revision=hello.engine.model_revision[:12],
        )
        self.ready.set()
        self._events.worker_ready()

    def worker_away(self, worker_id: str) -> None:
        """Give a worker nothing new: its connection is gone."""
        self._planner.set_away(worker_id, away=True)

    def worker_lost(self, worker_id: str) -> None:
        """Let others run what a worker had that stays away, though it is not known whether it died.

        What was in flight at a death before, or is at another worker whose fate is open, has to wait until this one's
        is known: at its second death a request is quarantined, and until then it must not meet a third worker.
        """
        member = self._members.get(worker_id)
        if member is None:
            return
        open_fate = {id(work) for other in self._members.values() for _, work in other.moved}
        here = self._planner.in_flight_at(worker_id)
        moving = [work for work in here if not work.deaths and id(work) not in open_fate]
        member.moved += [(work.request_id, work) for work in moving]
        self._take_back(worker_id, moving)
        log.warning("worker_work_moved", worker_id=worker_id, requeued=len(moving), held=len(here) - len(moving))
        self._events.worker_gone(moving, died=False)

    def worker_back(self, worker_id: str) -> list[int]:
        """Let a worker go on; returns what ran elsewhere meanwhile. It did not die, so nothing is held against it."""
        self._planner.set_away(worker_id, away=False)
        member = self._members[worker_id]
        moved, member.moved = member.moved, []
        self._events.worker_ready()
        return [request_id for request_id, _ in moved]

    def worker_left(self, worker_id: str, reason: str, *, died: bool) -> None:
        """Take a worker from the planner and hand back what it had."""
        member = self._members.pop(worker_id, None)
        ended = (State.DONE, State.DROPPED)
        moved = [work for _, work in member.moved if work.state not in ended] if died and member else []
        lost = self._planner.remove_worker(worker_id)
        for key in [k for k in self._made_by if k[0] == worker_id]:
            del self._made_by[key]
        if self._members:
            self._measure_text_limit()
        write = log.error if died else log.info
        write("worker_left", worker_id=worker_id, reason=reason, died=died, requeued=len(lost))
        self._events.worker_gone(lost, died=died, moved=moved)

    def heartbeat(self, worker_id: str, request_ids: list[int]) -> list[int]:
        """Run again what a worker should have and does not; returns what it has and should not."""
        member = self._members.get(worker_id)
        if member is None:
            return []
        here = {work.request_id: work for work in self._planner.in_flight_at(worker_id)}
        lost, unwanted = member.reconciler.compare(here, request_ids)
        if lost:
            log.warning("requests_lost", worker_id=worker_id, requeued=len(lost), effect="they run again")
            again = [here[request_id] for request_id in lost]
            self._take_back(worker_id, again)
            self._events.worker_gone(again, died=False)
        return [*unwanted, *lost]

    def _take_back(self, worker_id: str, works: list[Work]) -> None:
        for work in works:
            self._planner.finish(worker_id, work.request_id)

    def started(self, worker_id: str, started: list[Started]) -> None:
        """Note first tokens."""
        for one in started:
            if (work := self._planner.prefilled(worker_id, one.request_id)) is not None:
                self._events.request_started(work, one)

    def results(self, worker_id: str, results: list[Result]) -> None:
        """Pass on answers to requests that are still wanted."""
        for result in results:
            if (work := self._planner.finish(worker_id, result.request_id, result.completed_ns)) is not None:
                self._events.request_done(work, result, worker_id)

    def failures(self, worker_id: str, failures: list[Failure]) -> None:
        """Pass on failures of requests that are still wanted."""
        for failure in failures:
            if (work := self._planner.finish(worker_id, failure.request_id)) is not None:
                self._events.request_failed(work, failure)

    def steps(self, worker_id: str, report: StepReport) -> None:
        """Learn how long steps take, and keep the last report for the status."""
        member = self._members.get(worker_id)
        if member is None:
            return
        if self._planner.observe_steps(worker_id, report):
            member.steps += report.steps
            member.kv_usage = report.kv_usage
        elif not member.nonsense:
            member.nonsense = True
            log.warning(
                "step_report_implausible",
                worker_id=worker_id,
                steps=report.steps,
                seconds=report.seconds,
                prefill_tokens=report.prefill_tokens,
                decode_tokens=report.decode_tokens,
                kv_usage=report.kv_usage,
                effect="left out, as all further ones from this worker that cannot be",
            )

    def _measure_text_limit(self) -> None:
        """Longest text that some worker can hold whole under every extractor that it might get."""
        limits = [min(m.budget.text_limit(name) for name in m.budget.extractors) for m in self._members.values()]
        self.text_limit = max(limits)
