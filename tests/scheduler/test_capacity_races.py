"""Aborts that race with ends, restarts and broken connections leave no phantom behind: no slot, block or budget.

The planner, the registry, the peers, the worker and the simulated engine are the real ones; only the sockets and the
clock are not. Seen elsewhere as llm-d-router#2295: occupancy that only grows, until nothing is admitted any more.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import hypothesis.strategies as st
from hypothesis import given, settings

from schemas.settings import LinkSettings, WorkerSettings
from tests.scheduler.desk import Desk
from tests.scheduler.virtual_time import run_virtual
from tests.scheduler.wire import Hub, WireLink, WireWorkerLink
from workers.engine import EngineDescription
from workers.process import Worker
from workers.sim_engine import SimEngine

LINK = LinkSettings(heartbeat_seconds=0.5, dead_after_seconds=3.0)
COSTS = WorkerSettings(engine="sim", sim_step_ms=1000.0, sim_kv_blocks=400, max_num_seqs=12)
HEAL_SECONDS = 600.0
"""Virtual time after which everything must have ended."""


class Life:
    """One life of one worker."""

    def __init__(self, hub: Hub, worker_id: str, number: int) -> None:
        self.connection = WireWorkerLink(hub, f"{worker_id}~{number}".encode())
        self.stop = asyncio.Event()
        link = self.connection.as_link()
        self.worker = Worker(worker_id, COSTS, LINK, link, lambda *_: None)
        self.engine = SimEngine(COSTS, self.worker, lambda *_: None)
        self.idle_blocks = 0
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            description: EngineDescription = await self.engine.start()
            self.idle_blocks = self.engine._core.used_blocks
            await self.worker.run(self.engine, description, self.stop)
        finally:
            await self.engine.stop()
            if not self.connection._closed:
                self.connection.vanish()

    async def kill(self) -> None:
        """End it without a word."""
        self.connection.vanish()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class World:
    """A scheduler, two workers, and everything that can happen to them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.hub = Hub(self.rng)
        self.ended: Counter[str] = Counter()
        self.aborted: set[str] = set()
        self.added = 0
        self.lives = {name: Life(self.hub, name, 0) for name in ("w1", "w2")}
        self.desk = self._new_desk()

    def _new_desk(self) -> Desk:
        return Desk(LINK, self.ended, lambda session, events: WireLink(self.hub, LINK, session, events))

    async def do(self, what: str) -> None:
        """Let one thing happen."""
        name = self.rng.choice(["w1", "w2"])
        if what == "add":
            for _ in range(self.rng.randrange(1, 12)):
                self.desk.add(str(self.added), self.rng.randrange(3), self.rng.randrange(1, 300))
                self.added += 1
        elif what == "abort":
            self._abort()
        elif what == "cut":
            self.lives[name].connection.cut(self.rng.choice([None, 0.05, 0.5, 1.5, 5.0]))
        elif what == "kill":
            await self.lives[name].kill()
            self._revive(name)
        elif what == "leave":
            self.lives[name].stop.set()
            await asyncio.wait({self.lives[name].task})
            self._revive(name)
        elif what == "restart":
            self._restart()
        await asyncio.sleep(self.rng.choice([0.0, 0.003, 0.01, 0.05, 0.3, 1.2]))

    def _abort(self) -> None:
        """Take something back that is at a worker, as an expiry or a revocation does; it may be ending just now."""
        works = self.desk.planner.in_flight_work()
        for work in self.rng.sample(works, k=min(len(works), self.rng.randrange(1, 5))):
            worker_id, request_id = work.worker_id, work.request_id
            self.desk.planner.finish(worker_id, request_id)
            self.desk.link.send_abort(worker_id, [request_id])
            if self.rng.random() < 0.5:
                self.ended[work.event_id] += 1
            else:
                work.forget_run()
                self.desk.planner.add(work)
            if self.rng.random() < 0.2:
                self.lives[worker_id].connection.cut()  # with the abort under way in it
        self.desk.wake()

    def _revive(self, name: str) -> None:
        self.lives[name] = Life(self.hub, name, self.rng.randrange(10**9))

    def _restart(self) -> None:
        """Put another scheduler in the place of this one, with the events that have not ended, as Kafka would."""
        old = self.desk
        old.link.close()
        old.closed = True
        self.desk = self._new_desk()
        for event_id in old.open:
            self.desk.add(event_id, old.works[event_id].class_index, old.works[event_id].token_count)

    def _strangers(self) -> set[tuple[str, int]]:
        """Return what the engines run for nobody."""
        here = {(work.worker_id, work.request_id) for work in self.desk.planner.in_flight_work()}
        there = {(name, one) for name, life in self.lives.items() for one in life.engine._flights}
        return there - here

    async def agree(self) -> None:
        """With all connections back, nothing goes on running for nobody for longer than a few heartbeats."""
        await asyncio.sleep(6.0)
        before = self._strangers()
        await asyncio.sleep(2.0)
        assert not before & self._strangers()

    async def heal(self) -> None:
        """Let everything end."""
        async with asyncio.timeout(HEAL_SECONDS):
            while self.desk.open or not self.desk.takes_nothing():  # noqa: ASYNC110 - virtual time costs nothing
                await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)  # the last aborts are on their way

    def check(self) -> None:
        """Everything ended once, and nothing is held anywhere."""
        assert len(self.ended) == self.added
        assert set(self.ended.values()) <= {1}
        assert self.desk.takes_nothing()
        for life in self.lives.values():
            assert (life.worker._ids, life.engine.in_flight, life.engine._core.running) == (set(), 0, 0)
            assert life.engine._core.used_blocks == life.idle_blocks

    async def close(self) -> None:
        """End all lives."""
        self.desk.link.close()
        for life in self.lives.values():
            await life.kill()


STEPS = st.lists(
    st.sampled_from(["add", "add", "add", "abort", "abort", "cut", "cut", "kill", "leave", "restart"]),
    min_size=5,
    max_size=25,
)


async def _play(steps: list[str], seed: int) -> None:
    world = World(seed)
    for step in steps:
        await world.do(step)
    await world.agree()
    await world.heal()
    world.check()
    await world.close()


@settings(max_examples=20)
@given(steps=STEPS, seed=st.integers(0, 2**32))
def test_no_history_leaves_a_phantom_behind(steps: list[str], seed: int) -> None:
    """Whatever meets whatever: every event ends once, all budgets and the engines' slots and blocks are free again."""
    run_virtual(_play(steps, seed))
