"""Lag and time behind of a worker's partitions: unknown is not zero, nothing is asked unless somebody looks."""

from __future__ import annotations

from typing import cast

from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.worker.consume.lags import LOOK_S, WANTED_S, lag_of, seconds_behind
from fleet_consumer.worker.consume.progress import PartitionProgress, Unfinished
from tests.unit.worker.scripted import P0, P1, Bench

NOW = 1_700_000_000.0


def record(offset: int, seconds_ago: float) -> Record:
    return Record("t", 0, offset, int((NOW - seconds_ago) * 1000), None, None)


def partition(*, start: int = 0, end: int | None, position: int | None = None, ago: float = 0) -> PartitionProgress:
    found = PartitionProgress()
    found.start, found.end = start, end
    if position is not None:
        found.handled(position - 1, 0)
        found.timestamp = record(0, ago).timestamp
    return found


def test_lag_counts_from_the_commit_and_before_it_from_the_start() -> None:
    found = partition(start=3, end=10, position=8)
    assert lag_of(found) == 7
    found.committed = 8
    assert lag_of(found) == 2
    found.committed = 12  # the end is older
    assert lag_of(found) == 0


def test_unknown_end_is_no_lag_and_no_time_behind() -> None:
    found = partition(end=None, position=8, ago=60)
    assert lag_of(found) is None
    assert seconds_behind(found, lambda: None, NOW) is None
    assert seconds_behind(partition(end=8), lambda: None, NOW) is None, "no record was seen yet"


def test_time_behind_is_that_of_the_oldest_record_in_hand() -> None:
    found = partition(end=10, position=8, ago=60)
    assert seconds_behind(found, lambda: None, NOW) == 60
    assert seconds_behind(found, lambda: record(8, 50), NOW) == 50
    found.begin(Unfinished(record(7, 90), "done", []))
    assert seconds_behind(found, lambda: record(8, 50), NOW) == 90


def test_idle_partition_is_not_behind() -> None:
    assert seconds_behind(partition(end=8, position=8, ago=3600), lambda: None, NOW) == 0
    found = partition(end=9, position=8, ago=3600)
    found.committed = 9  # a marker of a transaction is all that follows
    assert seconds_behind(found, lambda: None, NOW) == 0


def test_record_without_a_timestamp_or_from_the_future_is_not_behind() -> None:
    found = partition(end=10, position=8)
    found.timestamp = -1
    assert seconds_behind(found, lambda: None, NOW) is None
    assert seconds_behind(partition(end=10, position=8, ago=-60), lambda: None, NOW) == 0


def test_ends_are_looked_up_only_while_metrics_are_scraped() -> None:
    bench = Bench(lambda record: None, {P0: [b"a", b"b"], P1: [b"c"]})
    asked: list[TopicPartition] = []
    lag = bench.consumer.lag

    def counted(partition: TopicPartition) -> int | None:
        asked.append(partition)
        return cast("int | None", lag(partition))

    bench.consumer.lag = counted
    bench.steps(12)
    partitions = bench.loop.progress.partitions
    bench.clock.now += LOOK_S
    bench.loop.lags.look(partitions)
    assert (asked, partitions[P0].end) == ([], None)
    bench.loop.lags.want()
    bench.clock.now += LOOK_S
    bench.loop.lags.look(partitions)
    bench.loop.lags.look(partitions)
    assert (sorted(asked), partitions[P0].end, partitions[P1].end) == ([P0, P1], 2, 1)
    bench.clock.now += WANTED_S
    bench.loop.lags.look(partitions)
    assert partitions[P0].end is None, "old ends are unknown"
