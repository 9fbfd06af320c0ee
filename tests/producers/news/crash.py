"""A feed handler that a test kills: reads a directory once, in a child forked from a process that has all loaded.

Run as ``python -m tests.producers.news.crash KAFKA REDIS PREFIX DIRECTORY KILLS SEED``; it forks and kills children at
random moments, lets a last one finish, and prints how many were killed in mid-work.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path

from producers.news.service import NewsOptions, serve
from schemas.news_settings import NewsSettings
from schemas.settings import KafkaSettings, RedisSettings
from tests.producers.news.documents import ninjs_1


def feed(kafka: KafkaSettings, redis: RedisSettings, directory: Path) -> None:
    """Read the directory as ``tapewire feed news DIRECTORY`` does."""
    asyncio.run(serve(NewsSettings(), kafka, redis, asyncio.Event(), NewsOptions(paths=[directory])))


def main(bootstrap: str, redis_url: str, prefix: str, directory: str, kills: str, seed: str) -> None:
    """Fork and kill, then finish."""
    kafka = KafkaSettings(bootstrap=bootstrap, topic_prefix=prefix)
    redis = RedisSettings(url=redis_url)
    delays = random.Random(int(seed))
    files = Path(directory)
    started = time.monotonic()
    feed(kafka, redis, files)
    usual = time.monotonic() - started
    killed = 0
    for number in range(int(kills)):
        # New files for every round, so that no child finds everything done.
        for story in range(3):
            deliver(files, f"round {number} story {story}")
        child = os.fork()
        if child == 0:
            feed(kafka, redis, files)
            os._exit(0)
        time.sleep(delays.uniform(0.0, 1.2 * usual))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        killed += os.WIFSIGNALED(status)
    feed(kafka, redis, files)
    sys.stdout.write(f"{killed}\n")


def deliver(files: Path, headline: str) -> None:
    """Put a file into the directory as a transfer program does."""
    name = headline.replace(" ", "-")
    (files / f"{name}.tmp").write_bytes(ninjs_1(uri=f"http://wire.example/{name}", headline=headline))
    (files / f"{name}.tmp").rename(files / f"{name}.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
