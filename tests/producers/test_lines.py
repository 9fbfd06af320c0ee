from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from producers.lines import CHUNK_BYTES, STDIN, Line, LineReader, LineSplitter
from schemas.errors import ConfigError


def split(chunks: list[bytes], max_bytes: int = 100) -> list[Line]:
    """All lines of a stream that comes in these chunks."""
    splitter = LineSplitter(max_bytes)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + list(splitter.end())


async def read(path: str | Path, max_bytes: int = 100) -> list[Line]:
    """All lines of a file."""
    async with LineReader(path, max_bytes=max_bytes, stop=asyncio.Event()) as reader:
        return [line async for line in reader]


@given(st.lists(st.binary(max_size=30)), st.integers(1, 20))
def test_chunks_do_not_matter(lines: list[bytes], size: int) -> None:
    """However a stream is cut into chunks, the lines and their numbers are those of the whole."""
    stream = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines)
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert split(chunks) == split([stream])
    assert [line.size for line in split(chunks)] == [len(line.replace(b"\n", b"")) for line in lines]


def test_a_long_line_is_measured_and_thrown_away() -> None:
    """A line over the limit is reported with its size, keeps nothing, and the next line is intact."""
    assert split([b"a" * 60, b"a" * 60, b"\nok\n"]) == [Line(1, b"", 120), Line(2, b"ok", 2)]


def test_a_long_line_is_not_held_in_memory() -> None:
    """A stream without a line feed does not grow the splitter."""
    splitter = LineSplitter(100)
    for _ in range(50):
        assert list(splitter.feed(b"x" * 1000)) == []
    assert len(splitter._held) == 0
    assert [line.size for line in splitter.end()] == [50_000]


def test_an_unfinished_last_line_counts() -> None:
    """A file that does not end with a line feed loses nothing."""
    assert split([b"one\ntw", b"o"]) == [Line(1, b"one", 3), Line(2, b"two", 3)]


def test_a_byte_order_mark_is_taken_off() -> None:
    """A file saved with a UTF-8 byte order mark reads like one without; only at its start."""
    assert [line.data for line in split([b"\xef\xbb\xbf{}\n\xef\xbb\xbf{}\n"])] == [b"{}", b"\xef\xbb\xbf{}"]


async def test_a_file_is_read_whole(tmp_path: Path) -> None:
    """Lines across several reads come complete and in order."""
    path = tmp_path / "lines"
    expected = [b"%d:" % number + b"x" * 50 for number in range(3 * CHUNK_BYTES // 50)]
    path.write_bytes(b"\n".join(expected))
    lines = await read(path)
    assert [line.data for line in lines] == expected
    assert lines[-1].number == len(expected)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()], ids=["missing", "directory"])
async def test_an_unreadable_path_is_named(tmp_path: Path, make: object) -> None:
    """A path that cannot be opened or read is a configuration error with the path in it."""
    path = tmp_path / "events.jsonl"
    assert callable(make)
    make(path)
    with pytest.raises(ConfigError, match=r"events\.jsonl"):
        await read(path)


async def test_lines_of_a_live_pipe_come_at_once(tmp_path: Path) -> None:
    """A line is handed over when it is written, not when the pipe ends; a stop ends the wait for more."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    stop = asyncio.Event()
    writer = os.open(path, os.O_RDWR)
    try:
        async with asyncio.timeout(10), LineReader(path, max_bytes=100, stop=stop) as reader:
            os.write(writer, b"first\nsec")
            lines = aiter(reader)
            assert (await anext(lines)).data == b"first"
            os.write(writer, b"ond\n")
            assert (await anext(lines)).data == b"second"
            stop.set()
            assert [line async for line in lines] == []
    finally:
        os.close(writer)


async def test_a_dash_is_standard_input(tmp_path: Path) -> None:
    """The path ``-`` reads descriptor 0 and leaves it open for others."""
    path = tmp_path / "stdin"
    path.write_bytes(b"from stdin\n")
    saved, replaced = os.dup(0), os.open(path, os.O_RDONLY)
    try:
        os.dup2(replaced, 0)
        assert [line.data for line in await read(STDIN)] == [b"from stdin"]
        os.fstat(0)
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(replaced)
