"""Names of the Kafka topics, record headers and Redis keys; nothing else in the project spells them."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PREFIX = "tapewire"

HEADER_EVENT_ID = "tapewire-event-id"
HEADER_SCHEMA_VERSION = "tapewire-schema-version"
HEADER_REPLAY_RUN = "tapewire-replay-run"
HEADER_TRACE_PARENT = "traceparent"
"""W3C trace context; copied from the input record to what it became."""
HEADER_TRACE_STATE = "tracestate"
HEADER_ERROR_KIND = "tapewire-error-kind"
HEADER_ERROR_FIELD = "tapewire-error-field"
HEADER_ERROR_MESSAGE = "tapewire-error-message"
HEADER_ERROR_STAGE = "tapewire-error-stage"
HEADER_ERROR_ATTEMPTS = "tapewire-error-attempts"
HEADER_SOURCE_TOPIC = "tapewire-source-topic"
HEADER_SOURCE_PARTITION = "tapewire-source-partition"
HEADER_SOURCE_OFFSET = "tapewire-source-offset"
HEADER_SCHEDULER = "tapewire-scheduler"
"""Id and life of the scheduler that wrote a result; says who wrote a duplicate."""
HEADER_RETRY = "tapewire-retry"
"""On an event that `tapewire dlq retry` sent again: partition and offset of the dead letter, ``3/1207``."""
HEADER_TRUNCATED_FROM = "tapewire-truncated-from"
"""Original length in bytes of a dead letter whose value the broker would not take whole."""

PASSED_THROUGH = frozenset({HEADER_TRACE_PARENT, HEADER_TRACE_STATE, HEADER_REPLAY_RUN, HEADER_RETRY})
"""Headers of an input record that its signal or expired record carries on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Topics:
    """The five topics of one deployment.

    Args:
        prefix: first part of every name, so that several deployments can share a cluster.
    """

    prefix: str = DEFAULT_PREFIX

    @property
    def news(self) -> str:
        """Input: `NewsEvent`, keyed by story."""
        return f"{self.prefix}.news"

    @property
    def filings(self) -> str:
        """Input: `FilingEvent`, keyed by accession."""
        return f"{self.prefix}.filings"

    @property
    def signals(self) -> str:
        """Output: `Signal`, keyed by primary instrument."""
        return f"{self.prefix}.signals"

    @property
    def expired(self) -> str:
        """Output: `Expired`, keyed by event id."""
        return f"{self.prefix}.expired"

    @property
    def dead_letters(self) -> str:
        """Output: the original bytes with the error in headers."""
        return f"{self.prefix}.dead-letters"

    @property
    def inputs(self) -> tuple[str, str]:
        """The topics the scheduler reads, most urgent first."""
        return (self.news, self.filings)

    @property
    def outputs(self) -> tuple[str, str, str]:
        """The topics the scheduler writes."""
        return (self.signals, self.expired, self.dead_letters)

    @property
    def stamps_key(self) -> str:
        """Redis stream of latency stamps, one entry per outcome."""
        return f"{self.prefix}:stamps"

    def status_key(self, scheduler_id: str) -> str:
        """Redis string with the last status snapshot of one scheduler (JSON, expires)."""
        return f"{self.prefix}:status:{scheduler_id}"

    def news_story_key(self, story: str) -> str:
        """Redis string with what the news feed handler knows of one story (JSON, expires)."""
        return f"{self.prefix}:news:story:{story}"

    @property
    def news_held_key(self) -> str:
        """Redis hash of items under embargo, by story (JSON)."""
        return f"{self.prefix}:news:held"

    def news_statement_key(self, series: str) -> str:
        """Redis string with the last statement of a central bank's series (JSON)."""
        return f"{self.prefix}:news:statement:{series}"

    def news_seen_key(self, kind: str, name: str) -> str:
        """Redis string that says that a feed or a file was read before (expires)."""
        return f"{self.prefix}:news:seen:{kind}:{name}"

    @property
    def edgar_seen_key(self) -> str:
        """Redis sorted set of EDGAR accessions whose publishing Kafka confirmed, scored by that time in seconds."""
        return f"{self.prefix}:edgar:seen"

    @property
    def edgar_covered_key(self) -> str:
        """Redis string: up to which moment of EDGAR's feed everything has been published, in nanoseconds."""
        return f"{self.prefix}:edgar:covered"
