"""The records of one transaction on their way: one batch after the other per output partition."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque

from aiokafka import AIOKafkaProducer

from scheduler.producer import Fault, fault_of
from scheduler.publisher import Receipt, Record
from scheduler.work import Origin


class Entry:
    """One record and where it goes.

    Args:
        topic, partition: of the output.
        record: it.
    """

    __slots__ = ("alone", "partition", "record", "topic", "tries")

    def __init__(self, topic: str, partition: int, record: Record) -> None:
        self.topic = topic
        self.partition = partition
        self.record = record
        self.alone = False
        """It gets a batch of its own: one of those that were refused with it is at fault."""
        self.tries = 0
        """Failures without a reason that says what is at fault."""

    @property
    def origin(self) -> Origin:
        """The input offset that it is about."""
        return origin_of(self.record.receipt)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The input offsets that it finishes."""
        return origins_of(self.record.receipt)


class BatchError(Exception):
    """A batch failed.

    Args:
        batch: what was in it.
        error: what aiokafka raised.
    """

    def __init__(self, batch: list[Entry], error: Exception) -> None:
        self.batch = batch
        self.error = error
        super().__init__(str(error))


def origin_of(receipt: Receipt) -> Origin:
    """Return the input offset that a receipt is about; the default mode takes any object for one."""
    origin: Origin = receipt.origin  # type: ignore[attr-defined]  # see above
    return origin


def origins_of(receipt: Receipt) -> tuple[Origin, ...]:
    """Return the input offsets that are done once a receipt comes back: all parts of a filing, or none of them yet."""
    origins: tuple[Origin, ...] = getattr(receipt, "origins", (origin_of(receipt),))
    return origins


async def send(producer: AIOKafkaProducer, entries: list[Entry]) -> None:
    """Send records and wait until Kafka has all of them.

    Raises:
        BatchError: a batch failed; of several, the one that says most about its cause.
    """
    lanes: defaultdict[tuple[str, int], deque[Entry]] = defaultdict(deque)
    for entry in entries:
        lanes[entry.topic, entry.partition].append(entry)
    sends = [_send_lane(producer, *lane, waiting) for lane, waiting in lanes.items()]
    failed = [e for e in await asyncio.gather(*sends, return_exceptions=True) if isinstance(e, BaseException)]
    if failed:
        raise min(failed, key=_rank)


async def _send_lane(producer: AIOKafkaProducer, topic: str, partition: int, waiting: deque[Entry]) -> None:
    while waiting:
        batch, builder = _fill(producer, waiting)
        try:
            await (await producer.send_batch(builder, topic, partition=partition))
        except Exception as error:  # noqa: BLE001 - carried on with the batch that it belongs to
            raise BatchError(batch, error) from None


def _fill(producer: AIOKafkaProducer, waiting: deque[Entry]) -> tuple[list[Entry], object]:
    builder = producer.create_batch()
    now_ms = time.time_ns() // 1_000_000
    batch: list[Entry] = []
    while waiting and not (batch and (waiting[0].alone or batch[0].alone)):
        key, value, headers, _ = waiting[0].record
        if builder.append(timestamp=now_ms, key=key, value=value, headers=headers) is None:
            break
        batch.append(waiting.popleft())
    builder.close()
    return batch, builder


def _rank(failed: BaseException) -> int:
    """What says most about its cause first: a producer that breaks takes the other lanes with it."""
    order = (Fault.FORBIDDEN, Fault.REFUSED, Fault.UNCLEAR, Fault.BROKEN)
    return order.index(fault_of(failed.error if isinstance(failed, BatchError) else failed))
