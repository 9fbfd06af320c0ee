"""One run from start to ledger: services up, load on, faults, quiet, everything down, and the accounts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from ops.embedded import EmbeddedRedis, free_port
from ops.topics import ensure_topics, topic_config, topic_names
from schemas.settings import KafkaSettings
from tests.chaos.broker import BenchError, Broker, RealKafka, StandIn, launcher
from tests.chaos.commits import covers
from tests.chaos.events import stream
from tests.chaos.faults import Injector, Stage, status_of
from tests.chaos.feeder import Feeder
from tests.chaos.hooked import Control
from tests.chaos.incidents import CRASH, Incident
from tests.chaos.ledger import account
from tests.chaos.memory import Memory
from tests.chaos.observer import Observer
from tests.chaos.plan import SCHEDULERS, WORKERS, Fault, Options, make_plan
from tests.chaos.processes import Fleet
from tests.chaos.reading import read_inputs, read_outcomes
from tests.chaos.report import Run
from tests.chaos.system import build_fleet, clock_file, engine_file, kafka_settings
from tests.chaos.told import incidents_in, mark_undrained
from tests.chaos.verdict import judge

READY_SECONDS = 90.0
"""For both schedulers to run with their workers."""
QUIET_SECONDS = 30.0
"""Without a new completion for this long after the load, what is missing will not come."""
MOST_QUIET_SECONDS = 300.0
MOST_OUTSTANDING = 20_000
"""Events published and not done at which an unpaced feeder waits."""
TICK_SECONDS = 0.1
PROGRESS_SECONDS = 5.0

Say = Callable[[str], None]


class Bench:
    """One run.

    Args:
        options: what to run.
        scratch: for logs, configurations and data.
        say: takes lines for people.
    """

    def __init__(self, options: Options, scratch: Path, say: Say) -> None:
        self._options = options
        self._scratch = scratch
        self._say = say
        self._committed = options.delivery == "transactional"
        self._stop = asyncio.Event()
        self._feeding: asyncio.Task[None] | None = None
        self.plan: list[Fault] = make_plan(options)

    def interrupt(self) -> None:
        """End the load now; the ledger of what was follows."""
        self._stop.set()

    async def run(self) -> Run:
        """Run to the ledger.

        Raises:
            TapewireError: the services did not come up, or the topics could not be read.
        """
        async with AsyncExitStack() as stack:
            broker = self._broker(stack)
            plan = [fault for fault in self.plan if fault.kind not in broker.without]
            if len(plan) < len(self.plan):
                self._say(f"LEFT OUT here: {len(self.plan) - len(plan)} faults that this broker cannot stand")
            stack.callback(broker.stop)
            await asyncio.to_thread(broker.start)
            # A port of its own: one that is chosen at each start would move away from its clients.
            redis = EmbeddedRedis(data_dir=self._scratch / "redis", port=free_port())
            stack.push_async_callback(asyncio.to_thread, redis.stop)
            await asyncio.to_thread(redis.start)
            kafka = kafka_settings(broker.bootstrap, self._options.nodes)
            await _create_topics(kafka)
            fleet = build_fleet(self._scratch, kafka, redis.url, self._options.delivery)
            stack.callback(fleet.kill)
            self._say(f"broker: {broker.name} at {broker.bootstrap}")
            observer = Observer(kafka, committed=self._committed)
            feeder = self._feeder(kafka, observer)
            memory = Memory(fleet, lambda: observer.done)
            stage = Stage(
                seed=self._options.seed,
                kafka=kafka,
                broker=broker,
                redis=redis,
                fleet=fleet,
                feeder=feeder,
                clock=Control(clock_file(self._scratch)),
                engine=Control(engine_file(self._scratch)),
            )
            injector = Injector(plan, stage, self._say)
            watching = [asyncio.create_task(c) for c in (fleet.watch(), observer.run(), memory.run())]
            try:
                await self._until_ready(stage)
                began = time.monotonic()
                await self._load(injector, feeder, observer, watching)
                seconds = time.monotonic() - began
                _mend(fleet)
                await self._confirm(feeder)
                quiet = await self._until_quiet(feeder, observer, watching)
                if self._options.events:
                    seconds = time.monotonic() - began  # how long its events took, to the last
            finally:
                for task in watching:
                    task.cancel()
                await asyncio.gather(*watching, return_exceptions=True)
            killed = await fleet.stop()
            self._say("reading everything")
            return await self._account(stage, plan, feeder, memory, seconds=seconds, quiet=quiet, killed=killed)

    def _broker(self, stack: AsyncExitStack) -> Broker:
        program = launcher()
        data = self._scratch / "kafka"
        if program is None:
            self._say("NO APACHE KAFKA HERE: the embedded broker stands in; neither brokers nor schedulers die")
            return StandIn(data)
        real = RealKafka(program, data, self._options.nodes)
        guard = [
            sys.executable,
            "-m",
            "tests.chaos.guardian",
            str(os.getpid()),
            str(self._scratch),
            *real.stop_command(),
        ]
        guardian = subprocess.Popen(guard, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        stack.callback(guardian.wait)
        stack.callback(guardian.kill)
        return real

    def _feeder(self, kafka: KafkaSettings, observer: Observer) -> Feeder:
        events = stream(self._options.seed)
        box: list[Feeder] = []

        def may_feed() -> bool:
            return bool(self._options.rate) or box[0].confirmed - observer.done < MOST_OUTSTANDING

        box.append(Feeder(kafka, events, self._options.rate, may_feed, self._options.events))
        return box[0]

    async def _until_ready(self, stage: Stage) -> None:
        for name in (*SCHEDULERS, *WORKERS):
            stage.fleet[name].start()
        deadline = time.monotonic() + READY_SECONDS
        waiting = list(SCHEDULERS)
        while waiting and not self._stop.is_set():
            status = await status_of(stage.redis.url, stage.kafka, waiting[0])
            if status is not None and status.state in {"running", "paused"} and status.workers:
                waiting.pop(0)
            elif time.monotonic() > deadline:
                raise BenchError(f"{waiting[0]} does not run: {stage.fleet[waiting[0]].last_line()}")
            else:
                await asyncio.sleep(TICK_SECONDS)

    async def _load(
        self, injector: Injector, feeder: Feeder, observer: Observer, watching: list[asyncio.Task[None]]
    ) -> None:
        """Feed and inject."""
        began = time.monotonic()
        self._feeding = feeding = asyncio.create_task(feeder.run())
        injecting = asyncio.create_task(injector.run())
        told = began
        try:
            while not self._stop.is_set():
                if not self._options.events and time.monotonic() - began >= self._options.seconds:
                    break
                if feeding.done():
                    break
                _raise_failures([feeding, injecting, *watching])
                if time.monotonic() - told >= PROGRESS_SECONDS:
                    told = time.monotonic()
                    self._say(_progress(told - began, feeder, observer))
                await asyncio.sleep(TICK_SECONDS)
        finally:
            feeder.stop()
            injecting.cancel()
            # What is being done is undone on the way out: brokers come back, paused processes go on.
            await asyncio.gather(injecting, return_exceptions=True)

    async def _confirm(self, feeder: Feeder) -> None:
        """Wait for the feeder: what it could not confirm may be on the topics or not."""
        assert self._feeding is not None
        try:
            async with asyncio.timeout(MOST_QUIET_SECONDS):
                await self._feeding
        except TimeoutError:
            raise BenchError(f"the feeder could not confirm {feeder.unconfirmed:,} events") from None

    async def _until_quiet(self, feeder: Feeder, observer: Observer, watching: list[asyncio.Task[None]]) -> bool:
        """Wait until everything published is done; False when the rest does not come."""
        deadline = time.monotonic() + MOST_QUIET_SECONDS
        since = time.monotonic()
        told = since
        while observer.done < feeder.confirmed:
            _raise_failures(watching)
            now = time.monotonic()
            if now > deadline or now - max(since, observer.last_new_at) > QUIET_SECONDS:
                return False
            if now - told >= PROGRESS_SECONDS:
                told = now
                self._say(f"getting quiet: {feeder.confirmed - observer.done:,} events are not done")
            await asyncio.sleep(TICK_SECONDS)
        return True

    async def _account(
        self,
        stage: Stage,
        plan: list[Fault],
        feeder: Feeder,
        memory: Memory,
        *,
        seconds: float,
        quiet: bool,
        killed: list[str],
    ) -> Run:
        inputs = await read_inputs(stage.kafka)
        outcomes = await read_outcomes(stage.kafka, committed=self._committed)
        incidents = [*stage.incidents, *_crashes(stage.fleet), *_told(stage.fleet)]
        incidents.sort(key=lambda incident: incident.began_ms)
        mark_undrained(incidents)
        verdict = judge(account(inputs, outcomes), incidents, covers, nodes=self._options.nodes)
        vanished = [
            f"{topic}/{number}: confirmed up to {highest}, ends at {inputs[topic, number][-1:].tolist()}"
            for (topic, number), highest in feeder.highest.items()
            if not inputs[topic, number] or inputs[topic, number][-1] < highest
        ]
        return Run(
            options=self._options,
            plan=plan,
            broker=stage.broker.name,
            seconds=seconds,
            verdict=verdict,
            memory=memory,
            exits=stage.fleet.exits,
            input_duplicates=max(0, verdict.ledger.events - feeder.made - feeder.malformed),
            vanished=vanished,
            quiet=quiet,
            interrupted=self._stop.is_set(),
            killed_at_stop=killed,
        )


def _progress(seconds: float, feeder: Feeder, observer: Observer) -> str:
    kinds = ", ".join(f"{kind} {number:,}" for kind, number in sorted(observer.kinds.items()))
    waiting = feeder.confirmed - observer.done
    return (
        f"{seconds:7.1f} s  fed {feeder.confirmed:,} ({feeder.unconfirmed:,} unconfirmed), done {observer.done:,} "
        f"({kinds}), waiting {waiting:,}, repeated {observer.repeated:,}"
    )


def _mend(fleet: Fleet) -> None:
    """Let every process run that a cut-short fault left paused or dead."""
    for name in (*SCHEDULERS, *WORKERS):
        fleet[name].signal(signal.SIGCONT)
        fleet[name].start()


def _raise_failures(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            raise error


def _crashes(fleet: Fleet) -> list[Incident]:
    """Return what ended by itself, as incidents that explain duplicates."""
    return [
        Incident(number=0, kind=CRASH, target=e.name, began_ms=e.at_ns // 1_000_000, began_monotonic=0.0)
        for e in fleet.exits
        if e.name.startswith("scheduler-")
    ]


def _told(fleet: Fleet) -> list[Incident]:
    """Return what the schedulers' logs say."""
    found: list[Incident] = []
    for managed in fleet.all:
        if managed.kind == "scheduler" and managed.log.exists():
            found += incidents_in(managed.name, managed.log.read_text(encoding="utf-8", errors="replace").splitlines())
    return found


async def _create_topics(kafka: KafkaSettings) -> None:
    """Create the topics with the broker's time on all of them: completions must be comparable, whoever wrote them."""
    stamped = {"message.timestamp.type": "LogAppendTime"}
    deadline = time.monotonic() + kafka.connect_seconds
    while True:
        admin = AIOKafkaAdminClient(**kafka.client_options())
        try:
            await admin.start()
            wanted = [
                NewTopic(
                    name, kafka.partitions, kafka.replication, topic_configs={**topic_config(kafka, name), **stamped}
                )
                for name in topic_names(kafka)
            ]
            await admin.create_topics(wanted)
            break
        except (KafkaError, OSError, AttributeError):
            # AttributeError: aiokafka asks a controller that is not elected for its id.
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(TICK_SECONDS)
        finally:
            await admin.close()
    await ensure_topics(kafka)


def keep_logs(scratch: Path, directory: Path) -> None:
    """Copy the logs of all processes beside the report."""
    logs = directory / "logs"
    logs.mkdir(exist_ok=True)
    for log in scratch.glob("*.log"):
        shutil.copy(log, logs / log.name)
    for log in (scratch / "kafka").glob("node-*/broker.log"):
        shutil.copy(log, logs / f"{log.parent.name}.log")
    for log in (scratch / "redis").glob("*.log"):
        shutil.copy(log, logs / f"redis-{log.name}")


def plan_lines(options: Options, plan: list[Fault]) -> list[str]:
    """Return the plan for people: the command that repeats it, then a line per fault."""
    lines = [options.command()]
    lines += [
        f"  #{f.number:<4}{f.at:8.1f} s  {f.kind:<18} {f.target:<12} {f.seconds:6.2f} s"
        + (f"  amount {f.amount:g}" if f.amount else "")
        for f in plan
    ]
    return lines


def handle_signals(bench: Bench) -> None:
    """End the load at the first Ctrl-C or SIGTERM; a second one ends everything at once."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    seen: list[int] = []

    def on_signal(number: int) -> None:
        if seen and task is not None:
            task.cancel()
        seen.append(number)
        bench.interrupt()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)


def dump(run: Run) -> str:
    """Return the JSON object on one line."""
    return json.dumps(run.as_dict())
