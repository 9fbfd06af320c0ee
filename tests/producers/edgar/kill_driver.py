"""Runs feeds in child processes that kill themselves with SIGKILL around a publish; used by ``test_kill``."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from ops.logs import configure
from producers.edgar import service
from producers.edgar.seen import SeenFilings
from producers.outlet import Outlet
from producers.publish import EventPublisher
from schemas.records import Event
from schemas.settings import EdgarSettings, KafkaSettings, LogSettings, RedisSettings

CHILDREN_MOST = 400


class Point(StrEnum):
    """Where a child dies."""

    FETCHED = "fetched"
    HALF_PUBLISHED = "half_published"
    PUBLISHED = "published"
    CONFIRMED = "confirmed"
    REMEMBERED = "remembered"


class Task(msgspec.Struct):
    """What the driver is to do."""

    url: str
    bootstrap: str
    prefix: str
    redis: str
    kills: int
    seed: int


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(point: Point, after: int) -> None:
    """Make this process die at a point of its publish number ``after``, counted from 0."""
    sends = 0

    class DeadlyOutlet(Outlet):
        async def _publish_all(self, publisher: EventPublisher, events: Sequence[Event], trace: str) -> bool:
            nonlocal sends
            sends += 1
            if sends <= after:
                return await super()._publish_all(publisher, events, trace)
            if point is Point.FETCHED:
                die()
            if point is Point.HALF_PUBLISHED:
                await super()._publish_all(publisher, events[: len(events) // 2], trace)
                die()
            if point is Point.PUBLISHED:
                for event in events:
                    await publisher.publish(event)
                die()
            done = await super()._publish_all(publisher, events, trace)
            if point is Point.CONFIRMED:
                die()
            return done

    class DeadlySeen(SeenFilings):
        async def mark(self, accession: str) -> None:
            await super().mark(accession)
            if sends > after and point is Point.REMEMBERED:
                die()

    # The seam of this test; everything else in the process is what `tapewire feed edgar` runs.
    vars(service).update(Outlet=DeadlyOutlet, SeenFilings=DeadlySeen)


def feed_once(task: Task) -> None:
    """Look at the feed once, as ``tapewire feed edgar --once`` does."""
    settings = EdgarSettings(
        user_agent="Tapewire tests tests@example.com",
        base_url=task.url,
        data_url=task.url,
        tickers=False,
        part_chars=500,
        fetchers=1,
    )
    kafka = KafkaSettings(bootstrap=task.bootstrap, topic_prefix=task.prefix)
    asyncio.run(service.serve(settings, kafka, RedisSettings(url=task.redis), asyncio.Event(), once=True))


def child(task: Task, number: int) -> int:
    """Run one child that is to die; return the signal that ended it, or 0."""
    pid = os.fork()
    if not pid:
        draw = random.Random(task.seed + number)
        deadly(draw.choice(list(Point)), draw.randint(0, 1))
        feed_once(task)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def main() -> None:
    """Kill as often as asked, then let one feed end; print what happened."""
    configure(LogSettings(level="warning", format="json"))
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    kills = children = 0
    while kills < task.kills and children < CHILDREN_MOST:
        kills += child(task, children) == signal.SIGKILL
        children += 1
    feed_once(task)
    sys.stdout.write(json.dumps({"kills": kills, "children": children}))


if __name__ == "__main__":
    main()
