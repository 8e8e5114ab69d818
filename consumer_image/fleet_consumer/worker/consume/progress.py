"""Progress of each owned partition: handled records, their writes, and the committable offset.

A record is finished when its handler is done and all its writes are acknowledged. The committable offset is that of the
first unfinished record, and never moves past an unfinished record. This module is pure bookkeeping: it does not send,
wait, or read a clock.

Only the consume loop's thread changes the progress. Other threads may read single fields, and may copy the mapping of
partitions. Each field is replaced as a whole, so a reader sees the old or the new value, never a mixture.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.contract.breaker_state import read_breaker_state, read_closed_breaker_state, without_breaker_state
from fleet_consumer.group.errors import ConsumerError, Refusal
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record, Records, Run, TopicPartition
from fleet_consumer.retry.headers import ReplayEpoch
from fleet_consumer.worker.consume.crash_guard import CrashGuard
from fleet_consumer.worker.consume.outbox import Outgoing
from fleet_consumer.worker.logs import fields


@dataclass(slots=True)
class Unfinished:
    """A record that is not handled yet, or whose writes are not all acknowledged. `result` is the outcome to count once
    the record is finished.

    `record` is the record as it was read, without changes by decoding or the handler. A concurrent loop adds the entry
    when it admits the record. When the handler is done, the loop sets `handled`, and `handled_at` (monotonic seconds).
    `size` is the approximate memory of the writes in bytes, or 0 if their size is not counted.
    """

    record: Record
    result: str
    writes: list[Outgoing]
    handled: bool = True
    handled_at: float = 0.0
    size: int = 0

    @property
    def finished(self) -> bool:
        return self.handled and all(write.done and write.error is None for write in self.writes)

    @property
    def unwritten(self) -> bool:
        """True if the record is handled, but at least one of its writes is not acknowledged."""
        return self.handled and not self.finished


@dataclass(frozen=True, slots=True)
class Hold:
    """The hold of a partition: first unfinished offset, start of the hold (wall clock, seconds), and its reason."""

    offset: int
    since: float
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RefusedCommit:
    """The broker's refusal of a partition's last commit. `since` is the time of the first refusal in a row (wall clock,
    seconds)."""

    refusal: Refusal
    since: float


@dataclass(slots=True, eq=False)
class PartitionProgress:
    topic_partition: TopicPartition
    start: int | None = None
    """The starting position, which is the first offset to read; None while unknown."""
    position: int | None = None
    """The next offset to admit; None before the first record."""
    committed: int | None = None
    timestamp: int | None = None
    """Timestamp of the last handled record in milliseconds, as in Kafka."""
    caught_up_at: float = float("-inf")
    """Time (wall clock, seconds) of the last scrape that found all records up to the end handled. Only scrapes use this
    field."""
    committed_metadata: str = ""
    replay_epoch: ReplayEpoch | None = None
    """The current replay epoch; None while unknown. Without an epoch, no offset is committed, because such a commit
    would later be taken for an offset reset."""
    refused: RefusedCommit | None = None
    crash_marker: str | None = ""
    """Crash marker for the next commit. None if the previous marker is unknown; no offset is then committed."""
    in_hand: bool = False
    """True while the records that the crash marker counts are being handled. No offset is committed in this time."""
    gone: bool = False
    """True once the partition is no longer owned. Handler calls on other threads read this field."""
    crash_guard: CrashGuard | None = None
    hold: Hold | None = None
    unfinished: deque[Unfinished] = field(default_factory=deque)
    """Records that are not finished yet. They are in offset order if `_mixed` is false."""
    size: int = 0
    """Sum of the sizes of the entries in `unfinished`, in bytes."""
    _epoch: int = -1
    # Range (first, next) of offsets without records at the end of the last poll; None if it ended with a record.
    _gap: tuple[int, int] | None = None
    # True after the log was truncated or recreated, while `unfinished` still contains records of the previous log.
    _mixed: bool = False

    def add_unfinished(self, unfinished: Unfinished) -> None:
        self.unfinished.append(unfinished)
        self.size += unfinished.size

    def handled(self, offset: int, leader_epoch: int) -> None:
        """Set the position after `offset`: all records up to `offset` are handled or in `unfinished`."""
        self.position = offset + 1
        self._epoch = leader_epoch

    def records_arrived(self, first: int) -> None:
        """Forget the gap, because records have arrived from `first` on. If a gap remains, the poll reports it again."""
        self._gap = None
        self._go_back(first)

    def _go_back(self, first: int) -> None:
        """Move the position back to `first` if `first` is lower.

        Admitted records are never read again. A lower `first` therefore means that the log was truncated or recreated,
        and that its records from `first` on are new.
        """
        if self.position is not None and first < self.position:
            self.position, self._epoch, self._mixed = first, -1, bool(self.unfinished)

    def admitting(self, first: int) -> None:
        """Move the starting position back to `first` if `first` is lower and no record was admitted yet.

        A lower `first` means that the log was truncated or recreated. This method is not called for history (records
        before the committed offset), whose offsets are always lower.
        """
        if self.position is None and self.start is not None and first < self.start:
            self.start = first

    def pass_gap(self, first: int, end: int) -> None:
        """Skip offsets without records (transaction markers, compaction), from `first` on and before `end`."""
        self._go_back(first)
        before = self._gap
        self._gap = (before[0] if before is not None and before[1] == first else first, end)

    def pop_finished(self) -> list[str]:
        """Remove the finished records at the front of `unfinished` and return their results in order."""
        results = []
        while self.unfinished and self.unfinished[0].finished:
            first = self.unfinished.popleft()
            self.size -= first.size
            results.append(first.result)
        if not self.unfinished:
            self._mixed = False
        return results

    @property
    def next_offset(self) -> int | None:
        """The next offset to admit; None while the starting position is unknown."""
        return self.start if self.position is None else self.position

    def committable(self, breaker_state: str = "") -> OffsetAndMetadata | None:
        """Return the next offset to read after a restart, with the metadata of the commit: crash marker,
        `breaker_state` and replay epoch.

        Returns None if this offset and metadata are already committed, or must not be committed yet.
        """
        if self.replay_epoch is None or self.crash_marker is None or self.in_hand:
            return None
        if self.unfinished:
            # Use the leader epoch of the unfinished record, because KIP-320 checks that this epoch exists at this
            # offset.
            first = self.unfinished[0].record
            if self._mixed:
                first = min((each.record for each in self.unfinished), key=lambda record: record.offset)
            offset, epoch = first.offset, first.leader_epoch
            if self._mixed and self.position is not None and self.position < offset:
                offset, epoch = self.position, self._epoch
        elif self.position is not None:
            offset, epoch = self.position, self._epoch
        elif self.start is not None:
            # Commit the starting position. Without a commit, under `latest`, the next owner would start at a later end
            # offset and skip the records in between.
            offset, epoch = self.start, -1
        else:
            return None
        gap = self._gap
        if gap is not None and not self.unfinished and gap[0] <= offset < gap[1]:
            offset = gap[1]
        metadata = " ".join(
            part for part in (self.crash_marker, breaker_state, self.replay_epoch.metadata(offset)) if part
        )
        if offset == self.committed and (
            metadata == self.committed_metadata or self._rides_along(breaker_state, metadata)
        ):
            return None
        return OffsetAndMetadata(offset, epoch, metadata)

    def _rides_along(self, breaker_state: str, metadata: str) -> bool:
        """Return True if the breaker state alone has changed and can wait for the next commit.

        It can wait if the breaker is closed and the last commit does not contain the open state.
        """
        if read_closed_breaker_state(breaker_state) is None or read_breaker_state(self.committed_metadata) is not None:
            return False
        return without_breaker_state(metadata) == without_breaker_state(self.committed_metadata)


Partitions = Mapping[TopicPartition, PartitionProgress]


def committable(partitions: Partitions, breaker_state: str = "") -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets to commit: all whose offset or metadata changed since the last acknowledged commit."""
    return {
        each: offset for each, part in partitions.items() if (offset := part.committable(breaker_state)) is not None
    }


def record_commit(
    partitions: Partitions, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None, now: float
) -> None:
    """Record the result of a commit in the progress of each partition: stored, or refused by the broker at `now` (wall
    clock, seconds). Partitions that were revoked in the meantime are ignored."""
    missing = error.not_committed if isinstance(error, ConsumerError) else None
    if error is not None and missing is None:
        return
    for topic_partition, offset in offsets.items():
        partition = partitions.get(topic_partition)
        if partition is None:
            continue
        if missing is None or topic_partition not in missing:
            partition.committed, partition.committed_metadata, partition.refused = offset.offset, offset.metadata, None
        elif (refusal := missing[topic_partition]) is not None:
            since = now if partition.refused is None else partition.refused.since
            partition.refused = RefusedCommit(refusal, since)


LOG = logging.getLogger("fleet_consumer.worker")


def record_start(consumer: Consumer, partition: PartitionProgress, offset: int | None = None) -> None:
    """Record the starting position of a partition: `offset` if given, otherwise the consumer's position.

    The position is logged as well. Reading starts at the last commit, so the log explains every repeated record.
    """
    if offset is None:
        try:
            offset = consumer.position(partition.topic_partition)
        except ConsumerError:
            return  # the partition is being lost, and its next owner records the starting position
    if offset is not None:
        partition.start = offset
        LOG.info("partition started", extra=fields(**partition.topic_partition._asdict(), offset=offset))


def record_starts(consumer: Consumer, asked: Iterable[TopicPartition], partitions: Partitions) -> None:
    """Record the starting position of each partition that has none yet."""
    for topic_partition in asked:
        partition = partitions.get(topic_partition)
        if partition is not None and partition.start is None:
            record_start(consumer, partition)


def record_polled(consumer: Consumer, records: Records, partitions: Partitions) -> None:
    """Record the starting positions and gaps in a poll's result.

    A partition's starting position is the offset of its first run, even if this run is not handled. The consumer's
    position is already after the run, so a commit of the consumer's position would skip the run. Commits include a gap
    once all records before the gap are finished. Otherwise a fully consumed partition would show lag.
    """
    for run in records.runs:
        partition = partitions[run.topic_partition]
        if partition.start is None:
            record_start(consumer, partition, run.records[0].offset)
        partition.records_arrived(as_read(run.records[0]).offset)
    for topic_partition, gap in records.gaps.items():
        partition = partitions[topic_partition]
        if partition.start is None:
            record_start(consumer, partition, gap.first)
        partition.pass_gap(gap.first, gap.next)


WRITES_HELD: Final = "WritesHeld"
"""The partition is paused because writes of its records have failed or are overdue."""
WINDOW_FULL: Final = "WindowFull"
"""The partition is paused because too many records wait for its first unfinished record."""
NOT_DUE: Final = "NotDue"
"""The partition is paused because its next record is not due yet."""
BREAKER_OPEN: Final = "BreakerOpen"
"""The partition is paused because the breaker is open: too many recent records failed."""
CRASH_GUARD: Final = "CrashGuard"
"""The partition is paused by the crash guard, because one of its records may have killed the last owner."""


class Pauses:
    """The reasons (CamelCase) why partitions of one consumer are paused. A partition resumes when its last reason is
    removed. Other threads may read `reasons`, because each change replaces the whole mapping."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.reasons: Mapping[TopicPartition, frozenset[str]] = {}

    def pause(self, partition: TopicPartition, reason: str) -> None:
        known = self.reasons.get(partition, frozenset())
        if not known:
            self._consumer.pause([partition])
        self.reasons = {**self.reasons, partition: known | {reason}}

    def resume(self, partition: TopicPartition, reason: str) -> None:
        known = self.reasons.get(partition, frozenset())
        if reason not in known:
            return
        left = known - {reason}
        others = {each: why for each, why in self.reasons.items() if each != partition}
        self.reasons = {**others, partition: left} if left else others
        if not left:
            self._consumer.resume([partition])

    def hold(self, runs: Iterable[Run], reason: str) -> None:
        """Pause the partitions of these runs, and seek back to the runs. Their records are read again later.

        If a partition has several runs, the seek goes to the first run, because a seek to a later run would skip
        records.
        """
        firsts: dict[TopicPartition, int] = {}
        for run in runs:
            firsts.setdefault(run.topic_partition, run.records[0].offset)
        for partition, offset in firsts.items():
            self._consumer.seek(partition, offset)
            self.pause(partition, reason)

    def discard_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are no longer owned. The consumer has already ended their pauses."""
        gone = frozenset(partitions)
        if not gone.isdisjoint(self.reasons):
            self.reasons = {each: why for each, why in self.reasons.items() if each not in gone}
