"""The event stream of a run: a pure function of the seed, but for the times of receipt."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import NamedTuple

from schemas.codec import encode_json
from schemas.records import Event, FilingEvent, NewsEvent
from schemas.topics import Topics

FLASH_SOURCE = "flashwire"
"""Headlines of this source get the toxic class."""
FLASH_SHARE, LONG_SHARE, FILING_SHARE = 0.1, 0.08, 0.1
"""Of all events; the rest are short headlines with a generous deadline."""
PARTS = (1, 1, 1, 2, 3)
"""Of a filing; one in five has two, one in five three."""
WORDS = [
    "profit",
    "warning",
    "guidance",
    "raised",
    "cut",
    "quarter",
    "revenue",
    "margin",
    "dividend",
    "merger",
    "offer",
    "regulator",
    "probe",
    "recall",
    "outage",
    "strike",
    "grid",
    "pipeline",
    "cargo",
    "copper",
    "wheat",
    "lithium",
    "chips",
    "cloud",
    "bank",
    "lender",
    "bond",
    "yield",
    "rate",
    "index",
    "fund",
    "trial",
    "drug",
    "approval",
    "delay",
    "plant",
    "airline",
    "carrier",
    "port",
    "rail",
    "order",
    "backlog",
    "forecast",
    "outlook",
    "record",
    "loss",
    "restated",
    "auditor",
    "chief",
    "officer",
    "resigns",
    "board",
    "vote",
    "shares",
    "split",
    "buyback",
    "stake",
    "sale",
    "unit",
    "deal",
    "talks",
    "court",
    "ruling",
    "appeal",
    "fine",
    "settles",
]
INSTRUMENTS = tuple(f"T{number:03d}" for number in range(200))
BROKEN = (b"not JSON at all", b'{"event_id": "x:y:1"', b"\xff\xfe\x00", b"[]", b'{"headline": 17}', b"")
"""Starts of malformed records; each gets a number, so that no two are the same."""


class Made(NamedTuple):
    """An event before its time of receipt.

    Args:
        number: position in the stream, from 0.
        filing: which of the two input topics it belongs to.
        key: Kafka key.
        event: with a time of receipt of 0.
    """

    number: int
    filing: bool
    key: bytes
    event: Event

    def topic(self, topics: Topics) -> str:
        """Return the input topic."""
        return topics.filings if self.filing else topics.news

    def value(self, now_ns: int) -> bytes:
        """Return the record's value with the time of receipt."""
        # The field is required and so always written; replacing a number in the bytes spares a copy of the event.
        return encode_json(self.event).replace(b'"received_at_ns":0', b'"received_at_ns":%d' % now_ns, 1)


def stream(seed: int) -> Iterator[Made]:
    """Yield the events of a seed, without end."""
    rng = random.Random(f"events/{seed}")
    number = 0
    while True:
        kind = rng.random()
        if kind < FILING_SHARE / 2:  # a filing has two parts on average
            for part in _filing(rng, number, seed):
                yield Made(number, True, part.key.encode(), part)
                number += 1
            continue
        flash = kind < FILING_SHARE / 2 + FLASH_SHARE
        longer = not flash and kind < FILING_SHARE / 2 + FLASH_SHARE + LONG_SHARE
        event = NewsEvent(
            event_id=f"{FLASH_SOURCE if flash else 'wire'}:{seed}-{number}:1",
            source=FLASH_SOURCE if flash else "wire",
            headline=_words(rng, rng.randint(5, 14)),
            body=_words(rng, rng.randint(60, 180)) if longer else "",
            instruments=[rng.choice(INSTRUMENTS)],
            received_at_ns=0,
        )
        yield Made(number, False, event.key.encode(), event)
        number += 1


def malformed(seed: int, fault: int, count: int) -> list[bytes]:
    """Return the records of one flood."""
    rng = random.Random(f"malformed/{seed}/{fault}")
    tail = [json.dumps({"flood": fault, "record": number}).encode() for number in range(count)]
    return [rng.choice(BROKEN) + b"\x00" + end for end in tail]


def _filing(rng: random.Random, number: int, seed: int) -> list[FilingEvent]:
    parts = rng.choice(PARTS)
    accession = f"{seed}-{number}"
    instrument = rng.choice(INSTRUMENTS)
    return [
        FilingEvent(
            event_id=f"{accession}:doc:{part}",
            accession=accession,
            form="8-K",
            text=_words(rng, rng.randint(40, 120)),
            received_at_ns=0,
            instruments=[instrument],
            part=part,
            parts=parts,
        )
        for part in range(1, parts + 1)
    ]


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))
