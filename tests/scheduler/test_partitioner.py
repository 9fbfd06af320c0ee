"""Keys go to the partitions where Kafka's own partitioner puts them."""

from __future__ import annotations

from aiokafka.partitioner import murmur2
from hypothesis import given
from hypothesis import strategies as st

from scheduler.partitioner import Partitioner


@given(key=st.binary(max_size=80), count=st.integers(1, 50))
def test_a_key_goes_where_any_kafka_client_puts_it(key: bytes, count: int) -> None:
    """For any key and any number of partitions the answer is that of aiokafka's murmur2, which is Java's."""
    partitioner = Partitioner({"t": range(count)})
    assert partitioner.partition("t", key) == (murmur2(key) & 0x7FFFFFFF) % count


def test_records_without_a_key_go_round() -> None:
    """No partition takes them all."""
    partitioner = Partitioner({"t": [0, 1, 2]})
    assert [partitioner.partition("t", None) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
