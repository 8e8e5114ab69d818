"""The committable offset never passes a record that is not finished."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.worker.progress import PartitionProgress, Progress, Unfinished

PARTITION = TopicPartition("t", 0)


@dataclass
class FakeWrite:
    done: bool = False
    error: Exception | None = None


def record(offset: int, epoch: int = 4) -> Record:
    return Record("t", 0, offset, 0, None, None, leader_epoch=epoch)


def unfinished(offset: int, *writes: FakeWrite) -> Unfinished[FakeWrite]:
    return Unfinished(record(offset), None, None, "done", list(writes))


def test_nothing_is_committable_before_the_first_record() -> None:
    assert PartitionProgress().committable() is None


def test_handled_record_without_writes_is_committable_at_once() -> None:
    partition: PartitionProgress[FakeWrite] = PartitionProgress()
    partition.handled(41, 4)
    assert partition.committable() == OffsetAndMetadata(42, 4)


def test_record_whose_write_is_open_holds_back_all_after_it() -> None:
    partition: PartitionProgress[FakeWrite] = PartitionProgress()
    first, second = FakeWrite(), FakeWrite(done=True)
    partition.unfinished.extend([unfinished(10, first), unfinished(11, second)])
    partition.handled(20, 4)
    assert (partition.settle(), partition.committable()) == ([], OffsetAndMetadata(10, 4))
    first.done = True
    assert (partition.settle(), partition.committable()) == (["done", "done"], OffsetAndMetadata(21, 4))


def test_write_that_failed_is_not_finished() -> None:
    partition: PartitionProgress[FakeWrite] = PartitionProgress()
    partition.unfinished.append(unfinished(10, FakeWrite(done=True, error=OSError("no"))))
    partition.handled(10, 4)
    assert (partition.settle(), partition.committable()) == ([], OffsetAndMetadata(10, 4))


def test_offset_is_committed_once() -> None:
    progress: Progress[FakeWrite] = Progress()
    progress.partitions[PARTITION] = PartitionProgress()
    progress.partitions[PARTITION].handled(5, 0)
    offsets = progress.committable()
    assert offsets == {PARTITION: OffsetAndMetadata(6, 0)}
    progress.committed(offsets)
    assert progress.committable() == {}


def test_commit_of_a_partition_that_went_away_is_ignored() -> None:
    progress: Progress[FakeWrite] = Progress()
    progress.committed({PARTITION: OffsetAndMetadata(6, 0)})
    assert progress.partitions == {}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20), st.randoms(use_true_random=False))
def test_committable_is_the_first_unfinished_record_in_any_order_of_acknowledgements(records, random) -> None:  # type: ignore[no-untyped-def]
    """Invariant: after any number of acknowledgements, in any order, the offset is that of the first open record."""
    partition: PartitionProgress[FakeWrite] = PartitionProgress()
    writes: list[tuple[int, FakeWrite]] = []
    for offset, (writes_something, _) in enumerate(records):
        if writes_something:
            write = FakeWrite()
            writes.append((offset, write))
            partition.unfinished.append(unfinished(offset, write))
        partition.handled(offset, 0)
    random.shuffle(writes)
    while True:
        partition.settle()
        still_open = [offset for offset, write in writes if not write.done]
        if records:
            committable = partition.committable()
            assert committable is not None
            assert committable.offset == min(still_open, default=len(records))
        if not still_open:
            break
        next(write for _, write in writes if not write.done).done = True
