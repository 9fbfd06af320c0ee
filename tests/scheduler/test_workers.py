"""The registry: who may serve, the tokenizer, and that what workers say is about work that is theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from scheduler.filing_text import ChunkSize
from scheduler.planner import Planner
from scheduler.quarantine import blame
from scheduler.work import State, Work
from scheduler.workers import WorkerRegistry
from schemas.enums import Direction
from schemas.frames import Answer, Failure, Result, Started, StepReport, TokenizerFile
from schemas.identity import tokenizer_hash
from schemas.settings import SchedulerSettings
from tests.scheduler import make


class _Events:
    """Implements `scheduler.workers.WorkEvents`: a list of calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def worker_ready(self) -> None:
        self.calls.append(("ready",))

    def worker_gone(self, lost: list[Work], *, died: bool, moved: Sequence[Work] = ()) -> None:
        if died:
            blame([*lost, *moved])
        self.calls.append(("gone", lost, died))

    def request_started(self, work: Work, started: Started) -> None:
        self.calls.append(("started", work))

    def request_done(self, work: Work, result: Result, worker_id: str) -> None:
        self.calls.append(("done", work, worker_id))

    def request_failed(self, work: Work, failure: Failure) -> None:
        self.calls.append(("failed", work, failure.kind))


def _registry() -> tuple[WorkerRegistry, Planner, _Events]:
    settings = SchedulerSettings(classes=make.CLASSES)
    planner, events = Planner(make.CLASSES), _Events()
    return WorkerRegistry(planner, settings, events), planner, events


def _result(request_id: int) -> Result:
    return Result(
        request_id=request_id,
        answer=Answer(direction=Direction.NEUTRAL, probabilities={Direction.NEUTRAL: 1.0}),
        engine_started_ns=1,
        first_token_ns=2,
        completed_ns=3,
        prompt_tokens=1,
        output_tokens=1,
    )


def _loaded() -> TokenizerFile:
    return TokenizerFile(tokenizer_hash=make.TOKENIZER_HASH, data=make.TOKENIZER)


def test_the_tokenizer_comes_from_the_first_worker() -> None:
    """It is wanted until it came, then never again, and a second file changes nothing."""
    registry, _, _ = _registry()
    assert registry.needs_tokenizer(make.hello())
    assert registry.tokenizer_file("w1", _loaded()) is None
    first = registry.tokenizer
    assert first is not None
    assert first.tokenizer_hash == make.TOKENIZER_HASH
    assert not registry.needs_tokenizer(make.hello())
    assert registry.tokenizer_file("w2", TokenizerFile(tokenizer_hash="x", data=b"x")) is None
    assert registry.tokenizer is first


def test_a_tokenizer_file_must_be_what_it_says() -> None:
    """A wrong hash and a file that cannot be loaded are refused with a reason, and the registry still wants one."""
    registry, _, _ = _registry()
    assert "hash" in str(registry.tokenizer_file("w1", TokenizerFile(tokenizer_hash="no", data=make.TOKENIZER)))
    broken = TokenizerFile(tokenizer_hash=tokenizer_hash(b"{}"), data=b"{}")
    assert "cannot load" in str(registry.tokenizer_file("w1", broken))
    assert registry.needs_tokenizer(make.hello())


def test_all_workers_share_one_tokenizer() -> None:
    """A model with another tokenizer would read other text than we send: it is refused, with both hashes."""
    registry, _, _ = _registry()
    registry.tokenizer_file("w1", _loaded())
    assert registry.accepts(make.hello()) is None
    reason = registry.accepts(make.hello(engine=make.engine("f" * 64)))
    assert reason is not None
    assert "ffff" in reason
    assert make.TOKENIZER_HASH[:12] in reason


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"classes": ["flash", "gold"]}, "gold"),
        ({"extractors": [make.extractor("headline")]}, "filing"),
        ({"classes": ["bulk"], "extractors": [make.extractor("headline")]}, "filing"),
        ({"classes": ["flash"], "extractors": []}, "headline"),
        ({"limits": make.limits(max_model_len=100)}, "max_model_len"),
        ({"limits": make.limits(block_size=0)}, "block_size"),
        ({"limits": make.limits(max_num_seqs=0)}, "max_num_seqs"),
        ({"limits": make.limits(max_num_batched_tokens=0)}, "max_num_batched_tokens"),
    ],
)
def test_who_cannot_serve_is_told_what_is_missing(changed: dict[str, Any], word: str) -> None:
    """A worker that could do nothing here, or break us, is refused with the word to look for."""
    registry, _, _ = _registry()
    reason = registry.accepts(make.hello(**changed))
    assert reason is not None
    assert word in reason


def test_a_dedicated_worker_needs_only_its_own_extractors() -> None:
    """A worker for flash alone needs no prompt for filings."""
    registry, _, _ = _registry()
    assert registry.accepts(make.hello(classes=["flash"], extractors=[make.extractor("headline")])) is None


def test_the_text_limit_is_that_of_the_largest_worker() -> None:
    """Texts are cut to what the worker with the longest context can hold, and the limit follows who is there."""
    registry, _, _ = _registry()
    registry.worker_joined(make.hello("small", limits=make.limits(max_model_len=1024)))
    assert registry.text_limit == 1024 - 40 - 48
    registry.worker_joined(make.hello("large", limits=make.limits(max_model_len=4096)))
    assert registry.text_limit == 4096 - 40 - 48
    registry.worker_left("large", "stop", died=False)
    assert registry.text_limit == 1024 - 40 - 48
    registry.worker_left("small", "stop", died=False)
    assert registry.text_limit == 1024 - 40 - 48  # what is known is kept until another one comes


def test_what_a_worker_says_is_about_its_own_work() -> None:
    """Results, failures and first tokens become calls about work, once; what is not the worker's is ignored."""
    registry, planner, events = _registry()
    registry.worker_joined(make.hello("w1"))
    registry.worker_joined(make.hello("w2"))
    done, failed = make.work(deadline_ns=1), make.work(deadline_ns=2)
    for work in (done, failed):
        planner.add(work)
    owners = {work.event_id + str(work.deadline_ns): worker for work, worker in planner.plan(0).dispatches}
    first, second = owners["wire:story:11"], owners["wire:story:12"]
    assert first != second
    events.calls.clear()
    registry.started(second, [Started(request_id=done.request_id, engine_started_ns=1, first_token_ns=2)])
    registry.results(second, [_result(done.request_id)])
    assert events.calls == []
    registry.started(first, [Started(request_id=done.request_id, engine_started_ns=1, first_token_ns=2)])
    registry.results(first, [_result(done.request_id), _result(done.request_id)])
    failure = Failure(request_id=failed.request_id, kind="engine_error", message="m", retryable=False)
    registry.failures(second, [failure, failure])
    assert events.calls == [("started", done), ("done", done, first), ("failed", failed, "engine_error")]


def test_a_worker_that_left_hands_back_its_work() -> None:
    """What it had in flight goes back to the caller, with whether it died, and it is gone from the status."""
    registry, planner, events = _registry()
    registry.worker_joined(make.hello("w1"))
    work = make.work()
    planner.add(work)
    planner.plan(0)
    registry.worker_left("w1", "silent", died=True)
    assert events.calls[-1] == ("gone", [work], True)
    assert work.state is not State.IN_FLIGHT
    assert registry.status() == []
    with pytest.raises(KeyError):
        registry.made_by("w1", "headline")


def test_status_shows_the_last_report() -> None:
    """Steps add up, cache usage is the last one, and reports of strangers are ignored."""
    registry, planner, _ = _registry()
    registry.worker_joined(make.hello("w1"))
    planner.add(make.work())
    planner.plan(0)
    for steps, usage in ((3, 0.5), (4, 0.25)):
        report = StepReport(
            session="s",
            steps=steps,
            seconds=1,
            prefill_tokens=1,
            decode_tokens=1,
            running=1,
            waiting=0,
            kv_usage=usage,
        )
        registry.steps("w1", report)
        registry.steps("nobody", report)
    (status,) = registry.status()
    assert (status.steps, status.kv_usage, status.in_flight, status.engine) == (7, 0.25, 1, "sim")


@pytest.mark.parametrize(("classes", "slots"), [([], 4), (["flash", "bulk"], 4), (["bulk"], 8)])
def test_only_workers_that_take_urgent_work_keep_room_for_it(classes: list[str], slots: int) -> None:
    """Of eight sequence slots, half are reserved for urgent work unless the worker never gets any."""
    registry, planner, _ = _registry()
    registry.tokenizer_file("w1", _loaded())
    registry.worker_joined(make.hello(classes=classes))
    for _ in range(10):
        planner.add(make.work(2, tokens=1, deadline_ns=2**62))
    dispatched = 0
    while plan := planner.plan(make.EVENT_TIME_NS).dispatches:
        dispatched += len(plan)
        for work, worker_id in plan:
            planner.prefilled(worker_id, work.request_id)  # so that the steps have room again
    assert dispatched == slots


def test_the_size_of_chunks_is_what_every_worker_can_do() -> None:
    """While workers disagree, in the middle of an upgrade, the smaller chunks hold, and none where one never splits."""
    registry, _, _ = _registry()
    registry.tokenizer_file("w1", _loaded())
    assert registry.chunk_size("filing") == ChunkSize(0, 0)
    splits = {
        n: msgspec.structs.replace(make.extractor("filing"), chunk_tokens=n, overlap_tokens=8) for n in (256, 128)
    }
    for number, filing in splits.items():
        registry.worker_joined(make.hello(f"w{number}", extractors=[make.extractor("headline"), filing]))
    assert registry.chunk_size("filing") == ChunkSize(128, 8)
    assert registry.chunk_size("headline") == ChunkSize(0, 0)
    registry.worker_joined(make.hello("old"))
    assert registry.chunk_size("filing") == ChunkSize(0, 0)


def _two_workers_with(*works: Work) -> tuple[WorkerRegistry, Planner, _Events]:
    """Return a registry whose worker w1 has all of this work, and w2 beside it."""
    registry, planner, events = _registry()
    registry.worker_joined(make.hello("w1"))
    for work in works:
        planner.add(work)
    planner.plan(0)
    registry.worker_joined(make.hello("w2"))
    events.calls.clear()
    return registry, planner, events


def _run(planner: Planner) -> dict[str, list[Work]]:
    """Plan, and return what each worker has then."""
    planner.plan(0)
    return {worker: planner.in_flight_at(worker) for worker in ("w1", "w2", "w3")}


def test_a_worker_without_a_connection_gets_nothing_new() -> None:
    """What comes while it is away goes to the others, and what it has stays with it; back, it takes work again."""
    registry, planner, _ = _two_workers_with(old := make.work())
    registry.worker_away("w1")
    planner.add(new := make.work(deadline_ns=1))
    assert _run(planner) == {"w1": [old], "w2": [new], "w3": []}
    registry.worker_away("w2")
    planner.add(third := make.work(deadline_ns=2))
    assert _run(planner) == {"w1": [old], "w2": [new], "w3": []}
    assert registry.worker_back("w1") == []
    assert _run(planner)["w1"] == [old, third]


def test_work_of_a_lost_worker_moves_and_a_death_is_counted_when_it_is_known() -> None:
    """Once the connection stays away the work runs elsewhere, with no death; the death comes later, and once."""
    registry, planner, events = _two_workers_with(work := make.work())
    registry.worker_away("w1")
    registry.worker_lost("w1")
    assert events.calls == [("gone", [work], False)]
    assert work.deaths == 0
    planner.add(work)
    assert _run(planner) == {"w1": [], "w2": [work], "w3": []}
    registry.worker_left("w1", "silent", died=True)
    assert work.deaths == 1
    assert events.calls[-1] == ("gone", [], True)
    assert _run(planner)["w2"] == [work]


def test_a_worker_that_comes_back_did_not_kill_anything() -> None:
    """Nothing is held against the work that moved, and its old run is named to be aborted."""
    registry, planner, events = _two_workers_with(work := make.work())
    request_id = work.request_id
    registry.worker_away("w1")
    registry.worker_lost("w1")
    planner.add(work)
    planner.plan(0)
    assert registry.worker_back("w1") == [request_id]
    registry.worker_left("w1", "goodbye", died=True)
    assert work.deaths == 0
    assert events.calls[-1] == ("gone", [], True)


def test_work_of_two_lost_workers_meets_no_third() -> None:
    """While it is open whether the first one died the second loss keeps its work; two deaths then quarantine it."""
    registry, planner, events = _two_workers_with(work := make.work())
    registry.worker_away("w1")
    registry.worker_lost("w1")
    planner.add(work)
    assert _run(planner)["w2"] == [work]
    registry.worker_joined(make.hello("w3"))
    registry.worker_away("w2")
    registry.worker_lost("w2")
    assert _run(planner) == {"w1": [], "w2": [work], "w3": []}
    registry.worker_left("w1", "silent", died=True)
    assert work.deaths == 1
    assert _run(planner) == {"w1": [], "w2": [work], "w3": []}
    registry.worker_left("w2", "silent", died=True)
    assert events.calls[-1] == ("gone", [work], True)


def test_work_that_was_in_flight_at_a_death_waits_for_the_second_verdict() -> None:
    """Its second worker is lost: only when that is known to be no death does it run anywhere else."""
    registry, planner, events = _two_workers_with(work := make.work())
    work.deaths = 1
    registry.worker_away("w1")
    registry.worker_lost("w1")
    assert events.calls == [("gone", [], False)]
    assert _run(planner)["w1"] == [work]
    assert registry.worker_back("w1") == []
    assert _run(planner)["w1"] == [work]
    assert work.deaths == 1


def test_requests_that_a_worker_does_not_have_run_again() -> None:
    """What three heartbeats in a row do not list was lost on the way: its budget is free and it is handed back."""
    registry, planner, events = _two_workers_with(lost := make.work(), here := make.work(deadline_ns=1))
    listed = [here.request_id, 7]
    missing = lost.request_id
    assert [registry.heartbeat("w1", listed) for _ in range(3)] == [[7], [7], [7, missing]]
    assert events.calls == [("gone", [lost], False)]
    assert planner.in_flight_at("w1") == [here]
    assert registry.status()[0].in_flight == 1
    assert registry.heartbeat("nobody", [1]) == []


def test_what_moved_shares_the_blame_of_what_stayed() -> None:
    """One of the lost kills workers and is named at its second death: that death counts against nothing that moved."""
    killer, other = make.work(), make.work(deadline_ns=1)
    registry, planner, events = _two_workers_with(killer, other)
    killer.deaths = 1
    registry.worker_away("w1")
    registry.worker_lost("w1")
    assert events.calls == [("gone", [other], False)]
    planner.add(other)
    registry.worker_left("w1", "silent", died=True)
    assert events.calls[-1] == ("gone", [killer], True)
    assert (killer.deaths, other.deaths) == (2, 0)
