from __future__ import annotations

import pytest

from schemas import topics
from schemas.topics import Topics


def test_names_start_with_the_prefix() -> None:
    """Two deployments with their own prefixes share nothing, on Kafka or in Redis."""
    ours, theirs = Topics(prefix="alpha"), Topics(prefix="beta")
    ours_all = {*ours.inputs, *ours.outputs, ours.stamps_key, ours.status_key("s")}
    theirs_all = {*theirs.inputs, *theirs.outputs, theirs.stamps_key, theirs.status_key("s")}
    assert len(ours_all) == len(theirs_all) == 7
    assert not ours_all & theirs_all
    assert all(name.startswith("alpha") for name in ours_all)


def test_default_names_are_the_documented_ones() -> None:
    """The names that consumers have in their configuration do not change by accident."""
    names = Topics()
    assert names.inputs == ("tapewire.news", "tapewire.filings")
    assert names.outputs == ("tapewire.signals", "tapewire.expired", "tapewire.dead-letters")
    assert (names.stamps_key, names.status_key("s1")) == ("tapewire:stamps", "tapewire:status:s1")


@pytest.mark.parametrize("header", sorted(name for name in vars(topics) if name.startswith("HEADER_")))
def test_headers_are_lower_case_ascii(header: str) -> None:
    """Header names are such that any client and any proxy keeps them as they are."""
    value = vars(topics)[header]
    assert value == value.lower()
    assert value.isascii()
