"""What one poll hands out: whole runs of records, each from one partition, in offset order.

Runs, because whoever handles records keeps order and offsets per partition anyway, and because a list that is handed
on costs nothing per record. Nothing here may know where records come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleet_consumer.record import Record, TopicPartition


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one partition in offset order; never empty."""

    topic_partition: TopicPartition
    records: list[Record]

    @property
    def next_offset(self) -> int:
        """The offset to commit once all records of the run are done."""
        return self.records[-1].offset + 1


@dataclass(frozen=True, slots=True)
class Records:
    """The runs of one poll; empty when there was nothing to hand out in time."""

    runs: list[Run]

    def __len__(self) -> int:
        return sum(len(run.records) for run in self.runs)

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __iter__(self) -> Iterator[Record]:
        for run in self.runs:
            yield from run.records
