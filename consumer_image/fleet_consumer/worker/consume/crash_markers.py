"""Reads and writes crash markers (`crash_guard`) in the commits of assigned partitions.

Before the first record of a partition is handled, the worker reads the marker of the last commit and replaces it with
its own. All new partitions share these requests: two requests to the coordinator per rebalance, none per record. A
partition whose marker cannot be read or written does not start. Used by the consume loop's thread only.

Decision: docs/decisions/0024-crash-guard.md.
"""

import logging
import secrets
from collections.abc import Iterable, Sequence
from typing import Final

from fleet_consumer.group.errors import ConsumerError, FatalConsumerError
from fleet_consumer.record import Record, Run, TopicPartition
from fleet_consumer.worker.consume.committing import Committing
from fleet_consumer.worker.consume.crash_guard import CrashGuard, poison, read_crash_marker
from fleet_consumer.worker.consume.parts import LoopParts
from fleet_consumer.worker.consume.progress import (
    CRASH_GUARD,
    PartitionProgress,
    Partitions,
    committable,
    record_starts,
)
from fleet_consumer.worker.consume.skips import skipped
from fleet_consumer.worker.logs import fields

LOG = logging.getLogger("fleet_consumer.worker")

ANSWER_WAIT_S: Final = 5.0
"""Timeout of each request to the coordinator in seconds. A request without a response is sent again."""
PROCESS: Final = secrets.token_hex(4)
"""Identifies this process among the members of the group."""

AGAIN_S: Final = 1.0
"""Seconds until a failed request is sent again."""


class CrashMarkers:
    """The crash markers of a loop's partitions. They decide which polled records may be handled.

    `at_once` is the maximum number of records of a partition that the loop handles concurrently.
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
        """Divide runs into two lists: runs to handle carefully, the fewest deaths first, and all other runs.

        Runs of partitions whose markers cannot be written yet are left out of both lists. The consumer seeks back and
        reads these runs again.
        """
        if self.unwritten:
            runs = self._marked(runs)
        if not self.careful:
            return [], runs
        apart = [run for run in runs if run.topic_partition in self.careful]
        apart.sort(key=lambda run: self.deaths(self._partitions[run.topic_partition]))
        return apart, [run for run in runs if run.topic_partition not in self.careful]

    def _marked(self, runs: list[Run]) -> list[Run]:
        if any(run.topic_partition in self.unwritten for run in runs):
            # First record all starting positions, because a single request then covers all partitions.
            record_starts(self._parts.consumer, self.unwritten, self._partitions)
        self.begin_partitions()
        self._parts.pauses.hold((run for run in runs if run.topic_partition in self.unwritten), CRASH_GUARD)
        return [run for run in runs if run.topic_partition not in self.unwritten]

    def assigned(self, partition: PartitionProgress) -> None:
        """Add an assigned partition. No offset of the partition is committed before its marker is read."""
        partition.crash_marker = None
        self.unread.add(partition.topic_partition)
        self.unwritten.add(partition.topic_partition)

    def discard_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        for known in (self.unread, self.unwritten, self.careful):
            known.difference_update(partitions)

    def begin_partitions(self) -> None:
        """Read and write the markers of partitions with a known starting position. Failed requests are repeated."""
        if not self.unwritten or self._parts.clock.monotonic() < self._again_at:
            return
        if self.find():
            # A partition without a known replay epoch is left out, because nothing is committed for it.
            known, begun = self._partitions, self.unwritten - self.unread
            ready = {each: known[each] for each in begun if known[each].replay_epoch is not None}
            missing = self.write(ready)
            for topic_partition in ready.keys() - missing:
                self.unwritten.discard(topic_partition)
                self._parts.pauses.resume(topic_partition, CRASH_GUARD)
            if not missing:
                return
        self._again_at = self._parts.clock.monotonic() + AGAIN_S

    def find(self) -> bool:
        """Read the crash markers of partitions with a known starting position. Returns False after an error."""
        partitions = self._partitions
        try:
            self._load({each: partitions[each] for each in self.unread if partitions[each].start is not None})
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            LOG.warning("commits cannot be read, so partitions do not start; retrying", extra=fields(error=str(error)))
            return False
        return True

    def _load(self, asked: Partitions) -> None:
        """Read the markers of these partitions' last commits. Raises ConsumerError."""
        if not asked:
            return
        found = self._parts.consumer.committed(list(asked), ANSWER_WAIT_S)
        markers = {}
        for topic_partition, partition in asked.items():
            start, commit = partition.start, found.get(topic_partition)
            marker = None if commit is None or commit.offset != start else read_crash_marker(commit.metadata)
            if marker is not None:
                markers[topic_partition] = marker
        ends = self._ends(markers)
        for topic_partition, partition in asked.items():
            start = partition.start
            assert start is not None, "markers are read only after the starting position is known"
            guard = CrashGuard(
                markers.get(topic_partition),
                start,
                by=self._by,
                end=ends.get(topic_partition),
                at_once=self._at_once,
                careful_s=2 * self._parts.commit_interval_s,
            )
            partition.crash_guard, partition.crash_marker = guard, guard.waiting
            if guard.careful:
                self.careful.add(topic_partition)
                LOG.warning(
                    "the partition's last owner died or lost its session; the next records are handled in small chunks",
                    extra=fields(**topic_partition._asdict(), offset=start, deaths=guard.deaths),
                )
        self.unread.difference_update(asked)

    def deaths(self, partition: PartitionProgress) -> int:
        """Return the number of processes that died while handling the partition's next record."""
        return 0 if partition.crash_guard is None else partition.crash_guard.deaths

    def admit_records(self, partition: PartitionProgress, records: Sequence[Record]) -> tuple[int, Exception | None]:
        """Return how many of these records may be handled now, and an error if they fail without a handler call.

        The number is 0 if the marker could not be committed. The partition must have no unfinished records.
        """
        place = self._parts.skips.first(partition.topic_partition, records)
        if place == 0:
            return 1, skipped()
        records = records[:place]
        guard = partition.crash_guard
        if guard is None or not guard.careful:
            return len(records), None
        if guard.condemned:
            return 1, poison(guard.deaths)
        if self._parts.clock.monotonic() < self._again_at:
            return 0, None
        count, partition.crash_marker = guard.next_count(len(records))
        if self.write({partition.topic_partition: partition}):
            self._again_at = self._parts.clock.monotonic() + AGAIN_S
            partition.crash_marker = guard.waiting
            return 0, None
        partition.in_hand = True
        return count, None

    def count_handled(self, partition: PartitionProgress, count: int, seconds: float) -> None:
        """Note that careful handling of `count` records took `seconds`."""
        partition.in_hand, guard = False, partition.crash_guard
        if guard is None or not guard.careful:
            return
        goes_on = guard.count_handled(partition.next_offset or 0, count, seconds)
        partition.crash_marker = guard.waiting
        if not goes_on:
            place = partition.topic_partition
            self.careful.discard(place)
            LOG.info("the partition is handled at full speed again", extra=fields(**place._asdict()))

    def release(self, partition: PartitionProgress, *, died: bool) -> None:
        """Set the marker for a partition's last commit. If `died`, the marker stays unchanged, so the next owner counts
        a death at the records in hand."""
        if partition.topic_partition in self.unread or died:
            return
        partition.in_hand = False
        partition.crash_marker = "" if partition.crash_guard is None else partition.crash_guard.released

    def write(self, partitions: Partitions, breaker_state: str = "") -> frozenset[TopicPartition]:
        """Commit the markers of these partitions, and return the partitions whose commit was not stored."""
        offsets = committable(partitions, breaker_state)
        if not offsets:
            return frozenset()
        try:
            self._parts.consumer.commit(offsets, ANSWER_WAIT_S)
        except FatalConsumerError:
            raise
        except ConsumerError as error:
            self._committing.record_result(offsets, error)
            return frozenset(offsets if error.not_committed is None else error.not_committed)
        self._committing.record_result(offsets, None)
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
            return {}  # without end offsets, careful handling ends only after `careful_s`
