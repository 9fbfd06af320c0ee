"""What a failed batch says, and that a given-up producer leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc

import pytest
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    InvalidTimestampError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    ProducerFenced,
    TopicAuthorizationFailedError,
    for_code,
)

from scheduler.producer import Fault, connect, fault_of, give_up
from schemas.settings import KafkaSettings

INVALID_RECORD = 87
"""Kafka's code for a record that a topic will not have (no key on a compacted one, say); aiokafka 0.14 has no name."""


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (MessageSizeTooLargeError(), Fault.REFUSED),
        (InvalidTimestampError(), Fault.REFUSED),
        (for_code(INVALID_RECORD)(), Fault.UNCLEAR),
        (OutOfOrderSequenceNumber(), Fault.BROKEN),
        (ProducerFenced(), Fault.BROKEN),
        (ProducerClosed(), Fault.BROKEN),
        (KafkaConnectionError(), Fault.BROKEN),
        (KafkaError("Unexpected error during batch delivery"), Fault.BROKEN),
        (TopicAuthorizationFailedError("t"), Fault.FORBIDDEN),
        (ClusterAuthorizationFailedError(), Fault.FORBIDDEN),
    ],
)
def test_what_an_error_says(error: KafkaError, fault: Fault) -> None:
    """A record is only called refused where the broker's answer says so; what a person must mend is told apart."""
    assert fault_of(error) is fault


@pytest.mark.integration
async def test_giving_up_leaves_no_task_behind(kafka_settings: KafkaSettings) -> None:
    """Aiokafka has no such thing, so this looks inside it: an upgrade that moves its tasks is noticed here."""
    before = asyncio.all_tasks()
    producer = await connect(kafka_settings, "test")
    await producer.send(kafka_settings.topics.signals, b"v")
    assert asyncio.all_tasks() > before
    await give_up(producer)
    assert asyncio.all_tasks() <= before
    del producer
    gc.collect()  # a producer that was not closed says so here, and pytest makes an error of it
