"""One record of every kind that becomes a dead letter, for ``tapewire demo --with-bad-records``."""

from __future__ import annotations

import json
import time
from typing import Any

from schemas.errors import ErrorKind
from schemas.settings import LimitSettings


def bad_records(limits: LimitSettings) -> list[tuple[ErrorKind, bytes]]:
    """Return records for the news topic, each with the kind of error that its dead letter must name."""
    good = {
        "event_id": "demo:bad:1",
        "source": "demo",
        "headline": "Fine but for one thing",
        "received_at_ns": time.time_ns(),
    }

    def record(**changes: Any) -> bytes:
        return json.dumps(good | changes).encode()

    missing = {name: value for name, value in good.items() if name != "headline"}
    return [
        (ErrorKind.NOT_JSON, b"HEADLINE: not JSON at all"),
        (ErrorKind.NOT_UTF8, record().replace(b"Fine", b"F\xfcr")),
        (ErrorKind.WRONG_TYPE, record(headline=17)),
        (ErrorKind.MISSING_FIELD, json.dumps(missing).encode()),
        (ErrorKind.INVALID_VALUE, record(received_at_ns=1_700_000_000)),
        (ErrorKind.EMPTY_TEXT, record(headline=" \u200b ")),
        (ErrorKind.TEXT_TOO_LONG, record(headline="long " * (limits.headline_chars // 5 + 1))),
        (ErrorKind.RECORD_TOO_LARGE, record(body="x" * limits.record_bytes)),
        (ErrorKind.UNKNOWN_SCHEMA_VERSION, record(schema_version=99)),
    ]
