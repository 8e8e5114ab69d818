"""The due clock of retry topics: the records that may be handled now, and the time of the next ones.

Due time = broker append time + the topic's delay. Headers are never used. All records of a partition have the same
delay, so only the head of a partition is waited for. Only the heads' offsets and times are kept in memory: a waiting
partition is paused at its head, sought back to it, and read again when it is due. An assignment starts empty.

Pure: times are milliseconds of the wall clock and are passed in. One thread uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet_consumer.record import Record, TopicPartition


@dataclass(frozen=True, slots=True)
class Waiting:
    """The head of a waiting partition: offset, append time and due time (milliseconds since the epoch)."""

    offset: int
    appended_at: int
    due_at: int


def due_at(append_ms: int, delay_ms: int, now_ms: int) -> int:
    """The due time of a record, computed at `now_ms`.

    A broker whose clock is ahead, or a record without a time (-1), must not stop a partition: the wait is at most the
    delay from now.
    """
    latest = now_ms + delay_ms
    return latest if append_ms < 0 else min(append_ms + delay_ms, latest)


class DueClock:
    """The partitions of one assignment; one without a delay, as of the redrive topic, never waits."""

    def __init__(self) -> None:
        self._delays_ms: dict[TopicPartition, int] = {}
        self._heads: dict[TopicPartition, Waiting] = {}
        self._paused: set[TopicPartition] = set()

    def assign(self, partition: TopicPartition, delay_s: int) -> None:
        """Add a partition; its head is unknown yet."""
        self.forget([partition])
        self._delays_ms[partition] = delay_s * 1000

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._delays_ms.pop(partition, None)
            self._heads.pop(partition, None)
            self._paused.discard(partition)

    def split(self, partition: TopicPartition, records: Sequence[Record], now_ms: int) -> int:
        """The number of due records at the front of a run.

        If not all are due, the partition waits from now on: pause it, seek to the record at that index, and do not read
        it before `take_due` returns it.
        """
        delay_ms = self._delays_ms.get(partition, 0)
        if delay_ms == 0:
            return len(records)
        for index, record in enumerate(records):
            due = self._due(partition, record, delay_ms, now_ms)
            if due > now_ms:
                self._heads[partition] = Waiting(record.offset, record.timestamp, due)
                self._paused.add(partition)
                return index
        return len(records)

    def take_due(self, now_ms: int) -> list[TopicPartition]:
        """Take the partitions whose wait is over, to be resumed."""
        due = [partition for partition in self._paused if self._heads[partition].due_at <= now_ms]
        self._paused.difference_update(due)
        return sorted(due)

    @property
    def waiting(self) -> dict[TopicPartition, Waiting]:
        return {partition: self._heads[partition] for partition in self._paused}

    @property
    def next_due_at(self) -> int | None:
        return min((self._heads[partition].due_at for partition in self._paused), default=None)

    def _due(self, partition: TopicPartition, record: Record, delay_ms: int, now_ms: int) -> int:
        """A head that was waited for keeps its due time. Computed again it could be put off for ever, by a broker whose
        clock is ahead or a missing time. Another record in its place, after a truncation, has its own due time."""
        head = self._heads.get(partition)
        if head is not None and (head.offset, head.appended_at) == (record.offset, record.timestamp):
            return head.due_at
        return due_at(record.timestamp, delay_ms, now_ms)
