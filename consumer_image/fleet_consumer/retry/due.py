"""The due clock: which records of a retry topic may be handled now, and when the next ones may.

A record is due at the time at which its broker appended it plus the delay of its topic; no header is asked. All
records of a partition wait equally long, so only the head of a partition is ever waited for. Nothing is kept in memory
but the heads' places and times: a waiting partition is paused at its head, sought back to it, and read again when it is
due. What is known here ends with an assignment; after the next one the heads tell it anew.

Pure: times are milliseconds of the wall clock and are passed in. One thread uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet_consumer.record import Record, TopicPartition


@dataclass(frozen=True, slots=True)
class Waiting:
    """The record at which a partition waits, by its offset and the time at which it was appended, and when it is due
    (milliseconds of the wall clock)."""

    offset: int
    appended_at: int
    due_at: int


def due_at(append_ms: int, delay_ms: int, now_ms: int) -> int:
    """When a record is due, as seen at `now_ms`.

    A broker whose clock is ahead, and a record without a time (-1), must not stop a partition: nobody waits for longer
    than the delay from now on.
    """
    latest = now_ms + delay_ms
    return latest if append_ms < 0 else min(append_ms + delay_ms, latest)


class DueClock:
    """The partitions of one assignment; a partition without a delay, as those of the redrive topic, never waits."""

    def __init__(self) -> None:
        self._delays_ms: dict[TopicPartition, int] = {}
        self._heads: dict[TopicPartition, Waiting] = {}
        self._paused: set[TopicPartition] = set()

    def assign(self, delays_s: Mapping[TopicPartition, int]) -> None:
        """These partitions are ours from now on, besides those that were; their heads are not known yet."""
        for partition, delay_s in delays_s.items():
            self.forget([partition])
            self._delays_ms[partition] = delay_s * 1000

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions are not ours any more."""
        for partition in partitions:
            self._delays_ms.pop(partition, None)
            self._heads.pop(partition, None)
            self._paused.discard(partition)

    def split(self, partition: TopicPartition, records: Sequence[Record], now_ms: int) -> int:
        """How many records of a run, from its front, are due.

        When that is not all, the partition waits from now on: pause it, seek to the record at that index, and do not
        read it before `take_due` names it.
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
        """The partitions whose wait is over, each once: resume them."""
        due = [partition for partition in self._paused if self._heads[partition].due_at <= now_ms]
        self._paused.difference_update(due)
        return sorted(due)

    @property
    def waiting(self) -> dict[TopicPartition, Waiting]:
        """The partitions that wait, with their heads."""
        return {partition: self._heads[partition] for partition in self._paused}

    @property
    def next_due_at(self) -> int | None:
        """When the first of the waiting heads is due, None while nobody waits."""
        return min((self._heads[partition].due_at for partition in self._paused), default=None)

    def _due(self, partition: TopicPartition, record: Record, delay_ms: int, now_ms: int) -> int:
        """A head that was waited for keeps its time. Seen anew it might be put off again and again: by a broker whose
        clock is ahead, or for want of a time. Another record in its place, in a log that was cut, has its own."""
        head = self._heads.get(partition)
        if head is not None and (head.offset, head.appended_at) == (record.offset, record.timestamp):
            return head.due_at
        return due_at(record.timestamp, delay_ms, now_ms)
