"""Which workers are there: what their frames, their silence and their lost connections say. No sockets and no clock.

A worker that is killed is noticed by its connection, which the kernel closes at once, and long before its silence:

1. A send finds no connection: the worker is *away* and gets nothing new.
2. Away for `GRACE_SECONDS`: what it had runs elsewhere. Whether it died is not known yet, so that is no death: a
   connection that broke while both sides live is back in a tenth of a second, and later than that it costs a run.
3. It says hello as another process, or is silent for ``link.dead_after_seconds``: it died, and what it had was in
   flight at a death. It shows life in the session instead: it was away, nobody died.

`scheduler.workers` sees to it that work which was there at a death before waits for step 3 (at two, it is
quarantined): so one request cannot kill a third worker while it is being found out whether the second one died.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from scheduler.link_events import LinkEvents
from schemas.frames import (
    PROTOCOL_VERSION,
    Abort,
    Drain,
    Failures,
    FromWorker,
    Goodbye,
    Heartbeat,
    Hello,
    Progress,
    Refused,
    Request,
    Requests,
    Results,
    StepPolicy,
    StepReport,
    TokenizerFile,
    TokenizerWanted,
    ToWorker,
    Welcome,
    WhoAreYou,
)
from schemas.settings import LinkSettings

log = structlog.get_logger()

GRACE_SECONDS = 1.0
"""How long a worker without a connection keeps its work. A worker tries again after 0.1 s, then 0.2 s and 0.4 s."""
CONTEST_SECONDS = 1.0
"""How long a worker that still has a connection has to show life before a hello under its id is believed to come from
its next life."""
STUCK_MARGIN_SECONDS = 10.0
"""How much later than a worker itself we call its engine stuck: its own end is the better one, with a reason, and
takes up to four seconds."""
MOST_STUCK = 1000
"""Stuck workers that are remembered. Most say goodbye before they end, which takes them off the list."""


@dataclass(slots=True)
class _Peer:
    """One worker that said hello; times are the caller's clock, in seconds.

    Args:
        welcomed: it was let in, and the scheduler knows it.
        in_session: it has answered the welcome, so a hello after that is not the same one again.
        steps, in_flight: from its last heartbeat.
        beat_at: when that came.
        stalled: for how long its engine has had requests since it last did something, in seconds. An empty engine is
            no progress: what a stuck one does not answer in time is taken back, and it is empty in between.
        compared_at: when what it has was last compared with what we think it has.
        away_since: when its connection was found gone.
        moved: what it had runs elsewhere.
        contest_at: when a hello under its id began to contest that it lives; the last of those hellos.
        answered: it has shown life since.
    """

    hello: Hello
    last_seen: float
    beat_at: float
    welcomed: bool = False
    in_session: bool = False
    steps: int = 0
    in_flight: int = 0
    stalled: float = 0.0
    compared_at: float = float("-inf")
    away_since: float | None = None
    moved: bool = False
    contest_at: float | None = None
    contest_seen: float = 0.0
    answered: bool = False


class Peers:
    """The protocol of `schemas.frames` as a scheduler speaks it.

    Args:
        settings: time limits.
        session: names this life of the scheduler.
        events: who wants to hear.
        send: sends a frame; returns False when the worker has no connection.
        now: seconds on a clock that stands still while this process does, so that a stopped scheduler calls
            nobody silent.
    """

    def __init__(
        self,
        settings: LinkSettings,
        session: str,
        events: LinkEvents,
        send: Callable[[bytes, ToWorker], bool],
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._session = session
        self._events = events
        self._send = send
        self._now = now
        self._peers: dict[bytes, _Peer] = {}
        self._stuck: dict[bytes, str] = {}
        self._holders: dict[str, bytes] = {}

    def send_requests(self, worker_id: str, requests: list[Request], policy: StepPolicy | None) -> None:
        """Give work to a worker, and tell it how to split its steps where that has changed."""
        if (identity := self._holders.get(worker_id)) is not None:
            self.tell(identity, Requests(session=self._session, requests=requests, policy=policy))

    def send_abort(self, worker_id: str, request_ids: list[int]) -> None:
        """Take work back from a worker."""
        if (identity := self._holders.get(worker_id)) is not None:
            self.tell(identity, Abort(session=self._session, request_ids=request_ids))

    def tell(self, identity: bytes, frame: ToWorker) -> None:
        """Send a frame to a worker, and note when it has no connection."""
        if not self._send(identity, frame):
            self._unreachable(identity)

    def tell_all(self, frame: ToWorker) -> None:
        """Send a frame to every worker."""
        for identity in list(self._peers):
            self.tell(identity, frame)

    def look(self) -> None:
        """Find out which workers have lost their connection."""
        for peer in list(self._peers.values()):
            if peer.welcomed and peer.away_since is None:
                self.send_abort(peer.hello.worker_id, [])  # about which a worker of any version does nothing

    def tick(self) -> None:
        """Look, and draw the conclusions that time alone brings; call it a few times per second."""
        self.look()
        now, limit = self._now(), self._settings.dead_after_seconds
        for identity, peer in list(self._peers.items()):
            if now - peer.last_seen > limit:
                self._left(identity, f"silent for {limit:g} s", died=True)
            elif peer.away_since is not None:
                if not peer.moved and now - peer.away_since >= min(GRACE_SECONDS, limit):
                    peer.moved = True
                    self._events.worker_lost(peer.hello.worker_id)
            elif peer.stalled > self._settings.stuck_after_seconds + STUCK_MARGIN_SECONDS:
                self._end_stuck(identity, peer)

    # What workers say

    def take(self, identity: bytes, frame: FromWorker) -> None:
        """Act on one frame."""
        peer = self._peers.get(identity)
        if identity in self._stuck:
            self._still_stuck(identity, frame)
            return
        if isinstance(frame, Hello):
            self._hello(identity, frame)
            return
        if peer is None:
            if not isinstance(frame, Goodbye):
                self._send(identity, WhoAreYou(session=self._session))
            return
        peer.last_seen, peer.answered = self._now(), True
        worker_id = peer.hello.worker_id
        if isinstance(frame, TokenizerFile):
            if reason := self._events.tokenizer_file(worker_id, frame):
                self._refuse(identity, reason)
            self._welcome_waiting()
        elif frame.session == self._session and peer.welcomed:
            peer.in_session = True
            self._back(identity, peer)
            self._take_in_session(identity, worker_id, peer, frame)

    def _still_stuck(self, identity: bytes, frame: FromWorker) -> None:
        """Send a process home whose engine is stuck; its next life comes from another socket."""
        if isinstance(frame, Goodbye):
            del self._stuck[identity]
        else:
            self._send(identity, Drain(reason=self._stuck[identity]))

    def _back(self, identity: bytes, peer: _Peer) -> None:
        """Let a worker go on that was away."""
        if peer.away_since is None:
            return
        # What a broken connection had brought is read after it broke: only who can be reached is back.
        if self._send(identity, Abort(session=self._session, request_ids=[])):
            seconds = round(self._now() - peer.away_since, 2)
            log.info("worker_back", worker_id=peer.hello.worker_id, away_seconds=seconds)
            peer.away_since, peer.moved = None, False
            if moved := self._events.worker_back(peer.hello.worker_id):
                self.send_abort(peer.hello.worker_id, moved)

    def _take_in_session(self, identity: bytes, worker_id: str, peer: _Peer, frame: FromWorker) -> None:
        if isinstance(frame, Heartbeat):
            self._heartbeat(identity, peer, frame)
            return
        if isinstance(frame, Goodbye):
            self._left(identity, frame.reason, died=frame.died)
            return
        peer.stalled = 0.0
        if isinstance(frame, Results):
            self._events.results(worker_id, frame.results)
        elif isinstance(frame, Progress):
            self._events.started(worker_id, frame.started)
        elif isinstance(frame, Failures):
            self._events.failures(worker_id, frame.failures)
        elif isinstance(frame, StepReport):
            self._events.steps(worker_id, frame)

    def _heartbeat(self, identity: bytes, peer: _Peer, beat: Heartbeat) -> None:
        now = self._now()
        if beat.steps != peer.steps:
            peer.stalled = 0.0
        elif beat.in_flight:
            peer.stalled += now - peer.beat_at
        peer.steps, peer.in_flight, peer.beat_at = beat.steps, beat.in_flight, now
        # Heartbeats that come in one go, after a pause of ours or out of a slow network, tell of the past but for one.
        if beat.request_ids is None or now - peer.compared_at < self._settings.heartbeat_seconds / 2:
            return
        peer.compared_at = now
        if unwanted := self._events.heartbeat(peer.hello.worker_id, beat.request_ids):
            self.send_abort(peer.hello.worker_id, unwanted)

    # Who gets in

    def _hello(self, identity: bytes, hello: Hello) -> None:
        known = self._peers.get(identity)
        if known is not None:
            if known.hello.pid == hello.pid and not known.in_session:
                # It repeats itself until the welcome arrives.
                known.last_seen, known.answered = self._now(), True
                self._back(identity, known)
                self._welcome(identity)
                return
            self._left(identity, "said hello again", died=known.hello.pid != hello.pid)
        holder = self._holders.get(hello.worker_id)
        if holder is not None:
            if not self._next_life(identity, self._peers[holder], hello):
                return
            self._left(holder, "restarted under the same name", died=True)
        if reason := self._why_not(hello):
            self._refuse(identity, reason)
            return
        now = self._now()
        self._peers[identity] = _Peer(hello, now, now)
        self._holders[hello.worker_id] = identity
        self._welcome(identity)

    def _why_not(self, hello: Hello) -> str | None:
        if hello.protocol != PROTOCOL_VERSION:
            return f"protocol {hello.protocol}, this scheduler speaks {PROTOCOL_VERSION}"
        return self._events.accepts(hello)

    def _next_life(self, identity: bytes, holder: _Peer, hello: Hello) -> bool:
        """Return whether a hello is the next life of the worker that holds its id; refuse it if that one lives.

        A process that ended has lost its connection, and lost it before its next life could start. So whoever comes
        while the holder has one is a second worker, or the next life of one that hangs or whose host vanished: until
        the holder shows life, or `CONTEST_SECONDS` have passed, the newcomer gets no answer and says hello again.
        """
        if holder.away_since is not None:
            return True
        now = self._now()
        patience = max(CONTEST_SECONDS, 2 * self._settings.heartbeat_seconds)
        if holder.contest_at is None or now - holder.contest_seen > patience:
            holder.contest_at, holder.answered = now, False
        holder.contest_seen = now
        if holder.answered:
            holder.contest_at = None
            reason = f"a worker with the id {hello.worker_id!r} (process {holder.hello.pid}) works here already"
            self._refuse(identity, reason)
            return False
        return now - holder.contest_at >= patience

    def _welcome(self, identity: bytes) -> None:
        peer = self._peers[identity]
        if self._events.needs_tokenizer(peer.hello):
            self._send(identity, TokenizerWanted())
            return
        self._send(identity, Welcome(session=self._session, heartbeat_seconds=self._settings.heartbeat_seconds))
        if not peer.welcomed:
            peer.welcomed = True
            self._events.worker_joined(peer.hello)

    def _welcome_waiting(self) -> None:
        for identity, peer in list(self._peers.items()):
            if peer.welcomed:
                continue
            if reason := self._events.accepts(peer.hello):
                self._refuse(identity, reason)
            else:
                self._welcome(identity)

    def _refuse(self, identity: bytes, reason: str) -> None:
        self._forget(identity)
        log.error("worker_refused", worker_id=identity.decode(errors="replace"), reason=reason)
        self._send(identity, Refused(reason=reason))

    # Who is gone

    def _unreachable(self, identity: bytes) -> None:
        peer = self._peers.get(identity)
        if peer is not None and peer.welcomed and peer.away_since is None:
            peer.away_since = self._now()
            log.warning("worker_away", worker_id=peer.hello.worker_id, work_moves_after_seconds=GRACE_SECONDS)
            self._events.worker_away(peer.hello.worker_id)

    def _end_stuck(self, identity: bytes, peer: _Peer) -> None:
        reason = f"its engine has {peer.in_flight} requests and made no step for {peer.stalled:.0f} s"
        if len(self._stuck) >= MOST_STUCK:
            self._stuck.pop(next(iter(self._stuck)))
        self._stuck[identity] = reason
        log.error(
            "worker_stuck",
            worker_id=peer.hello.worker_id,
            pid=peer.hello.pid,
            in_flight=peer.in_flight,
            steps=peer.steps,
            seconds=round(peer.stalled, 1),
            effect="its work runs elsewhere; it is told to end, and gets work again once it has started anew",
        )
        self._left(identity, reason, died=True)
        self._send(identity, Drain(reason=reason))

    def _left(self, identity: bytes, reason: str, *, died: bool) -> None:
        peer = self._forget(identity)
        if peer is not None and peer.welcomed:
            self._events.worker_left(peer.hello.worker_id, reason, died=died)

    def _forget(self, identity: bytes) -> _Peer | None:
        peer = self._peers.pop(identity, None)
        if peer is not None:
            del self._holders[peer.hello.worker_id]
        return peer
