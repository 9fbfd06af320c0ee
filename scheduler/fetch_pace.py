"""Keeps a consumer from spinning on a broker that answers an empty fetch at once instead of holding it back.

Apache Kafka waits up to ``fetch_max_wait_ms`` for data. The embedded broker answers immediately, and aiokafka then asks
again without a pause: eight thousand empty fetches a second, a whole core for each consumer.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiokafka import AIOKafkaConsumer

AT_ONCE_SECONDS = 0.02
"""An empty answer within this time was not held back: our consumers ask for 100 ms and more."""
PAUSE_SECONDS = 0.003
"""Before the next fetch then; what arrives meanwhile is that much later."""


def pace_fetches(consumer: AIOKafkaConsumer) -> None:
    """Make a consumer pause after each empty fetch that came back at once; call it before ``start()``."""
    client: Any = consumer._client  # noqa: SLF001 - aiokafka has no public way to look at a fetch
    send = client.send

    async def paced(node_id: Any, request: Any, **options: Any) -> Any:
        began = time.monotonic()
        response = await send(node_id, request, **options)
        if _empty_fetch(response) and time.monotonic() - began < AT_ONCE_SECONDS:
            await asyncio.sleep(PAUSE_SECONDS)
        return response

    client.send = paced


def _empty_fetch(response: object) -> bool:
    """Return whether this is the answer to a fetch, and holds no record of any partition."""
    if not type(response).__name__.startswith("FetchResponse"):
        return False
    topics: Any = getattr(response, "topics", ())
    return not any(partition[-1] for _, partitions in topics for partition in partitions)
