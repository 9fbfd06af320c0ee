"""Carries out a plan: two lanes of faults, each undone after its time, each written down as it happened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from ops.embedded import EmbeddedRedis
from schemas.codec import decode_json
from schemas.errors import DecodeError
from schemas.settings import KafkaSettings
from schemas.status import SchedulerStatus
from tests.chaos import groups
from tests.chaos.broker import Broker
from tests.chaos.events import malformed
from tests.chaos.feeder import Feeder
from tests.chaos.hooked import Control
from tests.chaos.incidents import Incident, begin
from tests.chaos.plan import GROUP_FAULTS, VISITING_WORKER, Fault, FaultKind
from tests.chaos.processes import Fleet

log = structlog.get_logger()

PULSE_SECONDS = 0.4
"""A slow broker stands still for its share of every such time: each request waits, and none is refused."""
JOIN_SECONDS = 45.0
"""For a new scheduler to be a member of both groups; two cores start Python in about three seconds."""
LOOK_SECONDS = 0.2
ALIVE_SECONDS = 20.0
"""How long a fault waits for its target to run."""
GROUP_REST_SECONDS, LOCAL_REST_SECONDS = 4.0, 1.0
"""Between two faults of a lane when the first took longer than planned: a group settles first."""
ANSWERS_SECONDS = 0.3
"""Confirmations that were on their way when a broker was killed have come after this."""
BACK_SECONDS = 60.0
"""For a restarted broker to take records again."""
SECOND = 1_000_000_000


@dataclass(kw_only=True)
class Stage:
    """Everything that a fault may touch."""

    seed: int
    kafka: KafkaSettings
    broker: Broker
    redis: EmbeddedRedis
    fleet: Fleet
    feeder: Feeder
    clock: Control
    engine: Control
    incidents: list[Incident] = field(default_factory=list)


class Injector:
    """Carries out a plan.

    Args:
        plan: sorted by time.
        stage: what there is to break.
        told: gets a line for people about each fault.
    """

    def __init__(self, plan: list[Fault], stage: Stage, told: Callable[[str], None]) -> None:
        self._plan = plan
        self._stage = stage
        self._told = told
        self._acts: dict[FaultKind, Callable[[Fault, Incident], Awaitable[None]]] = {
            FaultKind.SCHEDULER_KILL: self._kill_scheduler,
            FaultKind.SCHEDULER_PAUSE: self._pause,
            FaultKind.SCHEDULER_STOP: self._stop_scheduler,
            FaultKind.MEMBER_JOIN_LEAVE: self._visit,
            FaultKind.BROKER_KILL: self._kill_broker,
            FaultKind.BROKER_SLOW: self._slow_broker,
            FaultKind.WORKER_KILL: self._kill_worker,
            FaultKind.WORKER_PAUSE: self._pause,
            FaultKind.ENGINE_STUCK: self._stick_engine,
            FaultKind.ENGINE_FAILURES: self._fail_engine,
            FaultKind.REDIS_KILL: self._kill_redis,
            FaultKind.MALFORMED_FLOOD: self._flood,
            FaultKind.CLOCK_STEP: self._step_clock,
        }

    async def run(self) -> None:
        """Carry out the plan; a cancellation undoes what is going on before it gets through."""
        began = time.monotonic()
        lanes = [[f for f in self._plan if (f.kind in GROUP_FAULTS) is group] for group in (True, False)]
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in lanes:
                    tasks.create_task(self._lane(lane, began))
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _lane(self, faults: list[Fault], began: float) -> None:
        free_at = 0.0
        for fault in faults:
            due = max(began + fault.at, free_at)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            incident = begin(fault, time.time_ns(), time.monotonic())
            self._stage.incidents.append(incident)
            self._told(f"{time.monotonic() - began:7.1f} s  #{fault.number} {fault.kind} {fault.target}")
            try:
                await self._acts[fault.kind](fault, incident)
            finally:
                incident.ended_ms = time.time_ns() // 1_000_000
                free_at = time.monotonic() + (GROUP_REST_SECONDS if fault.kind in GROUP_FAULTS else LOCAL_REST_SECONDS)

    # Schedulers

    async def _kill_scheduler(self, fault: Fault, incident: Incident) -> None:
        if not await self._running(fault.target, incident):
            return
        incident.began_ms = time.time_ns() // 1_000_000
        self._stage.fleet[fault.target].kill()
        await self._note_group(incident)
        # It may come back before the look at the group is over, never earlier than planned.
        left = fault.seconds - (time.time_ns() // 1_000_000 - incident.began_ms) / 1000
        await asyncio.sleep(max(0.0, left))
        self._stage.fleet[fault.target].start()

    async def _stop_scheduler(self, fault: Fault, incident: Incident) -> None:
        if not await self._running(fault.target, incident):
            return
        found = await groups.look(self._stage.kafka)
        incident.owned = found.owned_by(fault.target) if found else frozenset()
        incident.began_ms = time.time_ns() // 1_000_000
        incident.notes["clean"] = await self._stage.fleet[fault.target].terminate()
        incident.notes["stop_seconds"] = round(time.time_ns() / SECOND - incident.began_ms / 1000, 2)
        await asyncio.sleep(fault.seconds)
        self._stage.fleet[fault.target].start()

    async def _visit(self, fault: Fault, incident: Incident) -> None:
        visitor, worker = self._stage.fleet[fault.target], self._stage.fleet[VISITING_WORKER]
        visitor.start()
        worker.start()
        try:
            incident.notes["joined"] = await self._joined(fault.target)
            incident.notes["joined_ms"] = time.time_ns() // 1_000_000
            await asyncio.sleep(fault.seconds)
            incident.notes["leaves_ms"] = time.time_ns() // 1_000_000
            incident.notes["clean"] = await visitor.terminate()
        finally:
            visitor.kill()
            worker.kill()

    async def _joined(self, scheduler: str) -> bool:
        deadline = time.monotonic() + JOIN_SECONDS
        while time.monotonic() < deadline:
            found = await groups.look(self._stage.kafka)
            if found is not None and found.owned_by(scheduler):
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return False

    async def _pause(self, fault: Fault, incident: Incident) -> None:
        if not await self._running(fault.target, incident):
            return
        managed = self._stage.fleet[fault.target]
        incident.began_ms = time.time_ns() // 1_000_000
        managed.signal(signal.SIGSTOP)
        try:
            if fault.kind is FaultKind.SCHEDULER_PAUSE:
                await self._note_group(incident)
            left = fault.seconds - (time.time_ns() // 1_000_000 - incident.began_ms) / 1000
            await asyncio.sleep(max(0.0, left))
        finally:
            managed.signal(signal.SIGCONT)

    # Workers and engines

    async def _kill_worker(self, fault: Fault, incident: Incident) -> None:
        if not await self._running(fault.target, incident):
            return
        incident.began_ms = time.time_ns() // 1_000_000
        self._stage.fleet[fault.target].kill()
        await asyncio.sleep(fault.seconds)
        self._stage.fleet[fault.target].start()

    async def _stick_engine(self, fault: Fault, incident: Incident) -> None:
        if not await self._running(fault.target, incident):
            return
        # The next step takes as long as the fault; no second one may follow it.
        self._stage.engine.write(stuck_seconds=fault.seconds)
        try:
            await asyncio.sleep(fault.seconds / 2)
            self._stage.engine.write()
            await asyncio.sleep(fault.seconds / 2)
        finally:
            self._stage.engine.write()

    async def _fail_engine(self, fault: Fault, incident: Incident) -> None:
        if not await self._running(fault.target, incident):
            return
        self._stage.engine.write(failing=fault.amount)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self._stage.engine.write()

    # Services

    async def _kill_broker(self, fault: Fault, incident: Incident) -> None:
        broker = self._stage.broker
        pid = broker.pid(int(fault.target.rpartition("-")[2]))
        incident.began_ms = time.time_ns() // 1_000_000
        os.kill(pid, signal.SIGKILL)
        again = asyncio.create_task(self._confirmed_again(incident))
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            # Shielded: a Ctrl-C here must not leave a run without its broker.
            await asyncio.shield(asyncio.to_thread(broker.start))
        await again

    async def _confirmed_again(self, incident: Incident) -> None:
        """Note when records are taken again: a node answers before it leads its partitions; others may take over."""
        await asyncio.sleep(ANSWERS_SECONDS)
        confirmed, deadline = self._stage.feeder.confirmed, time.monotonic() + BACK_SECONDS
        while self._stage.feeder.confirmed == confirmed and time.monotonic() < deadline:  # noqa: ASYNC110 - a bounded look
            await asyncio.sleep(LOOK_SECONDS / 4)
        incident.ready_ms = time.time_ns() // 1_000_000

    async def _slow_broker(self, fault: Fault, _: Incident) -> None:
        pid = self._stage.broker.pid(int(fault.target.rpartition("-")[2]))
        deadline = time.monotonic() + fault.seconds
        try:
            while time.monotonic() < deadline:
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(PULSE_SECONDS * fault.amount)
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(PULSE_SECONDS * (1 - fault.amount))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def _kill_redis(self, fault: Fault, _: Incident) -> None:
        redis = self._stage.redis
        if redis.pid is not None:
            os.kill(redis.pid, signal.SIGKILL)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            await asyncio.shield(asyncio.to_thread(redis.start))

    async def _flood(self, fault: Fault, _: Incident) -> None:
        self._stage.feeder.flood(malformed(self._stage.seed, fault.number, int(fault.amount)))

    async def _step_clock(self, fault: Fault, _: Incident) -> None:
        self._stage.clock.write(offset_ns=int(fault.amount * SECOND))
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self._stage.clock.write()

    # What is known at the moment of a fault

    async def _running(self, name: str, incident: Incident) -> bool:
        deadline = time.monotonic() + ALIVE_SECONDS
        while self._stage.fleet[name].pid is None:
            if time.monotonic() > deadline:
                incident.skipped = f"{name} did not run"
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    async def _note_group(self, incident: Incident) -> None:
        status, found = await asyncio.gather(
            status_of(self._stage.redis.url, self._stage.kafka, incident.target), groups.look(self._stage.kafka)
        )
        if status is not None:
            taken = sum(c.queued + c.in_flight for c in status.classes)
            incident.unfinished = max(status.unfinished, taken)
        if found is not None:
            incident.groups = found
            incident.owned = found.owned_by(incident.target)


async def status_of(redis_url: str, kafka: KafkaSettings, scheduler: str) -> SchedulerStatus | None:
    """Return the last status that a scheduler left in Redis; none where there is none."""
    client = Redis.from_url(redis_url, socket_timeout=1.0, socket_connect_timeout=1.0)
    try:
        raw = await client.get(kafka.topics.status_key(scheduler))
        return decode_json(raw, SchedulerStatus) if isinstance(raw, bytes) else None
    except (RedisError, OSError, DecodeError):
        return None
    finally:
        with contextlib.suppress(RedisError, OSError):
            await client.aclose()
