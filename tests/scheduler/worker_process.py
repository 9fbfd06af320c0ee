"""A worker as a process of its own: ``python -m tests.scheduler.worker_process WORKER_JSON LINK_JSON``."""

from __future__ import annotations

import asyncio
import sys

from schemas.settings import LinkSettings, WorkerSettings
from workers.process import serve

if __name__ == "__main__":
    worker, link = WorkerSettings.model_validate_json(sys.argv[1]), LinkSettings.model_validate_json(sys.argv[2])
    asyncio.run(serve(worker, link, asyncio.Event()))
