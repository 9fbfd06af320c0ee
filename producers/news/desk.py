"""The news desk: takes items from all sources, places them in their chains, publishes, and only then remembers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog

from producers.news.duplicates import DuplicateIndex
from producers.news.item import NewsItem
from producers.news.statements import changed_sentences
from producers.news.store import Changes, Held, NewsStore, StatementState
from producers.news.story import Judged, StoryState, Verdict, held_back, is_older, judge
from producers.outlet import Outlet
from producers.times import SECOND
from schemas.enums import NewsStatus
from schemas.errors import TapewireError, UnavailableError
from schemas.records import Nanoseconds, NewsEvent

log = structlog.get_logger()

WAITING = 64
"""Submissions that wait for the desk before their sources have to: back-pressure when Kafka is slow."""
BATCH_ITEMS = 500
"""Items per confirmation; a feed page has some dozens, and a batch costs one round trip to Kafka and two to Redis."""
LOOK_SECONDS = 30.0
"""Longest sleep before embargoes are looked at again: the wall clock may be set meanwhile."""
LATENCIES_KEPT = 10_000

OnEvent = Callable[[NewsEvent], None]


@dataclass(kw_only=True, slots=True)
class Receipt:
    """What became of one submission; given once all of it is confirmed and remembered.

    Args:
        published: event ids, in order.
        verdicts: how many items had which verdict.
    """

    published: list[str] = field(default_factory=list)
    verdicts: Counter[Verdict] = field(default_factory=Counter)


@dataclass(kw_only=True, slots=True)
class _Submission:
    items: Sequence[NewsItem]
    received_at_ns: Nanoseconds
    done: asyncio.Future[Receipt]
    receipt: Receipt = field(default_factory=Receipt)


@dataclass(kw_only=True, slots=True)
class _Batch:
    """One batch in work: what is known, what will be known once it is confirmed, what to publish."""

    stories: dict[str, StoryState]
    statements: dict[str, StatementState | None]
    changes: Changes = field(default_factory=Changes)
    events: list[NewsEvent] = field(default_factory=list)

    def state(self, key: str) -> StoryState | None:
        return self.changes.stories.get(key) or self.stories.get(key)


class NewsDesk:
    """One writer for all sources, so that a story's versions cannot overtake each other.

    Args:
        store: what was seen and what is held.
        outlet: open; waits for brokers that are away.
        duplicates: marks near-duplicate headlines.
        now_ns: wall clock, nanoseconds since the epoch.
        on_event: called for every event once it is confirmed.
    """

    def __init__(
        self,
        store: NewsStore,
        outlet: Outlet,
        duplicates: DuplicateIndex,
        *,
        now_ns: Callable[[], int] = time.time_ns,
        on_event: OnEvent | None = None,
    ) -> None:
        self._store = store
        self._outlet = outlet
        self._duplicates = duplicates
        self._now_ns = now_ns
        self._on_event = on_event
        self._held: dict[str, Held] = {}
        self._waiting: deque[_Submission] = deque()
        self._room = asyncio.Semaphore(WAITING)
        self._wake = asyncio.Event()
        self._over: TapewireError | None = None
        self.verdicts: Counter[Verdict] = Counter()
        self.latencies_ns: deque[int] = deque(maxlen=LATENCIES_KEPT)
        """From the arrival of an item's bytes to the confirmation of its event; embargoed items count from release."""

    @property
    def held(self) -> int:
        """Items under embargo."""
        return len(self._held)

    async def submit(self, items: Sequence[NewsItem], received_at_ns: Nanoseconds) -> Receipt:
        """Hand items over and wait until they are published, held or known; a caller that gives up changes nothing.

        Raises:
            UnavailableError: Redis is away, or the desk is closed.
            PublishError: Kafka refuses a record.
        """
        async with self._room:
            if self._over:
                raise self._over
            done: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
            self._waiting.append(_Submission(items=items, received_at_ns=received_at_ns, done=done))
            self._wake.set()
            return await done

    def wake(self) -> None:
        """Look at the embargoes now."""
        self._wake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set and nothing waits any more.

        Raises:
            UnavailableError, PublishError: as `submit`; every waiting submission gets the error too.
        """
        stopping = asyncio.create_task(self._wake_at(stop))
        batch: list[_Submission] = []
        try:
            self._held = await self._store.held()
            while True:
                batch = self._taken()
                if batch or self._due():
                    await self._work(batch)
                elif stop.is_set():
                    break
                else:
                    await self._sleep()
            self._over = UnavailableError("the news desk", "news", "it is closed")
        except TapewireError as error:
            self._over = error
            raise
        finally:
            stopping.cancel()
            over = self._over or UnavailableError("the news desk", "news", "it was ended")
            self._over = over
            for submission in (*batch, *self._waiting):
                if not submission.done.done():
                    submission.done.set_exception(over)
                    submission.done.exception()  # whoever submitted may be gone; then nobody else would fetch it
            self._waiting.clear()

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _sleep(self) -> None:
        soonest = min((held.item.embargo_until_ns for held in self._held.values()), default=None)
        seconds = LOOK_SECONDS
        if soonest is not None:
            seconds = min(seconds, max(0.0, (soonest - self._now_ns()) / SECOND))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    def _taken(self) -> list[_Submission]:
        batch: list[_Submission] = []
        items = 0
        while self._waiting and (not batch or items + len(self._waiting[0].items) <= BATCH_ITEMS):
            submission = self._waiting.popleft()
            items += len(submission.items)
            batch.append(submission)
        return batch

    def _due(self) -> list[str]:
        now = self._now_ns()
        return [key for key, held in self._held.items() if held.item.embargo_until_ns <= now]

    async def _work(self, submissions: Sequence[_Submission]) -> None:
        """Publish one batch, confirm it, remember it: in this order, so that a crash repeats and never loses."""
        due = self._due()
        items = [item for submission in submissions for item in submission.items]
        items += [self._held[key].item for key in due]
        series = {item.statement for item in items if item.statement}
        work = _Batch(
            stories=await self._store.stories(item.key for item in items),
            statements={name: await self._store.statement(name) for name in series},
        )
        # Released first: what arrives now was made later.
        for key in due:
            self._place(self._held[key].item, self._now_ns(), work, Receipt())
            work.changes.release.add(key)
        for submission in submissions:
            for item in submission.items:
                self._place(item, submission.received_at_ns, work, submission.receipt)
        if work.events:
            await self._outlet.send(work.events)
        self._told(work.events)
        await self._store.save(work.changes)
        self._remember_held(work.changes)
        for submission in submissions:
            if not submission.done.done():
                submission.done.set_result(submission.receipt)

    def _remember_held(self, changes: Changes) -> None:
        for key in changes.release:
            self._held.pop(key, None)
        self._held.update(changes.hold)

    def _place(self, item: NewsItem, received_at_ns: Nanoseconds, work: _Batch, receipt: Receipt) -> None:
        """Decide about one item and note what follows from it."""
        verdict, judged = self._decide(item, received_at_ns, work)
        if judged:
            work.changes.stories[item.key] = judged.state
            if judged.event:
                event = self._completed(judged.event, item, work)
                work.events.append(event)
                receipt.published.append(event.event_id)
        receipt.verdicts[verdict] += 1
        self.verdicts[verdict] += 1

    def _decide(self, item: NewsItem, received_at_ns: Nanoseconds, work: _Batch) -> tuple[Verdict, Judged | None]:
        state = work.state(item.key)
        held = self._held_now(item.key, work)
        judged = judge(item, state, received_at_ns)
        if held and is_older(item, held.item):
            return Verdict.STALE, None
        if judged.event is None:
            return judged.verdict, judged if judged.verdict is Verdict.UNCHANGED else None
        killed = judged.verdict is Verdict.KILLED
        if item.embargo_until_ns > self._now_ns() and not killed:
            work.changes.hold[item.key] = Held(item=item, received_at_ns=received_at_ns)
            work.changes.release.discard(item.key)
            return Verdict.HELD, None
        if held:
            work.changes.hold.pop(item.key, None)
            work.changes.release.add(item.key)
            if killed and not (state and state.event_id):
                return Verdict.WITHDRAWN, Judged(Verdict.WITHDRAWN, None, held_back(item, state))
        return judged.verdict, judged

    def _held_now(self, key: str, work: _Batch) -> Held | None:
        if key in work.changes.hold:
            return work.changes.hold[key]
        return None if key in work.changes.release else self._held.get(key)

    def _completed(self, event: NewsEvent, item: NewsItem, work: _Batch) -> NewsEvent:
        """Return the event with what only the desk can know: near-duplicates, and what a statement changed."""
        if item.statement and event.status is not NewsStatus.KILLED:
            event = _with_changes(event, item, work)
        if first := self._duplicates.first(event):
            event = msgspec.structs.replace(event, duplicate_of=first)
        return event

    def _told(self, events: Sequence[NewsEvent]) -> None:
        now = self._now_ns()
        for event in events:
            self.latencies_ns.append(now - event.received_at_ns)
            log.debug("news_published", event_id=event.event_id, status=event.status.value)
            if self._on_event:
                self._on_event(event)


def _with_changes(event: NewsEvent, item: NewsItem, work: _Batch) -> NewsEvent:
    """Diff a statement against the one before it in its series."""
    last = work.changes.statements.get(item.statement) or work.statements.get(item.statement)
    if last and item.published_at_ns and last.published_at_ns > item.published_at_ns and last.story != item.key:
        return msgspec.structs.replace(event, notes=[*event.notes, "changed: older than the last statement"])
    before = ""
    if last:
        before = last.before if last.story == item.key else last.text
    work.changes.statements[item.statement] = StatementState(
        story=item.key, text=item.body, before=before, published_at_ns=item.published_at_ns
    )
    if not before:
        return msgspec.structs.replace(event, notes=[*event.notes, "changed: no statement before this one is known"])
    return msgspec.structs.replace(event, changed=changed_sentences(before, item.body))
