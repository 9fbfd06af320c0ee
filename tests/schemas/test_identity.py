from __future__ import annotations

from hypothesis import given

from schemas.identity import signal_id, tokenizer_hash
from tests.schemas import strategies


def test_signal_id_is_fixed_for_ever() -> None:
    """The id of one input is pinned: consumers keep ids for days and compare them across our releases."""
    assert signal_id("wire:story-1:1", 1, "rev-a", "headline-1") == "07c70c7640c8f2aed593178a378695f5"


@given(strategies.ids, strategies.counts, strategies.ids, strategies.ids)
def test_signal_id_depends_on_every_field(event_id: str, version: int, revision: str, prompt: str) -> None:
    """Another event, version, model or prompt gives another id; the same gives the same."""
    same = signal_id(event_id, version, revision, prompt)
    assert signal_id(event_id, version, revision, prompt) == same
    others = {
        signal_id(event_id + "x", version, revision, prompt),
        signal_id(event_id, version + 1, revision, prompt),
        signal_id(event_id, version, revision + "x", prompt),
        signal_id(event_id, version, revision, prompt + "x"),
    }
    assert len(others) == 4
    assert same not in others


def test_fields_do_not_run_into_each_other() -> None:
    """Characters that move from one field to its neighbour change the id."""
    assert signal_id("a1", 1, "r", "p") != signal_id("a", 11, "r", "p")
    assert signal_id("a", 1, "rp", "") != signal_id("a", 1, "r", "p")


def test_tokenizer_hash_is_sha256() -> None:
    """Workers in other languages can compute the hash of their tokenizer file."""
    assert tokenizer_hash(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
