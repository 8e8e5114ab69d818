"""The notes about records in hand (`caution`) in a partition's commits, read and written around an assignment.

Before the first record of a partition is handed out, the note of its last commit is read, and one of our own is
written in its place, for all partitions that begin together: two questions to the coordinator for each rebalance, and
nothing for records. A partition whose note cannot be read or written is not begun. Used by the consume loop's thread.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from fleet_consumer.group.errors import ConsumerError, FatalConsumerError
from fleet_consumer.record import Record, Run, TopicPartition
from fleet_consumer.worker.consume.caution import Caution, poison, read_note
from fleet_consumer.worker.consume.committing import Committing
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.progress import SUSPECT, PartitionProgress, Partitions, committable, note_starts
from fleet_consumer.worker.consume.skips import skipped
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

ANSWER_WAIT_S: Final = 5.0
"""Timeout of each request to the coordinator; an unanswered one is repeated."""
PROCESS: Final = secrets.token_hex(4)
"""This process, among all that take partitions of the group."""

AGAIN_S: Final = 1.0
"""Wait after a request that failed."""


class Notes:
    """The notes of a loop's partitions, and the gate in front of its handlers that they need.

    `at_once` is how many records of a partition the loop may have in hand at once.
    """

    def __init__(self, parts: LoopParts, partitions: Partitions, committing: Committing, *, at_once: int) -> None:
        self._parts = parts
        self._partitions = partitions
        self._committing = committing
        self._at_once = at_once
        self._by = PROCESS
        self._again_at = float("-inf")
        self.unread: set[TopicPartition] = set()
        self.unwritten: set[TopicPartition] = set()
        self.careful: set[TopicPartition] = set()

    def admit(self, runs: list[Run]) -> tuple[list[Run], list[Run]]:
        """Runs that ask for care, those with the fewest deaths first, and all others.

        Runs of partitions whose notes cannot be written yet are sought back to, and come again.
        """
        if self.unwritten:
            runs = self._noted(runs)
        if not self.careful:
            return [], runs
        apart = [run for run in runs if run.topic_partition in self.careful]
        apart.sort(key=lambda run: self.deaths(self._partitions[run.topic_partition]))
        return apart, [run for run in runs if run.topic_partition not in self.careful]

    def _noted(self, runs: list[Run]) -> list[Run]:
        if any(run.topic_partition in self.unwritten for run in runs):
            # So that one question is asked for all.
            note_starts(self._parts.consumer, self.unwritten, self._partitions)
        self.begin()
        self._parts.pauses.hold((run for run in runs if run.topic_partition in self.unwritten), SUSPECT)
        return [run for run in runs if run.topic_partition not in self.unwritten]

    def assigned(self, partition: PartitionProgress) -> None:
        """A partition has come; nothing of it is committed before its note is read."""
        partition.note = None
        self.unread.add(partition.topic_partition)
        self.unwritten.add(partition.topic_partition)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that are not owned any more."""
        for known in (self.unread, self.unwritten, self.careful):
            known.difference_update(partitions)

    def begin(self) -> None:
        """Read and write the notes of the partitions whose start is known; a request that failed is repeated later."""
        if not self.unwritten or self._parts.clock.monotonic() < self._again_at:
            return
        if self.find():
            # Nothing is committed of a partition whose reading is not known, so its note would not be written either.
            known, begun = self._partitions, self.unwritten - self.unread
            ready = {each: known[each] for each in begun if known[each].reading is not None}
            missing = self.write(ready)
            for topic_partition in ready.keys() - missing:
                self.unwritten.discard(topic_partition)
                self._parts.pauses.resume(topic_partition, SUSPECT)
            if not missing:
                return
        self._again_at = self._parts.clock.monotonic() + AGAIN_S

    def find(self) -> bool:
        """Read the notes of the partitions whose start is known; whether that was done."""
        partitions = self._partitions
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
        found = self._parts.consumer.committed(list(asked), ANSWER_WAIT_S)
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
                careful_s=2 * self._parts.commit_interval_s,
            )
            partition.caution, partition.note = caution, caution.waiting
            if caution.careful:
                self.careful.add(topic_partition)
                LOG.warning(
                    "the partition's last owner died or lost its session; its next records are handled a few at a time",
                    extra=fields(**topic_partition._asdict(), offset=start, deaths=caution.deaths),
                )
        self.unread.difference_update(asked)

    def deaths(self, partition: PartitionProgress) -> int:
        """Number of processes that died at the record that comes next."""
        return 0 if partition.caution is None else partition.caution.deaths

    def take(self, partition: PartitionProgress, records: Sequence[Record]) -> tuple[int, Exception | None]:
        """Number of records that may be handed out now, 0 where that could not be committed; and the error of one
        that is not to be handed out (any more). For a partition in which nothing is unfinished."""
        place = self._parts.skips.first(partition.topic_partition, records)
        if place == 0:
            return 1, skipped()
        records = records[:place]
        caution = partition.caution
        if caution is None or not caution.careful:
            return len(records), None
        if caution.condemned:
            return 1, poison(caution.deaths)
        if self._parts.clock.monotonic() < self._again_at:
            return 0, None
        count, partition.note = caution.take(len(records))
        if self.write({partition.topic_partition: partition}):
            self._again_at = self._parts.clock.monotonic() + AGAIN_S
            partition.note = caution.waiting
            return 0, None
        partition.in_hand = True
        return count, None

    def came_back(self, partition: PartitionProgress, count: int, seconds: float) -> None:
        """Note that so many records taken with care have been through their handlers, up to the next offset."""
        partition.in_hand, caution = False, partition.caution
        if caution is None or not caution.careful:
            return
        goes_on = caution.came_back(partition.next_offset or 0, count, seconds)
        partition.note = caution.waiting
        if not goes_on:
            place = partition.topic_partition
            self.careful.discard(place)
            LOG.info("the partition is handled at full speed again", extra=fields(**place._asdict()))

    def release(self, partition: PartitionProgress, *, died: bool) -> None:
        """Prepare a partition's last commit. `died`: not in order, whatever is in hand counts as it stands."""
        if partition.topic_partition in self.unread or died:
            return
        partition.in_hand = False
        partition.note = "" if partition.caution is None else partition.caution.released

    def write(self, partitions: Partitions, mark: str = "") -> frozenset[TopicPartition]:
        """Commit now what these partitions' notes say; returns those of which that was not stored."""
        offsets = committable(partitions, mark)
        if not offsets:
            return frozenset()
        try:
            self._parts.consumer.commit(offsets, ANSWER_WAIT_S)
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            self._committing.note(offsets, error)
            return frozenset(offsets if error.not_committed is None else error.not_committed)
        self._committing.note(offsets, None)
        return frozenset()

    def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        asked = list(partitions)
        if not asked:
            return {}
        try:
            return self._parts.consumer.end_offsets(asked, ANSWER_WAIT_S)
        except FatalConsumerError:
            raise
        except ConsumerError:
            return {}  # care ends by time then
