"""The worker process: joins one engine to one scheduler, and outlives the scheduler's restarts."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import msgspec
import structlog

from schemas.errors import ConfigError, UnavailableError
from schemas.frames import (
    PROTOCOL_VERSION,
    Abort,
    Drain,
    Failure,
    Goodbye,
    Heartbeat,
    Hello,
    Refused,
    Request,
    Requests,
    Result,
    Started,
    TokenizerFile,
    TokenizerWanted,
    ToWorker,
    Welcome,
    WhoAreYou,
    decode_to_worker,
)
from schemas.settings import LinkSettings, WorkerSettings
from workers.engine import (
    Engine,
    EngineDescription,
    EngineDiedError,
    EngineSink,
    OnState,
    Steps,
    WorkerState,
    printable,
)
from workers.link import WorkerLink, worker_identity
from workers.outbox import Outbox
from workers.stall import StallWatch

DRAIN_SECONDS = 3.5
"""Longest wait for work in flight at a drain. The goodbye that follows must be out before whoever asked kills the
process, since what is left would count as a death then: `tapewire up` gives a worker five seconds, Docker ten."""
MOST_LISTED = 4096
"""Requests that a heartbeat lists. An engine has a few hundred at most; a longer list would cost more than it finds."""
FRAMES_PER_TURN = 32
"""Frames handled before other tasks get their turn. A receive that never has to wait would not yield by itself, and
a flood of work would silence the heartbeat."""

log = structlog.get_logger()


async def serve(
    settings: WorkerSettings, link: LinkSettings, stop: asyncio.Event, on_state: OnState | None = None
) -> None:
    """Run one worker until ``stop`` is set or the scheduler says drain; both finish what is in flight.

    Args:
        settings: the engine and its limits.
        link: where the scheduler is. It may be away: the worker keeps trying and stays warm.
        stop: set it to drain and return.
        on_state: told what the worker is doing.

    Raises:
        ConfigError: a setting is wrong, or the scheduler refused this worker.
        UnavailableError: the model or a package is missing.
        EngineDiedError: the engine is gone; start the process again.
    """
    tell = on_state or _tell_nobody
    worker_id = worker_identity(settings.id)
    # The link is checked before the engine's long start, so that a wrong key or address is told at once.
    connection = WorkerLink(link, worker_id)
    worker = Worker(worker_id, settings, link, connection, tell)
    engine = create_engine(settings, worker, tell)
    try:
        description = await _unless_stopped(engine.start(), stop)
        if description is not None:
            log.info("worker_warm", worker_id=worker_id, engine=engine_name(description), pid=os.getpid())
            await worker.run(engine, description, stop)
    finally:
        await engine.stop()
        await connection.close()
        tell(WorkerState.STOPPED, "")
        log.info("worker_stopped", worker_id=worker_id)


def create_engine(settings: WorkerSettings, sink: EngineSink, on_state: OnState) -> Engine:
    """Return the engine that ``worker.engine`` names, not yet started.

    Raises:
        UnavailableError: the engine's package is not installed.
    """
    if settings.engine == "sim":
        from workers.sim_engine import SimEngine

        return SimEngine(settings, sink, on_state)
    try:
        from workers.vllm_engine import VllmEngine
    except ModuleNotFoundError as error:
        raise UnavailableError("vLLM", "worker.engine", f"{error}; pip install 'tapewire[cpu]' or [gpu]") from None
    return VllmEngine(settings, sink, on_state)


def engine_name(description: EngineDescription) -> str:
    """Return engine, version and model for a log line."""
    info = description.info
    return f"{info.name} {info.version} {info.model}"


class Worker:
    """One worker's side of the protocol in `schemas.frames`, and the sink of its engine.

    ``session`` is empty until a scheduler has welcomed the worker; whatever belongs to another session is dropped.
    """

    def __init__(
        self, worker_id: str, settings: WorkerSettings, link: LinkSettings, connection: WorkerLink, on_state: OnState
    ) -> None:
        self._id = worker_id
        self._engine_kind = settings.engine
        self._classes = list(settings.classes)
        self._address = link.address
        self._beat_seconds = link.heartbeat_seconds
        self._stuck_seconds = link.stuck_after_seconds
        self._stall = StallWatch(most_between=2 * link.heartbeat_seconds)
        self._link = connection
        self._tell = on_state
        self._session = ""
        self._ids: set[int] = set()
        self._draining = False
        self._bad_frame_seen = False
        self._outbox = Outbox(connection.send, self._check_idle)
        self._nudge = asyncio.Event()
        self._idle = asyncio.Event()
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self, engine: Engine, description: EngineDescription, stop: asyncio.Event) -> None:
        """Serve schedulers until told to end; see `serve` for what it raises."""
        self._engine = engine
        self._description = description
        self._tell(WorkerState.CONNECTING, self._address)
        self._link.connect()
        tasks = [
            asyncio.create_task(job, name=name)
            for name, job in {
                "link-receive": self._receive(),
                "link-heartbeat": self._beat(),
                "link-monitor": self._watch_link(),
                "stop": self._await_stop(stop),
            }.items()
        ]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        try:
            await self._drain(await self._end)
        except EngineDiedError as error:
            self._outbox.flush()
            # Somebody asked this process to end, and took the engine down first: that is an end, not an accident.
            self._goodbye(error.reason, died=not stop.is_set())
            if not stop.is_set():
                raise
        finally:
            self._outbox.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # What the engine calls

    def on_started(self, started: Started) -> None:
        """See `EngineSink.on_started`."""
        if started.request_id in self._ids:
            self._outbox.add_started(started)

    def on_result(self, result: Result) -> None:
        """See `EngineSink.on_result`."""
        if result.request_id in self._ids:
            self._ids.discard(result.request_id)
            self._outbox.add_result(result)

    def on_failure(self, failure: Failure) -> None:
        """See `EngineSink.on_failure`."""
        if failure.request_id in self._ids:
            self._ids.discard(failure.request_id)
            self._outbox.add_failure(failure)
            log.warning("request_failed", request_id=failure.request_id, kind=failure.kind, reason=failure.message)

    def on_steps(self, steps: Steps) -> None:
        """See `EngineSink.on_steps`."""
        self._outbox.add_steps(steps)

    def on_died(self, reason: str) -> None:
        """See `EngineSink.on_died`."""
        log.error("engine_died", worker_id=self._id, reason=reason)
        # What failed with the engine was in flight at its death, which the goodbye tells: a failure would hide that.
        self._outbox.drop_failures()
        if not self._end.done():
            self._end.set_exception(EngineDiedError(self._engine_kind, reason))
        self._idle.set()

    # What the scheduler says

    async def _receive(self) -> None:
        count = 0
        while True:
            raw = await self._link.receive()
            try:
                frame = decode_to_worker(raw)
            except msgspec.DecodeError as error:
                if not self._bad_frame_seen:
                    log.warning("frame_undecodable", bytes=len(raw), reason=str(error))
                self._bad_frame_seen = True
                continue
            self._handle(frame)
            count += 1
            if count % FRAMES_PER_TURN == 0:
                await asyncio.sleep(0)

    def _handle(self, frame: ToWorker) -> None:
        match frame:
            case Requests():
                if frame.session == self._session:
                    if frame.policy is not None:
                        self._engine.set_policy(frame.policy)
                    self._submit(frame.requests)
            case Abort():
                if frame.session == self._session:
                    self._abort(self._ids.intersection(frame.request_ids))
            case Welcome():
                self._welcomed(frame)
            case WhoAreYou():
                self._unknown()
            case TokenizerWanted():
                info = self._description.info
                data = self._description.tokenizer_json
                self._link.send(TokenizerFile(tokenizer_hash=info.tokenizer_hash, data=data))
            case Drain():
                self._finish(f"drain: {printable(frame.reason)}")
            case Refused():
                reason = f"the scheduler at {self._address} refused this worker: {printable(frame.reason)}"
                if not self._end.done():
                    self._end.set_exception(ConfigError("worker", reason))

    def _submit(self, requests: list[Request]) -> None:
        # A draining worker leaves new work alone: its goodbye sends that work elsewhere.
        if self._draining:
            return
        fresh = [request for request in requests if request.request_id not in self._ids]
        self._ids.update([request.request_id for request in fresh])
        self._engine.submit(fresh)

    def _abort(self, request_ids: set[int]) -> None:
        self._ids -= request_ids
        self._engine.abort(request_ids)
        self._check_idle()

    def _welcomed(self, welcome: Welcome) -> None:
        self._beat_seconds = max(0.01, welcome.heartbeat_seconds)
        self._stall.most_between = 2 * self._beat_seconds
        if welcome.session == self._session:
            return
        self._drop_all()
        self._session = self._outbox.session = welcome.session
        self._tell(WorkerState.WORKING, self._address)
        log.info("worker_welcomed", worker_id=self._id, session=printable(welcome.session))

    def _unknown(self) -> None:
        """Introduce ourselves again: a scheduler that does not know us has given our work to others."""
        if not self._session:
            return  # A hello is on its way; a second one could be taken for a restart after the welcome.
        log.info("worker_unknown_to_scheduler", worker_id=self._id, dropped=len(self._ids))
        self._drop_all()
        self._tell(WorkerState.CONNECTING, self._address)
        self._nudge.set()

    def _drop_all(self) -> None:
        """Forget everything that an older session gave or was to be told."""
        self._abort(set(self._ids))
        self._session = self._outbox.session = ""
        self._outbox.clear()

    # What the scheduler is told

    async def _beat(self) -> None:
        """Show life at a fixed rate, whatever the engine is doing; introduce ourselves while nobody knows us."""
        while True:
            self._nudge.clear()
            self._check_engine()
            if self._link.connected:
                if self._session:
                    self._heartbeat()
                elif not self._draining:
                    self._link.send(self._hello())
            # Not wait_for: on Python 3.11 it can swallow a cancellation that meets the event (python/cpython#86296).
            with suppress(TimeoutError):
                async with asyncio.timeout(self._beat_seconds):
                    await self._nudge.wait()

    def _heartbeat(self) -> None:
        # First what has ended: a request that is neither listed nor reported counts as lost.
        self._outbox.flush()
        ids = sorted(self._ids) if len(self._ids) <= MOST_LISTED else None
        self._link.send(
            Heartbeat(session=self._session, in_flight=len(self._ids), steps=self._engine.steps, request_ids=ids)
        )

    def _check_engine(self) -> None:
        """Call an engine dead that has requests and makes no steps."""
        in_flight = self._engine.in_flight
        seconds = self._stall.look(time.monotonic(), in_flight, self._engine.steps)
        if seconds > self._stuck_seconds and not self._end.done():
            self.on_died(
                f"it has {in_flight} requests and made no step for {seconds:.1f} s (link.stuck_after_seconds is "
                f"{self._stuck_seconds:g}); {self._engine.steps} steps before that"
            )

    async def _watch_link(self) -> None:
        async for connected in self._link.changes():
            log.info("link_up" if connected else "link_down", worker_id=self._id, address=self._address)
            # Whoever answers now may be a new scheduler: a heartbeat finds out, a hello if there is no session.
            self._nudge.set()

    def _hello(self) -> Hello:
        return Hello(
            worker_id=self._id,
            protocol=PROTOCOL_VERSION,
            engine=self._description.info,
            limits=self._description.limits,
            extractors=self._description.extractors,
            classes=self._classes,
            pid=os.getpid(),
            step_gate=self._description.step_gate,
            steps_ahead=self._description.steps_ahead,
        )

    # The end

    async def _await_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._finish("stop")

    def _finish(self, reason: str) -> None:
        # At once, not when the drain begins: requests may stand right behind in the socket.
        self._draining = True
        if not self._end.done():
            self._end.set_result(reason)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._end.done():
            self._end.set_exception(error)

    async def _drain(self, reason: str) -> None:
        self._tell(WorkerState.DRAINING, reason)
        log.info("worker_draining", worker_id=self._id, reason=reason, in_flight=len(self._ids))
        self._check_idle()
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._idle.wait()
        except TimeoutError:
            log.warning("drain_cut_short", worker_id=self._id, in_flight=len(self._ids))
            self._abort(set(self._ids))
        self._outbox.flush()
        self._goodbye(reason)

    def _check_idle(self) -> None:
        if self._draining and not self._ids:
            self._idle.set()

    def _goodbye(self, reason: str, *, died: bool = False) -> None:
        if self._session:
            self._link.send(Goodbye(session=self._session, reason=reason, died=died))


async def _unless_stopped(
    start: Coroutine[Any, Any, EngineDescription], stop: asyncio.Event
) -> EngineDescription | None:
    """Await an engine's start, or give up as soon as ``stop`` is set."""
    starting = asyncio.ensure_future(start)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return await starting if starting.done() else None
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


def _tell_nobody(state: WorkerState, detail: str) -> None:
    """Stand in for an absent `OnState`."""
