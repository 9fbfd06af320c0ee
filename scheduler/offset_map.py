"""The offset map: which offsets above a commit point are finished, as text for the metadata of that commit.

The text is base64 of ``version | kind | checksum | payload``. Two kinds of payload are tried and the shorter one is
kept: run lengths (good for long runs) and a bitset (good for a patchwork). The checksum covers the commit point too,
so a map can only be read beside the offset that it was written for: an operator who resets a group's offset cannot make
it skip anything.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib
from collections.abc import Iterable, Sequence

from scheduler.errors import OffsetMapError

MAX_CHARS = 4096
"""Kafka's default ``offset.metadata.max.bytes``."""
VERSION = 1
RUNS, BITS = 0, 1
_HEAD = struct.Struct(">BBI")
_MAX_OFFSET = 2**63 - 1
_ONES = re.compile("1+")
_VARINT_STEPS = 9
"""Seven bits each: 63 bits hold any offset."""

Range = tuple[int, int]
"""First offset and the one after the last."""


def encode(point: int, finished: Iterable[Range], limit: int = MAX_CHARS) -> str | None:
    """Return the map, empty when nothing is finished, or None when it needs more than ``limit`` characters.

    Args:
        point: the commit point; no range begins below it.
        finished: ranges in rising order that neither overlap nor touch.
        limit: most characters.
    """
    room = payload_room(limit)
    ranges = list(finished)
    if not ranges:
        return ""
    if room <= 0:
        return None
    bits = _bytes_of_bits(ranges[-1][1] - point)
    kind, payload = BITS, b""
    if 2 * len(ranges) <= min(room, bits):
        kind, payload = RUNS, _encode_runs(point, ranges)
    if kind == BITS or bits < len(payload):
        if bits > room:
            return None
        kind, payload = BITS, _encode_bits(point, ranges)
    if len(payload) > room:
        return None
    return base64.b64encode(_HEAD.pack(VERSION, kind, _checksum(point, kind, payload)) + payload).decode()


def decode(point: int, text: str) -> list[Range]:
    """Return the finished ranges that `encode` was given.

    The work is bounded by the length of the text, which is at most `MAX_CHARS`.

    Raises:
        OffsetMapError: this is no map, or not one of this version, or not of this commit point.
    """
    if not text:
        return []
    if len(text) > MAX_CHARS:
        raise OffsetMapError(f"{len(text)} characters, more than {MAX_CHARS}")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise OffsetMapError("not base64") from None
    if len(data) <= _HEAD.size:
        raise OffsetMapError(f"{len(data)} bytes, too short")
    version, kind, checksum = _HEAD.unpack_from(data)
    payload = data[_HEAD.size :]
    if version != VERSION:
        raise OffsetMapError(f"unknown version {version}")
    if kind not in (RUNS, BITS):
        raise OffsetMapError(f"unknown kind {kind}")
    if checksum != _checksum(point, kind, payload):
        raise OffsetMapError(f"checksum does not fit the content at offset {point}")
    return _decode_runs(point, payload) if kind == RUNS else _decode_bits(point, payload)


def may_fit(runs: int, span: int, limit: int = MAX_CHARS) -> bool:
    """Return False when `encode` would return None for certain, so that nobody lists a hundred thousand runs for it."""
    return min(2 * runs, _bytes_of_bits(span)) <= payload_room(limit)


def estimate(runs: int, span: int) -> int:
    """Return an upper bound of a map's characters, from the number of runs and the offsets that they span.

    A run costs two varints (the gap before it and its length), of which all together make up the span, so no more than
    ``span / 128`` of them can need a second byte.
    """
    if not runs:
        return 0
    varints = 2 * runs
    size, step = varints, 128
    while span >= step:
        size += min(varints, span // step)
        step *= 128
    return chars_of_payload(min(size, _bytes_of_bits(span)))


def payload_room(limit: int) -> int:
    """Return how many bytes of payload fit into so many characters."""
    return min(limit, MAX_CHARS) // 4 * 3 - _HEAD.size


def chars_of_payload(size: int) -> int:
    """Return the characters of a map with a payload of so many bytes."""
    return (_HEAD.size + size + 2) // 3 * 4


def _checksum(point: int, kind: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(struct.pack(">qB", point, kind)))


def _bytes_of_bits(span: int) -> int:
    return (span + 7) // 8


def _encode_runs(point: int, ranges: Sequence[Range]) -> bytes:
    out = bytearray()
    at = point
    for start, end in ranges:
        _put_varint(out, start - at)
        _put_varint(out, end - start)
        at = end
    return bytes(out)


def _decode_runs(point: int, payload: bytes) -> list[Range]:
    ranges: list[Range] = []
    position, at = 0, point
    while position < len(payload):
        gap, position = _take_varint(payload, position)
        length, position = _take_varint(payload, position)
        if not length or (ranges and not gap):
            raise OffsetMapError("an empty run")
        start = at + gap
        at = start + length
        if at > _MAX_OFFSET:
            raise OffsetMapError("an offset past 2^63")
        ranges.append((start, at))
    return ranges


def _encode_bits(point: int, ranges: Sequence[Range]) -> bytes:
    # Through text, since that is linear in C: setting twelve thousand runs in one big integer takes 10 ms.
    text = bytearray(b"0") * (ranges[-1][1] - point)
    for start, end in ranges:
        text[start - point : end - point] = b"1" * (end - start)
    text.reverse()
    return int(text, 2).to_bytes(_bytes_of_bits(len(text)), "little")


def _decode_bits(point: int, payload: bytes) -> list[Range]:
    if not payload[-1]:
        raise OffsetMapError("zeros after the last finished offset")
    text = f"{int.from_bytes(payload, 'little'):b}"[::-1]
    if point + len(text) > _MAX_OFFSET:
        raise OffsetMapError("an offset past 2^63")
    return [(point + ones.start(), point + ones.end()) for ones in _ONES.finditer(text)]


def _put_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _take_varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for step in range(_VARINT_STEPS):
        if position >= len(data):
            raise OffsetMapError("cut in the middle of a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return value, position
    raise OffsetMapError("a number of more than 63 bits")
