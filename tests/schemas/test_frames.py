from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.frames import (
    TOKEN_BYTES,
    Drain,
    FromWorker,
    Goodbye,
    ToWorker,
    decode_from_worker,
    decode_to_worker,
    encode_frame,
    pack_tokens,
    unpack_tokens,
)
from tests.schemas.golden import SCHEDULER_FRAMES, WORKER_FRAMES


@pytest.mark.parametrize("frame", list(WORKER_FRAMES.values()), ids=lambda frame: type(frame).__name__)
def test_worker_frames_survive_the_round_trip(frame: FromWorker) -> None:
    """Every frame that a worker sends comes back equal and as its own type."""
    assert decode_from_worker(encode_frame(frame)) == frame


@pytest.mark.parametrize("frame", list(SCHEDULER_FRAMES.values()), ids=lambda frame: type(frame).__name__)
def test_scheduler_frames_survive_the_round_trip(frame: ToWorker) -> None:
    """Every frame that a scheduler sends comes back equal and as its own type."""
    assert decode_to_worker(encode_frame(frame)) == frame


def test_every_frame_type_is_in_the_samples() -> None:
    """A frame type that is added without a round trip of its own fails here."""
    assert {type(frame) for frame in WORKER_FRAMES.values()} == set(FromWorker.__args__)
    assert {type(frame) for frame in SCHEDULER_FRAMES.values()} == set(ToWorker.__args__)


def test_a_frame_of_the_other_side_is_refused() -> None:
    """A scheduler does not take a scheduler's frame, nor a worker a worker's."""
    with pytest.raises(msgspec.ValidationError):
        decode_from_worker(encode_frame(Drain(reason="r")))
    with pytest.raises(msgspec.ValidationError):
        decode_to_worker(encode_frame(Goodbye(session="s", reason="r")))


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_tokens_survive_packing(ids: list[int]) -> None:
    """Any token ids of 32 bits come back in order, at four bytes each."""
    packed = pack_tokens(ids)
    assert len(packed) == TOKEN_BYTES * len(ids)
    assert unpack_tokens(packed) == ids


def test_packed_tokens_are_little_endian() -> None:
    """The byte order is part of the contract between hosts, and of the platforms that we run on."""
    assert pack_tokens([1, 258]) == b"\x01\x00\x00\x00\x02\x01\x00\x00"
    assert array("I").itemsize == TOKEN_BYTES


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_as_frames(raw: bytes) -> None:
    """No bytes make the frame decoders raise anything but msgspec's errors, which the links catch."""
    for decode in (decode_from_worker, decode_to_worker):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            decode(raw)
