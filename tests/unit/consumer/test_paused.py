"""Paused partitions: the memory they hold, and the records they deliver once they resume."""

from __future__ import annotations

from fleet_consumer.record import TopicPartition
from tests.unit.consumer.lab import HELD_BYTES_MAX, ONE, OTHER, Lab


def test_long_pause_is_handed_to_librdkafka_once_enough_is_held() -> None:
    lab = Lab().reading(ONE, OTHER)
    lab.positions.pause((ONE,))
    for first in range(0, 30, 5):
        lab.fetch.deliver(ONE, first, 5)
        lab.taken()
    assert [command for command in lab.fetch.commands if command[0] == "hold"] == [("hold", ONE)]
    lab.positions.resume((ONE,))
    assert lab.fetch.commands[-1] == ("unhold", ONE)
    assert lab.taken() == [(0, offset) for offset in range(30)]


def test_long_pause_of_a_partition_with_large_records_holds_few_of_them() -> None:
    lab = Lab().reading(ONE)
    lab.positions.pause((ONE,))
    for offset in range(3):
        lab.fetch.deliver(ONE, offset, 1, value=bytes(HELD_BYTES_MAX // 3))
        lab.taken()
    assert [command for command in lab.fetch.commands if command[0] == "hold"] == [("hold", ONE)]


def held_bytes(lab: Lab) -> int:
    return sum(buffer.held_bytes for buffer in lab.positions._buffers.values() if buffer is not None)


def test_all_paused_partitions_together_hold_no_more_than_the_budget_and_none_is_starved() -> None:
    """Each fetch brings four times what a partition's share is; keys and headers count."""
    parts = tuple(TopicPartition("t", number) for number in range(50))
    lab = Lab().reading(*parts)
    lab.positions.pause(parts)
    for part in parts:
        lab.fetch.deliver(part, 0, 2, key=bytes(2_000), headers=[("h", bytes(2_000))])
        lab.taken()
        assert held_bytes(lab) <= HELD_BYTES_MAX
    assert {command[1] for command in lab.fetch.commands if command[0] == "hold"} == set(parts)
    for part in parts:
        lab.positions.resume((part,))
        kept = lab.taken()
        if not kept:  # it was dropped, and is fetched again
            assert ("seek", part, 0, 2) in lab.fetch.commands
            assert lab.fetch.commands[-1] == ("unhold", part)
            lab.fetch.deliver(part, 0, 2)
            kept = lab.taken()
        assert kept == [(part.partition, 0), (part.partition, 1)]
    assert held_bytes(lab) == 0


def test_record_larger_than_the_budget_flows_when_its_pause_ends() -> None:
    lab = Lab().reading(ONE)
    lab.positions.pause((ONE,))
    late = lab.fetch.buffers[ONE]
    lab.fetch.deliver(ONE, 0, 1, value=bytes(2 * HELD_BYTES_MAX))
    lab.taken()
    assert held_bytes(lab) == 0
    assert not late.held, "the fetch thread would keep it in memory for as long as the pause lasts"
    lab.fetch.deliver(ONE, 1, 1, late)  # was on its way, and belongs behind what was dropped
    assert lab.taken() == []
    lab.positions.resume((ONE,))
    lab.fetch.deliver(ONE, 0, 1, value=bytes(2 * HELD_BYTES_MAX))
    assert lab.taken() == [(0, 0)]
    assert lab.positions.position(ONE) == 1


def test_partition_with_dropped_records_is_sought_and_revoked_like_others() -> None:
    lab = Lab().reading(ONE, OTHER)
    lab.positions.pause((ONE, OTHER))
    for part in (ONE, OTHER):
        lab.fetch.deliver(part, 0, 1, value=bytes(2 * HELD_BYTES_MAX))
        lab.taken()
    lab.positions.seek(ONE, 7)
    assert lab.fetch.commands[-2:] == [("unhold", ONE), ("seek", ONE, 7, -1)]
    lab.positions.stop_delivery([OTHER])
    lab.positions.discard_partitions([OTHER])
    lab.reading(OTHER)
    lab.fetch.deliver(OTHER, 0, 1)
    assert lab.taken() == [(1, 0)]


def test_pause_outlives_a_seek_and_ends_with_the_assignment() -> None:
    lab = Lab().reading(ONE)
    lab.positions.pause((ONE,))
    lab.positions.seek(ONE, 5)
    lab.fetch.deliver(ONE, 5, 1)
    assert lab.taken() == []
    lab.positions.stop_delivery([ONE])
    lab.positions.discard_partitions([ONE])
    lab.reading(ONE)
    assert lab.positions.paused == frozenset()
    lab.fetch.deliver(ONE, 0, 1)
    assert lab.taken() == [(0, 0)]
