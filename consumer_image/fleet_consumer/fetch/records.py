"""What one poll hands out: whole runs of records, each from one partition, in offset order.

Runs, because whoever handles records keeps order and offsets per partition anyway, and because a list that is handed
on costs nothing per record. Nothing here may know where records come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fleet_consumer.record import Record, TopicPartition


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one partition in offset order; never empty."""

    topic_partition: TopicPartition
    records: list[Record]

    def __len__(self) -> int:
        return len(self.records)

    @property
    def next_offset(self) -> int:
        """The offset to commit once all records of the run are done."""
        return self.records[-1].offset + 1

    # Columns: what batches need of all records at once. Of a run that was just polled they are read from librdkafka's
    # messages, and no `Record` is made unless somebody asks for `records`.

    def values(self) -> list[Any]:
        """The value of each record, None for a tombstone; as it was read, while `records` are not asked for."""
        return [record.value for record in self.records]

    def keys(self) -> list[Any]:
        """The key of each record, None where there is none; as `values`."""
        return [record.key for record in self.records]

    def offsets(self) -> list[int]:
        """The offset of each record."""
        return [record.offset for record in self.records]

    def timestamps(self) -> list[int]:
        """The timestamp of each record, in milliseconds since the epoch."""
        return [record.timestamp for record in self.records]


class Gap(NamedTuple):
    """Offsets of one partition, from `first` up to and without `next`, at which there is no record to read."""

    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Records:
    """The runs of one poll; empty when there was nothing to hand out in time.

    `gaps` are the offsets without records that the poll moved positions over, behind the runs: a partition's last
    offsets when a transaction's marker, aborted records or what compaction removed stand there.
    """

    runs: list[Run]
    gaps: Mapping[TopicPartition, Gap] = field(default_factory=dict)

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """For each partition that this poll moved, the offset to commit once its records are done (as KIP-1094)."""
        offsets = {run.topic_partition: run.next_offset for run in self.runs}
        return offsets | {part: gap.next for part, gap in self.gaps.items()}

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __iter__(self) -> Iterator[Record]:
        for run in self.runs:
            yield from run.records
