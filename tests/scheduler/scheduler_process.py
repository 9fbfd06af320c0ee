"""A scheduler as a process of its own: its four settings as JSON, scheduler, kafka, redis, link."""

from __future__ import annotations

import asyncio
import sys

from scheduler.service import serve
from schemas.settings import KafkaSettings, LinkSettings, RedisSettings, SchedulerSettings

if __name__ == "__main__":
    scheduler, kafka, redis, link = sys.argv[1:5]
    asyncio.run(
        serve(
            SchedulerSettings.model_validate_json(scheduler),
            KafkaSettings.model_validate_json(kafka),
            RedisSettings.model_validate_json(redis),
            LinkSettings.model_validate_json(link),
            asyncio.Event(),
        )
    )
