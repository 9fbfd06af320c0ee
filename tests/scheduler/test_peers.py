"""Who is there and who died, told by frames, silence and lost connections, on a clock of the test's own."""

from __future__ import annotations

from typing import Any

from scheduler.peers import CONTEST_SECONDS, GRACE_SECONDS, STUCK_MARGIN_SECONDS, Peers
from schemas.frames import Abort, Drain, FromWorker, Goodbye, Heartbeat, Refused, ToWorker, Welcome, WhoAreYou
from tests.scheduler import make
from tests.scheduler.dealers import Heard, link_settings

SESSION = "s1"
TICK = 0.25


class Room:
    """`Peers` between a clock, connections that the test cuts, and a list of what was heard and sent."""

    def __init__(self, **limits: float) -> None:
        self.seconds = 0.0
        self.cut: set[bytes] = set()
        self.sent: list[tuple[str, ToWorker]] = []
        self.events = Heard()
        settings = link_settings(**({"dead_after_seconds": 3.0, "stuck_after_seconds": 20.0} | limits))
        self.peers = Peers(settings, SESSION, self.events, self._send, lambda: self.seconds)

    def _send(self, identity: bytes, frame: ToWorker) -> bool:
        if identity in self.cut:
            return False
        if not isinstance(frame, Abort) or frame.request_ids:
            self.sent.append((identity.decode(), frame))
        return True

    def say(self, frame: FromWorker, socket: str = "w1") -> None:
        """Let a worker say something; its first life's socket has its name here."""
        self.peers.take(socket.encode(), frame)

    def beat(self, worker: str = "w1", *, steps: int = 0, ids: list[int] | None = None, in_flight: int = 0) -> None:
        """Let a worker show life."""
        self.say(Heartbeat(session=SESSION, in_flight=in_flight, steps=steps, request_ids=ids), worker)

    def join(self, worker: str = "w1", pid: int = 1) -> None:
        """Let a worker in and answer its welcome."""
        self.say(make.hello(worker, pid=pid), worker)
        self.beat(worker)
        self.heard()

    def wait(self, seconds: float, *beating: str, **beat: Any) -> None:
        """Let time pass, with heartbeats of those that beat."""
        end = self.seconds + seconds
        while self.seconds < end:
            self.seconds += TICK
            for worker in beating:
                self.beat(worker, **beat)
            self.peers.tick()

    def heard(self) -> list[tuple[Any, ...]]:
        """Take what was heard so far, without the comparing of lists."""
        calls = [self.events.calls.get_nowait() for _ in range(self.events.calls.qsize())]
        return [call for call in calls if call[0] != "heartbeat"]

    def answers(self) -> list[ToWorker]:
        """Take what was sent so far."""
        sent, self.sent = self.sent, []
        return [frame for _, frame in sent]


def test_a_lost_connection_moves_work_long_before_the_silence_is_a_death() -> None:
    """Away at once, its work elsewhere after the grace, dead after the silence: each once, in this order."""
    room = Room()
    room.join()
    room.cut.add(b"w1")
    room.peers.look()
    assert room.heard() == [("away", "w1")]
    room.wait(GRACE_SECONDS - TICK)
    assert room.heard() == []
    room.wait(TICK)
    assert room.heard() == [("lost", "w1")]
    room.wait(3.0 - GRACE_SECONDS - TICK)
    assert room.heard() == []
    room.wait(2 * TICK)
    assert room.heard() == [("left", "w1", "silent for 3 s", True)]


def test_a_failed_send_of_work_finds_it_too() -> None:
    """Nothing waits for the next look: the dispatch that meets the lost connection tells."""
    room = Room()
    room.join()
    room.cut.add(b"w1")
    room.peers.tell(b"w1", Drain(reason="r"))
    assert room.heard() == [("away", "w1")]


def test_a_short_interruption_costs_nothing() -> None:
    """Back within the grace: nobody's work moved and nobody died."""
    room = Room()
    room.join()
    room.cut.add(b"w1")
    room.wait(GRACE_SECONDS - TICK)
    room.cut.clear()
    room.beat()
    room.wait(10, "w1")
    assert room.heard() == [("away", "w1"), ("back", "w1")]


def test_a_longer_interruption_is_no_death() -> None:
    """Back after the grace: what ran elsewhere is aborted here, the session goes on, and nobody died."""
    room = Room()
    room.join()
    room.cut.add(b"w1")
    room.wait(GRACE_SECONDS + 2 * TICK)
    room.cut.clear()
    room.events.unwanted = [7, 8]
    room.answers()
    room.beat()
    assert room.answers() == [Abort(session=SESSION, request_ids=[7, 8])]
    room.events.unwanted = []
    room.wait(10, "w1")
    assert room.heard() == [("away", "w1"), ("lost", "w1"), ("back", "w1")]


def test_what_a_broken_connection_still_brings_does_not_bring_its_worker_back() -> None:
    """Frames that were read after the connection broke are heard, and its worker stays away."""
    room = Room()
    room.join()
    room.cut.add(b"w1")
    room.peers.look()
    room.beat()
    room.wait(GRACE_SECONDS)
    assert room.heard() == [("away", "w1"), ("lost", "w1")]


def test_the_next_life_of_a_killed_worker_gets_in_at_once() -> None:
    """Whoever says hello while the known one has no connection is its next life: that one died, this one joins."""
    room = Room()
    room.join(pid=1)
    room.cut.add(b"w1")
    room.peers.look()
    room.answers()
    room.say(make.hello(pid=2), "next")
    assert room.heard() == [("away", "w1"), ("left", "w1", "restarted under the same name", True), ("joined", "w1")]
    assert isinstance(room.answers()[0], Welcome)


def test_a_second_worker_under_an_id_is_refused_while_the_first_lives() -> None:
    """The first one shows life, so the second is told whose id that is; the first keeps its place and its work."""
    room = Room()
    room.join(pid=1)
    room.answers()
    room.say(make.hello(pid=2), "second")
    assert room.answers() == []
    room.beat(in_flight=3)
    room.say(make.hello(pid=2), "second")
    ((to, refusal),) = room.sent
    assert to == "second"
    assert isinstance(refusal, Refused)
    assert "'w1' (process 1) works here already" in refusal.reason
    room.wait(10, "w1")
    assert room.heard() == []


def test_a_hello_under_the_id_of_a_worker_that_hangs_is_believed_soon() -> None:
    """With a connection but no life for a moment, the known one is dead and the newcomer its next life."""
    room = Room()
    room.join(pid=1)
    room.wait(1.0, "w1")
    began = room.seconds
    while not (heard := room.heard()):
        room.say(make.hello(pid=2), "next")
        room.wait(TICK)
        assert room.seconds - began <= CONTEST_SECONDS + 2 * TICK
    assert heard == [("left", "w1", "restarted under the same name", True), ("joined", "w1")]


def test_an_old_dispute_is_forgotten() -> None:
    """A life that was shown in an earlier dispute proves nothing in the next one: a restart much later gets in."""
    room = Room()
    room.join(pid=1)
    room.say(make.hello(pid=2), "second")
    room.wait(60, "w1")
    room.answers()
    for _ in range(6):
        room.say(make.hello(pid=3), "next")
        room.wait(TICK)
    assert [call[0] for call in room.heard()] == ["left", "joined"]
    assert not any(isinstance(answer, Refused) for answer in room.answers())


def test_a_process_that_was_given_up_and_goes_on_is_not_its_successor() -> None:
    """It is asked who it is, and finds that its id is taken; its successor is not disturbed."""
    room = Room()
    room.join(pid=1)
    room.wait(4.0)
    room.say(make.hello(pid=2), "next")
    room.beat("next")
    room.heard()
    room.answers()
    room.beat()
    assert isinstance(room.answers()[0], WhoAreYou)
    room.say(make.hello(pid=1))
    room.beat("next")
    room.say(make.hello(pid=1))
    assert [type(answer) for answer in room.answers()] == [Refused]
    room.wait(10, "next")
    assert room.heard() == []


def test_an_engine_without_steps_ends_its_worker() -> None:
    """Requests, heartbeats and no step: its work goes elsewhere as from a death, and it is told to end till it does."""
    room = Room()
    room.join()
    room.wait(20.0 + STUCK_MARGIN_SECONDS, "w1", steps=9, in_flight=2)
    assert room.heard() == []
    room.wait(2 * TICK, "w1", steps=9, in_flight=2)
    ((what, worker, reason, died),) = room.heard()
    assert (what, worker, died) == ("left", "w1", True)
    assert "has 2 requests and made no step for 30 s" in reason
    assert {type(answer) for answer in room.answers()[1:]} == {Drain}
    room.beat(steps=9, in_flight=2)
    assert isinstance(room.answers()[0], Drain)
    assert room.heard() == []


def test_a_stuck_worker_gets_work_again_only_as_a_new_process() -> None:
    """Whatever the stuck process says it is told to end; the next one under its id is welcome."""
    room = Room()
    room.join()
    room.wait(31.0, "w1", in_flight=2)
    room.heard()
    room.answers()
    room.say(make.hello())
    assert [type(answer) for answer in room.answers()] == [Drain]
    room.say(make.hello(), "next")
    assert room.heard() == [("joined", "w1")]
    assert isinstance(room.answers()[0], Welcome)


def test_a_stuck_worker_that_took_its_leave_is_forgotten() -> None:
    """After its goodbye nothing is remembered of it."""
    room = Room()
    room.join()
    room.wait(31.0, "w1", in_flight=2)
    room.say(Goodbye(session=SESSION, reason="drain"))
    assert not room.peers._stuck


def test_steps_and_idle_time_are_progress() -> None:
    """An engine that makes one step within the limit, or has nothing to do, is never stuck."""
    room = Room()
    room.join()
    for steps in range(4):
        room.wait(20.0, "w1", steps=steps, in_flight=1)
    room.wait(1000.0, "w1", steps=3, in_flight=0)
    assert room.heard() == []


def test_an_engine_that_is_stuck_between_expiries_is_stuck() -> None:
    """What it does not answer is taken back, so it is empty half of the time: the other half adds up."""
    room = Room()
    room.join()
    for _ in range(119):
        room.wait(TICK, "w1", steps=9, in_flight=1)
        room.wait(TICK, "w1", steps=9, in_flight=0)
    assert room.heard() == []
    room.wait(1.0, "w1", steps=9, in_flight=1)
    assert [call[0] for call in room.heard()] == ["left"]


def test_lists_that_come_in_one_go_are_compared_once() -> None:
    """After a pause of ours twenty old heartbeats wait in the socket; they must not count as twenty proofs."""
    room = Room()
    room.join()
    room.wait(1.0)
    for _ in range(20):
        room.beat(ids=[1])
    room.wait(TICK)
    room.beat(ids=[2])
    calls = [room.events.calls.get_nowait() for _ in range(room.events.calls.qsize())]
    assert [call[2] for call in calls if call[0] == "heartbeat"] == [[1], [2]]


def test_a_goodbye_tells_whether_the_engine_died() -> None:
    """What an engine had that died was in flight at a death; what a leaving worker had was not."""
    room = Room()
    for worker, died in (("w1", True), ("w2", False)):
        room.join(worker)
        room.say(Goodbye(session=SESSION, reason="r", died=died), worker)
        assert room.heard() == [("left", worker, "r", died)]
