"""Lag and time behind of a worker's partitions: unknown is not zero, nothing is asked unless somebody scrapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.worker.consume.lags import EVERY_S, OLD_S, Ends, lag_of, seconds_behind
from fleet_consumer.worker.consume.progress import PartitionProgress, Unfinished
from tests.support.clock import StillClock
from tests.unit.worker.scripted import P0

NOW = 1_700_000_000.0


def record(offset: int, seconds_ago: float) -> Record:
    return Record("t", 0, offset, int((NOW - seconds_ago) * 1000), None, None)


def partition(*, start: int = 0, position: int | None = None, ago: float = 0) -> PartitionProgress:
    found = PartitionProgress(P0)
    found.start = start
    if position is not None:
        found.handled(position - 1, 0)
        found.timestamp = record(0, ago).timestamp
    return found


def behind(found: PartitionProgress, end: int | None, in_hand: Record | None = None) -> float | None:
    return seconds_behind(found, end, lambda: in_hand, NOW)


def test_lag_counts_from_the_commit_and_before_it_from_the_start() -> None:
    found = partition(start=3, position=8)
    assert lag_of(found, 10) == 7
    found.committed = 8
    assert lag_of(found, 10) == 2
    assert lag_of(found, 8) == 0
    assert lag_of(found, 7) is None, "the end is older than the commit"
    assert behind(found, 7) is None


def test_unknown_end_is_no_lag_and_no_time_behind() -> None:
    found = partition(position=8, ago=60)
    assert (lag_of(found, None), behind(found, None)) == (None, None)
    assert behind(found, None, record(8, 50)) == 50, "a record in hand is known to be left"
    assert behind(partition(), 8) is None, "no record was seen yet"


def test_time_behind_is_that_of_the_oldest_record_in_hand() -> None:
    found = partition(position=8, ago=60)
    assert behind(found, 10) == 60
    assert behind(found, 10, record(8, 50)) == 50
    found.add_unfinished(Unfinished(record(7, 90), "done", []))
    assert behind(found, 10, record(8, 50)) == 90


def test_idle_partition_is_not_behind() -> None:
    found = partition(position=8, ago=3600)
    assert behind(found, 8) == 0
    found.committed = 9  # a marker of a transaction is all that follows
    assert behind(found, 9) == 0


def test_record_after_a_quiet_time_is_no_older_than_that_time() -> None:
    """It was behind by the hours since the last record, until it was taken up."""
    found = partition(position=8, ago=7200)
    assert behind(found, 8) == 0
    assert seconds_behind(found, 9, lambda: None, NOW + 1) == 1
    assert seconds_behind(found, 9, lambda: None, NOW + 3600) == 3600
    assert behind(partition(position=8, ago=7200), 9) == 7200, "nobody has scraped before"


def test_record_without_a_timestamp_or_from_the_future_is_not_behind() -> None:
    found = partition(position=8)
    found.timestamp = -1
    assert behind(found, 10) is None
    assert behind(partition(position=8, ago=-60), 10) == 0


class Brokers:
    """Answers lookups of ends as a test says."""

    def __init__(self) -> None:
        self.lookups: list[Ticket[dict[TopicPartition, int]]] = []
        self.answer: dict[TopicPartition, int] | None = {P0: 2}

    def look_up_ends(self, partitions: Iterable[TopicPartition]) -> Ticket[dict[TopicPartition, int]]:
        ticket: Ticket[dict[TopicPartition, int]] = Ticket()
        self.lookups.append(ticket)
        if self.answer is not None:
            ticket.end(dict(self.answer))
        return ticket


def test_ends_are_looked_up_once_in_some_seconds_however_often_somebody_scrapes() -> None:
    brokers, clock = Brokers(), StillClock()
    ends = Ends(cast("Consumer", brokers), clock)
    assert [ends.current([P0]) for _ in range(10)] == [{P0: 2}] * 10
    assert len(brokers.lookups) == 1
    brokers.answer = {P0: 5}
    clock.now += EVERY_S
    assert ends.current([P0]) == {P0: 5}


def test_late_answer_is_for_the_next_scrape_and_old_ends_are_unknown() -> None:
    brokers, clock = Brokers(), StillClock()
    ends = Ends(cast("Consumer", brokers), clock)
    ends.current([P0])
    brokers.answer = None
    clock.now += EVERY_S
    assert ends.current([P0]) == {P0: 2}, "the answer is awaited no longer than a scrape may last"
    brokers.lookups[-1].end({P0: 7})
    assert ends.current([P0]) == {P0: 7}
    clock.now += OLD_S
    assert ends.current([P0]) == {}
    clock.now += EVERY_S
    ends.current([P0])
    assert brokers.lookups[-2].cancelled


def test_broker_that_does_not_answer_leaves_what_was_known_of_its_partitions() -> None:
    """An answer without them replaced all that was known."""
    brokers, clock = Brokers(), StillClock()
    ends = Ends(cast("Consumer", brokers), clock)
    other = TopicPartition("t", 1)
    brokers.answer = {P0: 2, other: 7}
    assert ends.current([P0, other]) == {P0: 2, other: 7}
    brokers.answer = {P0: 3}
    clock.now += EVERY_S
    assert ends.current([P0, other]) == {P0: 3, other: 7}
    clock.now += OLD_S - EVERY_S
    assert ends.current([P0, other]) == {P0: 3}, "it is too old"


def test_lookup_that_failed_leaves_what_was_known() -> None:
    brokers, clock = Brokers(), StillClock()
    ends = Ends(cast("Consumer", brokers), clock)
    ends.current([P0])
    brokers.answer = None
    clock.now += EVERY_S
    ends.current([P0])
    brokers.lookups[-1].end(None, OSError("no broker"))
    assert ends.current([P0]) == {P0: 2}
