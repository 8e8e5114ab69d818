"""Ends for lags: asked for only while somebody wants them, and never waited for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from fleet_consumer.consumer.queries import ASKING_S, FRESH_S, PATIENCE_S, EndOffsets
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.record import TopicPartition

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = frozenset({ONE, OTHER})


class Group:
    def __init__(self) -> None:
        self.asked: list[tuple[tuple[TopicPartition, ...], bool]] = []
        self.tickets: list[Ticket[dict[TopicPartition, int]]] = []

    def end_offsets(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool
    ) -> Ticket[dict[TopicPartition, int]]:
        self.asked.append((tuple(partitions), read_committed))
        self.tickets.append(Ticket())
        return self.tickets[-1]


def ends(group: Group) -> EndOffsets:
    return EndOffsets(cast(CoordinatorThread, group), read_committed=True)


def test_end_offsets_are_looked_up_only_on_demand() -> None:
    group = Group()
    ends(group).refresh(BOTH, 0.0)
    assert group.asked == []


def test_end_is_unknown_until_brokers_have_answered_for_all_that_is_owned() -> None:
    group = Group()
    known = ends(group)
    assert known.end_of(ONE, BOTH, 0.0) is None
    assert known.end_of(OTHER, BOTH, 0.1) is None
    assert group.asked == [((ONE, OTHER), True)]
    group.tickets[0].end({ONE: 7})
    assert known.end_of(ONE, BOTH, 0.2) == 7
    assert known.end_of(OTHER, BOTH, 0.2) is None


def test_old_end_counts_until_a_newer_one_is_there_and_polls_keep_it_fresh_for_a_while() -> None:
    group = Group()
    known = ends(group)
    known.end_of(ONE, BOTH, 0.0)
    group.tickets[0].end({ONE: 7, OTHER: 8})
    known.refresh(BOTH, FRESH_S)
    assert len(group.asked) == 2
    assert known.end_of(ONE, BOTH, FRESH_S) == 7
    group.tickets[1].end({ONE: 9})
    assert known.end_of(ONE, BOTH, FRESH_S + 0.1) == 9
    assert known.end_of(OTHER, BOTH, FRESH_S + 0.1) == 8
    known.refresh(BOTH, FRESH_S + ASKING_S + 1)
    assert len(group.asked) == 2


def test_lookup_that_hangs_is_given_up_and_a_failed_one_changes_nothing() -> None:
    group = Group()
    known = ends(group)
    known.end_of(ONE, BOTH, 0.0)
    known.refresh(BOTH, PATIENCE_S)
    assert group.tickets[0].cancelled
    group.tickets[1].end(None, ValueError("no"))
    assert known.end_of(ONE, BOTH, PATIENCE_S + FRESH_S) is None
    assert len(group.asked) == 3


def test_partition_that_comes_is_asked_for_at_once_and_one_that_went_has_no_end() -> None:
    group = Group()
    known = ends(group)
    known.end_of(ONE, frozenset({ONE}), 0.0)
    group.tickets[0].end({ONE: 7})
    known.end_of(ONE, frozenset({ONE}), 0.1)
    known.end_of(OTHER, frozenset({OTHER}), 0.2)
    assert group.asked[-1] == ((OTHER,), True)
    group.tickets[-1].end({OTHER: 3})
    known.end_of(OTHER, frozenset({OTHER}), 0.3)
    assert known.end_of(ONE, BOTH, 0.4) is None
