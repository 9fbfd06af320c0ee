"""The demo's books: every input record, and how it ended on the result topics."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ops.latency import total_ns
from ops.percentiles import NS_PER_MS, percentile
from ops.results import header
from schemas.codec import decode_json
from schemas.enums import Outcome
from schemas.errors import DecodeError
from schemas.records import Expired, Signal
from schemas.settings import ClassSettings
from schemas.topics import HEADER_SOURCE_OFFSET, HEADER_SOURCE_PARTITION, HEADER_SOURCE_TOPIC, Topics

SHOWN_SIGNALS = 8

Source = tuple[str, int, int]
"""Topic, partition and offset of an input record."""


@dataclass(kw_only=True, slots=True)
class ClassAccount:
    """What became of one class: latencies of its signals (received to emitted) and its expired records."""

    slo_ms: float
    latencies_ns: list[int] = field(default_factory=list)
    signals: int = 0
    expired: int = 0

    @property
    def within(self) -> int:
        """Signals inside the SLO."""
        return sum(1 for latency in self.latencies_ns if latency <= self.slo_ms * NS_PER_MS)

    def figures(self) -> dict[str, Any]:
        """Return count, percentiles in milliseconds, the SLO, and the fraction within it (expired is a miss)."""
        ordered = sorted(self.latencies_ns)
        count = self.signals + self.expired
        return {
            "count": count,
            "p50_ms": round(percentile(ordered, 50) / NS_PER_MS, 3) if ordered else None,
            "p99_ms": round(percentile(ordered, 99) / NS_PER_MS, 3) if ordered else None,
            "slo_ms": self.slo_ms,
            "attained": round(self.within / count, 4) if count else None,
        }


class Accounts:
    """Takes every record of the result topics and knows what is still missing.

    Args:
        topics: names of the deployment's topics.
        classes: configured service classes.
    """

    def __init__(self, topics: Topics, classes: Iterable[ClassSettings]) -> None:
        self._topics = topics
        self.classes = {c.name: ClassAccount(slo_ms=c.slo_ms) for c in classes}
        self.outcomes: Counter[Outcome] = Counter()
        """Input records by how they ended: one signal may end all the parts of a filing."""
        self.stamped = 0
        """Entries that the stamps stream must have: one per signal or expired record."""
        self.duplicates = 0
        self.unreadable = 0
        self.last_signals: deque[Signal] = deque(maxlen=SHOWN_SIGNALS)
        self.ended: set[Source] = set()

    def add(self, record: Any) -> None:
        """Take one record; a second one for the same input is counted as a duplicate and changes nothing else."""
        try:
            if record.topic == self._topics.signals:
                self._signal(decode_json(record.value, Signal))
            elif record.topic == self._topics.expired:
                self._expired(decode_json(record.value, Expired))
            else:
                self._dead_letter(record)
        except (DecodeError, ValueError):
            self.unreadable += 1

    def missing(self, ends: dict[Any, int]) -> list[Source]:
        """Return the input records without an outcome.

        Args:
            ends: next offset per partition of the input topics, which began empty and have no holes: the feed's
                producer is idempotent and uses no transactions.
        """
        sources = ((p.topic, p.partition, offset) for p, end in ends.items() for offset in range(end))
        return [source for source in sources if source not in self.ended]

    def _signal(self, signal: Signal) -> None:
        if signal.filing is not None and signal.filing.partial:
            self.last_signals.append(signal)  # no outcome: the whole one follows
            return
        if not self._any_first(sources(signal), Outcome.SIGNAL):
            return
        self.last_signals.append(signal)
        self.stamped += 1
        account = self.classes.get(signal.service_class)
        if account is None:
            return
        account.signals += 1
        if (latency := total_ns(signal.stamps)) is not None:
            account.latencies_ns.append(latency)

    def _expired(self, expired: Expired) -> None:
        first = self._any_first([(expired.topic, expired.partition, expired.offset)], Outcome.EXPIRED)
        self.stamped += first
        if first and (account := self.classes.get(expired.service_class)) is not None:
            account.expired += 1

    def _dead_letter(self, record: Any) -> None:
        source = (
            header(record, HEADER_SOURCE_TOPIC),
            int(header(record, HEADER_SOURCE_PARTITION)),
            int(header(record, HEADER_SOURCE_OFFSET)),
        )
        self._any_first([source], Outcome.DEAD_LETTER)

    def _any_first(self, sources: list[Source], outcome: Outcome) -> bool:
        """End input records; False, and a duplicate, where all of them had ended before."""
        new = [source for source in sources if source not in self.ended]
        if not new:
            self.duplicates += 1
            return False
        self.ended.update(new)
        self.outcomes[outcome] += len(new)
        return True


def sources(signal: Signal) -> list[Source]:
    """Return the input records that a signal answers: all parts of a filing, and one otherwise."""
    if signal.filing is None:
        return [(signal.topic, signal.partition, signal.offset)]
    return [(source.topic, source.partition, source.offset) for source in signal.filing.sources]
