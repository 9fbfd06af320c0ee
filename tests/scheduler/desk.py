"""A scheduler without Kafka: planner, registry and link as they are, and a list of work with a count of its ends."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from scheduler.link import WorkerLink
from scheduler.planner import Plan, Planner
from scheduler.quarantine import blame
from scheduler.work import Work
from scheduler.workers import WorkerRegistry
from schemas.frames import Failure, Request, Result, Started
from schemas.settings import ClassSettings, LinkSettings, SchedulerSettings
from tests.scheduler import make

CLASSES = (
    ClassSettings(name="flash", slo_ms=600_000, extractor="headline"),
    ClassSettings(name="standard", slo_ms=600_000, extractor="headline"),
    ClassSettings(name="bulk", slo_ms=600_000, extractor="filing"),
)
"""Classes whose work never gets too old to run, however slow the machine is."""


class Desk:
    """Gives work to workers and counts how it ends; implements `scheduler.workers.WorkEvents` as the service does.

    Args:
        link: where its workers come.
        ended: how often each event has ended, in earlier lives too.
        make_link: makes something else than a socket.
    """

    def __init__(
        self,
        link: LinkSettings,
        ended: Counter[str] | None = None,
        make_link: Callable[[str, WorkerRegistry], Any] | None = None,
    ) -> None:
        self.ended: Counter[str] = ended if ended is not None else Counter()
        self.quarantined: list[str] = []
        self.deaths = 0
        self.requeued = 0
        self.works: dict[str, Work] = {}
        self.started_at: dict[str, float] = {}
        settings = SchedulerSettings(classes=CLASSES)
        self.planner = Planner(CLASSES, first_request_id=time.time_ns() // 1000)
        self.registry = WorkerRegistry(self.planner, settings, self)
        session = uuid.uuid4().hex
        self.link = make_link(session, self.registry) if make_link else WorkerLink(link, session, self.registry)
        self.closed = False
        self._pump_scheduled = False

    def add(self, event_id: str, class_index: int = 1, tokens: int = 20) -> None:
        """Queue one event."""
        work = make.work(class_index, tokens=tokens, deadline_ns=time.time_ns() + 600 * 10**9, event_id=event_id)
        self.works[event_id] = work
        self.planner.add(work)
        self.wake()

    @property
    def open(self) -> list[str]:
        """Events that have not ended."""
        return [event_id for event_id in self.works if not self.ended[event_id]]

    def takes_nothing(self) -> bool:
        """Return whether no worker's budget has anything taken, however small."""
        budgets = [member.budget for member in self.registry._members.values()]
        counts = [
            (
                b.seqs,
                b.step_tokens,
                b.kv_blocks,
                b.lower_prefill,
                b.lower_decodes,
                b.urgent_tokens,
                b.late_tokens,
                len(b._uses),
            )
            for b in budgets
        ]
        return self.planner.total_in_flight == 0 and not any(any(count) for count in counts)

    def wake(self) -> None:
        """Plan in the next turn of the loop."""
        if not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self.closed:
            return
        self.carry_out(self.planner.plan(time.time_ns()))

    def carry_out(self, plan: Plan) -> None:
        """Send what was planned."""
        for worker_id, request_id in plan.aborts:
            self.link.send_abort(worker_id, [request_id])
        requests: defaultdict[str, list[Request]] = defaultdict(list)
        for work, worker_id in plan.dispatches:
            work.dispatched_ns = time.time_ns()
            service_class = CLASSES[work.class_index]
            requests[worker_id].append(
                Request(
                    request_id=work.request_id,
                    text_tokens=work.tokens,
                    service_class=service_class.name,
                    priority=work.class_index,
                    deadline_ns=work.deadline_ns,
                    extractor=service_class.extractor,
                )
            )
        for worker_id in requests.keys() | plan.policies.keys():
            self.link.send_requests(worker_id, requests[worker_id], plan.policies.get(worker_id))

    # WorkEvents

    def worker_ready(self) -> None:
        """Plan."""
        self.wake()

    def worker_gone(self, lost: list[Work], *, died: bool, moved: Sequence[Work] = ()) -> None:
        """Queue what was lost again, or end it when it is what kills workers."""
        self.deaths += died
        killer = blame([*lost, *moved]) if died else None
        if killer is not None and not any(work is killer for work in lost):
            killer.suspect = True
        for work in lost:
            if work is killer:
                self.quarantined.append(work.event_id)
                self.ended[work.event_id] += 1
            else:
                self.requeued += 1
                work.forget_run()
                self.planner.add(work)
        self.wake()

    def request_started(self, work: Work, started: Started) -> None:
        """Plan."""
        self.started_at[work.event_id] = time.monotonic()
        self.wake()

    def request_done(self, work: Work, result: Result, worker_id: str) -> None:
        """Count the end."""
        self.started_at.setdefault(work.event_id, time.monotonic())
        self.ended[work.event_id] += 1
        self.wake()

    def request_failed(self, work: Work, failure: Failure) -> None:
        """Queue it again where that may help."""
        if failure.retryable:
            work.forget_run()
            self.planner.add(work)
        else:
            self.ended[work.event_id] += 1
        self.wake()


@asynccontextmanager
async def desk(link: LinkSettings, ended: Counter[str] | None = None) -> AsyncIterator[Desk]:
    """Give a desk whose link listens."""
    one = Desk(link, ended)
    one.link.start()
    try:
        yield one
    finally:
        one.link.close()
