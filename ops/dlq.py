"""``tapewire dlq retry`` and ``drop``: choose letters, publish or leave their originals, and mark them as handled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from ops.dlq_letters import Letter, LetterId, LetterReader
from ops.dlq_marks import MarkBook, fitting
from ops.dlq_view import Filter, no_such_letter
from ops.runtime import say
from ops.text import visible
from schemas.errors import ConfigError, ErrorKind, TapewireError, UnavailableError
from schemas.settings import KafkaSettings
from schemas.topics import HEADER_RETRY

BATCH = 200
"""Letters that are published, confirmed and marked together: what an interruption may publish twice."""
MAX_REQUEST_BYTES = 16 * 1024 * 1024
SEND_SECONDS = 30.0
CLOSE_SECONDS = 2.0
RECEIVED = "received_at_ns"

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """Which letters to handle: these, or all open ones that a filter wants.

    Args:
        ids: letters by id; empty for the filter.
        wanted: which open letters, without ids.
    """

    ids: tuple[LetterId, ...] = ()
    wanted: Filter = field(default_factory=Filter)


@dataclass(slots=True)
class Plan:
    """What would be done.

    Args:
        chosen: the letters, in order within each partition, and the topic that each one goes to (``""`` for none).
        refused: letters that cannot be handled this way, and why.
    """

    chosen: dict[LetterId, str] = field(default_factory=dict)
    refused: dict[LetterId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A record to publish."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers


class Refusal(Exception):  # noqa: N818 - it is no error of the program, and never leaves this module
    """A letter that cannot be sent again, and why."""


class Desk:
    """Letters and marks of one deployment, for one command.

    Args:
        kafka: how to reach the cluster.
        retries: originals are published; otherwise letters are only marked.
        now: set the time of reception of what is published to the present.
    """

    def __init__(self, kafka: KafkaSettings, *, retries: bool, now: bool = False) -> None:
        self._kafka = kafka
        self._retries = retries
        self._now = now

    async def plan(self, choice: Choice) -> Plan:
        """Look at the letters and say what would be done; changes nothing.

        Raises:
            ConfigError: none of the letters exists.
            MarksFullError: handling them could not be kept track of.
            UnavailableError: Kafka does not answer, or the topic does not exist.
        """
        plan = Plan()
        async with LetterReader(self._kafka) as reader, MarkBook(self._kafka) as book:
            marks = await book.read(reader.windows)
            partitions = {i.partition for i in choice.ids} & reader.windows.keys() if choice.ids else reader.windows
            standing: dict[int, array[int]] = {p: array("q") for p in partitions}
            async for letter in reader.letters({p: marks[p].base for p in partitions}):
                standing[letter.id.partition].append(letter.id.offset)
                handled = marks[letter.id.partition].handled(letter.id.offset)
                if letter.id in choice.ids if choice.ids else choice.wanted.wants(letter, handled=handled):
                    await self._consider(letter, plan, reader, handled=handled)
            for letter_id in choice.ids:
                if letter_id not in plan.chosen and letter_id not in plan.refused:
                    there = await reader.letter(letter_id)
                    plan.refused[letter_id] = "it is handled already" if there else no_such_letter(letter_id, reader)
            for partition, letters in standing.items():
                offsets = [i.offset for i in plan.chosen if i.partition == partition]
                fitting(partition, marks[partition].plus(offsets, letters, reader.windows[partition][1]))
        return plan

    async def _consider(self, letter: Letter, plan: Plan, reader: LetterReader, *, handled: bool) -> None:
        if handled:
            plan.refused[letter.id] = "it is handled already"
            return
        try:
            plan.chosen[letter.id] = (await self._outgoing(letter, reader)).topic if self._retries else ""
        except Refusal as refusal:
            plan.refused[letter.id] = str(refusal)

    async def _outgoing(self, letter: Letter, reader: LetterReader) -> Outgoing:
        source = letter.source
        if letter.kind == ErrorKind.OFFSETS_LOST:
            raise Refusal("it stands for offsets that Kafka had deleted: there is no record to send")
        if source is None:
            raise Refusal("its headers do not say where it came from")
        if source.topic not in self._kafka.topics.inputs:
            raise Refusal(f"it came from {visible(source.topic)}, which is no input topic of this deployment")
        key, value, headers = letter.key, letter.value, letter.original_headers()
        if letter.truncated_from is not None:
            whole = await reader.original(source)
            if whole is None:
                raise Refusal(f"it was cut from {letter.truncated_from} bytes, and {source} does not hold it any more")
            key, value, headers = whole.key, whole.value or b"", list(whole.headers)
            headers = [header for header in headers if header[0] != HEADER_RETRY]
        if self._now:
            value = received_now(value, time.time_ns())
        return Outgoing(source.topic, key, value, [*headers, (HEADER_RETRY, str(letter.id).encode())])

    async def carry_out(self, plan: Plan, stop: asyncio.Event, *, as_json: bool) -> int:
        """Handle what was chosen; returns how many were.

        Published first, confirmed, then marked: who dies in between leaves letters open that were sent, and sending
        them again is harmless.

        Raises:
            MarksFullError, MarksConflictError: see `ops.dlq_marks`.
            UnavailableError: Kafka does not answer; what was confirmed is marked.
        """
        done = 0
        async with LetterReader(self._kafka) as reader, MarkBook(self._kafka) as book:
            producer = await self._producer() if self._retries else None
            try:
                for partition in sorted({letter_id.partition for letter_id in plan.chosen}):
                    done += await self._partition(partition, plan, reader, book, producer, stop, as_json=as_json)
            finally:
                if producer is not None:
                    # Its own stop waits for its queue, for ever while the broker is away.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(CLOSE_SECONDS):
                            await producer.stop()
        return done

    async def _partition(
        self,
        partition: int,
        plan: Plan,
        reader: LetterReader,
        book: MarkBook,
        producer: Any,
        stop: asyncio.Event,
        *,
        as_json: bool,
    ) -> int:
        marks = (await book.read(reader.windows))[partition]
        chosen = {letter_id for letter_id in plan.chosen if letter_id.partition == partition}
        standing = array("q")
        waiting: list[Letter] = []
        done = 0

        async def settle() -> int:
            sent = await self._send(waiting, plan, reader, producer)
            waiting.clear()
            if sent:
                # Holes are known up to the last letter that was looked at; behind it nothing is said.
                known = standing[-1] + 1
                try:
                    await book.add(partition, [i.offset for i in sent], standing, known, reader.windows[partition])
                except TapewireError:
                    if producer is not None:
                        say(f"{len(sent)} events were published whose letters may still stand open; that is harmless")
                    raise
            _report(sent, plan, as_json=as_json)
            return len(sent)

        async for letter in reader.letters({partition: marks.base}):
            standing.append(letter.id.offset)
            if letter.id in chosen and not marks.handled(letter.id.offset):
                waiting.append(letter)
            chosen.discard(letter.id)
            if len(waiting) >= BATCH:
                done += await settle()
                _progress(done, len(plan.chosen))
            if stop.is_set() or not chosen:
                break
        return done + await settle() if standing else done

    async def _send(self, letters: Sequence[Letter], plan: Plan, reader: LetterReader, producer: Any) -> list[LetterId]:
        """Publish originals and return the letters of those that Kafka has confirmed."""
        if producer is None:
            return [letter.id for letter in letters]
        flying: list[tuple[LetterId, asyncio.Future[Any]]] = []
        for letter in letters:
            try:
                out = await self._outgoing(letter, reader)
                future = await producer.send(out.topic, out.value, key=out.key, headers=out.headers)
                flying.append((letter.id, future))
            except (Refusal, KafkaError) as error:
                _refuse(plan, letter.id, str(error) or type(error).__name__)
        if flying:
            await asyncio.wait([future for _, future in flying], timeout=SEND_SECONDS)
        sent: list[LetterId] = []
        for letter_id, future in flying:
            if not future.done():
                _refuse(plan, letter_id, f"Kafka did not confirm it within {SEND_SECONDS:g} s; it may be there or not")
            elif (failure := future.exception()) is not None:
                _refuse(plan, letter_id, str(failure) or type(failure).__name__)
            else:
                sent.append(letter_id)
        return sent

    async def _producer(self) -> Any:
        producer = AIOKafkaProducer(
            **self._kafka.client_options(),
            enable_idempotence=True,
            acks="all",
            max_request_size=MAX_REQUEST_BYTES,
        )
        try:
            async with asyncio.timeout(2 * self._kafka.connect_seconds):
                await producer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await producer.stop()
            reason = str(error) or "no answer"
            raise UnavailableError(f"Kafka at {self._kafka.bootstrap}", "kafka.bootstrap", reason) from None
        return producer


def received_now(value: bytes, now_ns: int) -> bytes:
    """Return an event with its time of reception set.

    Raises:
        Refusal: it is no JSON object with such a time.
    """
    try:
        event = json.loads(value)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict) or RECEIVED not in event:
        raise Refusal(f"--now needs a JSON object with {RECEIVED}, and this is none; retry it without --now")
    event[RECEIVED] = now_ns
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Say what would be done, for ``--dry-run``."""
    for letter_id, topic in plan.chosen.items():
        result = "would_retry" if topic else "would_drop"
        _line(letter_id, result, topic, as_json=as_json)
    print_refusals(plan, as_json=as_json)


def print_refusals(plan: Plan, *, as_json: bool) -> None:
    """Say which letters could not be handled, and why."""
    for letter_id, reason in plan.refused.items():
        _line(letter_id, "refused", reason, as_json=as_json)


def _refuse(plan: Plan, letter_id: LetterId, reason: str) -> None:
    plan.chosen.pop(letter_id, None)
    plan.refused[letter_id] = reason


def _report(sent: Sequence[LetterId], plan: Plan, *, as_json: bool) -> None:
    for letter_id in sent:
        topic = plan.chosen[letter_id]
        _line(letter_id, "retried" if topic else "dropped", topic, as_json=as_json)


def _line(letter_id: LetterId, result: str, detail: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps({"id": str(letter_id), "result": result, "detail": detail}) + "\n")
    else:
        sys.stdout.write(f"{letter_id}: {result.replace('_', ' ')}{' - ' if detail else ''}{visible(detail)}\n")


def _progress(done: int, total: int) -> None:
    say(f"{done} of {total} dead letters handled")


def check_choice(ids: Sequence[LetterId], kind: str, *, everything: bool) -> None:
    """Check that exactly one way of choosing was given.

    Raises:
        ConfigError: none, or more than one.
    """
    if sum((bool(ids), bool(kind), everything)) != 1:
        raise ConfigError("ID", "say which letters: their ids, or --kind KIND, or --all-open")
