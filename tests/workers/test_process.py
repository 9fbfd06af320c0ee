"""The worker process over a real ZeroMQ link, with the simulated engine behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from schemas.curve import create_keys
from schemas.errors import ConfigError, ErrorKind
from schemas.frames import (
    Abort,
    Drain,
    Failures,
    FromWorker,
    Goodbye,
    Heartbeat,
    Hello,
    Refused,
    Requests,
    Results,
    StepPolicy,
    StepReport,
    TokenizerFile,
    TokenizerWanted,
    Welcome,
    WhoAreYou,
    encode_frame,
)
from schemas.identity import tokenizer_hash
from schemas.settings import LinkSettings
from tests.workers.conftest import BRIEF, INSTANT, PATIENCE, STUCK, FakeScheduler, RunningWorker, make_request
from workers.engine import EngineDiedError, WorkerState, printable
from workers.link import WorkerLink, socket_identity, worker_identity
from workers.process import Worker, serve
from workers.sim_engine import SimEngine

Start = Callable[..., RunningWorker]


async def test_hello_repeats_until_welcome(scheduler: FakeScheduler, start_worker: Start) -> None:
    """A worker introduces itself again and again until somebody answers, from a socket named after it."""
    start_worker(INSTANT)
    first = await scheduler.expect(Hello)
    second = await scheduler.expect(Hello)
    assert first == second
    assert scheduler.identity.startswith(b"worker-1~")
    assert {extractor.name for extractor in first.extractors} == {"headline", "filing"}
    assert first.limits.max_num_seqs == INSTANT.max_num_seqs


async def test_tokenizer_on_request(scheduler: FakeScheduler, start_worker: Start) -> None:
    """The tokenizer file comes when asked for, before any welcome, and matches its hash in the hello."""
    start_worker(INSTANT)
    hello = await scheduler.expect(Hello)
    scheduler.send(TokenizerWanted())
    file = await scheduler.expect(TokenizerFile)
    assert file.tokenizer_hash == hello.engine.tokenizer_hash == tokenizer_hash(file.data)


async def test_work_is_answered_in_one_frame_per_turn(scheduler: FakeScheduler, start_worker: Start) -> None:
    """All results of one loop turn travel together, in order, under the session that gave the work."""
    start_worker(INSTANT)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(i) for i in range(500)]))
    results = await scheduler.expect(Results)
    assert results.session == "a"
    assert [result.request_id for result in results.results] == list(range(500))
    report = await scheduler.expect(StepReport)
    assert (report.session, report.decode_tokens) == ("a", 500)


async def test_a_policy_reaches_the_engine(scheduler: FakeScheduler, start_worker: Start) -> None:
    """A policy that comes with work splits the steps: 300 lower-class tokens take many steps of at most 20."""
    start_worker(BRIEF.model_copy(update={"sim_step_ms": 1.0}))
    await scheduler.welcome("a")
    policy = StepPolicy(
        lower_step_tokens=20, step_seconds=0.001, prefill_token_seconds=0, decode_seconds=0, kv_token_seconds=0
    )
    lower = msgspec.structs.replace(make_request(1, [40] * 300), priority=2)
    scheduler.send(Requests(session="a", requests=[lower], policy=policy))
    steps = tokens = 0
    while tokens < 300:
        report = await scheduler.expect(StepReport)
        steps += report.steps
        tokens += report.prefill_tokens
        assert report.prefill_tokens <= 20 * report.steps
    assert steps >= 300 / 20


async def test_heartbeat_goes_on_while_the_engine_is_busy(scheduler: FakeScheduler, start_worker: Start) -> None:
    """A step that takes for ever does not silence the worker, and heartbeats count what is in flight."""
    start_worker(STUCK)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(1), make_request(2)]))
    beats = [await scheduler.expect(Heartbeat) for _ in range(4)]
    assert beats[-1].in_flight == 2
    assert {beat.session for beat in beats} == {"a"}


async def test_a_new_session_drops_the_older_ones_work(scheduler: FakeScheduler, start_worker: Start) -> None:
    """A scheduler that does not know the worker gets a hello, and its welcome ends everything of the old session."""
    start_worker(STUCK)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(1)]))
    while (await scheduler.expect(Heartbeat)).in_flight != 1:
        pass
    scheduler.send(WhoAreYou(session="b"))
    await scheduler.welcome("b")
    beat = await scheduler.expect(Heartbeat)
    assert (beat.session, beat.in_flight) == ("b", 0)


async def test_welcome_into_a_new_session_without_a_question(scheduler: FakeScheduler, start_worker: Start) -> None:
    """A welcome with another session is enough to drop old work, and the same ids can be used again at once."""
    start_worker(BRIEF)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(7, [1, 2, 3])]))
    scheduler.welcome_again("b")
    scheduler.send(Requests(session="b", requests=[make_request(7, [4, 5, 6, 7])]))
    results = await scheduler.expect(Results)
    assert results.session == "b"
    assert [result.request_id for result in results.results] == [7]
    hello_prompt = results.results[0].prompt_tokens
    scheduler.send(Requests(session="b", requests=[make_request(8, [1, 2, 3])]))
    other = await scheduler.expect(Results)
    assert hello_prompt == other.results[0].prompt_tokens + 1


async def test_work_of_another_session_is_ignored(scheduler: FakeScheduler, start_worker: Start) -> None:
    """Requests and aborts that name an older session change nothing."""
    start_worker(STUCK)
    await scheduler.welcome("b")
    scheduler.send(Requests(session="b", requests=[make_request(1)]))
    scheduler.send(Requests(session="a", requests=[make_request(2)]))
    scheduler.send(Abort(session="a", request_ids=[1]))
    scheduler.send(Requests(session="b", requests=[make_request(3)]))
    beats = [(await scheduler.expect(Heartbeat)).in_flight for _ in range(5)]
    assert beats[-1] == 2


async def test_a_request_sent_twice_runs_once(scheduler: FakeScheduler, start_worker: Start) -> None:
    """The same id in the same session is one piece of work."""
    start_worker(STUCK)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(1)]))
    scheduler.send(Requests(session="a", requests=[make_request(1), make_request(2)]))
    beats = [(await scheduler.expect(Heartbeat)).in_flight for _ in range(5)]
    assert beats[-1] == 2


async def test_abort_reports_nothing(scheduler: FakeScheduler, start_worker: Start) -> None:
    """An aborted request is gone without a word; the one beside it is answered."""
    start_worker(BRIEF)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(1, extractor="filing"), make_request(2)]))
    scheduler.send(Abort(session="a", request_ids=[1, 99]))
    results = await scheduler.expect(Results)
    assert [result.request_id for result in results.results] == [2]
    assert (await scheduler.expect(Heartbeat)).in_flight == 0


async def test_a_request_that_cannot_run_fails_alone(scheduler: FakeScheduler, start_worker: Start) -> None:
    """An unknown extractor, an empty and an over-long text are failures that say so; the good one is answered."""
    start_worker(INSTANT)
    await scheduler.welcome("a")
    bad = [make_request(1, extractor="nothing"), make_request(3, [5] * INSTANT.max_model_len)]
    scheduler.send(Requests(session="a", requests=[*bad, make_request(4)]))
    results = await scheduler.expect(Results)
    failures = await scheduler.expect(Failures)
    assert [result.request_id for result in results.results] == [4]
    kinds = {failure.request_id: (failure.kind, failure.retryable) for failure in failures.failures}
    assert kinds == {1: (ErrorKind.INVALID_VALUE, False), 3: (ErrorKind.TEXT_TOO_LONG, False)}


async def test_stop_finishes_what_is_in_flight(scheduler: FakeScheduler, start_worker: Start) -> None:
    """A stop lets running work end, reports it, says goodbye last and returns."""
    worker = start_worker(BRIEF)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(1, extractor="filing")]))
    while (await scheduler.expect(Heartbeat)).in_flight != 1:
        pass
    worker.stop.set()
    results = await scheduler.expect(Results)
    assert [result.request_id for result in results.results] == [1]
    assert (await scheduler.expect(Goodbye)).session == "a"
    await worker.ended()
    assert worker.states == ["loading", "connecting", "working", "draining", "stopped"]


async def test_drain_ends_the_worker(scheduler: FakeScheduler, start_worker: Start) -> None:
    """A scheduler can send its worker home; new work that crosses the drain is left alone."""
    worker = start_worker(BRIEF)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(1)]))
    scheduler.send(Drain(reason="maintenance"))
    scheduler.send(Requests(session="a", requests=[make_request(2)]))
    results = await scheduler.expect(Results)
    goodbye = await scheduler.expect(Goodbye)
    assert [result.request_id for result in results.results] == [1]
    assert goodbye.reason == "drain: maintenance"
    await worker.ended()


async def test_a_drain_that_takes_too_long_is_cut_short(
    scheduler: FakeScheduler, start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that does not end in time is given up, so that the process always exits."""
    monkeypatch.setattr("workers.process.DRAIN_SECONDS", 0.05)
    worker = start_worker(STUCK)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(1)]))
    while (await scheduler.expect(Heartbeat)).in_flight != 1:
        pass
    worker.stop.set()
    await scheduler.expect(Goodbye)
    await worker.ended()


async def test_a_dead_engine_ends_the_worker(
    scheduler: FakeScheduler, start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the engine dies the goodbye says so, no failure hides the death, and the worker ends with an error."""
    worker = start_worker(BRIEF)
    await scheduler.welcome("a")

    def explode(_self: object, _step: object) -> None:
        raise ValueError("no step")

    monkeypatch.setattr("workers.sim_core.SimCore.apply", explode)
    scheduler.send(Requests(session="a", requests=[make_request(1), make_request(2)]))
    while not isinstance(frame := await scheduler.receive(), Goodbye):
        assert isinstance(frame, Heartbeat), frame
    assert frame.died
    assert "no step" in frame.reason
    with pytest.raises(EngineDiedError, match="no step"):
        await worker.ended()


async def test_a_stuck_engine_ends_the_worker(scheduler: FakeScheduler, start_worker: Start) -> None:
    """An engine that has requests and makes no steps counts as dead, however healthy the heartbeat, and says why."""
    worker = start_worker(STUCK, stuck_after_seconds=0.3)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(1), make_request(2)]))
    goodbye = await scheduler.expect(Goodbye)
    assert goodbye.died
    with pytest.raises(EngineDiedError, match=r"2 requests and made no step for .*link\.stuck_after_seconds is 0\.3"):
        await worker.ended()


async def test_a_slow_engine_is_not_stuck(scheduler: FakeScheduler, start_worker: Start) -> None:
    """Requests that take several times the limit are fine as long as the engine makes steps."""
    start_worker(BRIEF.model_copy(update={"max_num_batched_tokens": 64}), stuck_after_seconds=0.3)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(1, list(range(1, 1000)), "filing")]))
    result = (await scheduler.expect(Results)).results[0]
    assert result.completed_ns - result.engine_started_ns > 2 * 0.3e9


async def test_a_heartbeat_lists_what_the_worker_has(scheduler: FakeScheduler, start_worker: Start) -> None:
    """The scheduler can compare: every request that was taken and has not ended, and none that was reported before."""
    start_worker(BRIEF)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(2, extractor="filing"), make_request(1)]))
    listed: list[int] = []
    reported: set[int] = set()
    while listed != [2]:
        frame = await scheduler.receive()
        if isinstance(frame, Results):
            reported.update(result.request_id for result in frame.results)
        elif isinstance(frame, Heartbeat):
            assert frame.request_ids is not None
            listed = frame.request_ids
            assert not reported.intersection(listed)
            assert listed == sorted(listed)
    assert reported == {1}


async def test_what_ended_is_reported_before_the_list_without_it(link: LinkSettings) -> None:
    """A result of this very loop turn leaves before the heartbeat: at no time is it neither listed nor reported."""
    sent: list[FromWorker] = []

    class Recording(WorkerLink):
        def send(self, frame: FromWorker) -> None:
            sent.append(frame)

    connection = Recording(link, "w")
    worker = Worker("w", INSTANT, link, connection, lambda *_: None)
    engine = SimEngine(INSTANT, worker, lambda *_: None)
    description = await engine.start()
    worker._engine, worker._description = engine, description
    worker._welcomed(Welcome(session="a", heartbeat_seconds=1.0))
    worker._submit([make_request(1)])
    worker._heartbeat()
    assert [type(frame) for frame in sent] == [Results, Heartbeat]
    await engine.stop()
    await connection.close()


async def test_a_long_list_is_left_out(
    scheduler: FakeScheduler, start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat's size is bounded: with more requests than that it only counts them."""
    monkeypatch.setattr("workers.process.MOST_LISTED", 2)
    start_worker(STUCK)
    await scheduler.welcome("a")
    scheduler.send(Requests(session="a", requests=[make_request(n) for n in (1, 2)]))
    while (beat := await scheduler.expect(Heartbeat)).in_flight != 2:
        pass
    assert beat.request_ids == [1, 2]
    scheduler.send(Requests(session="a", requests=[make_request(3)]))
    while (beat := await scheduler.expect(Heartbeat)).in_flight != 3:
        pass
    assert beat.request_ids is None


async def test_refusal_is_a_configuration_error(scheduler: FakeScheduler, start_worker: Start) -> None:
    """A refused worker ends with one error that carries the scheduler's reason, made safe to print."""
    worker = start_worker(INSTANT)
    await scheduler.expect(Hello)
    scheduler.send(Refused(reason="another tokenizer\x1b[31m"))
    with pytest.raises(ConfigError, match=r"another tokenizer\?\[31m") as caught:
        await worker.ended()
    assert caught.value.setting == "worker"


async def test_an_undecodable_frame_is_passed_over(scheduler: FakeScheduler, start_worker: Start) -> None:
    """Bytes that are no frame, and frames of an unknown kind, do not end the worker."""
    start_worker(INSTANT)
    await scheduler.welcome("a")
    scheduler.send_raw(b"\xc1 not MessagePack")
    scheduler.send_raw(b"")
    scheduler.send_raw(encode_frame(Goodbye(session="a", reason="a frame of the other direction")))
    scheduler.send(Requests(session="a", requests=[make_request(1)]))
    assert len((await scheduler.expect(Results)).results) == 1


async def test_a_scheduler_that_restarts_finds_its_worker(
    address: str, scheduler: FakeScheduler, start_worker: Start
) -> None:
    """A worker outlives its scheduler: it shows life to the next one, is asked who it is, and works again."""
    start_worker(INSTANT)
    await scheduler.welcome("a")
    await scheduler.expect(Heartbeat)
    scheduler.close()
    successor = FakeScheduler(address)
    try:
        assert (await successor.expect(Heartbeat)).session == "a"
        successor.send(WhoAreYou(session="b"))
        await successor.welcome("b")
        successor.send(Requests(session="b", requests=[make_request(1)]))
        assert (await successor.expect(Results)).session == "b"
    finally:
        successor.close()


async def test_a_worker_may_start_first(address: str, start_worker: Start) -> None:
    """Without a scheduler a warm worker waits and says one hello to the first that comes, not a backlog of them."""
    worker = start_worker(INSTANT)
    await worker.reached(WorkerState.CONNECTING)
    late = FakeScheduler(address)
    try:
        await late.welcome("a")
        assert isinstance(await late.receive(), Heartbeat)
    finally:
        late.close()


async def test_stop_without_a_scheduler(start_worker: Start) -> None:
    """A worker that nobody welcomed stops at once."""
    worker = start_worker(INSTANT)
    worker.stop.set()
    await worker.ended()
    assert worker.states[-1] == "stopped"


async def test_keys_are_checked_before_the_engine_starts(tmp_path: Path, address: str) -> None:
    """A missing key is a configuration error that names the file, not a worker that waits for ever."""
    link = LinkSettings(address=address, keys=tmp_path / "none")
    with pytest.raises(ConfigError, match=r"link\.keys"):
        await asyncio.wait_for(serve(STUCK, link, asyncio.Event()), PATIENCE)


async def test_an_open_address_needs_keys() -> None:
    """A link that leaves the host unencrypted is refused unless the settings allow it."""
    link = LinkSettings(address="tcp://192.0.2.1:7421")
    with pytest.raises(ConfigError, match=r"link\.address"):
        await serve(STUCK, link, asyncio.Event())


async def test_a_worker_with_keys_connects(tmp_path: Path) -> None:
    """A worker that holds its own pair and the scheduler's public key opens a link with them."""
    create_keys(tmp_path)
    connection = WorkerLink(LinkSettings(address="tcp://127.0.0.1:1", keys=tmp_path), "w")
    connection.connect()
    await connection.close()
    assert not connection.connected


def test_identities_differ() -> None:
    """A worker without a configured id gets one of its own; a configured one is kept."""
    assert worker_identity("gpu-7") == "gpu-7"
    assert worker_identity("") != worker_identity("")


def test_no_two_processes_have_one_socket_identity() -> None:
    """Even under one id each process, and each life of a worker, has a socket name of its own that ZeroMQ takes."""
    names = {socket_identity("w" * length) for length in (1, 1, 255, 255, 1000)}
    assert len(names) == 5
    assert max(len(name) for name in names) <= 255


def test_printable_keeps_control_characters_out() -> None:
    """Text from the other side cannot forge a log line or drive a terminal, and its length is bounded."""
    assert printable("a\nb\x1b]0;c\x07") == "a?b?]0;c?"
    assert len(printable("x" * 1000)) == 200
