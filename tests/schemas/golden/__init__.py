"""What the golden files must decode to. Files of a released version are never changed, only added."""

from __future__ import annotations

from msgspec import Struct

from schemas.enums import Direction, NewsStatus, SignalKind, Stage
from schemas.frames import (
    Abort,
    Answer,
    Drain,
    EngineInfo,
    Extractor,
    Failure,
    Failures,
    FromWorker,
    Goodbye,
    Heartbeat,
    Hello,
    Limits,
    Progress,
    Refused,
    Request,
    Requests,
    Result,
    Results,
    Started,
    StepReport,
    TokenizerFile,
    TokenizerWanted,
    ToWorker,
    Welcome,
    WhoAreYou,
    pack_tokens,
)
from schemas.records import (
    EventMention,
    Expired,
    Figure,
    FilingEvent,
    FilingReading,
    NewsEvent,
    Signal,
    SourceRecord,
    Span,
    StampEntry,
)

NEWS = NewsEvent(
    event_id="harborline:20260309-0066:2",
    source="harborline",
    headline="CORRECTED: Kestavel Airlines grounds 12 narrow-bodies for engine inspections, « été inchangé » ✈",
    received_at_ns=1773065710499256658,
    published_at_ns=1773065709859000000,
    version=2,
    body="An earlier version said 22.",
    language="fr",
    instruments=["KSTV", "CLWF"],
    urgency=3,
    status=NewsStatus.CORRECTED,
    supersedes="harborline:20260309-0066:1",
    embargo_until_ns=1773065700000000000,
    url="https://news.example/harborline/20260309-0066",
)
NEWS_FROM_A_FEED = NewsEvent(
    event_id="fed:fed-statement-2026-03-18:2",
    source="fed",
    headline="Federal Reserve issues FOMC statement",
    received_at_ns=1773858001250000000,
    version=2,
    urgency=1,
    status=NewsStatus.KILLED,
    supersedes="fed:fed-statement-2026-03-18:1",
    earlier=["fed:fed-statement-2026-03-18:0"],
    duplicate_of="harborline:20260318-0007:1",
    changed=["The Committee decided to lower the target range.", "No longer said: Risks are balanced."],
    notes=["body: mojibake", "published: without_zone=2026-03-18 14:00"],
)
FILING = FilingEvent(
    event_id="0009990904-26-000027:d8k:1",
    accession="0009990904-26-000027",
    form="8-K",
    text="On Tuesday evening the audit committee concluded that the statements should no longer be relied upon.",
    received_at_ns=1773066138834666651,
    accepted_at_ns=1773066138000000000,
    version=2,
    items=["4.02", "5.02"],
    ciks=["0009990904"],
    company="Nimbrel Cloud Holdings, Inc.",
    instruments=["NBRL"],
    section="Item 4.02",
    part=2,
    parts=3,
    url="https://filings.example/0009990904-26-000027/d8k.htm",
)

FILING_FROM_A_FEED = FilingEvent(
    event_id="0009990904-26-000024:1:1",
    accession="0009990904-26-000024",
    form="8-K/A",
    text="The registrant amends its report of November 1.",
    received_at_ns=1_730_500_000_500_000_000,
    accepted_at_ns=1_730_500_000_000_000_000,
    amends="0009990904-26-000023",
    notes=["text: invisible=2"],
)
"""With what a feed handler adds to a filing event."""
_STAMPS = {stage: 1773065709859000000 + index * 1_000_000 for index, stage in enumerate(Stage)}
SIGNAL = Signal(
    signal_id="64ab8b0c1d6a2d1ee9db9d0d3ff0f2ad",
    event_id="harborline:20260309-0066:2",
    event_version=2,
    topic="tapewire.news",
    partition=3,
    offset=40211,
    service_class="flash",
    direction=Direction.BEARISH,
    probabilities={Direction.BULLISH: 0.125, Direction.BEARISH: 0.75, Direction.NEUTRAL: 0.125},
    score=-0.625,
    model="SmolLM2-135M-Instruct",
    model_revision="9f2c51d07a3e",
    prompt_version="headline-1",
    deadline_ns=1773065710649256658,
    late=True,
    stamps=_STAMPS,
    instruments=["KSTV", "CLWF"],
    event_type="operations",
    event_type_probability=0.5,
    calibration_id="cal-7",
    truncated=True,
)
FILING_SIGNAL = Signal(
    signal_id="64ab8b0c1d6a2d1ee9db9d0d3ff0f2ae",
    event_id="0009990904-26-000027",
    event_version=1,
    topic="tapewire.filings",
    partition=0,
    offset=17,
    service_class="bulk",
    direction=Direction.BULLISH,
    probabilities={Direction.BULLISH: 0.5, Direction.BEARISH: 0.25, Direction.NEUTRAL: 0.25},
    score=0.25,
    model="SmolLM2-135M-Instruct",
    model_revision="9f2c51d07a3e",
    prompt_version="filing-1",
    deadline_ns=1773065710649256658,
    late=False,
    stamps=_STAMPS,
    heads={"guidance": {"raised": 0.75, "none": 0.25}},
    raw={"direction": {"bullish": 0.75, "bearish": 0.125, "neutral": 0.125}},
    filing=FilingReading(
        accession="0009990904-26-000027",
        event_types=[
            EventMention(
                event_type="earnings",
                probability=0.75,
                evidence=[Span(part=1, start=0, end=9, quote="Net sales")],
            )
        ],
        guidance="raised",
        items=["2.02"],
        figures=[
            Figure(
                metric="revenue",
                unit="usd",
                value=412_600_000.0,
                span=Span(part=1, start=18, end=32, quote="$412.6 million"),
            )
        ],
        conflicts=["direction: bullish in part 1, bearish in part 2"],
        partial=True,
        coverage=0.5,
        chunks=2,
        parts=3,
        missing_parts=[3],
        sources=[SourceRecord(event_id="0009990904-26-000027:d8k:1", topic="tapewire.filings", partition=0, offset=17)],
    ),
)
"""With what only the signal of a filing has."""
RETRACTION = Signal(
    signal_id="0f9a1c77b1de4f6c8d5e3b2a19887766",
    event_id="harborline:20260309-0066:3",
    event_version=3,
    topic="tapewire.news",
    partition=3,
    offset=40350,
    service_class="flash",
    direction=Direction.NEUTRAL,
    probabilities={},
    score=0.0,
    model="",
    model_revision="",
    prompt_version="",
    deadline_ns=1773065710649256658,
    late=False,
    stamps={Stage.RECEIVED: 1773065710499256658},
    kind=SignalKind.RETRACTION,
    retracts=["harborline:20260309-0066:2"],
)
EXPIRED = Expired(
    event_id="meridian-wire:20260309-0012:1",
    event_version=1,
    topic="tapewire.news",
    partition=0,
    offset=17,
    service_class="flash",
    stage=Stage.QUEUED,
    age_ns=251_000_000,
    deadline_ns=1773065710649256658,
    reason="older than 250 ms",
    stamps={Stage.RECEIVED: 1773065710499256658, Stage.QUEUED: 1773065710749256658},
    instruments=["MVSS"],
)
STAMP = StampEntry(
    event_id="harborline:20260309-0066:2",
    service_class="flash",
    outcome="signal",
    late=True,
    slo_ns=150_000_000,
    stamps=_STAMPS,
)
OUTPUTS: dict[str, Struct] = {
    "signal": SIGNAL,
    "filing_signal": FILING_SIGNAL,
    "retraction": RETRACTION,
    "expired": EXPIRED,
    "stamp": STAMP,
}

WORKER_FRAMES: dict[str, FromWorker] = {
    "hello": Hello(
        worker_id="w1",
        protocol=1,
        engine=EngineInfo(name="vllm", version="0.32.0", model="m", model_revision="r", tokenizer_hash="h"),
        limits=Limits(
            max_model_len=4096,
            max_num_batched_tokens=2048,
            long_prefill_token_threshold=512,
            max_num_seqs=128,
            kv_blocks=1000,
            block_size=16,
        ),
        extractors=[
            Extractor(name="headline", prompt_version="p1", prompt_tokens=40, shared_prefix_tokens=32, max_new_tokens=1)
        ],
        classes=["flash"],
        pid=7,
    ),
    "tokenizer": TokenizerFile(tokenizer_hash="h", data=b"\x00\xff{}"),
    "progress": Progress(session="s", started=[Started(request_id=1, engine_started_ns=2, first_token_ns=3)]),
    "results": Results(
        session="s",
        results=[
            Result(
                request_id=1,
                answer=Answer(
                    direction=Direction.BEARISH,
                    probabilities={Direction.BEARISH: 0.75},
                    event_type="legal",
                    event_type_probability=0.5,
                ),
                engine_started_ns=1773065710499256658,
                first_token_ns=1773065710499256659,
                completed_ns=1773065710499256660,
                prompt_tokens=50,
                output_tokens=1,
            )
        ],
    ),
    "failures": Failures(
        session="s", failures=[Failure(request_id=1, kind="engine_error", message="m", retryable=True)]
    ),
    "steps": StepReport(
        session="s", steps=3, seconds=0.2, prefill_tokens=9, decode_tokens=4, running=2, waiting=1, kv_usage=0.5
    ),
    "heartbeat": Heartbeat(session="s", in_flight=2, steps=9),
    "goodbye": Goodbye(session="s", reason="drained"),
}
SCHEDULER_FRAMES: dict[str, ToWorker] = {
    "welcome": Welcome(session="s", heartbeat_seconds=0.5),
    "refused": Refused(reason="another tokenizer"),
    "who": WhoAreYou(session="s"),
    "tokenizer_wanted": TokenizerWanted(),
    "requests": Requests(
        session="s",
        requests=[
            Request(
                request_id=1,
                text_tokens=pack_tokens([1, 2, 70_000]),
                service_class="flash",
                priority=0,
                deadline_ns=1773065710649256658,
                extractor="headline",
            )
        ],
    ),
    "abort": Abort(session="s", request_ids=[1, 2]),
    "drain": Drain(reason="shutdown"),
}
FRAMES: dict[str, FromWorker | ToWorker] = {**WORKER_FRAMES, **SCHEDULER_FRAMES}
