"""Hypothesis strategies for the records."""

from __future__ import annotations

from hypothesis import strategies as st

from schemas.codec import BLANKS, NANOSECONDS_2000, NANOSECONDS_2200
from schemas.enums import Direction, NewsStatus, SignalKind, Stage
from schemas.records import Expired, FilingEvent, NewsEvent, Signal, StampEntry

times = st.integers(NANOSECONDS_2000, NANOSECONDS_2200)
optional_times = st.just(0) | times
ids = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)
labels = st.text(max_size=40)
readable = st.characters(
    exclude_categories=("Cs", "Cc", "Cf", "Mn", "Zl", "Zp", "Zs"), exclude_characters=sorted(BLANKS)
)
texts = st.tuples(st.text(max_size=30), readable, st.text(max_size=30)).map("".join)
counts = st.integers(1, 2**31 - 1)
fractions = st.floats(0, 1)
stamps = st.dictionaries(st.sampled_from(Stage), times)

news = st.builds(
    NewsEvent,
    event_id=ids,
    source=ids,
    headline=texts,
    received_at_ns=times,
    published_at_ns=optional_times,
    version=counts,
    body=st.text(max_size=60),
    language=labels,
    instruments=st.lists(ids, max_size=4),
    urgency=st.integers(0, 9),
    status=st.sampled_from(NewsStatus),
    supersedes=st.none() | ids,
    embargo_until_ns=optional_times,
    url=st.text(max_size=40),
)
filings = st.integers(1, 50).flatmap(
    lambda parts: st.builds(
        FilingEvent,
        event_id=ids,
        accession=ids,
        form=ids,
        text=texts,
        received_at_ns=times,
        accepted_at_ns=optional_times,
        version=counts,
        items=st.lists(ids, max_size=3),
        ciks=st.lists(ids, max_size=3),
        company=labels,
        instruments=st.lists(ids, max_size=4),
        section=labels,
        part=st.integers(1, parts),
        parts=st.just(parts),
        url=st.text(max_size=40),
    )
)
signals = st.builds(
    Signal,
    signal_id=ids,
    event_id=ids,
    event_version=counts,
    topic=ids,
    partition=st.integers(0, 1000),
    offset=st.integers(0, 2**63 - 1),
    service_class=ids,
    direction=st.sampled_from(Direction),
    probabilities=st.dictionaries(st.sampled_from(Direction), fractions),
    score=st.floats(-1, 1),
    model=ids,
    model_revision=ids,
    prompt_version=ids,
    deadline_ns=times,
    late=st.booleans(),
    stamps=stamps,
    kind=st.sampled_from(SignalKind),
    retracts=st.lists(ids, max_size=3),
    instruments=st.lists(ids, max_size=4),
    event_type=st.none() | ids,
    event_type_probability=st.none() | fractions,
    calibration_id=labels,
    truncated=st.booleans(),
)
expired = st.builds(
    Expired,
    event_id=ids,
    event_version=counts,
    topic=ids,
    partition=st.integers(0, 1000),
    offset=st.integers(0, 2**63 - 1),
    service_class=ids,
    stage=st.sampled_from(Stage),
    age_ns=st.integers(0, 2**62),
    deadline_ns=times,
    reason=labels,
    stamps=stamps,
    instruments=st.lists(ids, max_size=4),
)
stamp_entries = st.builds(
    StampEntry,
    event_id=ids,
    service_class=ids,
    outcome=ids,
    late=st.booleans(),
    slo_ns=st.integers(0, 2**62),
    stamps=stamps,
)
