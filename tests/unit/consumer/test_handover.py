"""Handover between a polling thread and tasks that may be cancelled: only records that were taken count."""

from __future__ import annotations

import pytest

from fleet_consumer.consumer.owner_thread import Handover
from fleet_consumer.record import Gap, Record, Records, Run, TopicPartition

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def run(part: TopicPartition, first: int, count: int) -> Run:
    return Run(part, [Record(*part, first + number, 0, None, b"v", ()) for number in range(count)])


def taken(records: Records) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


def holding(*runs: Run) -> Handover:
    handover = Handover()
    handover.put(Records(list(runs)))
    return handover


def test_records_come_out_once_in_order_and_within_the_limit() -> None:
    handover = holding(run(ONE, 5, 3), run(OTHER, 0, 2), run(ONE, 8, 2))
    assert taken(handover.take_records(2)) == [(0, 5), (0, 6)]
    assert handover.first_offsets() == {ONE: 7, OTHER: 0}
    one = handover.take_one()
    assert one is not None
    assert one.offset == 7
    assert handover.first_offsets() == {OTHER: 0, ONE: 8}
    assert taken(handover.take_records(None)) == [(1, 0), (1, 1), (0, 8), (0, 9)]
    assert not handover
    assert handover.take_one() is None
    assert handover.first_offsets() == {}


def test_full_run_is_passed_on_unchanged() -> None:
    whole = run(ONE, 5, 3)
    assert holding(whole).take_records(3).runs[0] is whole


def test_limit_of_nothing_takes_nothing() -> None:
    handover = holding(run(ONE, 5, 3))
    assert not handover.take_records(0)
    assert handover.first_offsets() == {ONE: 5}


def test_dropped_partition_returns_its_position_and_leaves_the_others() -> None:
    handover = holding(run(ONE, 5, 3), run(OTHER, 0, 2), run(ONE, 8, 2))
    handover.take_one()
    assert handover.drop(frozenset({ONE})) == {ONE: 6}
    assert taken(handover.take_records(None)) == [(1, 0), (1, 1)]


def test_dropping_another_partition_keeps_the_place_in_the_first_run() -> None:
    handover = holding(run(ONE, 5, 3), run(OTHER, 0, 2))
    handover.take_one()
    assert handover.drop(frozenset({OTHER})) == {OTHER: 0}
    assert taken(handover.take_records(None)) == [(0, 6), (0, 7)]


def test_offsets_without_records_come_out_behind_the_last_record_before_them() -> None:
    handover = Handover()
    handover.put(Records([run(ONE, 5, 3)], {ONE: Gap(8, 10), OTHER: Gap(0, 2)}))
    first = handover.take_records(2)
    assert (taken(first), first.gaps) == ([(0, 5), (0, 6)], {OTHER: Gap(0, 2)})
    assert handover.first_offsets() == {ONE: 7}
    second = handover.take_records(2)
    assert (second.next_offsets, second.gaps) == ({ONE: 10}, {ONE: Gap(8, 10)})
    assert not handover


def test_offsets_without_records_are_no_record_to_an_iteration_and_go_with_their_partition() -> None:
    handover = Handover()
    handover.put(Records([], {ONE: Gap(8, 10)}))
    assert handover
    assert handover.take_one() is None
    assert not handover
    handover.put(Records([run(ONE, 5, 3)], {ONE: Gap(8, 10)}))
    assert handover.drop(frozenset({ONE})) == {ONE: 5}
    assert not handover
    for gap in (Gap(8, 10), Gap(10, 12)):
        handover.put(Records([], {ONE: gap}))
    assert handover.take_records(None).gaps == {ONE: Gap(8, 12)}


def test_failure_is_raised_once() -> None:
    handover = Handover()
    handover.fail(ValueError("once"))
    with pytest.raises(ValueError, match="once"):
        handover.raise_failure()
    handover.raise_failure()
