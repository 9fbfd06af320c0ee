"""Deterministic identity of a signal."""

from __future__ import annotations

from hashlib import blake2b, sha256

SEPARATOR = b"\x1f"
"""ASCII unit separator: cannot be part of an id, so two different field lists never hash alike."""


def signal_id(event_id: str, event_version: int, model_revision: str, prompt_version: str) -> str:
    """Return the id of the signal that this input and this model give: 32 hex digits, always the same.

    A redelivered event therefore produces a duplicate that consumers recognise, never a second opinion.
    """
    fields = (event_id.encode(), b"%d" % event_version, model_revision.encode(), prompt_version.encode())
    return blake2b(SEPARATOR.join(fields), digest_size=16).hexdigest()


def tokenizer_hash(file: bytes) -> str:
    """Return the hash by which scheduler and workers know a ``tokenizer.json``: SHA-256 in hex."""
    return sha256(file).hexdigest()
