"""The chain of a story's versions, decided without I/O."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from producers.news.item import NewsItem
from producers.news.story import PUBLISHED, StoryState, Verdict, held_back, is_older, judge, state_of, unpublished
from schemas.enums import NewsStatus
from schemas.records import NewsEvent
from tests.producers.news.documents import RECEIVED

SECOND = 10**9


def item(headline: str = "Vantor cuts its dividend", **fields: Any) -> NewsItem:
    """One version of the story ``wire:7``."""
    return NewsItem(source="wire", story="7", headline=headline, **fields)


def run(*items: NewsItem) -> tuple[list[Verdict], list[NewsEvent], StoryState | None]:
    """Verdicts, events and the last state of these items, one after the other."""
    state: StoryState | None = None
    verdicts, events = [], []
    for version in items:
        judged = judge(version, state, RECEIVED)
        verdicts.append(judged.verdict)
        if judged.event:
            events.append(judged.event)
        state = judged.state
    return verdicts, events, state


def test_a_first_version_is_new() -> None:
    """An unknown story is published as version 1 and supersedes nothing."""
    verdicts, (event,), _ = run(item())
    assert verdicts == [Verdict.NEW]
    assert (event.event_id, event.version, event.status, event.supersedes) == ("wire:7:1", 1, NewsStatus.USABLE, None)


def test_a_correction_supersedes_the_version_before() -> None:
    """Changed words are the next version: corrected, naming what it replaces."""
    verdicts, events, _ = run(item("cut 5%"), item("cut 15%", revised_at_ns=RECEIVED))
    assert verdicts == [Verdict.NEW, Verdict.CHANGED]
    assert (events[1].event_id, events[1].supersedes, events[1].status) == (
        "wire:7:2",
        "wire:7:1",
        NewsStatus.CORRECTED,
    )


def test_the_sources_own_numbers_are_kept() -> None:
    """Numbered versions keep their numbers, with gaps."""
    _, events, _ = run(item("a", declared=3), item("b", declared=7))
    assert [event.event_id for event in events] == ["wire:7:3", "wire:7:7"]
    assert events[1].supersedes == "wire:7:3"


def test_a_kill_takes_back_every_version() -> None:
    """A kill names the last version in supersedes, older ones in earlier, and the story's instruments."""
    _, events, state = run(
        item("a", instruments=["VNTR"]),
        item("b", revised_at_ns=1 * SECOND),
        item("c", revised_at_ns=2 * SECOND),
        NewsItem(source="wire", story="7", headline="", status=NewsStatus.KILLED, revised_at_ns=3 * SECOND),
    )
    killed = events[-1]
    assert killed.status is NewsStatus.KILLED
    assert killed.supersedes == "wire:7:3"
    assert killed.earlier == ["wire:7:1", "wire:7:2"]
    assert killed.instruments == ["VNTR"]
    assert state is not None
    assert state.after_kill()


def test_a_kill_of_an_unknown_story_is_published() -> None:
    """What was sent before our memory begins may still have to be taken back; the source may say which it was."""
    verdicts, (event,), _ = run(item("", status=NewsStatus.KILLED, declared=4, previous=3))
    assert verdicts == [Verdict.KILLED]
    assert (event.event_id, event.supersedes) == ("wire:7:4", "wire:7:3")


def test_replays_after_a_reconnect_are_recognised() -> None:
    """Everything that a vendor sends again, in any order, is published no second time."""
    versions = [
        item("a", revised_at_ns=1 * SECOND),
        item("b", revised_at_ns=2 * SECOND),
        item("", status=NewsStatus.KILLED),
    ]
    verdicts, events, _ = run(*versions, *versions, *reversed(versions))
    assert len(events) == 3
    assert not PUBLISHED & set(verdicts[3:])


def test_replays_without_numbers_or_times_are_recognised_by_their_words() -> None:
    """A source that tells no order is known by content: an old version that comes again is no new one."""
    verdicts, _, _ = run(item("a"), item("b"), item("a"), item("b"))
    assert verdicts == [Verdict.NEW, Verdict.CHANGED, Verdict.DUPLICATE, Verdict.DUPLICATE]


def test_a_late_old_version_is_stale() -> None:
    """A version that arrives after a newer one is not published, by number or by time."""
    assert run(item("b", declared=2), item("a", declared=1))[0] == [Verdict.NEW, Verdict.STALE]
    late = run(item("b", revised_at_ns=2 * SECOND), item("a", revised_at_ns=1 * SECOND))
    assert late[0] == [Verdict.NEW, Verdict.STALE]


def test_a_late_first_version_does_not_bring_a_killed_story_back() -> None:
    """A story that was deleted before its creation arrived stays deleted."""
    kill = item("", status=NewsStatus.KILLED, revised_at_ns=2 * SECOND)
    verdicts, _, _ = run(kill, item("a", revised_at_ns=1 * SECOND))
    assert verdicts == [Verdict.KILLED, Verdict.STALE]


def test_a_source_can_bring_a_killed_story_back() -> None:
    """A usable version made after the kill is published and supersedes it."""
    verdicts, events, _ = run(
        item("a", declared=1), item("", status=NewsStatus.KILLED, declared=2), item("a", declared=3)
    )
    assert verdicts == [Verdict.NEW, Verdict.KILLED, Verdict.CHANGED]
    assert (events[2].supersedes, events[2].status) == ("wire:7:2", NewsStatus.CORRECTED)


def test_the_same_words_under_a_new_number_are_no_news() -> None:
    """A version that changes nothing is remembered and not published; the next change counts from it."""
    verdicts, events, _ = run(
        item("a", declared=1), item("a", declared=2), item("a", declared=1), item("b", declared=3)
    )
    assert (
        verdicts == [Verdict.NEW, Verdict.UNCHANGED, Verdict.STALE, Verdict.CHANGED] or verdicts[2] is Verdict.DUPLICATE
    )
    assert [event.event_id for event in events] == ["wire:7:1", "wire:7:3"]


def test_changed_words_under_the_same_number_are_a_new_version() -> None:
    """A source that edits without a new number still gives two event ids, never two texts under one."""
    _, events, _ = run(item("a", declared=1), item("b", declared=1), item("c", declared=2))
    assert [event.event_id for event in events] == ["wire:7:1", "wire:7:2", "wire:7:3"]


def test_the_same_input_gives_the_same_id_again() -> None:
    """Judging an item twice from one state, as after a crash, gives one event id."""
    _, _, state = run(item("a"))
    change = item("b", revised_at_ns=SECOND)
    assert judge(change, state, RECEIVED).event == judge(change, state, RECEIVED).event


def test_a_story_that_was_old_news_is_known() -> None:
    """What was taken as known on a feed's first page is no news later; a change of it is, and supersedes nothing."""
    state = unpublished(item("a"))
    assert judge(item("a"), state, RECEIVED).verdict is Verdict.DUPLICATE
    changed = judge(item("b"), state, RECEIVED)
    assert changed.verdict is Verdict.CHANGED
    assert changed.event is not None
    assert (changed.event.version, changed.event.supersedes) == (2, None)


def test_a_story_withdrawn_before_its_time_stays_so() -> None:
    """After a kill under embargo neither the kill nor the withdrawn version is published when they come again."""
    kill = item("", status=NewsStatus.KILLED, revised_at_ns=2 * SECOND)
    state = held_back(kill, None)
    assert judge(kill, state, RECEIVED).verdict is Verdict.DUPLICATE
    assert judge(item("a", revised_at_ns=SECOND), state, RECEIVED).verdict is Verdict.STALE


def test_the_topic_tells_what_was_published() -> None:
    """From the events alone the state comes back: the same versions are known, and a kill takes back the same ids."""
    versions = [item("a", instruments=["VNTR"]), item("b", revised_at_ns=SECOND, published_at_ns=SECOND)]
    _, events, state = run(*versions)
    read: StoryState | None = None
    for event in events:
        read = state_of(event, read)
    assert read is not None
    for version in versions:
        assert judge(version, read, RECEIVED).verdict is Verdict.DUPLICATE
    kill = item("", status=NewsStatus.KILLED)
    assert judge(kill, read, RECEIVED).event == judge(kill, state, RECEIVED).event


def test_order_is_by_number_then_by_time() -> None:
    """Of two versions the one with the smaller number is older; without numbers the one made earlier."""
    assert is_older(item(declared=1, revised_at_ns=9), item(declared=2, revised_at_ns=1))
    assert is_older(item(revised_at_ns=1), item(revised_at_ns=2))
    assert not is_older(item(), item(revised_at_ns=2))


VERSIONS = st.builds(
    item,
    headline=st.sampled_from(["a", "b", "c"]),
    declared=st.integers(0, 3),
    revised_at_ns=st.sampled_from([0, SECOND, 2 * SECOND]),
    status=st.sampled_from(list(NewsStatus)),
)


@given(st.lists(VERSIONS, max_size=12))
def test_ids_are_unique_and_chains_have_no_gap(items: list[NewsItem]) -> None:
    """Whatever arrives, no event id comes twice, versions rise, and each names the published one before it."""
    _, events, state = run(*items)
    ids = [event.event_id for event in events]
    assert len(ids) == len(set(ids))
    assert [event.version for event in events] == sorted(event.version for event in events)
    for before, after in pairwise(events):
        assert after.supersedes == before.event_id
    if events and state is not None:
        assert state.event_id == ids[-1]


@given(st.permutations(range(1, 7)), st.permutations(range(1, 7)), st.integers(1, 6))
def test_a_full_replay_publishes_nothing(arrival: list[int], replay: list[int], count: int) -> None:
    """A source with its own numbers that sends its whole past again, in any order, adds nothing."""
    versions = {number: item(f"version {number}", declared=number) for number in arrival[:count]}
    _, _, state = run(*versions.values())
    for number in replay:
        if number in versions:
            assert judge(versions[number], state, RECEIVED).verdict not in PUBLISHED
