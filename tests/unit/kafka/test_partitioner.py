"""Java's default partitioner, by the values of Kafka's own tests (`UtilsTest.testMurmur2`)."""

from __future__ import annotations

import pytest

from streams.kafka import partition_of

#: As signed 32-bit integers, as Java prints them.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", JAVA)
@pytest.mark.parametrize("partitions", [1, 4, 1_024])
def test_a_key_lies_where_java_would_put_it(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == (JAVA[key] & 0x7FFFFFFF) % partitions
