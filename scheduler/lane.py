"""One output partition: what waits for it, and the one batch that is on its way there."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import NamedTuple, Protocol

from aiokafka import AIOKafkaProducer

from scheduler.producer import Fault, fault_of

TRIES_ALONE = 3
"""Attempts at a record that goes alone and fails without a reason that says so before it counts as refused."""

OutHeaders = list[tuple[str, bytes | None]]
"""aiokafka's record builder takes a list and nothing else."""

Receipt = object
"""What the caller wants back once a record is confirmed."""


class Record(NamedTuple):
    """One record on its way out."""

    key: bytes | None
    value: bytes
    headers: OutHeaders
    receipt: Receipt


class LaneEvents(Protocol):
    """What a lane tells its publisher."""

    def confirmed(self, batch: list[Record]) -> None:
        """Take a confirmation."""

    def failed(self, topic: str, error: Exception) -> None:
        """Take a failed batch; its lane keeps the records and waits for another producer."""

    def refuse(self, topic: str, record: Record, error: Exception) -> None:
        """Take a record that the broker will never take."""

    def give_up_on(self, topic: str, error: Exception) -> None:
        """Fail for good."""


class Lane:
    """What goes to one output partition, in its order.

    Args:
        publisher: hears what becomes of each batch.
        topic, partition: where it leads.
    """

    def __init__(self, publisher: LaneEvents, topic: str, partition: int) -> None:
        self._publisher = publisher
        self._topic = topic
        self._partition = partition
        self._producer: AIOKafkaProducer | None = None
        self._waiting: deque[Record] = deque()
        self._sent: list[Record] = []
        self._answer: asyncio.Future[object] | None = None
        self._task: asyncio.Task[None] | None = None
        self._alone = 0
        self._tries = 0
        self.sent_at = 0.0
        """When the batch that is on its way was sent (monotonic seconds); 0 when none is."""

    def add(self, record: Record) -> None:
        """Queue one record."""
        self._waiting.append(record)
        if self._task is None and self._producer is not None:
            self._task = asyncio.get_running_loop().create_task(self._drain(self._producer))

    def go(self, producer: AIOKafkaProducer) -> None:
        """Send through this producer from now on."""
        self._producer = producer
        if self._waiting:
            self._task = asyncio.get_running_loop().create_task(self._drain(producer))

    def hold(self) -> int:
        """Stop sending and take back what is not confirmed; returns how many records may have been written."""
        self._producer = None
        answer, self._answer = self._answer, None
        waited_for = answer is not None and not answer.done()  # to be asked first: cancelling the task cancels it too
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if answer is not None and not waited_for and answer.exception() is None:
            self._settle()  # confirmed, and the lane's task has not run since
            return 0
        # A batch with an error for an answer is not written; one without an answer may be.
        unknown = len(self._sent) if waited_for else 0
        self._take_back()
        return unknown

    async def _drain(self, producer: AIOKafkaProducer) -> None:
        while self._waiting:
            try:
                builder = self._fill(producer)
            except Exception as error:  # noqa: BLE001 - a record that cannot even be encoded is a defect of ours
                self._publisher.give_up_on(self._topic, error)
                return
            self.sent_at = time.monotonic()
            try:
                self._answer = await producer.send_batch(builder, self._topic, partition=self._partition)
                await self._answer
            except Exception as error:  # noqa: BLE001 - whatever it is, these records are not out, and someone must hear
                self._failed(error)
                break
            self._answer = None
            self._settle()
        self._task = None

    def _fill(self, producer: AIOKafkaProducer) -> object:
        """Move as many waiting records as fit into a batch."""
        builder = producer.create_batch()
        append, waiting, sent = builder.append, self._waiting, self._sent
        now_ms = time.time_ns() // 1_000_000
        most = 1 if self._alone else len(waiting)
        while len(sent) < most:
            key, value, headers, _ = waiting[0]
            if append(timestamp=now_ms, key=key, value=value, headers=headers) is None:
                break
            sent.append(waiting.popleft())
        builder.close()
        return builder

    def _settle(self) -> None:
        batch, self._sent = self._sent, []
        self.sent_at = 0.0
        self._alone = max(0, self._alone - len(batch))
        self._tries = 0
        self._publisher.confirmed(batch)

    def _take_back(self) -> None:
        self._waiting.extendleft(reversed(self._sent))
        self._sent = []
        self.sent_at = 0.0

    def _failed(self, error: Exception) -> None:
        """Keep the batch for the next producer, unless it is a single record that the broker will never take."""
        self._producer = None
        fault = fault_of(error)
        self._tries += fault is Fault.UNCLEAR
        # Which of several it is shows when each goes alone.
        if fault is Fault.REFUSED or self._tries >= TRIES_ALONE:
            if len(self._sent) == 1:
                record, self._sent = self._sent[0], []
                self._alone = max(0, self._alone - 1)
                self._tries = 0
                self.sent_at = 0.0
                # The new producer first: what becomes of the record may come back to this very lane.
                self._publisher.failed(self._topic, error)
                self._publisher.refuse(self._topic, record, error)
                return
            self._alone = len(self._sent)
            self._tries = 0
        self._publisher.failed(self._topic, error)
