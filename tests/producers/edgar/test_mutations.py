"""Malformed input by the thousand: seeded mutations of real excerpts."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from producers.formats import parse
from schemas.codec import decode_filing, decode_news, encode_json
from schemas.records import FilingEvent, NewsEvent
from tests.producers.edgar.corpus import CONTEXT, CORPUS, FIXTURES

MUTATIONS = int(os.environ.get("TAPEWIRE_TEST_MUTATIONS", "10000"))
SEED = 20260302
HANG_SECONDS = 5
WINDOW = 24 * 1024
"""Mutants of larger files are cut from them: a cut file is one mutation more, and ten thousand of them take seconds."""
GROWTH_MB = 300
INSERTS = (
    b"<", b">", b"&", b"</", b"<table>", b"</table>", b"<td colspan=99999999>", b"<DOCUMENT>\n", b"<TEXT>\n", b"\x00",
    b"\xff\xfe", b"<![CDATA[", b"]]>", b"<!--", b"-->", b"&#x110000;", b"&#0;", b"{", b"}", b'"', b"\\u0000", b"\r",
    b"<div style='display:none'>", b"<ix:header>", b"<!DOCTYPE x [<!ENTITY a 'b'>]>", "\u202e\u0301".encode() * 50,
)  # fmt: skip


def _flip(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 20)):
        data[draw.randrange(len(data))] = draw.randrange(256)


def _delete(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    del data[start : start + draw.randint(1, max(1, len(data) // 4))]


def _repeat(data: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(data))
    piece = data[start : start + draw.randint(1, 2_000)]
    data[start:start] = piece * draw.randint(1, 30)


def _insert(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 10)):
        at = draw.randrange(len(data) + 1)
        data[at:at] = draw.choice(INSERTS)


def _swap(data: bytearray, draw: random.Random) -> None:
    first, second = sorted(draw.randrange(len(data)) for _ in range(2))
    data[first:second] = bytes(reversed(data[first:second]))


KINDS: tuple[Callable[[bytearray, random.Random], None], ...] = (_flip, _delete, _repeat, _insert, _swap)


def _sources() -> list[bytes]:
    files = sorted(path for folder in (FIXTURES, CORPUS) for path in folder.rglob("*") if path.is_file())
    return [path.read_bytes() for path in files]


def _mutants(count: int) -> Iterator[tuple[int, bytes]]:
    sources = _sources()
    for number in range(count):
        draw = random.Random(SEED + number)
        data = bytearray(draw.choice(sources))
        if len(data) > WINDOW:
            # The start of a file is what it is told by; a window without it is what a cut transfer leaves.
            start = draw.choice((0, 0, draw.randrange(len(data) - WINDOW)))
            data = data[start : start + WINDOW]
        for _ in range(draw.randint(1, 3)):
            if data:
                draw.choice(KINDS)(data, draw)
        yield number, bytes(data)


@contextmanager
def _no_hang() -> Iterator[None]:
    """Break off what takes longer than `HANG_SECONDS` of processor time."""

    def hung(_: int, __: object) -> None:
        raise AssertionError(f"longer than {HANG_SECONDS} s")

    before = signal.signal(signal.SIGVTALRM, hung)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1024 * 1024)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory of a process is read from /proc")
def test_mutated_files_neither_crash_nor_hang_nor_grow() -> None:
    """Every mutant gives valid events or a typed rejection, none takes over five seconds, and memory stays bounded."""
    outcomes: Counter[str] = Counter()
    before = 0.0
    for number, data in _mutants(MUTATIONS):
        try:
            with _no_hang():
                parsed = parse(data, CONTEXT)
        except Exception as error:
            raise AssertionError(f"mutant {number} of seed {SEED}: {type(error).__name__}: {error}") from error
        outcomes["events" if parsed.items else parsed.rejected.kind.value if parsed.rejected else "nothing"] += 1
        for item in parsed.items[:3]:
            if isinstance(item, FilingEvent):
                decode_filing(encode_json(item))
            elif isinstance(item, NewsEvent):
                decode_news(encode_json(item))
        if number == MUTATIONS // 10:
            before = _resident_mb()
    assert _resident_mb() - before < GROWTH_MB
    assert outcomes["nothing"] == 0
    assert outcomes["events"] > 0
    assert outcomes["malformed"] > 0


def _document(body: bytes) -> bytes:
    return b"<DOCUMENT>\n<TYPE>10-K\n<TEXT>\n<html><body>" + body + b"</body></html>\n</TEXT>\n</DOCUMENT>\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"<b>x</b>SECURITIES" + b"<" * 1_000_000, id="unclosed tags"),
        pytest.param(b"<!-- a -->" * 100_000 + b"<html>", id="comments"),
        pytest.param(_document(b"a" + "\u0301".encode() * 500_000), id="combining marks"),
        pytest.param(_document("\u00c3\u00a9".encode() * 250_000), id="mojibake"),
        pytest.param(
            _document(b"<table>" + (b"<tr>" + b"<td rowspan=200>1</td>" * 400 + b"</tr>" + b"<tr></tr>" * 199) * 90),
            id="row spans",
        ),
        pytest.param(
            _document(b"<table>" + b"<tr><td>a</td><td colspan=400>b</td></tr>" * 20_000 + b"<tr><td>x</td><td>1"),
            id="header rows",
        ),
        pytest.param(_document(b"<table><tr><td>" * 50_000), id="nested tables"),
        pytest.param(_document(b"<p>Item 1. Business</p>" * 50_000), id="headings"),
        pytest.param(b"<SEC-HEADER>\n" + b"A" * 1_000_000 + b"\n<DOCUMENT>\n<TYPE>4\n<TEXT>\nhi\n", id="header line"),
        pytest.param(b"<DOCUMENT>\n<TYPE>4\n<TEXT>\nhi\n" * 30_000, id="documents"),
        pytest.param(b"<?xml version='1.0'?><edgarSubmission>" + b"<a>" * 100_000, id="deep XML"),
        pytest.param(b'{"cik": ' + b"[" * 100_000, id="deep JSON"),
    ],
)
def test_input_made_to_hang(data: bytes) -> None:
    """Input that would take quadratic time or unbounded depth is read or rejected within seconds."""
    with _no_hang():
        parsed = parse(data, CONTEXT)
    assert bool(parsed.items) != (parsed.rejected is not None)
