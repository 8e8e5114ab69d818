"""The due clock of retry topics: the records that may be handled now, and the due time of each partition's next record.

The due time is the broker's append time plus the topic's delay; headers are never used. All records of a partition have
the same delay, so only its first waiting record, the head, has to be tracked. A waiting partition is paused, and the
consumer seeks back to the head. When the head is due, it is read again. So only offsets and times of heads are kept in
memory.

No I/O and no clock: callers pass times in milliseconds of the wall clock. Not thread-safe.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet_consumer.record import Record, TopicPartition


@dataclass(frozen=True, slots=True)
class Waiting:
    """The head of a waiting partition: offset, append time and due time (in milliseconds since 1970)."""

    offset: int
    appended_at: int
    due_at: int


def due_at(append_ms: int, delay_ms: int, now_ms: int) -> int:
    """Return the due time of a record in milliseconds since 1970: its append time plus the delay, but at most `now_ms`
    plus the delay. Without this limit, a broker whose clock is ahead, or a record without a time (-1), would stop the
    partition."""
    latest = now_ms + delay_ms
    return latest if append_ms < 0 else min(append_ms + delay_ms, latest)


class DueClock:
    """The heads of the waiting partitions of an assignment. Partitions without a delay (the redrive topic's) never
    wait."""

    def __init__(self) -> None:
        self._delays_ms: dict[TopicPartition, int] = {}
        self._heads: dict[TopicPartition, Waiting] = {}
        self._paused: set[TopicPartition] = set()

    def assign(self, partition: TopicPartition, delay_s: int) -> None:
        self.discard_partitions([partition])
        self._delays_ms[partition] = delay_s * 1000

    def discard_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._delays_ms.pop(partition, None)
            self._heads.pop(partition, None)
            self._paused.discard(partition)

    def split(self, partition: TopicPartition, records: Sequence[Record], now_ms: int) -> int:
        """Return the number of due records at the front of `records`. If not all are due, the caller pauses the
        partition, seeks to the record at this index, and resumes the partition after `take_due`."""
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
        """Remove and return the waiting partitions whose heads are due. The caller resumes these partitions."""
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
        """Return the due time of a record. A head that already waits keeps the due time from its first reading.

        The due time may depend on the current time: if the record has no time, or the time of a broker whose clock is
        ahead. Each new reading would then give a later due time. If the log was truncated, another record may be at the
        head's offset; it gets its own due time.
        """
        head = self._heads.get(partition)
        if head is not None and (head.offset, head.appended_at) == (record.offset, record.timestamp):
            return head.due_at
        return due_at(record.timestamp, delay_ms, now_ms)
