"""Partitions that a concurrent loop hands out with care: one part of one partition at a time, and nothing beside it.

Should the process die, it is known with which records. Meanwhile the partitions' other records wait aside, and after
each part the loop's remaining records have a turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record, Run, TopicPartition
from fleet_consumer.worker.breaker.pacing import Pace
from fleet_consumer.worker.consume.loop import Loop
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.pauses import SUSPECT
from fleet_consumer.worker.consume.pending import Calls, Concurrency, Pending, Work
from fleet_consumer.worker.consume.progress import PartitionProgress


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a partition that is in hand by itself."""

    topic_partition: TopicPartition
    partition: PartitionProgress
    count: int
    began: float


class Suspects:
    """The partitions of one loop that ask for care; they are paused until it ends."""

    def __init__(self, parts: LoopParts, loop: Loop, pending: Pending, calls: Calls, concurrency: Concurrency) -> None:
        self._parts = parts
        self._loop = loop
        self._notes = loop.notes
        self._pending = pending
        self._calls = calls
        self._batch = concurrency.batch
        self._aside: dict[TopicPartition, list[Record]] = {}
        self._alone: _Part | None = None
        # Of the part in hand, what no call has taken yet.
        self._waiting: deque[Work] = deque()
        self._turn_of_others = False

    @property
    def aside(self) -> bool:
        """True while records wait for care."""
        return bool(self._aside)

    def put_aside(self, run: Run) -> None:
        """Have a run wait for its turns; its partition is not read meanwhile."""
        if run.topic_partition in self._loop.progress.partitions:
            self._aside.setdefault(run.topic_partition, []).extend(run.records)
            self._parts.pauses.pause(run.topic_partition, SUSPECT)

    def others_may_go(self, *, stopping: bool) -> bool:
        """Go on with what waits aside; False while it has to be in hand alone, or waits for the others' end."""
        if self._alone is not None:
            self._issue()
            if self._calls.out or self._waiting:
                return False
            self._come_back(self._alone)
        if not self._aside or stopping or self._loop.pace is Pace.STOP:
            return True
        if self._turn_of_others:
            self._turn_of_others = False
            return True
        if self._calls.out:
            return False
        partitions = self._loop.progress.partitions
        topic_partition = min(self._aside, key=lambda each: self._notes.deaths(partitions[each]))
        if partitions[topic_partition].unfinished:
            return True  # what it has written is not acknowledged yet
        if not self._hand_out(topic_partition, partitions[topic_partition]):
            return True
        self._issue()
        return False

    def take_waiting(self, partitions: Collection[PartitionProgress]) -> list[Work]:
        """Take out what no call has taken yet of a part of these partitions."""
        gone = [work for work in self._waiting if work.partition in partitions]
        if gone:
            self._waiting.clear()  # all of them are of one partition
        return gone

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop what waits aside of these partitions."""
        for topic_partition in partitions:
            self._aside.pop(topic_partition, None)

    def _issue(self) -> None:
        while self._waiting and self._calls.out < self._calls.limit(self._loop.pace):
            work = self._waiting.popleft()
            self._pending.begin(work)
            self._calls.give(work)

    def _hand_out(self, topic_partition: TopicPartition, partition: PartitionProgress) -> bool:
        """Begin with the next part of what waits aside. True when any of it is in hand now."""
        records = self._aside[topic_partition]
        probe = self._loop.pace is Pace.PROBE
        most = 1 if probe else len(records) if self._batch else _side_by_side(records)
        count, error = self._notes.take(topic_partition, partition, records[:most])
        if not count:
            return False
        works = self._pending.works(topic_partition, partition, records[:count])
        del records[:count]
        self._alone = _Part(topic_partition, partition, count, self._parts.clock.monotonic())
        for work in works:
            # Without an order key: nothing of their partition is anywhere else, and no two of them have one key.
            work.order_key = None
            if error is None:
                self._waiting.append(work)
            else:
                self._calls.conclude(work, error)
        return True

    def _come_back(self, alone: _Part) -> None:
        self._alone, self._turn_of_others = None, True
        topic_partition, partition = alone.topic_partition, alone.partition
        if not self._loop.owns(topic_partition, partition):
            return
        self._notes.came_back(topic_partition, partition, alone.count, self._parts.clock.monotonic() - alone.began)
        records = self._aside.get(topic_partition, [])
        if topic_partition not in self._notes.careful or not records:
            self._aside.pop(topic_partition, None)
            self._parts.pauses.resume(topic_partition, SUSPECT)
            if records:
                self._pending.take_up(Run(topic_partition, records), partition)
            self._loop.committing.soon()


def _side_by_side(records: Sequence[Record]) -> int:
    """Number of first records that may be in hand in any order: one of each key."""
    keys = set[Any]()
    for count, record in enumerate(records):
        if (key := as_read(record).key) is not None and key in keys:
            return count
        keys.add(key)
    return len(records)
