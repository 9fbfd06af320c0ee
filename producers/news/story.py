"""The chain of a story's versions: what an arriving version is to the last one, decided without I/O."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec import Struct

from producers.news.item import MAX_VERSION, NewsItem, to_event
from schemas.enums import NewsStatus
from schemas.records import Nanoseconds, NewsEvent

EARLIER_KEPT = 32
"""Versions that a kill takes back; a story with more is a live blog, and its oldest signals are long stale."""
SEEN_KEPT = 32
"""Digests per story by which a replayed old version is recognised when the source numbers nothing."""


class StoryState(Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What is known of a story: its newest version, and enough of the older ones.

    Args:
        version: number of the newest version; 0 for a story that was killed before anything of it was published.
        event_id: of the newest version that was published; ``""`` when none was.
        status: of the newest version.
        declared: the source's own number of it; 0 when it has none.
        revised_at_ns: when it was made; 0 when unknown.
        digests: of the newest versions' contents, the newest last.
        earlier: event ids published before ``event_id``, oldest first.
        instruments: of the last version that had any; a kill notice rarely repeats them.
    """

    version: int
    event_id: str = ""
    status: NewsStatus = NewsStatus.USABLE
    declared: int = 0
    revised_at_ns: Nanoseconds = 0
    digests: list[str] = []
    earlier: list[str] = []
    instruments: list[str] = []

    def after_kill(self) -> bool:
        """Return whether the story is killed now."""
        return self.status is NewsStatus.KILLED


class Verdict(StrEnum):
    """What an arriving version is."""

    NEW = "new"
    CHANGED = "changed"
    """A newer version with other content: supersedes the last one."""
    KILLED = "killed"
    DUPLICATE = "duplicate"
    """Seen before: a replay after a reconnect, a page fetched again."""
    UNCHANGED = "unchanged"
    """A newer version that says the same: nothing to publish."""
    STALE = "stale"
    """Older than what is known: arrived out of order."""
    HELD = "held"
    """Under embargo: published when its time comes."""
    WITHDRAWN = "withdrawn"
    """Killed while all of it was held: nothing was sent, and nothing is."""


PUBLISHED = frozenset({Verdict.NEW, Verdict.CHANGED, Verdict.KILLED})


class Judged(NamedTuple):
    """A verdict, the event to publish with it, and the story's state once that is done."""

    verdict: Verdict
    event: NewsEvent | None
    state: StoryState


def judge(item: NewsItem, state: StoryState | None, received_at_ns: Nanoseconds) -> Judged:
    """Place an item in its story's chain.

    The same item and state always give the same event id: a crash between publishing and remembering repeats an id,
    it never makes a second one.
    """
    digest = digest_of(item.headline, item.body, item.instruments, item.status)
    if state is None:
        state = StoryState(version=0)
        verdict = Verdict.KILLED if item.status is NewsStatus.KILLED else Verdict.NEW
    else:
        verdict = _verdict(item, state, digest)
    if verdict in (Verdict.DUPLICATE, Verdict.STALE):
        return Judged(verdict, None, state)
    if verdict is Verdict.UNCHANGED:
        return Judged(verdict, None, _seen(state, item, digest))
    version = _next_version(item, state)
    if verdict is Verdict.KILLED and not item.instruments:
        item = msgspec.structs.replace(item, instruments=state.instruments)
    supersedes = state.event_id or (f"{item.key}:{item.previous}" if item.previous else None)
    event = to_event(item, received_at_ns, version=version, supersedes=supersedes, status=_status(item, supersedes))
    if verdict is Verdict.KILLED and state.earlier:
        event = msgspec.structs.replace(event, earlier=state.earlier)
    return Judged(verdict, event, _published(state, item, event, digest))


def held_back(item: NewsItem, state: StoryState | None) -> StoryState:
    """Return the state of a story whose kill came while all of it was still held: nothing to take back, all known."""
    base = state or StoryState(version=0)
    digest = digest_of(item.headline, item.body, item.instruments, item.status)
    return msgspec.structs.replace(_seen(base, item, digest), status=NewsStatus.KILLED)


def unpublished(item: NewsItem) -> StoryState:
    """Return the state of a story that is known and was not published: it was old when its feed was first read."""
    digest = digest_of(item.headline, item.body, item.instruments, item.status)
    return _seen(StoryState(version=item.declared or 1, status=item.status), item, digest)


def is_older(item: NewsItem, than: NewsItem) -> bool:
    """Return whether one version of a story was made before another, as far as the source tells."""
    if item.declared and than.declared:
        return item.declared < than.declared
    return bool(item.revised_at_ns and than.revised_at_ns) and item.revised_at_ns < than.revised_at_ns


def state_of(event: NewsEvent, before: StoryState | None) -> StoryState:
    """Return the state that publishing an event left behind, read from the topic again."""
    if before and before.version >= event.version:
        return before
    digests = [*(before.digests if before else []), _event_digest(event)]
    earlier = [*event.earlier, *([event.supersedes] if event.supersedes else [])]
    if not event.earlier and before and before.event_id:
        earlier = [*before.earlier, before.event_id]
    return StoryState(
        version=event.version,
        event_id=event.event_id,
        status=event.status,
        revised_at_ns=event.published_at_ns,
        digests=digests[-SEEN_KEPT:],
        earlier=earlier[-EARLIER_KEPT:],
        instruments=event.instruments or (before.instruments if before else []),
    )


def digest_of(headline: str, body: str, instruments: Iterable[str], status: NewsStatus) -> str:
    """Return what tells one version's content from another's; corrected or not, the same words are the same."""
    killed = "killed" if status is NewsStatus.KILLED else ""
    parts = "\x1f".join((headline, body, ",".join(sorted(instruments)), killed))
    return blake2b(parts.encode(), digest_size=12).hexdigest()


def _event_digest(event: NewsEvent) -> str:
    return digest_of(event.headline, event.body, event.instruments, event.status)


def _verdict(item: NewsItem, state: StoryState, digest: str) -> Verdict:
    killed = item.status is NewsStatus.KILLED
    if killed and state.after_kill():
        return Verdict.DUPLICATE
    same = bool(state.digests) and state.digests[-1] == digest
    order = _order(item, state)
    if order < 0:
        return Verdict.DUPLICATE if digest in state.digests else Verdict.STALE
    if killed:
        return Verdict.KILLED
    if order == 0 and (same or digest in state.digests):
        return Verdict.DUPLICATE
    return Verdict.UNCHANGED if same else Verdict.CHANGED


def _order(item: NewsItem, state: StoryState) -> int:
    """Return 1 for a version newer than the known one, -1 for an older one, 0 where the source does not tell."""
    known = state.declared or (state.version if item.declared else 0)
    if item.declared and known and item.declared != known:
        return 1 if item.declared > known else -1
    if item.revised_at_ns and state.revised_at_ns and item.revised_at_ns != state.revised_at_ns:
        return 1 if item.revised_at_ns > state.revised_at_ns else -1
    return 0


def _next_version(item: NewsItem, state: StoryState) -> int:
    """Return the source's number, unless it was used up already; versions of a story only ever rise."""
    return min(max(item.declared, state.version + 1), MAX_VERSION)


def _status(item: NewsItem, supersedes: str | None) -> NewsStatus:
    if item.status is NewsStatus.USABLE and supersedes:
        return NewsStatus.CORRECTED
    return item.status


def _seen(state: StoryState, item: NewsItem, digest: str) -> StoryState:
    return msgspec.structs.replace(
        state,
        declared=item.declared or state.declared,
        revised_at_ns=max(item.revised_at_ns, state.revised_at_ns),
        digests=[*(d for d in state.digests if d != digest), digest][-SEEN_KEPT:],
    )


def _published(state: StoryState, item: NewsItem, event: NewsEvent, digest: str) -> StoryState:
    earlier = [*state.earlier, *([state.event_id] if state.event_id else [])]
    return msgspec.structs.replace(
        _seen(state, item, digest),
        version=event.version,
        event_id=event.event_id,
        status=event.status,
        earlier=earlier[-EARLIER_KEPT:],
        instruments=item.instruments or state.instruments,
    )
