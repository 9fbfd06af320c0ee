"""The scheduler's end of the worker link, spoken to by real sockets."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from scheduler.link import WorkerLink
from schemas import curve
from schemas.enums import Direction
from schemas.errors import ConfigError, UnavailableError
from schemas.frames import (
    Abort,
    Answer,
    Drain,
    Failure,
    Failures,
    Goodbye,
    Heartbeat,
    Progress,
    Refused,
    Request,
    Requests,
    Result,
    Results,
    Started,
    StepReport,
    TokenizerFile,
    TokenizerWanted,
    Welcome,
    WhoAreYou,
    pack_tokens,
)
from tests.scheduler import make
from tests.scheduler.dealers import SESSION, Bench, Heard, bench, link_settings

BEAT = Heartbeat(session=SESSION, in_flight=0, steps=0)


def _result(request_id: int = 1) -> Result:
    return Result(
        request_id=request_id,
        answer=Answer(direction=Direction.BULLISH, probabilities={Direction.BULLISH: 1.0}),
        engine_started_ns=1,
        first_token_ns=2,
        completed_ns=3,
        prompt_tokens=10,
        output_tokens=1,
    )


def _results(session: str = SESSION, request_id: int = 1) -> Results:
    return Results(session=session, results=[_result(request_id)])


async def test_a_worker_with_a_known_tokenizer_is_welcomed() -> None:
    """Hello is answered with the session and the heartbeat's rate, and the worker joins once."""
    async with bench(heartbeat_seconds=0.25) as one:
        dealer = one.dealer()
        await dealer.send(make.hello())
        assert await dealer.expect(Welcome) == Welcome(session=SESSION, heartbeat_seconds=0.25)
        assert await one.heard.next() == ("joined", "w1")


async def test_the_first_worker_brings_its_tokenizer() -> None:
    """Until a tokenizer came a worker is asked for it, and joins only then; others that waited join with it."""
    async with bench() as one:
        one.heard.wants_tokenizer = True
        first, second = one.dealer("w1"), one.dealer("w2")
        for dealer, identity in ((first, "w1"), (second, "w2")):
            await dealer.send(make.hello(identity))
            await dealer.expect(TokenizerWanted)
        await first.send(TokenizerFile(tokenizer_hash="abc", data=b"file"))
        await first.expect(Welcome)
        await second.expect(Welcome)
        assert [await one.heard.next() for _ in range(3)] == [
            ("tokenizer", "w1", b"file"),
            ("joined", "w1"),
            ("joined", "w2"),
        ]


async def test_a_useless_tokenizer_refuses_its_worker_and_leaves_the_next_one_a_try() -> None:
    """The worker that sent it is told why and is forgotten; a waiting one is asked again."""
    async with bench() as one:
        one.heard.wants_tokenizer = True
        one.heard.file_refusal = "no good"
        first, second = one.dealer("w1"), one.dealer("w2")
        for dealer, identity in ((first, "w1"), (second, "w2")):
            await dealer.send(make.hello(identity))
            await dealer.expect(TokenizerWanted)
        await first.send(TokenizerFile(tokenizer_hash="abc", data=b"?"))
        assert (await first.expect(Refused)).reason == "no good"
        await second.expect(TokenizerWanted)
        one.heard.file_refusal = None
        await second.send(TokenizerFile(tokenizer_hash="abc", data=b"!"))
        await second.expect(Welcome)
        assert [(await one.heard.next())[:2] for _ in range(3)] == [
            ("tokenizer", "w1"),
            ("tokenizer", "w2"),
            ("joined", "w2"),
        ]


async def test_a_waiting_worker_with_another_tokenizer_is_refused_when_the_first_one_came() -> None:
    """Who could serve an empty scheduler may not serve one that has a tokenizer meanwhile."""
    async with bench() as one:
        one.heard.wants_tokenizer = True
        dealer = one.dealer()
        await dealer.send(make.hello())
        await dealer.expect(TokenizerWanted)
        one.heard.refusal = "another tokenizer"
        await dealer.send(TokenizerFile(tokenizer_hash="abc", data=b"file"))
        assert (await dealer.expect(Refused)).reason == "another tokenizer"


async def test_a_worker_that_cannot_serve_is_told_why() -> None:
    """It is refused with the reason, does not join, and is a stranger afterwards."""
    async with bench() as one:
        one.heard.refusal = "no extractor headline"
        dealer = one.dealer()
        await dealer.send(make.hello(), BEAT)
        assert (await dealer.expect(Refused)).reason == "no extractor headline"
        await dealer.expect(WhoAreYou)
        assert one.heard.calls.empty()


async def test_another_protocol_is_refused() -> None:
    """A worker of another release is told both numbers."""
    async with bench() as one:
        dealer = one.dealer()
        await dealer.send(make.hello(protocol=99))
        reason = (await dealer.expect(Refused)).reason
        assert "99" in reason
        assert one.heard.calls.empty()


async def test_a_stranger_is_asked_who_it_is() -> None:
    """A worker that outlived the scheduler it knew is asked to say hello again, and then joins."""
    async with bench() as one:
        dealer = one.dealer()
        await dealer.send(Heartbeat(session="session-0", in_flight=3, steps=9))
        assert await dealer.expect(WhoAreYou) == WhoAreYou(session=SESSION)
        await dealer.send(make.hello())
        await dealer.expect(Welcome)
        assert await one.heard.next() == ("joined", "w1")


async def test_a_stranger_that_leaves_is_let_go() -> None:
    """A goodbye from a worker that is not known gets no question back."""
    async with bench() as one:
        dealer = one.dealer()
        await dealer.send(Goodbye(session="session-0", reason="stop"), BEAT)
        await dealer.expect(WhoAreYou)  # for the heartbeat behind it, which proves the goodbye was handled
        assert not await dealer.has_more()


async def test_what_a_worker_reports_reaches_the_right_handler() -> None:
    """Progress, results, failures and step reports arrive in their order."""
    async with bench() as one:
        dealer = await one.welcomed()
        failure = Failure(request_id=6, kind="engine_error", message="m", retryable=True)
        await dealer.send(
            Progress(session=SESSION, started=[Started(request_id=4, engine_started_ns=1, first_token_ns=2)]),
            Results(session=SESSION, results=[_result(5), _result(7)]),
            Failures(session=SESSION, failures=[failure]),
            StepReport(
                session=SESSION,
                steps=3,
                seconds=1.0,
                prefill_tokens=1,
                decode_tokens=1,
                running=1,
                waiting=0,
                kv_usage=0.1,
            ),
        )
        assert [await one.heard.next() for _ in range(4)] == [
            ("started", "w1", [4]),
            ("results", "w1", [5, 7]),
            ("failures", "w1", [6]),
            ("steps", "w1", 3),
        ]


async def test_answers_to_another_session_are_ignored() -> None:
    """What a worker still had from an earlier life of the scheduler is nobody's business here."""
    async with bench() as one:
        dealer = await one.welcomed()
        await dealer.send(_results("session-0", 1), _results(SESSION, 2))
        assert await one.heard.next() == ("results", "w1", [2])


async def test_answers_before_the_welcome_are_ignored() -> None:
    """A worker that was not let in cannot answer."""
    async with bench() as one:
        one.heard.wants_tokenizer = True
        dealer = one.dealer()
        await dealer.send(make.hello(), _results(), TokenizerFile(tokenizer_hash="abc", data=b""))
        assert (await one.heard.next())[0] == "tokenizer"
        assert (await one.heard.next())[0] == "joined"


async def test_requests_aborts_and_drain_reach_the_worker() -> None:
    """What the scheduler sends arrives at the worker it is for, under the session."""
    async with bench() as one:
        first, second = await one.welcomed("w1"), await one.welcomed("w2")
        request = Request(
            request_id=1,
            text_tokens=pack_tokens([1, 2, 70000]),
            service_class="flash",
            priority=0,
            deadline_ns=5,
            extractor="headline",
        )
        one.link.send_requests("w1", [request], None)
        one.link.send_abort("w2", [9])
        one.link.send_drain("the end")
        assert await first.expect(Requests) == Requests(session=SESSION, requests=[request])
        assert await second.expect(Abort) == Abort(session=SESSION, request_ids=[9])
        assert await first.expect(Drain) == await second.expect(Drain) == Drain(reason="the end")


async def test_a_goodbye_is_no_death() -> None:
    """A worker that takes its leave left, with its reason, and did not die."""
    async with bench() as one:
        dealer = await one.welcomed()
        await dealer.send(Goodbye(session=SESSION, reason="stop"))
        assert await one.heard.next() == ("left", "w1", "stop", False)


async def test_a_repeated_hello_changes_nothing() -> None:
    """A worker repeats itself until the welcome arrives; it is welcomed again and joins once."""
    async with bench() as one:
        dealer = one.dealer()
        await dealer.send(make.hello(), make.hello(), make.hello())
        for _ in range(3):
            await dealer.expect(Welcome)
        await dealer.send(_results())
        assert [(await one.heard.next())[0] for _ in range(2)] == ["joined", "results"]


async def test_a_worker_that_restarts_under_its_name_died_before() -> None:
    """Another process under a known id: the first one is dead, its work must run elsewhere, and the new one joins."""
    async with bench() as one:
        old = await one.welcomed(pid=100)
        old.close()
        new = one.dealer("another socket")
        assert isinstance(await new.introduce(make.hello(pid=200)), Welcome)
        assert await one.heard.until("left") == ("left", "w1", "restarted under the same name", True)
        assert await one.heard.next() == ("joined", "w1")


async def test_a_restart_with_the_same_process_id_is_noticed() -> None:
    """In a container every life has the same process id, but never the same socket."""
    async with bench() as one:
        old = await one.welcomed(pid=1)
        old.close()
        new = one.dealer("another socket")
        assert isinstance(await new.introduce(make.hello(pid=1)), Welcome)
        assert (await one.heard.until("left"))[3] is True
        assert await one.heard.next() == ("joined", "w1")


async def test_a_process_that_says_hello_again_did_not_die() -> None:
    """A worker that was in the session and greets anew has dropped its work: that must run again, without a death."""
    async with bench() as one:
        dealer = await one.welcomed(pid=1)
        await dealer.send(_results(), make.hello(pid=1))
        await dealer.expect(Welcome)
        assert await one.heard.until("left") == ("left", "w1", "said hello again", False)
        assert await one.heard.next() == ("joined", "w1")


async def test_a_closed_connection_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No heartbeat, no silence and no regular look is awaited: the connection's end alone tells."""
    monkeypatch.setattr("scheduler.link.MOST_TICK_SECONDS", 3600.0)
    async with bench(heartbeat_seconds=7200.0, dead_after_seconds=36_000.0) as one:
        dealer = await one.welcomed()
        dealer.close()
        assert await one.heard.next() == ("away", "w1")


async def test_work_moves_without_a_heartbeat() -> None:
    """Some moments after the connection's end the work is given to others, while the silence limit is far away."""
    async with bench(heartbeat_seconds=0.1, dead_after_seconds=3600.0) as one:
        dealer = await one.welcomed()
        dealer.close()
        assert await one.heard.until("lost") == ("lost", "w1")


async def test_what_a_worker_runs_for_nobody_is_aborted() -> None:
    """A heartbeat's list goes to the scheduler, and what it says should not run there is aborted."""
    async with bench() as one:
        dealer = await one.welcomed()
        one.heard.unwanted = [2]
        await dealer.send(Heartbeat(session=SESSION, in_flight=2, steps=1, request_ids=[1, 2]))
        assert await dealer.expect(Abort) == Abort(session=SESSION, request_ids=[2])
        assert await one.heard.next() == ("heartbeat", "w1", [1, 2])


async def test_a_silent_worker_dies_and_a_beating_one_lives() -> None:
    """Silence past the limit is death; heartbeats alone keep a worker alive."""
    async with bench(heartbeat_seconds=0.05, dead_after_seconds=0.5) as one:
        beating = await one.welcomed("beats")
        await one.welcomed("silent")

        async def beat() -> None:
            while True:
                await beating.send(BEAT)
                await asyncio.sleep(0.05)  # the heartbeat's own rate, not a wait for anything

        beats = asyncio.create_task(beat())
        left = await one.heard.next()
        beats.cancel()
        assert left[:2] == ("left", "silent")
        assert left[3] is True


async def test_a_worker_that_was_declared_dead_comes_back() -> None:
    """A worker that was only slow is asked who it is and joins again."""
    async with bench(heartbeat_seconds=0.05, dead_after_seconds=0.2) as one:
        dealer = await one.welcomed()
        assert (await one.heard.next())[:2] == ("left", "w1")
        await dealer.send(BEAT)
        await dealer.expect(WhoAreYou)
        await dealer.send(make.hello())
        await dealer.expect(Welcome)
        assert await one.heard.next() == ("joined", "w1")


async def test_a_worker_that_never_got_in_is_dropped_in_silence() -> None:
    """Silence of a worker that was still waiting for its welcome loses no work, so nobody is told."""
    async with bench(heartbeat_seconds=0.05, dead_after_seconds=0.2) as one:
        one.heard.wants_tokenizer = True
        waiting = one.dealer("waits")
        await waiting.send(make.hello("waits"))
        await waiting.expect(TokenizerWanted)
        one.heard.wants_tokenizer = False
        await one.welcomed("w2")
        assert (await one.heard.next())[:2] == ("left", "w2")
        await waiting.send(BEAT)
        await waiting.expect(WhoAreYou)


async def test_our_own_pause_kills_nobody() -> None:
    """When this process itself was stopped for longer than the limit, workers are heard before they are judged."""
    async with bench(heartbeat_seconds=0.1, dead_after_seconds=0.4) as one:
        dealer = await one.welcomed()
        await dealer.send(BEAT)
        time.sleep(1.0)  # noqa: ASYNC251 - the stopped process is what the test is about
        await dealer.send(_results(request_id=3))
        assert await one.heard.next() == ("results", "w1", [3])


async def test_garbage_is_survived() -> None:
    """Bytes that are no frame, and a defect in a handler, cost that frame and nothing else."""
    async with bench() as one:
        dealer = await one.welcomed()
        await dealer.send(b"", b"\xc1garbage", b"\x80")
        one.heard.fails = True
        await dealer.send(_results(request_id=1), Failures(session=SESSION, failures=[]))
        assert await one.heard.next() == ("failures", "w1", [])
        one.heard.fails = False
        await dealer.send(_results(request_id=2))
        assert await one.heard.next() == ("results", "w1", [2])


async def test_an_address_in_use_is_named() -> None:
    """A second scheduler on the same address gets one typed error with the setting to change."""
    context = zmq.asyncio.Context()
    taken = context.socket(zmq.ROUTER)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    second = WorkerLink(link_settings(address=f"tcp://127.0.0.1:{port}"), "s2", Heard())
    with pytest.raises(UnavailableError) as caught:
        second.start()
    second.close()
    taken.close(linger=0)
    context.term()
    assert caught.value.setting == "link.address"
    assert str(port) in str(caught.value)


async def test_an_address_in_use_is_named_with_keys_too(tmp_path: Path) -> None:
    """The error is the same where the link is encrypted, and closing after it is harmless."""
    curve.create_keys(tmp_path)
    context = zmq.asyncio.Context()
    taken = context.socket(zmq.ROUTER)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    second = WorkerLink(link_settings(address=f"tcp://127.0.0.1:{port}", keys=tmp_path), "s2", Heard())
    with pytest.raises(UnavailableError):
        second.start()
    second.close()
    taken.close(linger=0)
    context.term()


async def test_a_link_beyond_this_host_needs_keys() -> None:
    """Binding an address that others can reach, unencrypted, is refused before anything listens."""
    link = WorkerLink(link_settings(address="tcp://0.0.0.0:1"), "s", Heard())
    with pytest.raises(ConfigError, match=r"link\.address"):
        link.start()
    link.close()


async def test_only_the_holder_of_the_worker_key_is_heard(tmp_path: Path) -> None:
    """With keys, a worker that has them is welcomed and one with keys of its own making is never heard."""
    curve.create_keys(tmp_path / "ours")
    curve.create_keys(tmp_path / "theirs")
    (tmp_path / "theirs" / "scheduler.key").write_bytes((tmp_path / "ours" / "scheduler.key").read_bytes())
    context = zmq.asyncio.Context()
    probe = context.socket(zmq.ROUTER)
    port = probe.bind_to_random_port("tcp://127.0.0.1")
    probe.close(linger=0)
    context.term()
    one = Bench(link_settings(address=f"tcp://127.0.0.1:{port}", keys=tmp_path / "ours"))
    one.link.start()
    try:
        intruder = one.dealer("intruder", one.settings.model_copy(update={"keys": tmp_path / "theirs"}))
        await intruder.send(make.hello("intruder"))
        await one.welcomed("w1")  # nobody joined before it
        assert not await intruder.has_more(200)
        assert one.heard.calls.empty()
    finally:
        one.close()
