"""The partitions that a member owns, from their assignment until they are revoked or lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from fleet_consumer.record import Records, Run, TopicPartition
from fleet_consumer.worker.consume.care import Care
from fleet_consumer.worker.consume.committing import Committing
from fleet_consumer.worker.consume.drain import Drain
from fleet_consumer.worker.consume.parts import LoopParts, Topics
from fleet_consumer.worker.consume.progress import ConsumeProgress, PartitionProgress, Partitions
from fleet_consumer.worker.consume.starts import note_polled, note_starts
from fleet_consumer.worker.consume.throttle import Throttle
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

REVOKE_WAIT_S: Final = 10.0
"""A rebalance waits so long for acknowledgements and for the commit: longer saves duplicates, yet delays all."""


class InHand(Protocol):
    """A loop's own records, as a rebalance sees them."""

    def has_in_hand(self, partition: PartitionProgress) -> bool:
        """True if a handler has a record of this partition, while the loop itself is doing something else."""
        ...

    def finish(self, going: Partitions, timeout_s: float) -> None:
        """See through what these partitions have under way, at most `timeout_s`."""
        ...

    def forget(self, gone: Partitions) -> None:
        """Drop what is left of partitions that are not ours any more."""
        ...


class Ownership:
    """The owned partitions with all that is kept of each. Callbacks of a rebalance run inside polls and `close`."""

    def __init__(self, parts: LoopParts, in_hand: InHand, drain: Drain, *, at_once: int) -> None:
        self._parts = parts
        self._in_hand = in_hand
        self._drain = drain
        self._revoke_wait_s = REVOKE_WAIT_S
        self.topics = parts.settings.topics
        self.progress = ConsumeProgress()
        self.committing = Committing(parts, self.progress)
        self.throttle = Throttle(parts, self.progress, self.committing)
        self.care = Care(parts, self.progress, self.committing, at_once=at_once)

    def subscribe(self, topics: Topics) -> None:
        """Consume these topics (`Loop.subscribe`)."""
        self.topics = topics
        self._parts.consumer.subscribe(topics, on_assigned=self._assigned, on_revoked=self._revoked, on_lost=self._lost)

    def close(self, timeout_s: float) -> None:
        """Close the consumer (`Loop.close`)."""
        self._revoke_wait_s = min(REVOKE_WAIT_S, timeout_s / 3)
        self._parts.consumer.close(timeout_s)

    def owns(self, topic_partition: TopicPartition, partition: PartitionProgress) -> bool:
        """True while the partition is in the assignment that this progress belongs to."""
        return self.progress.partitions.get(topic_partition) is partition

    def admit(self, records: Records) -> list[Run]:
        """The runs of a poll that may be handled now: their readings are known, and the intake lets them through."""
        partitions = self.progress.partitions
        note_polled(self._parts.consumer, records, partitions)
        return self._parts.intake.admit(self._parts.readings.admit(records.runs, partitions), partitions)

    def commit_if_due(self) -> None:
        """At each commit interval, begin partitions that have handed out nothing yet, and commit."""
        if not self.committing.due:
            return
        note_starts(self._parts.consumer, self.progress.partitions, self.progress.partitions)
        self._parts.readings.begin(self.progress.partitions)
        self.care.begin()
        self.committing.commit()

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._parts.stats.rebalances += 1
        for topic_partition in partitions:
            partition = PartitionProgress()
            self.progress.partitions[topic_partition] = partition
            self.care.notes.assigned(topic_partition, partition)
            self.throttle.assigned(topic_partition)
        LOG.info("partitions assigned", extra=fields(partitions=_names(partitions)))

    def _revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Commit what is finished of partitions that are about to go, so that nobody repeats it."""
        note_starts(self._parts.consumer, partitions, self.progress.partitions)
        self.care.notes.find(self.progress.partitions)
        going = {each: self.progress.partitions[each] for each in partitions if each in self.progress.partitions}
        self._in_hand.finish(going, self._revoke_wait_s)
        self._parts.readings.begin_leaving(going, self._revoke_wait_s)
        for topic_partition, partition in going.items():
            died = self._drain.gives_up and self._in_hand.has_in_hand(partition)
            self.care.notes.release(topic_partition, partition, died=died)
        committed = self.committing.commit_leaving(going, self._revoke_wait_s)
        self._forget(partitions)
        LOG.info("partitions revoked", extra=fields(partitions=_names(partitions), committed=committed))

    def _lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget partitions that another member may own already: nothing of them may be committed any more."""
        self._parts.stats.lost_partitions += len(partitions)
        self._forget(partitions)
        LOG.warning("partitions lost", extra=fields(partitions=_names(partitions)))

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        owned = self.progress.partitions
        self._in_hand.forget({each: owned.pop(each) for each in partitions if each in owned})
        self._parts.writing.forget(partitions)
        self._parts.intake.forget(partitions)
        self.care.notes.forget(partitions)
        self._parts.pauses.forget(partitions)


def _names(partitions: Sequence[TopicPartition]) -> list[str]:
    return sorted(f"{each.topic}-{each.partition}" for each in partitions)
