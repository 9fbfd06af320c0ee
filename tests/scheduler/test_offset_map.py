"""The offset map: what it holds comes back, it stays small, and nothing hostile gets through."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import offset_map
from scheduler.errors import OffsetMapError
from scheduler.offset_map import MAX_CHARS, Range, chars_of_payload, decode, encode, estimate, may_fit, payload_room

_points = st.integers(0, 2**62)


def _ranges(point: int, steps: list[tuple[int, int]]) -> list[Range]:
    """Return the ranges that gaps and lengths give; the first gap may be 0, the others are not."""
    ranges: list[Range] = []
    at = point
    for gap, length in steps:
        start = at + gap + bool(ranges)
        at = start + length
        ranges.append((start, at))
    return ranges


def _span(point: int, ranges: list[Range]) -> int:
    return ranges[-1][1] - point if ranges else 0


_steps = st.lists(
    st.tuples(
        st.integers(0, 3) | st.integers(0, 300) | st.integers(0, 2**40),
        st.integers(1, 3) | st.integers(1, 300) | st.integers(1, 2**40),
    ),
    max_size=60,
)


@given(_points, _steps, st.integers(0, MAX_CHARS))
def test_comes_back_or_is_refused_for_its_size_alone(point: int, steps: list[tuple[int, int]], limit: int) -> None:
    """Any ranges come back as they were, within the limit; None only where they truly do not fit."""
    ranges = _ranges(point, steps)
    text = encode(point, ranges, limit)
    if text is None:
        assert estimate(len(ranges), _span(point, ranges)) > limit // 4 * 4
        return
    assert len(text) <= limit
    assert decode(point, text) == ranges
    assert len(text) <= estimate(len(ranges), _span(point, ranges))
    assert not text or may_fit(len(ranges), _span(point, ranges), limit)


@pytest.mark.parametrize(
    ("ranges", "kind"),
    [
        pytest.param([(101, 10_101)], offset_map.RUNS, id="one long run"),
        pytest.param([(n, n + 1) for n in range(101, 2_101, 2)], offset_map.BITS, id="every second one"),
        pytest.param([(101, 102), (2**50, 2**50 + 5)], offset_map.RUNS, id="far apart"),
    ],
)
def test_takes_the_shorter_kind(ranges: list[Range], kind: int) -> None:
    """Long runs are written as run lengths, a patchwork as bits."""
    text = encode(100, ranges)
    assert text is not None
    assert base64.b64decode(text)[1] == kind
    assert decode(100, text) == ranges


def test_ten_thousand_above_one_stuck_record_take_sixteen_characters() -> None:
    """The common case, one record stuck and all others done, costs next to nothing."""
    text = encode(5, [(6, 10_006)])
    assert text is not None
    assert len(text) <= 16


def test_the_worst_case_reaches_exactly_as_far_as_the_limit() -> None:
    """Every second offset done is the densest patchwork: it fits up to the last bit of 4096 characters."""
    most = payload_room(MAX_CHARS) * 8
    fits = [(n, n + 1) for n in range(1, most, 2)]
    text = encode(0, fits)
    assert text is not None
    assert len(text) == MAX_CHARS == chars_of_payload(payload_room(MAX_CHARS))
    assert decode(0, text) == fits
    assert encode(0, [*fits, (most + 1, most + 2)]) is None


def test_an_empty_map_is_an_empty_string() -> None:
    """Nothing finished above the commit point needs no metadata, and no metadata says that nothing is."""
    assert encode(7, []) == ""
    assert decode(7, "") == []


def test_a_map_is_bound_to_its_commit_point() -> None:
    """An offset that somebody reset by hand with the metadata kept must not skip a single record."""
    text = encode(100, [(105, 110)])
    assert text is not None
    for point in (99, 101, 0):
        with pytest.raises(OffsetMapError):
            decode(point, text)


def _sealed(point: int, version: int, kind: int, payload: bytes) -> str:
    """Return a map with a right checksum, whatever its content."""
    checksum = zlib.crc32(payload, zlib.crc32(point.to_bytes(8, "big") + bytes([kind])))
    return base64.b64encode(bytes([version, kind]) + checksum.to_bytes(4, "big") + payload).decode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("consumer-7: rebalanced at noon", "not base64", id="another tool's words"),
        pytest.param("größer", "not base64", id="not even ascii"),
        pytest.param("A" * (MAX_CHARS + 4), "characters", id="too long"),
        pytest.param("AQ==", "too short", id="no payload"),
        pytest.param(_sealed(100, 2, 0, b"\1\1"), "unknown version 2", id="a later version"),
        pytest.param(_sealed(100, 1, 9, b"\1\1"), "unknown kind 9", id="unknown kind"),
        pytest.param(_sealed(100, 1, 0, b"\1\x81"), "cut", id="half a number"),
        pytest.param(_sealed(100, 1, 0, b"\1"), "cut", id="half a run"),
        pytest.param(_sealed(100, 1, 0, b"\1\0"), "empty run", id="an empty run"),
        pytest.param(_sealed(100, 1, 0, b"\1\1\0\1"), "empty run", id="no gap between runs"),
        pytest.param(_sealed(100, 1, 0, b"\xff" * 9 + b"\1\1"), "63 bits", id="an endless number"),
        pytest.param(_sealed(100, 1, 0, b"\1" + b"\xff" * 8 + b"\x7f"), "2^63", id="past the last offset"),
        pytest.param(_sealed(100, 1, 1, b"\2\0"), "zeros", id="zeros after the last bit"),
    ],
)
def test_what_is_no_map_is_refused_with_its_reason(text: str, reason: str) -> None:
    """Foreign, newer, cut or hostile metadata gives the one typed error that the caller ignores."""
    with pytest.raises(OffsetMapError) as caught:
        decode(100, text)
    assert reason in str(caught.value)


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda data: base64.b64encode(data).decode()))
def test_arbitrary_text_never_does_anything_else(text: str) -> None:
    """No text makes decoding fail in another way than with its own error."""
    try:
        ranges = decode(0, text)
    except OffsetMapError:
        return
    assert ranges == [] or encode(0, ranges) is not None


@given(st.data())
def test_a_damaged_map_is_refused(data: st.DataObject) -> None:
    """One changed byte anywhere, bytes cut off and bytes added: the checksum notices, so nothing is skipped wrongly."""
    ranges = _ranges(50, data.draw(_steps.filter(bool)))
    text = encode(50, ranges)
    assert text is not None
    raw = bytearray(base64.b64decode(text))
    damage = data.draw(st.sampled_from(["flip", "cut", "add"]))
    if damage == "flip":
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    elif damage == "cut":
        del raw[data.draw(st.integers(0, len(raw) - 1)) :]
        if not raw:
            return
    else:
        raw += data.draw(st.binary(min_size=1, max_size=4))
    with pytest.raises(OffsetMapError):
        decode(50, base64.b64encode(raw).decode())
