"""The schedule of a feed in virtual time, where every due time can be checked exactly."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest

from producers.events import repeated
from producers.file_feed import STOP_SECONDS, FeedProgress, FeedReport, feed_events
from producers.publish import EventPublisher, Headers
from producers.sample_data import sample_events
from schemas.errors import ConfigError, UnavailableError
from schemas.records import Event
from schemas.settings import KafkaSettings


class VirtualSelector(selectors.SelectSelector):
    """Jumps to the next timer instead of waiting for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Let the time that the loop would have waited be over."""
        self.now += max(timeout or 0.0, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while code runs."""

    def __init__(self) -> None:
        self.virtual = VirtualSelector()
        super().__init__(self.virtual)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self.virtual.now


def in_virtual_time(work: Coroutine[Any, Any, FeedReport]) -> FeedReport:
    """Run a feed on a virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class Recorder(EventPublisher):
    """A publisher without a broker, which has no place in virtual time: notes what was published when.

    Args:
        seconds: how long publishing the event of this number takes.
    """

    def __init__(self, seconds: Callable[[int], float] = lambda _: 0.0) -> None:
        super().__init__(KafkaSettings())
        self.at: list[float] = []
        self.events: list[Event] = []
        self._seconds = seconds

    async def publish(self, event: Event, headers: Headers = ()) -> None:
        """Note the event and its time."""
        self.at.append(asyncio.get_running_loop().time())
        self.events.append(event)
        if seconds := self._seconds(len(self.at) - 1):
            await asyncio.sleep(seconds)

    async def flush(self) -> dict[str, int]:
        """There is nothing to wait for."""
        return {}


def events(count: int) -> Iterable[Event]:
    """Sample events."""
    return repeated(sample_events(), count)


def test_events_are_published_at_their_due_times() -> None:
    """Event n of an open loop is published n / rate after the first, without drift."""
    recorder = Recorder()
    report = in_virtual_time(feed_events(events(1000), recorder, rate=40))
    assert recorder.at == pytest.approx([n / 40 for n in range(1000)])
    assert report.total == 1000
    assert report.seconds == pytest.approx(999 / 40)


def test_a_late_feed_catches_up() -> None:
    """After a stall the events that are overdue go out at once, and the next one is on its original time."""
    recorder = Recorder(lambda n: 1.0 if n == 10 else 0.0)
    in_virtual_time(feed_events(events(300), recorder, rate=100))
    assert recorder.at[11:111] == pytest.approx([1.1] * 100)
    assert recorder.at[111:] == pytest.approx([n / 100 for n in range(111, 300)])


def test_without_a_rate_nothing_waits() -> None:
    """A feed without a rate takes no time of its own."""
    recorder = Recorder()
    assert in_virtual_time(feed_events(events(1000), recorder)).seconds == 0
    assert len(recorder.at) == 1000


def test_a_stop_ends_the_wait_for_the_next_event() -> None:
    """A stop between two events ends the feed at once, and the report says so."""

    async def stopped_feed() -> FeedReport:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(100.5, stop.set)
        return await feed_events(events(1000), recorder, rate=0.1, stop=stop)

    recorder = Recorder()
    report = in_virtual_time(stopped_feed())
    assert report.stopped
    assert report.total == 11
    assert report.seconds == pytest.approx(100.5)


def test_a_stop_bounds_the_wait_for_a_stuck_broker() -> None:
    """A publisher that hangs when the stop comes is given up after the bound, with the setting named."""

    async def stuck_feed() -> FeedReport:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(1, stop.set)
        try:
            return await feed_events(events(10), Recorder(lambda _: 1e6), stop=stop)
        finally:
            ended.append(asyncio.get_running_loop().time())

    ended: list[float] = []
    with pytest.raises(UnavailableError, match=r"kafka\.bootstrap"):
        in_virtual_time(stuck_feed())
    assert ended == pytest.approx([1 + STOP_SECONDS])


def test_the_limit_ends_the_feed() -> None:
    """No more events than the limit are published, and no more than that are taken from the source."""
    recorder = Recorder()
    source = iter(events(10))
    report = in_virtual_time(feed_events(source, recorder, limit=4))
    assert (report.total, len(list(source)), report.stopped) == (4, 6, False)
    assert in_virtual_time(feed_events(events(5), Recorder(), limit=0)).total == 0


def test_progress_is_told_in_measure_and_at_the_end() -> None:
    """The callback comes at most ten times a second, never goes back, and its last call is the whole."""
    calls: list[FeedProgress] = []
    in_virtual_time(feed_events(events(500), Recorder(), rate=100, on_progress=calls.append))
    published = [call.published for call in calls]
    assert published == sorted(published)
    assert published[-1] == 500
    assert 40 < len(calls) <= 51


def test_events_are_received_now_unless_times_are_kept() -> None:
    """Restamping is the default; keeping times keeps the whole event."""
    kept, fresh = Recorder(), Recorder()
    in_virtual_time(feed_events(events(3), kept, keep_times=True))
    in_virtual_time(feed_events(events(3), fresh))
    assert kept.events == list(events(3))
    assert all(new.received_at_ns > old.received_at_ns for new, old in zip(fresh.events, kept.events, strict=True))


def test_the_suffix_goes_into_every_id() -> None:
    """A feed with a suffix publishes other ids than one without."""
    plain, suffixed = Recorder(), Recorder()
    in_virtual_time(feed_events(events(50), plain))
    in_virtual_time(feed_events(events(50), suffixed, id_suffix="b"))
    ids = {event.event_id for event in plain.events}
    assert not ids & {event.event_id for event in suffixed.events}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"rate": 0.0}, "rate"),
        ({"rate": -1.0}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"rate": float("inf")}, "rate"),
        ({"limit": -1}, "limit"),
        ({"id_suffix": "a:b"}, "id_suffix"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], name: str) -> None:
    """An option out of its range is a configuration error that names it."""
    with pytest.raises(ConfigError) as caught:
        in_virtual_time(feed_events(events(1), Recorder(), **options))
    assert caught.value.setting == name
