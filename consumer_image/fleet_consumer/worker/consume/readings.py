"""The reading that each assigned partition is in, found out before any of its records is handled.

A new reading is committed before its first record is handled. Otherwise a worker that dies before its first commit
would have a successor that begins another one, and the hops of both would not be known as copies.

Used by the consume loop's thread.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fleet_consumer.clock import Clock
from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.group.errors import ConsumerError, FatalConsumerError
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Record, Run, TopicPartition
from fleet_consumer.retry.headers import Reading, carried_on, continued
from fleet_consumer.retry.routing import story_of, with_story
from fleet_consumer.worker.consume.progress import SUSPECT, Partitions, Pauses, note_commit
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

ASK_TIMEOUT_S: Final = 5.0
"""Longest time that one request, or one commit, holds up the partitions that are known already."""
AGAIN_S: Final = 5.0
"""Wait after a request that failed."""


class Readings:
    """The readings of the partitions of one loop.

    `bounded` is for retry topics: there a reading ends where the partition ended when it began, so that hops that are
    read for the first time are known as copies of others whichever way each of them came.
    """

    def __init__(self, consumer: Consumer, pauses: Pauses, clock: Clock, *, bounded: bool) -> None:
        self._consumer = consumer
        self._pauses = pauses
        self._clock = clock
        self._bounded = bounded
        self._partitions: Partitions = {}
        self._again_at = float("-inf")

    def admit(self, runs: list[Run], partitions: Partitions) -> list[Run]:
        """The runs of partitions whose reading is known. The others are sought back to, and come again when it is, and
        their notes are written (`Notes.begin` ends the pause)."""
        self._partitions = partitions
        if all(partitions[run.topic_partition].reading is not None for run in runs):
            return runs
        self.begin(partitions)
        self._pauses.hold((run for run in runs if partitions[run.topic_partition].reading is None), SUSPECT)
        return [run for run in runs if partitions[run.topic_partition].reading is not None]

    def begin(self, partitions: Partitions) -> None:
        """Find out the readings of new partitions whose start is known; a try that failed is repeated after a while.

        Raises FatalConsumerError.
        """
        if self._clock.monotonic() < self._again_at:
            return
        if isinstance(error := self.try_to_begin(partitions, ASK_TIMEOUT_S), FatalConsumerError):
            raise error

    def try_to_begin(self, partitions: Partitions, timeout_s: float) -> ConsumerError | None:
        """Begin partitions, also those that are about to go: one without a commit is worth one, under `latest`."""
        # Without a start it may be one whose topic may not be read, and a question about it is refused for all.
        new = [each for each, part in partitions.items() if part.reading is None and part.start is not None]
        if not new:
            return None
        try:
            self._begin(new, partitions, timeout_s)
        except ConsumerError as error:
            self._again_at = self._clock.monotonic() + AGAIN_S
            LOG.warning(
                "partitions wait: their commits cannot be read or written; tried again",
                extra=fields(partitions=len(new), reason=error.reason, error=str(error)),
            )
            return error
        return None

    def _begin(self, new: list[TopicPartition], partitions: Partitions, timeout_s: float) -> None:
        committed = self._consumer.committed(new, timeout_s)
        fresh: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic_partition in new:
            entry = committed.get(topic_partition)
            known = continued(entry)
            start = partitions[topic_partition].start if entry is None else entry.offset
            if known is not None:
                partitions[topic_partition].reading = known
            elif start is not None:
                epoch = -1 if entry is None else entry.leader_epoch
                fresh[topic_partition] = OffsetAndMetadata(start, epoch)
        if not fresh:
            return
        ends = self._consumer.end_offsets(fresh, timeout_s) if self._bounded else {}
        readings = {each: Reading(uuid.uuid4().hex[:16], ends.get(each)) for each in fresh}
        marked = {each: entry._replace(metadata=readings[each].mark(entry.offset)) for each, entry in fresh.items()}
        refused: ConsumerError | None = None
        try:
            self._consumer.commit(marked, timeout_s)
        except ConsumerError as error:
            refused = error
        note_commit(partitions, marked, refused, self._clock.wall())
        missing = () if refused is None else marked if refused.not_committed is None else refused.not_committed
        begun = [each for each in marked if each not in missing]
        for each in begun:
            partitions[each].reading = readings[each]
        if begun:
            LOG.info(
                "new reading of partitions: they had no commits, or none of a worker",
                extra=fields(partitions=sorted(each.name for each in begun)),
            )
        if refused is not None:
            raise refused

    def retelling(self, retell: Callable[[Record], Record]) -> Callable[[Record], Record]:
        """`retell` for writers of hops: the record with the reading that its next hop belongs to."""

        def retell_with_reading(record: Record) -> Record:
            partition = self._partitions.get(TopicPartition(record.topic, record.partition))
            reading = None if partition is None or partition.reading is None else partition.reading.at(record.offset)
            shown = retell(record)
            if reading is None:
                return shown
            story = story_of(shown)
            return with_story(shown, replace(story, reading=carried_on(story.reading, reading)))

        return retell_with_reading
