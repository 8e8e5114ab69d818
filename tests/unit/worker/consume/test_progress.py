"""The committable offset never passes a record that is not finished."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.contract.breaker_state import closed_breaker_state, open_breaker_state, read_closed_breaker_state
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.producer import ProduceFailed, SendHandle
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.retry.headers import ReplayEpoch
from fleet_consumer.worker.consume.outbox import Outgoing
from fleet_consumer.worker.consume.progress import (
    PartitionProgress,
    Unfinished,
    committable,
    record_commit,
)

PARTITION = TopicPartition("t", 0)


class Written(Outgoing):
    """A write whose acknowledgement the test gives."""

    def __init__(self, *, done: bool = False, error: ProduceFailed | None = None) -> None:
        super().__init__("out", None, None, ())
        self._handle = SendHandle("out")
        self._handle.done, self._handle.error = done, error

    def acknowledge(self) -> None:
        assert self._handle is not None
        self._handle.done = True


def begun() -> PartitionProgress:
    partition = PartitionProgress(PARTITION)
    partition.replay_epoch = ReplayEpoch()
    return partition


def entry(offset: int, epoch: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset, epoch, ReplayEpoch().metadata(offset))


def record(offset: int, epoch: int = 4) -> Record:
    return Record("t", 0, offset, 0, None, None, leader_epoch=epoch)


def unfinished(offset: int, *writes: Written) -> Unfinished:
    return Unfinished(record(offset), "done", list(writes))


def test_nothing_is_committable_before_the_first_record() -> None:
    assert begun().committable() is None


def test_handled_record_without_writes_is_committable_at_once() -> None:
    partition = begun()
    partition.handled(41, 4)
    assert partition.committable() == entry(42, 4)


def test_record_with_an_open_write_holds_back_all_later_offsets() -> None:
    partition = begun()
    first, second = Written(), Written(done=True)
    partition.unfinished.extend([unfinished(10, first), unfinished(11, second)])
    partition.handled(20, 4)
    assert (partition.pop_finished(), partition.committable()) == ([], entry(10, 4))
    first.acknowledge()
    assert (partition.pop_finished(), partition.committable()) == (["done", "done"], entry(21, 4))


def test_write_that_failed_is_not_finished() -> None:
    partition = begun()
    partition.unfinished.append(unfinished(10, Written(done=True, error=ProduceFailed("out", "_FATAL", "no"))))
    partition.handled(10, 4)
    assert (partition.pop_finished(), partition.committable()) == ([], entry(10, 4))


def test_offset_is_committed_once() -> None:
    partitions = {PARTITION: begun()}
    partitions[PARTITION].handled(5, 0)
    offsets = committable(partitions)
    assert offsets == {PARTITION: entry(6, 0)}
    record_commit(partitions, offsets, None, 0.0)
    assert committable(partitions) == {}


def test_commit_of_a_partition_that_went_away_is_ignored() -> None:
    partitions: dict[TopicPartition, PartitionProgress] = {}
    record_commit(partitions, {PARTITION: entry(6, 0)}, None, 0.0)
    assert partitions == {}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20), st.randoms(use_true_random=False))
def test_committable_is_the_first_unfinished_record_in_any_order_of_acknowledgements(records, random) -> None:  # type: ignore[no-untyped-def]
    """Invariant: after any number of acknowledgements, in any order, the offset is that of the first open record."""
    partition = begun()
    writes: list[tuple[int, Written]] = []
    for offset, (writes_something, _) in enumerate(records):
        if writes_something:
            write = Written()
            writes.append((offset, write))
            partition.unfinished.append(unfinished(offset, write))
        partition.handled(offset, 0)
    random.shuffle(writes)
    while True:
        partition.pop_finished()
        still_open = [offset for offset, write in writes if not write.done]
        if records:
            committable = partition.committable()
            assert committable is not None
            assert committable.offset == min(still_open, default=len(records))
        if not still_open:
            break
        next(write for _, write in writes if not write.done).acknowledge()


def test_gap_at_the_end_is_committed_once_all_before_it_is_finished() -> None:
    partition = begun()
    write = Written()
    partition.unfinished.append(unfinished(4, write))
    partition.handled(4, 2)
    partition.pass_gap(5, 7)
    assert partition.committable() == entry(4, 4)
    write.acknowledge()
    partition.pop_finished()
    assert partition.committable() == entry(7, 2)
    partition.pass_gap(7, 9)
    assert partition.committable() == entry(9, 2)


def test_gap_behind_records_that_were_read_and_not_handled_is_not_committed() -> None:
    partition = begun()
    partition.handled(4, 2)
    partition.pass_gap(6, 7)  # the record at 5 is kept back
    assert partition.committable() == entry(5, 2)
    partition.handled(5, 2)
    assert partition.committable() == entry(7, 2)


def test_gap_of_a_partition_that_has_given_no_record_is_committed_and_ends_when_one_comes() -> None:
    partition = begun()
    partition.start = 3
    partition.pass_gap(3, 5)
    assert partition.committable() == entry(5, -1)
    partition.records_arrived(5)
    assert partition.committable() == entry(3, -1)


def test_mark_of_a_closed_breaker_rides_along_and_one_of_an_open_breaker_is_committed_and_cleared() -> None:
    """A closed breaker is published again every few seconds: partitions that do not move are spared those commits."""
    partition = begun()
    partition.handled(41, 4)
    partition.committed, partition.committed_metadata = 42, ReplayEpoch().metadata(42)
    assert partition.committable(closed_breaker_state(7)) is None
    opened = partition.committable(open_breaker_state(8))
    assert opened is not None
    partition.committed_metadata = opened.metadata
    assert partition.committable(closed_breaker_state(9)) is not None, "an open state must not stay"
    partition.committed_metadata = ReplayEpoch().metadata(42)
    partition.handled(42, 4)
    moved = partition.committable(closed_breaker_state(9))
    assert moved is not None
    assert read_closed_breaker_state(moved.metadata) == 9


def test_in_flight_marker_is_committed_next_to_a_closed_breakers_state() -> None:
    """A partition given back in order says so in its last commit, or its next owner would look for a deadly record."""
    partition = begun()
    partition.crash_marker = "fleet-hand=open"
    partition.handled(4, 2)
    first = partition.committable(closed_breaker_state(7))
    assert first is not None
    partition.committed, partition.committed_metadata = first.offset, first.metadata
    assert partition.committable(closed_breaker_state(9)) is None
    partition.crash_marker = ""
    assert partition.committable(closed_breaker_state(9)) is not None
