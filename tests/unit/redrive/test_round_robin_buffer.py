"""Records of all partitions are taken round robin, and no more of them is held than may be."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.redrive.selection import RoundRobinBuffer


def record(number: int, offset: int, value: bytes = b"v") -> Record:
    return Record("t", number, offset, 0, None, value, (("h", None),))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=12))
def test_everything_comes_out_once_in_the_order_of_its_partition(puts: list[tuple[int, int]]) -> None:
    buffer, ends = RoundRobinBuffer(), defaultdict[int, int](int)
    for number, count in puts:
        buffer.put(TopicPartition("t", number), [record(number, ends[number] + each) for each in range(count)])
        ends[number] += count
    taken = [(each.partition, found.offset) for each, found in buffer.drain()]
    assert sorted(taken) == [(number, offset) for number in sorted(ends) for offset in range(ends[number])]
    for number in ends:
        assert [offset for each, offset in taken if each == number] == list(range(ends[number]))
    assert not buffer.full


def test_no_partition_comes_twice_while_another_waits() -> None:
    buffer = RoundRobinBuffer()
    for number in range(3):
        buffer.put(TopicPartition("t", number), [record(number, offset) for offset in range(4)])
    assert [partition.partition for partition, _ in buffer.drain()] == [0, 1, 2] * 4


def test_it_is_full_by_bytes_headers_counted_and_has_room_again() -> None:
    buffer, part = RoundRobinBuffer(buffer_bytes=10_000), TopicPartition("t", 0)
    buffer.put(part, [record(0, 0)])
    told = [buffer.full]
    buffer.put(part, [Record("t", 0, 1, 0, None, None, (("h", b"x" * 9_000),))])
    told.append(buffer.full)
    assert len(list(buffer.drain())) == 2
    assert [*told, buffer.full] == [False, True, False]
