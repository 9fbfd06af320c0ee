"""Reads files that a wire delivers: those that are there, and in watch mode each new one as soon as it is whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import structlog
from watchfiles import awatch

from producers.errors import FeedError, FeedErrorKind
from producers.news.desk import NewsDesk
from producers.news.formats import MAX_NEWS_BYTES, Reading, read_news
from producers.news.item import Defaults
from producers.news.json_lines import Problem
from producers.news.store import NewsStore
from schemas.errors import ConfigError, DecodeError

log = structlog.get_logger()

STEP_MS = 10
"""How long the watcher waits for more changes before it reports one: the delay of a lone file."""
DEBOUNCE_MS = 100
RESCAN_MS = 2000
"""A look at the whole directory: network file systems report no changes, and unfinished files need a second try."""
SETTLED_SECONDS = 1.0
"""A file that cannot be read is rejected once it has not changed for so long; until then it may be half written."""
UNFINISHED = (".tmp", ".part", ".partial", ".filepart", ".swp", "~")
"""Endings under which transfer programs write before they rename."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """A file, or a line of one, that gives no item.

    Args:
        path: of the file.
        line: from 1; 0 for the whole file.
        error: why.
    """

    path: Path
    line: int
    error: Problem


@dataclass(kw_only=True, slots=True)
class FileCounts:
    """Files that were read, were known from before, and were rejected."""

    read: int = 0
    known: int = 0
    rejected: int = 0


OnRejected = Callable[[Rejected], None]


class FileSource:
    """Hands the news in files to the desk, each content of a file once.

    Args:
        paths: files, and directories whose files are meant.
        pattern: which files of a directory, as in a shell.
        defaults: what the operator says about the source.
        on_rejected: called for every file or line that gives no item.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        defaults: Defaults,
        desk: NewsDesk,
        store: NewsStore,
        *,
        pattern: str = "*",
        on_rejected: OnRejected | None = None,
    ) -> None:
        self._paths = [path.absolute() for path in paths]
        self._pattern = pattern
        self._defaults = defaults
        self._desk = desk
        self._store = store
        self._on_rejected = on_rejected
        self._done: dict[Path, str] = {}
        self.counts = FileCounts()

    def check(self) -> None:
        """Look whether the paths are there.

        Raises:
            ConfigError: one is not.
        """
        for path in self._paths:
            if not path.exists():
                raise ConfigError("news.directories", f"{path}: no such file or directory")

    async def read_all(self, *, settled: bool = True) -> None:
        """Read all files that are there now, in the order of their modification.

        Args:
            settled: false leaves files that cannot be read for later when they were changed just now.

        Raises:
            UnavailableError, PublishError: Kafka or Redis is away.
        """
        for path in await asyncio.to_thread(self._files):
            await self._read(path, settled=settled)

    async def watch(self) -> None:
        """Read all files, then every new or changed one, until cancelled.

        Raises:
            ConfigError: a directory cannot be watched.
            UnavailableError, PublishError: Kafka or Redis is away.
        """
        loop = asyncio.get_running_loop()
        rescan_at = 0.0
        try:
            await self.read_all(settled=False)
            async for changed in awatch(
                *self._paths,
                step=STEP_MS,
                debounce=DEBOUNCE_MS,
                rust_timeout=RESCAN_MS,
                yield_on_timeout=True,
                recursive=False,
                ignore_permission_denied=True,
            ):
                for path in sorted({Path(name) for _, name in changed}):
                    if self._wanted(path):
                        await self._read(path, settled=False)
                # Finds what came before the watch began and what it was not told of, however busy it is.
                if loop.time() >= rescan_at:
                    await self.read_all(settled=False)
                    rescan_at = loop.time() + RESCAN_MS / 1000
        except OSError as error:
            raise ConfigError("news.directories", f"cannot be watched: {error}") from None

    def _files(self) -> list[Path]:
        found: list[tuple[int, Path]] = []
        for path in self._paths:
            for entry in path.iterdir() if path.is_dir() else (path,):
                try:
                    if entry == path or self._wanted(entry):
                        found.append((entry.stat().st_mtime_ns, entry))
                except OSError:  # gone again
                    continue
        return [path for _, path in sorted(found)]

    def _wanted(self, path: Path) -> bool:
        name = path.name
        if name.startswith(".") or name.endswith(UNFINISHED):
            return False
        return fnmatch(name, self._pattern) and path.is_file()

    async def _read(self, path: Path, *, settled: bool) -> None:
        """Read one file unless this content of it was read before."""
        try:
            stat = await asyncio.to_thread(path.stat)
        except OSError:  # gone again
            return
        mark = f"{path}|{stat.st_size}|{stat.st_mtime_ns}"
        if self._done.get(path) == mark:
            return
        if await self._store.seen("file", mark):
            self._done[path] = mark
            self.counts.known += 1
            return
        received = time.time_ns()
        try:
            reading = await asyncio.to_thread(self._parsed, path, stat.st_size, received)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            reading = FeedError(FeedErrorKind.UNREADABLE, "", f"cannot be read: {reason}")
        except (FeedError, DecodeError) as error:
            reading = error
        whole = settled or time.time() - stat.st_mtime >= SETTLED_SECONDS
        if isinstance(reading, FeedError | DecodeError):
            if whole:
                self._reject(path, 0, reading)
                await self._finish(path, mark)
            return
        await self._desk.submit(reading.items, received)
        if reading.problems and not whole:
            return
        for number, problem in reading.problems:
            self._reject(path, number, problem)
        self.counts.read += 1
        await self._finish(path, mark)

    def _parsed(self, path: Path, size: int, received_at_ns: int) -> Reading | Problem:
        if size > MAX_NEWS_BYTES:
            return FeedError(FeedErrorKind.TOO_LARGE, "", f"{size} bytes, the limit is {MAX_NEWS_BYTES}")
        with path.open("rb") as file:
            data = file.read(MAX_NEWS_BYTES + 1)
        return read_news(data, self._defaults, received_at_ns)

    async def _finish(self, path: Path, mark: str) -> None:
        self._done[path] = mark
        await self._store.mark_seen("file", mark)

    def _reject(self, path: Path, line: int, error: Problem) -> None:
        self.counts.rejected += 1
        log.warning(
            "file_rejected", path=str(path), line=line, kind=error.kind.value, field=error.field, reason=error.reason
        )
        if self._on_rejected:
            self._on_rejected(Rejected(path=path, line=line, error=error))
