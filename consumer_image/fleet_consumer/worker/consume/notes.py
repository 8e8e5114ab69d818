"""The notes about records in hand (`caution`) in a partition's commits, read and written around an assignment.

Before the first record of a partition is handed out, the note of its last commit is read, and one of our own is
written in its place, for all partitions that begin together: two questions to the coordinator for each rebalance, and
nothing for records. A partition whose note cannot be read or written is not begun. Used by the consume loop's thread.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.group.errors import ConsumerError, FatalConsumerError
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Record, TopicPartition
from fleet_consumer.retry.failure import Poison
from fleet_consumer.worker.consume.caution import Caution, poison, read_note
from fleet_consumer.worker.consume.progress import PartitionProgress, Partitions
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

ANSWER_WAIT_S: Final = 5.0
"""Timeout of each request to the coordinator; an unanswered one is repeated."""
PROCESS: Final = secrets.token_hex(4)
"""This process, among all that take partitions of the group."""

AGAIN_S: Final = 1.0
"""Wait after a request that failed."""

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Notes:
    """The notes of the partitions of one consumer. `answered(offsets, error)` is called after each commit."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        answered: Callable[[Offsets, Exception | None], None],
        at_once: int,
        careful_s: float,
        clock: Clock,
        by: str = PROCESS,
    ) -> None:
        self._consumer = consumer
        self._by = by
        self._answered = answered
        self._at_once = at_once
        self._careful_s = careful_s
        self._clock = clock
        self._again_at = float("-inf")
        self.unread: set[TopicPartition] = set()
        self.unwritten: set[TopicPartition] = set()
        self.careful: set[TopicPartition] = set()

    def assigned(self, topic_partition: TopicPartition, partition: PartitionProgress) -> None:
        """A partition has come; nothing of it is committed before its note is read."""
        partition.note = None
        self.unread.add(topic_partition)
        self.unwritten.add(topic_partition)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that are not owned any more."""
        for known in (self.unread, self.unwritten, self.careful):
            known.difference_update(partitions)

    def begin(self, partitions: Partitions) -> list[TopicPartition]:
        """Read and write the notes of the partitions whose start is known; those that may begin now."""
        if self._clock.monotonic() < self._again_at:
            return []
        if self.find(partitions):
            # Nothing is committed of a partition whose reading is not known, so its note would not be written either.
            begun = self.unwritten - self.unread
            ready = {each: partitions[each] for each in begun if partitions[each].reading is not None}
            if self.write(ready):
                self.unwritten.difference_update(ready)
                return list(ready)
        self._again_at = self._clock.monotonic() + AGAIN_S
        return []

    def find(self, partitions: Partitions) -> bool:
        """Read the notes of the partitions whose start is known; whether that was done."""
        try:
            self._read({each: partitions[each] for each in self.unread if partitions[each].start is not None})
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            LOG.warning("partitions wait: their commits cannot be read; tried again", extra=fields(error=str(error)))
            return False
        return True

    def _read(self, asked: Partitions) -> None:
        """Read the notes of these partitions' last commits. Raises ConsumerError."""
        if not asked:
            return
        found = self._consumer.committed(list(asked), ANSWER_WAIT_S)
        suspicious = {}
        for topic_partition, partition in asked.items():
            start, commit = partition.start, found.get(topic_partition)
            note = None if commit is None or commit.offset != start else read_note(commit.metadata)
            if note is not None:
                suspicious[topic_partition] = note
        ends = self._ends(suspicious)
        for topic_partition, partition in asked.items():
            start = partition.start
            assert start is not None, "only partitions whose start is known are begun"
            caution = Caution(
                suspicious.get(topic_partition),
                start,
                by=self._by,
                end=ends.get(topic_partition),
                at_once=self._at_once,
                careful_s=self._careful_s,
            )
            partition.caution, partition.note = caution, caution.waiting
            if caution.careful:
                self.careful.add(topic_partition)
                LOG.warning(
                    "the partition's last owner died; its next records are handled a few at a time",
                    extra=fields(**topic_partition._asdict(), offset=start, deaths=caution.deaths),
                )
        self.unread.difference_update(asked)

    def deaths(self, partition: PartitionProgress) -> int:
        """Number of processes that died at the record that comes next."""
        return 0 if partition.caution is None else partition.caution.deaths

    def take(
        self, topic_partition: TopicPartition, partition: PartitionProgress, records: Sequence[Record]
    ) -> tuple[int, Poison | None]:
        """Number of records that may be handed out now, 0 where that could not be committed; and the error of one
        that is not to be handed out any more. For a partition in which nothing is unfinished."""
        caution = partition.caution
        if caution is None or not caution.careful:
            return len(records), None
        if caution.condemned:
            return 1, poison(caution.deaths)
        if self._clock.monotonic() < self._again_at:
            return 0, None
        count, partition.note = caution.take(len(records))
        if not self.write({topic_partition: partition}):
            self._again_at = self._clock.monotonic() + AGAIN_S
            partition.note = caution.waiting
            return 0, None
        partition.in_hand = True
        return count, None

    def came_back(
        self, topic_partition: TopicPartition, partition: PartitionProgress, count: int, seconds: float
    ) -> None:
        """Note that so many records taken with care have been through their handlers, up to the next offset."""
        partition.in_hand, caution = False, partition.caution
        if caution is None or not caution.careful:
            return
        goes_on = caution.came_back(partition.next_offset or 0, count, seconds)
        partition.note = caution.waiting
        if not goes_on:
            self.careful.discard(topic_partition)
            LOG.info("the partition is handled at full speed again", extra=fields(**topic_partition._asdict()))

    def release(self, topic_partition: TopicPartition, partition: PartitionProgress, *, died: bool) -> None:
        """Prepare a partition's last commit. `died`: not in order, whatever is in hand counts as it stands."""
        if topic_partition in self.unread or died:
            return
        partition.in_hand = False
        partition.note = "" if partition.caution is None else partition.caution.released

    def write(self, partitions: Partitions, mark: str = "") -> bool:
        """Commit now what these partitions' notes say; whether that was done."""
        offsets = {each: offset for each, part in partitions.items() if (offset := part.committable(mark)) is not None}
        if not offsets:
            return True
        try:
            self._consumer.commit(offsets, ANSWER_WAIT_S)
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            self._answered(offsets, error)
            return False
        self._answered(offsets, None)
        return True

    def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        asked = list(partitions)
        if not asked:
            return {}
        try:
            return self._consumer.end_offsets(asked, ANSWER_WAIT_S)
        except FatalConsumerError:
            raise
        except ConsumerError:
            return {}  # care ends by time then
