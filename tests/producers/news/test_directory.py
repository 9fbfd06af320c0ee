"""Files from a wire: read once, watched, patient with half-written ones, rejected by name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from producers.errors import FeedErrorKind
from producers.news.directory import FileSource, Rejected
from producers.news.item import NO_DEFAULTS
from producers.news.service import until_stopped
from schemas.errors import ConfigError
from tests.producers.news import documents as docs
from tests.producers.news.conftest import Office, OpenOffice

pytestmark = pytest.mark.integration


def source(office: Office, *paths: Path, rejected: list[Rejected] | None = None, pattern: str = "*") -> FileSource:
    """A source of these paths."""
    on_rejected = None if rejected is None else rejected.append
    return FileSource(paths, NO_DEFAULTS, office.desk, office.store, pattern=pattern, on_rejected=on_rejected)


@asynccontextmanager
async def watching(files: FileSource) -> AsyncIterator[None]:
    """Watch for as long as the block lasts."""
    stop = asyncio.Event()
    work = asyncio.create_task(until_stopped(files.watch, stop))
    try:
        yield
    finally:
        stop.set()
        await work


async def test_files_of_all_formats_are_read_once(tmp_path: Path, open_office: OpenOffice) -> None:
    """A directory's files give their events; read again after a restart they give none and are not even parsed."""
    (tmp_path / "a").write_bytes(docs.ninjs_1())
    (tmp_path / "b").write_bytes(docs.newsml_g2())
    (tmp_path / "c").write_bytes(docs.newsml_1())
    (tmp_path / ".hidden").write_bytes(docs.ninjs_2())
    (tmp_path / "d.part").write_bytes(docs.ninjs_2())
    async with open_office() as office:
        files = source(office, tmp_path)
        await files.read_all()
        assert files.counts.read == 3
        assert len(await office.topic()) == 3
    async with open_office() as office:
        files = source(office, tmp_path)
        await files.read_all()
        assert (files.counts.read, files.counts.known) == (0, 3)
        assert len(await office.topic()) == 3


async def test_rejected_files_and_lines_are_named(tmp_path: Path, office: Office) -> None:
    """A file of no format and a bad line are reported with path, line and reason; the good lines are published."""
    (tmp_path / "a.txt").write_bytes(b"nothing we know")
    (tmp_path / "b.jsonl").write_bytes(docs.ninjs_2() + b"\nnot json\n" + docs.ninjs_3())
    rejected: list[Rejected] = []
    await source(office, tmp_path, rejected=rejected).read_all()
    assert [(found.path.name, found.line, found.error.kind) for found in rejected] == [
        ("a.txt", 0, FeedErrorKind.UNKNOWN_FORMAT),
        ("b.jsonl", 2, FeedErrorKind.MALFORMED),
    ]
    assert len(await office.topic()) == 2


async def test_new_files_are_seen(tmp_path: Path, office: Office) -> None:
    """Files written, renamed into place and changed while we watch become events."""
    async with watching(source(office, tmp_path, pattern="*.json")):
        (tmp_path / "1.json").write_bytes(docs.ninjs_1())
        assert (await office.confirmed.get()).version == 1
        (tmp_path / "2.tmp").write_bytes(docs.ninjs_3())
        os.rename(tmp_path / "2.tmp", tmp_path / "2.json")  # noqa: PTH104 - as a transfer program does it
        assert (await office.confirmed.get()).language == "de"
        (tmp_path / "1.json").write_bytes(docs.ninjs_1(version="2", headline="Kestavel grounds 20 jets"))
        corrected = await office.confirmed.get()
        assert (corrected.version, corrected.supersedes is not None) == (2, True)


async def test_a_half_written_file_is_waited_for(tmp_path: Path, office: Office) -> None:
    """A file that cannot be read yet is not rejected while it grows, and is read once it is whole."""
    rejected: list[Rejected] = []
    whole = docs.newsml_g2()
    target = tmp_path / "story.xml"
    target.write_bytes(whole[:500])
    async with watching(source(office, tmp_path, rejected=rejected)):
        (tmp_path / "other.json").write_bytes(docs.ninjs_1())
        assert (await office.confirmed.get()).urgency == 3
        target.write_bytes(whole)
        assert (await office.confirmed.get()).urgency == 2
    assert rejected == []


async def test_a_file_that_stays_unreadable_is_rejected_once(tmp_path: Path, office: Office) -> None:
    """A file that has not changed for a while and cannot be read is reported, one time."""
    broken = tmp_path / "story.xml"
    broken.write_bytes(docs.newsml_g2()[:500])
    os.utime(broken, (1_700_000_000, 1_700_000_000))
    rejected: list[Rejected] = []
    files = source(office, tmp_path, rejected=rejected)
    for _ in range(3):
        await files.read_all(settled=False)
    assert [found.error.kind for found in rejected] == [FeedErrorKind.MALFORMED]


async def test_a_path_that_is_not_there_is_a_configuration_error(tmp_path: Path, office: Office) -> None:
    """A directory that does not exist is named before anything starts."""
    with pytest.raises(ConfigError) as caught:
        source(office, tmp_path / "absent").check()
    assert "absent" in caught.value.reason
