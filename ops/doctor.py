"""Check everything a deployment needs, and say for each thing that is wrong how to mend it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ops.config import Settings, load, masked_url
from ops.engine_check import check_engine, check_model
from ops.redis_client import redis_client
from ops.text import visible
from ops.topics import DEAD_LETTER_BYTES, TopicInfo, describe_topics, topic_names
from schemas.codec import decode_json
from schemas.curve import check_link
from schemas.errors import ConfigError, DecodeError, TapewireError
from schemas.settings import KafkaSettings
from schemas.status import STOPPED_BY_DEAD_LETTERS, STOPPED_MEND, SchedulerStatus

STANDING = {
    "kafka_away": "look at the brokers; it goes on by itself when they answer it",
    "stalled": "look at its log: what it waits for, Kafka's fetches or its own results, stands still",
}
"""States of a scheduler that takes nothing in or gives nothing out, and what to do about them."""
FRESH_SECONDS = 5.0
"""A scheduler writes its status twice a second; older than this, it hangs or is gone."""


class State(StrEnum):
    """How one check ended."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


MARKS = {State.OK: ("✓", "green"), State.WARNING: ("!", "yellow"), State.FAILED: ("✗", "red")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that was looked at.

    Args:
        mend: what to do about it; empty when nothing is wrong.
    """

    name: str
    state: State
    detail: str
    mend: str = ""


async def examine(config: Path | None, *, as_json: bool) -> bool:
    """Run every check and print the outcome; return whether all that is required is fine."""
    checks: list[Check] = []
    try:
        settings = load(config)
    except ConfigError as error:
        checks.append(Check(name="config", state=State.FAILED, detail=str(error), mend="correct that setting"))
    else:
        if not as_json:
            sys.stderr.write("looking at configuration, Kafka, Redis, engine and model …\n")
        groups = await asyncio.gather(
            _kafka(settings.kafka),
            _redis(settings),
            _blocking(check_engine, settings),
            _blocking(check_model, settings),
        )
        checks += _config(settings)
        checks += [check for group in groups for check in group]
    fine = all(check.state is not State.FAILED for check in checks)
    if as_json:
        sys.stdout.write(json.dumps({"ok": fine, "checks": [asdict(check) for check in checks]}) + "\n")
    else:
        _print(checks)
    return fine


def _print(checks: list[Check]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for check in checks:
        mark, color = MARKS[check.state]
        detail = "\n    ".join(visible(line) for line in check.detail.splitlines())
        console.print(Text.assemble((mark, color), f" {check.name}: {detail}"))
        if check.mend:
            console.print(Text(f"    → {visible(check.mend)}"))


async def _blocking(check: Any, settings: Settings) -> list[Check]:
    found: list[tuple[str, bool, str, str]] = await asyncio.to_thread(check, settings.worker)
    return [
        Check(name=name, state=State.OK if fine else State.FAILED, detail=detail, mend=mend)
        for name, fine, detail, mend in found
    ]


def _config(settings: Settings) -> list[Check]:
    classes = ", ".join(f"{c.name} {c.slo_ms:g} ms" for c in settings.scheduler.classes)
    checks = [
        Check(name="config", state=State.OK, detail=f"valid; classes {classes}; {len(settings.scheduler.rules)} rules")
    ]
    link = settings.link
    try:
        check_link(link)
    except ConfigError as error:
        mend = "tapewire keys DIR, then link.keys on both sides"
        return [*checks, Check(name="link", state=State.FAILED, detail=str(error), mend=mend)]
    if link.keys is not None and not link.keys.is_dir():
        detail = f"link.keys: {link.keys} is no directory"
        return [*checks, Check(name="link", state=State.FAILED, detail=detail, mend=f"tapewire keys {link.keys}")]
    how = (
        "CURVE keys" if link.keys else "in the clear beyond this host, as link.plaintext says" if link.plaintext else ""
    )
    return [*checks, Check(name="link", state=State.OK, detail=f"{link.address} {how or 'on this host'}")]


async def _kafka(kafka: KafkaSettings) -> list[Check]:
    try:
        topics = await describe_topics(kafka)
    except ConfigError as error:
        return [Check(name="kafka", state=State.FAILED, detail=str(error), mend=f"correct {error.setting}")]
    except TapewireError as error:
        mend = "start Kafka, or set kafka.bootstrap (TAPEWIRE_KAFKA__BOOTSTRAP) to where it runs"
        return [Check(name="kafka", state=State.FAILED, detail=str(error), mend=mend)]
    checks = [Check(name="kafka", state=State.OK, detail=f"answers at {kafka.bootstrap}")]
    found = {info.name for info in topics}
    if missing := [name for name in topic_names(kafka) if name not in found]:
        detail = f"missing {', '.join(missing)}"
        checks.append(Check(name="topics", state=State.FAILED, detail=detail, mend="tapewire topics create"))
    checks += [check for info in topics if (check := _topic(kafka, info))]
    if len(checks) == 1:
        detail = ", ".join(f"{info.name} ({info.partitions})" for info in topics)
        checks.append(Check(name="topics", state=State.OK, detail=f"{detail} partitions"))
    return checks


def _topic(kafka: KafkaSettings, info: TopicInfo) -> Check | None:
    if info.leaderless:
        detail = f"{info.name}: {info.leaderless} partitions have no leader, nothing can be written to them"
        return Check(name="topics", state=State.FAILED, detail=detail, mend="look at the brokers that held them")
    if info.name in kafka.topics.inputs and info.timestamp_type == "CreateTime":
        detail = (
            f"{info.name} keeps the producers' timestamps: a feed whose clock runs ahead makes its events look fresh"
        )
        mend = "set message.timestamp.type=LogAppendTime on the topic"
        return Check(name="topics", state=State.WARNING, detail=detail, mend=mend)
    if info.name == kafka.topics.dead_letters and 0 < info.max_message_bytes < DEAD_LETTER_BYTES:
        detail = f"{info.name} takes {info.max_message_bytes} bytes: a large record's dead letter will be cut"
        mend = f"set max.message.bytes={DEAD_LETTER_BYTES} on the topic"
        return Check(name="topics", state=State.WARNING, detail=detail, mend=mend)
    return None


async def _redis(settings: Settings) -> list[Check]:
    checks: list[Check] = []
    key = f"{settings.kafka.topic_prefix}:doctor:{os.getpid()}"
    try:
        async with redis_client(settings.redis) as client:
            await client.set(key, b"1", ex=5)
            await client.delete(key)
            memory = await client.info("memory")
            detail = f"answers and takes writes at {masked_url(settings.redis.url)}"
            checks += [Check(name="redis", state=State.OK, detail=detail), *_memory(memory)]
            checks += await _schedulers(client, settings)
    except TapewireError as error:
        mend = "start Redis with room to write, or set redis.url (TAPEWIRE_REDIS__URL) to where it runs"
        checks.append(Check(name="redis", state=State.FAILED, detail=str(error), mend=mend))
    return checks


def _memory(memory: dict[str, Any]) -> list[Check]:
    limit, policy = int(memory.get("maxmemory", 0)), str(memory.get("maxmemory_policy", ""))
    if not limit:
        return []
    if policy.startswith("allkeys"):
        detail = f"maxmemory-policy {policy} may evict the whole stamps stream at once"
        mend = "a Redis of its own, or maxmemory-policy noeviction or volatile-ttl"
        return [Check(name="redis memory", state=State.WARNING, detail=detail, mend=mend)]
    used = int(memory.get("used_memory", 0)) / limit
    if used > 0.9:
        detail = f"{used:.0%} of maxmemory is in use; stamps are refused when it is full"
        return [Check(name="redis memory", state=State.WARNING, detail=detail, mend="lower redis.stamps_kept")]
    return []


async def _schedulers(client: Any, settings: Settings) -> list[Check]:
    """Running schedulers and their workers; that none runs is no fault of a machine that is being set up."""
    checks: list[Check] = []
    async for key in client.scan_iter(match=settings.kafka.topics.status_key("*"), count=1000):
        try:
            status = decode_json(await client.get(key) or b"", SchedulerStatus)
        except DecodeError:
            continue
        age = (time.time_ns() - status.at_ns) / 1e9
        name = f"scheduler {status.scheduler_id}"
        if age > FRESH_SECONDS:
            detail = f"silent for {age:.0f} s"
            checks.append(Check(name=name, state=State.WARNING, detail=detail, mend="look at its log; restart it"))
        elif status.state == STOPPED_BY_DEAD_LETTERS:
            detail = f"takes nothing in: {status.state}"
            checks.append(Check(name=name, state=State.FAILED, detail=detail, mend=STOPPED_MEND))
        elif mend := STANDING.get(status.state):
            checks.append(Check(name=name, state=State.WARNING, detail=status.state, mend=mend))
        elif not status.workers:
            mend = f"tapewire worker --connect {settings.link.address}"
            checks.append(Check(name=name, state=State.WARNING, detail=f"{status.state}, no worker", mend=mend))
        else:
            workers = ", ".join(f"{w.worker_id} ({w.engine}, {w.model})" for w in status.workers)
            checks.append(Check(name=name, state=State.OK, detail=f"{status.state}; workers: {workers}"))
    if not checks:
        mend = "tapewire up, or tapewire scheduler and tapewire worker"
        checks.append(Check(name="scheduler", state=State.WARNING, detail="none is running", mend=mend))
    return checks
