"""What the demo feeds and how fast, per engine."""

from __future__ import annotations

from dataclasses import dataclass

from producers.events import repeated
from producers.sample_data import sample_events
from schemas.records import Event, FilingEvent, NewsEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """What an engine can carry while it keeps its profile's SLOs; found by trying.

    Args:
        headlines_per_second, filings_per_second: both feeds run side by side.
        start_seconds: longest wait for a warm engine.
        stall_seconds: without any new outcome for so long, what is missing counts as lost.
        start_note: what a person who waits for the engine should know.
    """

    headlines_per_second: float
    filings_per_second: float
    start_seconds: float
    stall_seconds: float
    start_note: str


PACES = {
    "vllm": Pace(
        headlines_per_second=2.0,
        filings_per_second=0.2,
        start_seconds=900.0,
        stall_seconds=90.0,
        start_note="vLLM on the CPU takes about 30 s to start; the first run also converts the model once, about 20 s",
    ),
    "sim": Pace(
        headlines_per_second=50.0,
        filings_per_second=5.0,
        start_seconds=60.0,
        stall_seconds=30.0,
        start_note="the simulated engine starts at once; it has no model, so its directions mean nothing",
    ),
    "gpu": Pace(
        headlines_per_second=50.0,
        filings_per_second=5.0,
        start_seconds=1800.0,
        stall_seconds=60.0,
        start_note="vLLM loads the model and captures its graphs; a large model takes minutes",
    ),
}


def chosen(count: int | None) -> tuple[list[Event], list[Event]]:
    """Return headlines and filings: all of the samples, or as many in the same proportion, repeated when need be."""
    news, filings = sample_events("news"), sample_events("filings")
    if count is None:
        return news, filings
    share = round(count * len(filings) / (len(news) + len(filings)))
    fed = list(repeated(filings, share))
    # A filing whose last part never comes is waited for, half a minute by default.
    while fed and not _is_last_part(fed[-1]):
        fed.pop()
    return list(repeated(news, count - len(fed))), fed


def _is_last_part(event: Event) -> bool:
    return not isinstance(event, FilingEvent) or event.part == event.parts


def text_of(event: Event) -> str:
    """Return what a person should see of an event: the headline, or what part of which filing it is."""
    if isinstance(event, NewsEvent):
        return event.headline
    return f"{event.form} {event.company}: {event.section}"
