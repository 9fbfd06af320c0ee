"""The note that travels with a request into the engine process."""

from __future__ import annotations

import msgspec
import pytest

from schemas.frames import Request, StepPolicy, pack_tokens
from workers.step_notes import engine_priority, note_for, read_note

POLICY = StepPolicy(
    lower_step_tokens=256,
    step_seconds=0.01,
    prefill_token_seconds=1e-4,
    decode_seconds=2e-4,
    kv_token_seconds=1e-7,
    decode_step_seconds=5e-3,
)


def request(priority: int, *, floor: bool = False) -> Request:
    """Return a request of a class."""
    return Request(
        request_id=1,
        text_tokens=pack_tokens([1, 2]),
        service_class="x",
        priority=priority,
        deadline_ns=1_700_000_000_000_000_000,
        extractor="headline",
        floor=floor,
    )


@pytest.mark.parametrize("policy", [POLICY, None])
def test_a_note_survives_the_way(policy: StepPolicy | None) -> None:
    """What is read after MessagePack, as between vLLM's processes, is what was written."""
    note = note_for(request(0), 160, policy)
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(note.extra_args()))
    assert read_note(arrived) == note
    assert note.urgent


@pytest.mark.parametrize("extra_args", [None, {}, {"kv_transfer_params": {}}])
def test_a_request_without_a_note_has_none(extra_args: dict[str, object] | None) -> None:
    """Requests of others, as those of the warm-up, are not taken for ours."""
    assert read_note(extra_args) is None


def test_only_lower_classes_without_a_guarantee_are_held() -> None:
    """Urgent work and a class's guaranteed share never wait for the gate."""
    held = [note_for(one, 0, None).held for one in (request(0), request(1), request(2, floor=True))]
    assert held == [False, True, False]


def test_a_guaranteed_share_stands_before_all_that_can_be_held() -> None:
    """VLLM's order is: most urgent class, guaranteed shares, then the other classes as they are."""
    order = [engine_priority(one) for one in (request(0), request(2, floor=True), request(1), request(2))]
    assert order == sorted(order)
    assert len(set(order)) == len(order)
