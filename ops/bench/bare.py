"""The yardstick: a plain aiokafka loop, consume then confirmed produce, with nothing of ours in between."""

from __future__ import annotations

import asyncio
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from schemas.settings import KafkaSettings

MAX_RECORDS = 500
"""The same as the scheduler's intake takes at once."""


async def bare_loop(kafka: KafkaSettings, source: str, target: str, events: int) -> float:
    """Copy ``events`` records from one topic to another the way most consumers are written; returns records/s.

    Every record is produced with ``producer.send``, all sends of a fetch are confirmed, then the offset is committed.
    """
    options = kafka.client_options()
    consumer = AIOKafkaConsumer(
        source, **options, group_id=f"{target}-bare", enable_auto_commit=False, auto_offset_reset="earliest"
    )
    producer = AIOKafkaProducer(**options, enable_idempotence=True, acks="all")
    await producer.start()
    await consumer.start()
    copied = 0
    began = 0.0
    try:
        while copied < events:
            fetched = await consumer.getmany(timeout_ms=500, max_records=MAX_RECORDS)
            began = began or time.perf_counter()  # joining the group is not part of the loop
            sends = [
                await producer.send(target, record.value, key=record.key)
                for records in fetched.values()
                for record in records
            ]
            await asyncio.gather(*sends)
            copied += len(sends)
            if sends:
                await consumer.commit()
        return copied / (time.perf_counter() - began)
    finally:
        await consumer.stop()
        await producer.stop()
