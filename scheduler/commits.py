"""Committing one topic's finished offsets: bounded in time, for owned partitions only, and never two at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import ConsumerStoppedError, KafkaError, OffsetMetadataTooLargeError

from scheduler.ledger import Commit, Ledger

log = structlog.get_logger()

ERROR_CHARS = 200
REMIND_SECONDS = 30.0
"""How often commits that keep failing are mentioned."""


def warn(event: str, **fields: object) -> None:
    """Log a warning, with whatever logging is configured by then: a bound ``log.warning`` would keep today's."""
    log.warning(event, **fields)


class Committer(Protocol):
    """Commits the finished offsets of one topic."""

    failures: int
    """Commits that failed since the start; what was in them went into a later one."""

    async def commit(self, client: AIOKafkaConsumer, timeout: float) -> None:
        """Commit now; a failed commit is tried again by the next.

        Args:
            client: the group's member.
            timeout: most seconds to take.
        """

    async def cancel(self) -> None:
        """End a commit that is running."""

    async def settled(self, timeout: float) -> None:
        """Wait until who asks for the group's offsets gets what was committed, for at most ``timeout`` seconds."""


class Commits:
    """Commits what the ledger has finished.

    aiokafka's own ``commit()`` retries without end, and sends again under whatever generation the group has by then,
    without looking at the assignment: a commit that outlived a rebalance could rewind a partition that is somebody
    else's. So a commit has a time limit, only what is owned goes into it, and it is cancelled when a revoke begins.

    Args:
        topic: whose partitions.
        ledger: what is finished, under which epoch.
        trouble: takes what Kafka being away explains, for the log.
    """

    def __init__(self, topic: str, ledger: Ledger, trouble: Callable[..., None] = warn) -> None:
        self._topic = topic
        self._ledger = ledger
        self._trouble = trouble
        self._running: asyncio.Task[None] | None = None
        self._failed_since: float | None = None
        self._reminded = 0.0
        self.failures = 0

    async def commit(self, client: AIOKafkaConsumer, timeout: float) -> None:
        """Commit now, after a commit that is still running; a failed one is tried again by the next.

        After and not in place of it: whoever began that one may forget the partitions as soon as it is over, and then
        nothing is left to commit.

        Args:
            client: the group's member.
            timeout: most seconds to take, and to wait for another commit.
        """
        if (before := self._running) is not None and not before.done():
            await asyncio.wait([before], timeout=timeout)
        await self.cancel()
        running = asyncio.get_running_loop().create_task(self._commit(client, timeout))
        self._running = running
        try:
            # wait() and not await: the task may be cancelled by a revoke, and that is no cancellation of ours.
            await asyncio.wait([running])
        except asyncio.CancelledError:
            running.cancel()
            raise
        if not running.cancelled():
            running.result()

    async def cancel(self) -> None:
        """End a commit that is running; what it has sent may still arrive, what it would have sent again does not."""
        running = self._running
        if running is not None and not running.done():
            running.cancel()
            await asyncio.wait([running])

    async def settled(self, timeout: float) -> None:
        """Nothing to wait for: a commit that is answered can be read."""

    async def _commit(self, client: AIOKafkaConsumer, timeout: float) -> None:
        owned = client.assignment()
        coordinator = client._coordinator  # noqa: SLF001 - see `_retrieve_later`
        commits = {p: c for p, c in self._ledger.commits(self._topic).items() if TopicPartition(*p) in owned}
        if not commits:
            return
        try:
            async with asyncio.timeout(timeout):
                try:
                    await client.commit(_offsets(commits))
                except OffsetMetadataTooLargeError:
                    commits = self._without_maps(commits)
                    await client.commit(_offsets(commits))
        except (KafkaError, ConsumerStoppedError, OSError, TimeoutError) as error:
            self._note_failure(error)
            return
        finally:
            _retrieve_later(coordinator)
        self._note_success()
        self._ledger.committed(commits)  # it looks at the epoch again

    def _without_maps(self, commits: Mapping[tuple[str, int], Commit]) -> dict[tuple[str, int], Commit]:
        """Return the same offsets alone, and ask the ledger for shorter maps from now on."""
        longest = max(len(commit.metadata) for commit in commits.values())
        self._ledger.map_limit = min(self._ledger.map_limit, longest) // 2
        log.warning("offset_metadata_too_large", topic=self._topic, characters=longest, limit=self._ledger.map_limit)
        return {partition: commit._replace(metadata="") for partition, commit in commits.items()}

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        now = time.monotonic()
        if self._failed_since is None:
            self._failed_since = now
        elif now - self._reminded < REMIND_SECONDS:
            return
        self._reminded = now
        self._trouble(
            "commit_failed",
            topic=self._topic,
            # aiokafka explains CommitFailedError in a paragraph of several lines.
            error=f"{type(error).__name__}: {' '.join(str(error).split())[:ERROR_CHARS]}",
            unfinished=self._ledger.unfinished([self._topic]),
        )

    def _note_success(self) -> None:
        if self._failed_since is not None:
            seconds = round(time.monotonic() - self._failed_since, 1)
            log.debug("commits_work_again", topic=self._topic, after_seconds=seconds)
            self._failed_since = None


def _offsets(commits: Mapping[tuple[str, int], Commit]) -> dict[TopicPartition, tuple[int, str]]:
    return {TopicPartition(*partition): (commit.offset, commit.metadata) for partition, commit in commits.items()}


def _retrieve_later(coordinator: object) -> None:
    """Look at the result of a request that outlives its commit; asyncio would print a traceback when it fails.

    aiokafka shields the request, so that giving up a commit leaves it behind with nobody who waits for it.
    """
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is None or frame.f_code.co_name != "_do_commit_offsets":
            continue
        if frame.f_locals.get("self") is coordinator:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
