"""The queue between fetch thread and user's thread: order, limits, pauses, seeks, counts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.fetch.buffer import OutOfRange, PartitionBuffer, ReadAhead, value_bytes
from fleet_consumer.record import Gap, Records, TopicPartition

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def run(partition: int, offsets: Sequence[int], **changes: object) -> list[Message]:
    fields: dict[str, object] = {"key": b"k", "value": b"12345", "timestamp": (1, 1_700), "leader_epoch": 4, **changes}
    return [Message(topic="t", partition=partition, offset=offset, **fields) for offset in offsets]  # type: ignore[arg-type]


def put(ahead: ReadAhead, buffer: PartitionBuffer, messages: list[Message]) -> None:
    ahead.put(buffer, messages, value_bytes(messages))


def take(ahead: ReadAhead, limit: int = 500) -> Records:
    told: list[object] = []
    records = ahead.take_records(limit, lambda buffer, what: told.append((buffer, what)))
    assert told == []
    return records


def offsets(records: Records) -> list[tuple[int, list[int]]]:
    return [(part.topic_partition.partition, [record.offset for record in part.records]) for part in records.runs]


def test_runs_are_returned_complete_and_in_order() -> None:
    ahead, one, other = ReadAhead(), PartitionBuffer(ONE, 0), PartitionBuffer(OTHER, 5)
    put(ahead, one, run(0, [0, 1]))
    put(ahead, other, run(1, [5]))
    put(ahead, one, run(0, [2]))
    assert offsets(take(ahead)) == [(0, [0, 1]), (1, [5]), (0, [2])]
    assert (one.position, other.position) == (3, 6)
    assert (ahead.waiting, ahead.waiting_bytes) == (0, 0)
    assert not take(ahead)


def test_fields_are_those_of_the_message() -> None:
    ahead, one = ReadAhead(), PartitionBuffer(ONE, 0)
    put(
        ahead, one, run(0, [0], headers=[("h", b"1"), ("h", None)]) + run(0, [1], key=None, value=None, leader_epoch=-1)
    )
    first, second = take(ahead)
    assert (first.topic, first.partition, first.timestamp, first.key, first.value) == ("t", 0, 1_700, b"k", b"12345")
    assert (list(first.headers), first.leader_epoch, first.attempt) == ([("h", b"1"), ("h", None)], 4, 0)
    assert (second.key, second.value, list(second.headers), second.leader_epoch) == (None, None, [], -1)
    assert one.leader_epoch == -1


def test_run_longer_than_the_limit_is_split() -> None:
    ahead, one = ReadAhead(), PartitionBuffer(ONE, 0)
    put(ahead, one, run(0, range(5)))
    assert offsets(take(ahead, 2)) == [(0, [0, 1])]
    assert ahead.waiting == 3
    assert ahead.waiting_bytes >= 15
    assert offsets(take(ahead, 2)) == [(0, [2, 3])]
    assert offsets(take(ahead, 2)) == [(0, [4])]
    assert (ahead.waiting, ahead.waiting_bytes) == (0, 0)


def test_epoch_change_within_a_run_is_returned_per_record() -> None:
    ahead, one = ReadAhead(), PartitionBuffer(ONE, 0)
    put(ahead, one, run(0, [0, 1], leader_epoch=4) + run(0, [2], leader_epoch=6))
    assert [record.leader_epoch for record in take(ahead)] == [4, 4, 6]
    assert one.leader_epoch == 6


def test_limit_holds_over_several_runs() -> None:
    ahead, one, other = ReadAhead(), PartitionBuffer(ONE, 0), PartitionBuffer(OTHER, 0)
    put(ahead, one, run(0, range(3)))
    put(ahead, other, run(1, range(3)))
    assert len(take(ahead, 4)) == 3
    assert len(take(ahead, 4)) == 3


def test_void_buffer_gives_nothing_and_makes_room() -> None:
    ahead, one, other = ReadAhead(), PartitionBuffer(ONE, 0), PartitionBuffer(OTHER, 0)
    put(ahead, one, run(0, range(3)))
    put(ahead, other, run(1, range(3)))
    one.current = False
    assert offsets(take(ahead)) == [(1, [0, 1, 2])]
    assert ahead.waiting == 0
    assert one.position == 0


def test_records_before_the_position_are_dropped() -> None:
    ahead, one = ReadAhead(), PartitionBuffer(ONE, 7)
    put(ahead, one, run(0, range(5)))
    put(ahead, one, run(0, range(5, 10)))
    assert offsets(take(ahead)) == [(0, [7, 8, 9])]


def test_paused_partition_is_set_aside_without_holding_up_others() -> None:
    ahead, one, other = ReadAhead(), PartitionBuffer(ONE, 0), PartitionBuffer(OTHER, 0)
    put(ahead, one, run(0, [0, 1]))
    put(ahead, one, run(0, [2]))
    put(ahead, other, run(1, [0]))
    one.paused = True
    assert offsets(take(ahead)) == [(1, [0])]
    assert (one.held_records, ahead.waiting) == (3, 0)
    put(ahead, one, run(0, [3]))
    one.paused = False
    ahead.release(one)
    assert offsets(take(ahead)) == [(0, [0, 1]), (0, [2]), (0, [3])]
    assert ahead.waiting == ahead.waiting_bytes == 0


def test_out_of_range_is_reported_after_earlier_records_and_only_if_current() -> None:
    ahead, one, other = ReadAhead(), PartitionBuffer(ONE, 0), PartitionBuffer(OTHER, 0)
    put(ahead, one, run(0, [0]))
    ahead.put_out_of_range(one, "gone")
    ahead.put_out_of_range(other, "gone")
    other.current = False
    told: list[tuple[PartitionBuffer, OutOfRange]] = []

    def tell(buffer: PartitionBuffer, what: OutOfRange) -> None:
        told.append((buffer, what))

    assert len(ahead.take_records(500, tell)) == 1
    assert told == []
    assert not ahead.take_records(500, tell)
    assert [(buffer.topic_partition, what.detail) for buffer, what in told] == [(ONE, "gone")]


@pytest.mark.parametrize("limit", [1, 3, 500])
@given(data=st.data())
def test_m16_no_user_action_loses_doubles_or_reorders_records(limit: int, data: st.DataObject) -> None:
    """Random puts, takes, pauses and resumes of three partitions: each comes out complete and in order; nothing of a
    paused partition comes out; and the counts of what waits return to zero."""
    ahead = ReadAhead()
    buffers = [PartitionBuffer(TopicPartition("t", number), 0) for number in range(3)]
    written = [0, 0, 0]
    out: list[list[int]] = [[], [], []]

    def taken() -> None:
        records = take(ahead, limit)
        assert len(records) <= limit
        for part in records.runs:
            assert not buffers[part.topic_partition.partition].paused
            out[part.topic_partition.partition] += [record.offset for record in part.records]

    for step in data.draw(st.lists(st.sampled_from(["put", "take", "pause", "resume"]), max_size=30)):
        number = data.draw(st.integers(0, 2))
        buffer = buffers[number]
        if step == "put":
            count = data.draw(st.integers(1, 5))
            put(ahead, buffer, run(number, range(written[number], written[number] + count)))
            written[number] += count
        elif step == "take":
            taken()
        elif step == "pause":
            buffer.paused = True
        elif buffer.paused:
            buffer.paused = False
            ahead.release(buffer)
    for buffer in buffers:
        if buffer.paused:
            buffer.paused = False
            ahead.release(buffer)
    while ahead.waiting:
        taken()
    assert out == [list(range(count)) for count in written]
    assert ahead.waiting_bytes == 0


def test_end_moves_the_position_after_older_records_were_returned() -> None:
    ahead, one, other = ReadAhead(), PartitionBuffer(ONE, 0), PartitionBuffer(OTHER, 5)
    put(ahead, one, run(0, range(3)))
    ahead.put_end(one, 5)
    ahead.put_end(other, 6)
    first = take(ahead, 2)
    assert (offsets(first), first.gaps, one.position) == ([(0, [0, 1])], {}, 2)
    second = take(ahead, 2)
    assert second.gaps == {ONE: Gap(3, 5), OTHER: Gap(5, 6)}
    assert second.next_offsets == {ONE: 5, OTHER: 6}
    assert (one.position, one.leader_epoch, other.position) == (5, 4, 6)
    put(ahead, one, run(0, [5]))
    assert take(ahead).next_offsets == {ONE: 6}


def test_ends_that_come_one_after_the_other_are_one_gap() -> None:
    """If the last end replaced earlier ones, commits would never get past the first, and lag would remain."""
    ahead, one, other = ReadAhead(), PartitionBuffer(ONE, 0), PartitionBuffer(OTHER, 7)
    put(ahead, one, run(0, range(3)))
    for end in (5, 6, 9):
        ahead.put_end(one, end)
        ahead.put_end(other, end)
    assert take(ahead).gaps == {ONE: Gap(3, 9), OTHER: Gap(7, 9)}
    ahead.put_end(one, 11)
    put(ahead, one, run(0, [11]))
    ahead.put_end(one, 13)
    assert take(ahead).gaps == {ONE: Gap(12, 13)}


def test_end_of_a_paused_partition_waits_and_of_a_stopped_one_moves_nothing() -> None:
    ahead, one, other = ReadAhead(), PartitionBuffer(ONE, 0), PartitionBuffer(OTHER, 0)
    put(ahead, one, run(0, [0]))
    ahead.put_end(one, 2)
    ahead.put_end(other, 9)
    one.paused, other.current = True, False
    assert not take(ahead).gaps
    assert (one.position, other.position) == (0, 0)
    one.paused = False
    ahead.release(one)
    assert take(ahead).next_offsets == {ONE: 2}


def test_end_below_the_position_moves_nothing_and_one_is_taken_back_with_its_records() -> None:
    ahead, one = ReadAhead(), PartitionBuffer(ONE, 7)
    ahead.put_end(one, 5)
    assert not take(ahead).gaps
    put(ahead, one, run(0, [7]))
    ahead.put_end(one, 9)
    take(ahead)
    ahead.take_back()
    assert one.position == 7
