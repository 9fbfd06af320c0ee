"""A scheduler as a process that a test can kill: ``... SCHEDULER_JSON KAFKA_JSON REDIS_JSON LINK_JSON``."""

from __future__ import annotations

import asyncio
import signal
import sys

from scheduler.service import serve
from schemas.settings import KafkaSettings, LinkSettings, RedisSettings, SchedulerSettings


async def _main(scheduler: str, kafka: str, redis: str, link: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await serve(
        SchedulerSettings.model_validate_json(scheduler),
        KafkaSettings.model_validate_json(kafka),
        RedisSettings.model_validate_json(redis),
        LinkSettings.model_validate_json(link),
        stop,
    )


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
