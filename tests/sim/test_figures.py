"""Figures of a run and their medians."""

from __future__ import annotations

import json

from ops.bench.figures import Bulk, Figures, bulk_figures, flash_figures, medians


def figures(p99: float | None, tokens: float) -> Figures:
    """Return figures with these two values."""
    ms = [] if p99 is None else [p99]
    return Figures(
        flash=flash_figures(ms, 150, expired=0, waiting_ms=[]), bulk=bulk_figures([], tokens), isolated_p50_ms=10
    )


def test_what_expired_or_still_waits_is_not_attained() -> None:
    """Of four events one is in time, one late, one expired and one still waiting: a quarter is attained."""
    found = flash_figures([100.0, 200.0], 150, expired=1, waiting_ms=[900.0])
    assert (found.count, found.attained, found.expired, found.max_ms) == (4, 0.25, 1, 900.0)


def test_medians_skip_runs_without_a_value() -> None:
    """A run in which no headline was answered has no p99 and does not pull the others' median."""
    middle = medians([figures(100, 10), figures(None, 20), figures(300, 30)])
    assert middle.flash.p99_ms == 200
    assert middle.bulk.tokens_per_s == 20


def test_the_output_is_plain_json_with_the_agreed_names() -> None:
    """One policy's object has exactly the documented keys, and nothing that JSON cannot hold."""
    made = Figures(
        flash=flash_figures([], 150, expired=3, waiting_ms=[]),
        bulk=Bulk(count=0, p99_ms=None, tokens_per_s=1.5),
        isolated_p50_ms=None,
    ).as_dict()
    assert json.loads(json.dumps(made, allow_nan=False)) == {
        "flash": {"count": 3, "p50_ms": None, "p99_ms": None, "attained": 0.0, "expired": 3},
        "bulk": {"count": 0, "p99_ms": None, "tokens_per_s": 1.5},
        "isolated_p50_ms": None,
    }
