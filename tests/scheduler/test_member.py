"""A member of a consumer group, before it joins."""

from __future__ import annotations

import pytest

from scheduler.member import new_member
from schemas.settings import KafkaSettings, SchedulerSettings
from tests.scheduler.intakes import Nobody


@pytest.mark.parametrize(("session", "milliseconds"), [(10.0, 1000), (45.0, 1000), (1.5, 500)])
async def test_heartbeats_come_often_enough_to_hear_of_a_rebalance(session: float, milliseconds: int) -> None:
    """Partitions of a dead member wait for the others' next heartbeat, so that is never more than a second away."""
    client = new_member("news", KafkaSettings(), SchedulerSettings(session_seconds=session), Nobody())
    assert client._heartbeat_interval_ms == milliseconds
    assert client._session_timeout_ms == session * 1000
