"""The replay epoch of each assigned partition, determined before any of its records is handled.

A new replay epoch is committed before its first record is handled. Otherwise, if the worker died before its first
commit, the next owner would begin another epoch. The retry publishes of the two epochs would then not be recognised as
duplicates.

A repeated record may fail again while the retry copy of its first failure waits. If the second failure is `Fatal`, the
second copy goes directly to the failed topic, and the first copy may follow. A Redrive must recognise both as copies of
one record. So records beyond an epoch's bound keep the epoch id in their headers.

Used by the consume loop's thread only. Decision: docs/decisions/0023-replay-epochs.md.
"""

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
from fleet_consumer.retry.headers import ReplayEpoch, carried_on, continued
from fleet_consumer.retry.routing import history_of, with_history
from fleet_consumer.worker.consume.progress import CRASH_GUARD, Partitions, Pauses, record_commit
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

ASK_TIMEOUT_S: Final = 5.0
"""Timeout of a request or commit in seconds. All partitions of the loop wait during a request."""
AGAIN_S: Final = 5.0
"""Seconds until a failed request is repeated."""


class ReplayEpochs:
    """The replay epochs of the partitions of one loop.

    `bounded` is true for retry topics. A replay epoch then ends at the end offset that the partition had when the epoch
    began. Retry publishes from this offset on keep the epoch in their headers. Duplicates among them are then found
    even if they took different routes.
    """

    def __init__(self, consumer: Consumer, pauses: Pauses, clock: Clock, *, bounded: bool) -> None:
        self._consumer = consumer
        self._pauses = pauses
        self._clock = clock
        self._bounded = bounded
        self._partitions: Partitions = {}
        self._again_at = float("-inf")

    def admit(self, runs: list[Run], partitions: Partitions) -> list[Run]:
        """Return the runs of partitions with a known replay epoch.

        The consumer seeks back to the other runs, and their partitions are paused until the epochs are known and the
        crash markers are written. `CrashMarkers.begin_partitions` ends the pause.
        """
        self._partitions = partitions
        if all(partitions[run.topic_partition].replay_epoch is not None for run in runs):
            return runs
        self.begin_partitions(partitions)
        self._pauses.hold((run for run in runs if partitions[run.topic_partition].replay_epoch is None), CRASH_GUARD)
        return [run for run in runs if partitions[run.topic_partition].replay_epoch is not None]

    def begin_partitions(self, partitions: Partitions) -> None:
        """Determine the replay epochs of new partitions with a known starting position. A failed attempt is repeated
        by a later call. Raises FatalConsumerError."""
        if self._clock.monotonic() < self._again_at:
            return
        if isinstance(error := self.try_to_begin(partitions, ASK_TIMEOUT_S), FatalConsumerError):
            raise error

    def try_to_begin(self, partitions: Partitions, timeout_s: float) -> ConsumerError | None:
        """Determine the missing replay epochs of partitions. Returns the error of a failed attempt, otherwise None.

        Partitions that are being revoked need an epoch too, because every commit needs one. Under the reset policy
        `latest`, a partition without a commit must be committed before its revocation.
        """
        # Leave out partitions without a starting position: the client may lack permission for them, and the broker
        # would refuse the whole request.
        new = [each for each, part in partitions.items() if part.replay_epoch is None and part.start is not None]
        if not new:
            return None
        try:
            self._begin(new, partitions, timeout_s)
        except ConsumerError as error:
            self._again_at = self._clock.monotonic() + AGAIN_S
            LOG.warning(
                "commits cannot be read or written, so partitions do not start; retrying",
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
                partitions[topic_partition].replay_epoch = known
            elif start is not None:
                epoch = -1 if entry is None else entry.leader_epoch
                fresh[topic_partition] = OffsetAndMetadata(start, epoch)
        if not fresh:
            return
        ends = self._consumer.end_offsets(fresh, timeout_s) if self._bounded else {}
        replay_epochs = {each: ReplayEpoch(uuid.uuid4().hex[:16], ends.get(each)) for each in fresh}
        commits = {
            each: entry._replace(metadata=replay_epochs[each].metadata(entry.offset)) for each, entry in fresh.items()
        }
        refused: ConsumerError | None = None
        try:
            self._consumer.commit(commits, timeout_s)
        except ConsumerError as error:
            refused = error
        record_commit(partitions, commits, refused, self._clock.wall())
        missing = () if refused is None else commits if refused.not_committed is None else refused.not_committed
        begun = [each for each in commits if each not in missing]
        for each in begun:
            partitions[each].replay_epoch = replay_epochs[each]
        if begun:
            LOG.info(
                "new replay epoch for partitions whose last commit is missing or was not made by a worker",
                extra=fields(partitions=sorted(each.name for each in begun)),
            )
        if refused is not None:
            raise refused

    def presenting(self, present_again: Callable[[Record], Record]) -> Callable[[Record], Record]:
        """Wrap `present_again` in a function that also sets the replay epoch of the record's next retry publish."""

        def present_with_epoch(record: Record) -> Record:
            partition = self._partitions.get(TopicPartition(record.topic, record.partition))
            replay_epoch = None if partition is None else partition.replay_epoch
            now = None if replay_epoch is None else replay_epoch.at(record.offset)
            shown = present_again(record)
            if now is None:
                return shown
            history = history_of(shown)
            return with_history(shown, replace(history, replay_epoch=carried_on(history.replay_epoch, now)))

        return present_with_epoch
