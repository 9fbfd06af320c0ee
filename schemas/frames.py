"""The messages between scheduler and worker: tagged msgspec Structs, MessagePack, one ZeroMQ message per frame.

The scheduler binds a ROUTER socket, each worker connects a DEALER. Frames that carry many small things carry them
as a list, so that one message per loop turn is enough at any rate. Both sides may start and restart in any order:

* a worker says `Hello` until a `Welcome` comes;
* a scheduler that hears from a worker it does not know answers `WhoAreYou`, and the worker says `Hello` again;
* ``session`` names one life of a scheduler. A worker that is welcomed into a new session drops what an older
  session gave it, and a scheduler ignores what answers an older session.
"""

from __future__ import annotations

from array import array

import msgspec
from msgspec import Struct

from schemas.enums import Direction

PROTOCOL_VERSION = 1

TokenIds = bytes
"""Token ids as packed little-endian uint32, no Python object per token on the way."""
TOKEN_BYTES = 4
"""Bytes of one token id in a `TokenIds`."""


def pack_tokens(ids: list[int]) -> TokenIds:
    """Pack token ids for a frame."""
    return array("I", ids).tobytes()


def unpack_tokens(packed: TokenIds) -> list[int]:
    """Unpack token ids from a frame."""
    ids = array("I")
    ids.frombytes(packed)
    return ids.tolist()


class Limits(Struct, kw_only=True, frozen=True):
    """What one engine can hold; the scheduler budgets with these numbers.

    Args:
        max_model_len: prompt plus output, in tokens.
        max_num_batched_tokens: tokens of one engine step.
        long_prefill_token_threshold: most prefill tokens that one request takes from one step.
        max_num_seqs: sequences that run at the same time.
        kv_blocks: KV cache, in blocks.
        block_size: tokens of one KV block.
    """

    max_model_len: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    max_num_seqs: int
    kv_blocks: int
    block_size: int


class Extractor(Struct, kw_only=True, frozen=True):
    """What the worker adds around a text and how long its answer can get.

    Args:
        name: the extractor's name, ``headline`` for example.
        prompt_version: changes whenever the template or the labels change.
        prompt_tokens: tokens of the template, without the text.
        shared_prefix_tokens: leading template tokens that every request shares, so the prefix cache holds them.
        max_new_tokens: longest answer, in tokens.
        heads: what is asked, each with the labels that answer it.
        chunk_tokens: longest piece of a text that is asked about at once; 0 when a text is never split.
        overlap_tokens: tokens that two neighbouring pieces share where a section had to be cut.
    """

    name: str
    prompt_version: str
    prompt_tokens: int
    shared_prefix_tokens: int
    max_new_tokens: int
    heads: dict[str, list[str]] = {}
    chunk_tokens: int = 0
    overlap_tokens: int = 0


class EngineInfo(Struct, kw_only=True, frozen=True):
    """Which engine and model a worker runs.

    Args:
        name: ``vllm`` or ``sim``.
        model_revision: hash of the weights' identity; part of every signal id.
        tokenizer_hash: hash of the ``tokenizer.json``; all workers of a scheduler must agree on it.
    """

    name: str
    version: str
    model: str
    model_revision: str
    tokenizer_hash: str


# Worker to scheduler


class Hello(Struct, kw_only=True, frozen=True, tag="hello"):
    """A worker is warm and takes work.

    Args:
        classes: service classes that it takes; empty means any.
        step_gate: its engine keeps less urgent prefill out of the steps that an urgent request needs.
        steps_ahead: engine steps that are already decided when a new request arrives (1 with asynchronous scheduling).
    """

    worker_id: str
    protocol: int
    engine: EngineInfo
    limits: Limits
    extractors: list[Extractor]
    classes: list[str] = []
    pid: int = 0
    step_gate: bool = False
    steps_ahead: int = 0


class TokenizerFile(Struct, kw_only=True, frozen=True, tag="tokenizer"):
    """The worker's ``tokenizer.json``, so that a scheduler needs no model files of its own."""

    tokenizer_hash: str
    data: bytes


class Started(Struct, kw_only=True, frozen=True):
    """One request produced its first token (times in nanoseconds since the epoch)."""

    request_id: int
    engine_started_ns: int
    first_token_ns: int


class Progress(Struct, kw_only=True, frozen=True, tag="progress"):
    """Requests whose prefill is over."""

    session: str
    started: list[Started]


class Answer(Struct, kw_only=True, frozen=True):
    """What the model said, decoded from its output.

    Args:
        probabilities: per direction; see `schemas.records.Signal`.
        event_type, event_type_probability: the most probable label of the head ``event_type``, where there is one.
        heads: distribution over its labels for every head but the direction, calibrated like ``probabilities``.
        raw: distribution of every head, the direction included, as the model gave it.
        calibration_id: which calibration they went through; empty for the model's own.
    """

    direction: Direction
    probabilities: dict[Direction, float]
    event_type: str | None = None
    event_type_probability: float | None = None
    heads: dict[str, dict[str, float]] = {}
    raw: dict[str, dict[str, float]] = {}
    calibration_id: str = ""


class Result(Struct, kw_only=True, frozen=True):
    """One finished request (times in nanoseconds since the epoch)."""

    request_id: int
    answer: Answer
    engine_started_ns: int
    first_token_ns: int
    completed_ns: int
    prompt_tokens: int
    output_tokens: int


class Results(Struct, kw_only=True, frozen=True, tag="results"):
    """Finished requests, each as soon as it is done."""

    session: str
    results: list[Result]


class Failure(Struct, kw_only=True, frozen=True):
    """One request that ended without an answer.

    Args:
        kind: an `schemas.errors.ErrorKind` value.
        retryable: the same request may succeed later or elsewhere.
    """

    request_id: int
    kind: str
    message: str
    retryable: bool


class Failures(Struct, kw_only=True, frozen=True, tag="failures"):
    """Requests that ended without an answer."""

    session: str
    failures: list[Failure]


FEW_PROMPT_TOKENS = 160
"""Prompt tokens below which a step takes about as long as reading the weights does. A token of a bf16 model is one
operation per byte that is read, and an accelerator does 150 (A100) to 300 (H100) of them meanwhile."""


class StepReport(Struct, kw_only=True, frozen=True, tag="steps"):
    """What the engine did since the last report.

    Args:
        steps: engine steps.
        seconds: wall time of those steps that had work.
        prefill_tokens: prompt tokens computed (cache hits excluded).
        decode_tokens: output tokens produced.
        running, waiting: requests in the engine after the last step.
        kv_usage: fraction of KV blocks in use after the last step, 0 to 1.
        decode_steps: those of the steps that computed fewer than `FEW_PROMPT_TOKENS` prompt tokens.
    """

    session: str
    steps: int
    seconds: float
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    kv_usage: float
    decode_steps: int = 0


class Heartbeat(Struct, kw_only=True, frozen=True, tag="heartbeat"):
    """The worker's loop is alive.

    Args:
        in_flight: requests that it has.
        steps: engine steps since its start.
        request_ids: the requests that it has; what a scheduler misses here was lost on the way.
    """

    session: str
    in_flight: int
    steps: int
    request_ids: list[int] | None = None


class Goodbye(Struct, kw_only=True, frozen=True, tag="goodbye"):
    """The worker leaves; whatever it still had must run elsewhere.

    Args:
        died: its engine is gone: what it still had may be what killed it.
    """

    session: str
    reason: str
    died: bool = False


FromWorker = Hello | TokenizerFile | Progress | Results | Failures | StepReport | Heartbeat | Goodbye

# Scheduler to worker


class Welcome(Struct, kw_only=True, frozen=True, tag="welcome"):
    """The worker is accepted into this session."""

    session: str
    heartbeat_seconds: float


class Refused(Struct, kw_only=True, frozen=True, tag="refused"):
    """The worker cannot serve this scheduler (another tokenizer, another protocol); it should exit."""

    reason: str


class WhoAreYou(Struct, kw_only=True, frozen=True, tag="who"):
    """The scheduler does not know this worker; say hello again."""

    session: str


class TokenizerWanted(Struct, kw_only=True, frozen=True, tag="tokenizer_wanted"):
    """Send the tokenizer file."""


class StepPolicy(Struct, kw_only=True, frozen=True):
    """What an engine's step scheduler needs to keep a step inside an urgent deadline.

    The seconds are the worker's step-time model: ``step + prefill tokens * prefill_token + decodes * decode +
    KV tokens * kv_token``, and ``decode_step`` on top for a step without prefill.

    Args:
        lower_step_tokens: most prefill tokens of less urgent classes in one step.
        decode_step_seconds: reading the weights, behind which a little prefill hides and which hides behind more.
    """

    lower_step_tokens: int
    step_seconds: float
    prefill_token_seconds: float
    decode_seconds: float
    kv_token_seconds: float
    decode_step_seconds: float = 0.0


class Request(Struct, kw_only=True, frozen=True):
    """One piece of work.

    Args:
        request_id: unique within the session.
        text_tokens: the text alone; the worker puts its template around it.
        service_class: for the engine's metrics.
        priority: lower runs first (vLLM's ``priority``).
        deadline_ns: nanoseconds since the epoch.
        extractor: which template, labels and output form.
        floor: less urgent work that is its class's guaranteed share; an engine never holds it back.
    """

    request_id: int
    text_tokens: TokenIds
    service_class: str
    priority: int
    deadline_ns: int
    extractor: str
    floor: bool = False


class Requests(Struct, kw_only=True, frozen=True, tag="requests"):
    """Work for the engine, most urgent first, and how it should split its steps from now on."""

    session: str
    requests: list[Request]
    policy: StepPolicy | None = None


class Abort(Struct, kw_only=True, frozen=True, tag="abort"):
    """Stop these requests; no result is wanted and none needs to be reported."""

    session: str
    request_ids: list[int]


class Drain(Struct, kw_only=True, frozen=True, tag="drain"):
    """Finish what is in the engine, say goodbye and exit."""

    reason: str


ToWorker = Welcome | Refused | WhoAreYou | TokenizerWanted | Requests | Abort | Drain

encode_frame = msgspec.msgpack.Encoder().encode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
