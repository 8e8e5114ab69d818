"""Progress of each owned partition: the records handled, their writes, and the offset that may be committed.

A record is finished when its handler is done *and* everything written for it is acknowledged. The committable offset
is that of the first record which is not finished; nothing ever moves it past such a record. Pure bookkeeping: nothing
here sends, waits or reads a clock.

One thread (the consume loop's) writes. Others may read single fields and copies of the mapping of partitions: each is
replaced as a whole, so they see an older or a newer value, never half of one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fleet_consumer.consumer.consumer import Consumer
from fleet_consumer.contract.breaker_mark import read_closed_mark, read_mark, without_mark
from fleet_consumer.group.errors import ConsumerError, Refusal
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.librdkafka.fetched import as_read
from fleet_consumer.record import Record, Records, Run, TopicPartition
from fleet_consumer.retry.headers import Reading
from fleet_consumer.worker.consume.caution import Caution
from fleet_consumer.worker.consume.outbox import Outgoing
from fleet_consumer.worker.logs import fields


@dataclass(slots=True)
class Unfinished:
    """A record whose writes are not all acknowledged yet. `result` is what it counts as once they are.

    `record` is as it was read, whatever decoding or the handler made of theirs. Where several records
    are handled at once, a record stands here from the moment it is taken up; `handled` turns true when its handler is
    done, at `handled_at` (monotonic seconds). `size` is about how many bytes of memory its writes take, where that is
    counted.
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
        """True when the handler is done, and a write of the record is not acknowledged."""
        return self.handled and not self.finished


@dataclass(frozen=True, slots=True)
class Hold:
    """A held partition: its first offset, since when (wall clock, seconds), and the reason."""

    offset: int
    since: float
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RefusedCommit:
    """The broker's refusal of a partition's last commit, and since when it refuses them (wall clock, seconds)."""

    refusal: Refusal
    since: float


@dataclass(slots=True, eq=False)
class PartitionProgress:
    """One assigned partition. `start` is where its reading began, None while that is not known; `position` is the next
    offset to take up, None before the first record. `unfinished` is in the order of offsets; `size` is the sum of its
    sizes. `mark` is the metadata that the last acknowledged commit carried. Nothing is committable before `reading` is
    known: a commit without it would say that the offset was reset. `note` is what commits say about hands (`caution`):
    None while it is not known what the last one said, and `in_hand` while it says what must hold until those records
    are done; nothing is committed in either case. `refused` is None once a commit was stored. `timestamp` is that of
    the record handled last. `gone` turns true when the partition is not ours any more, for calls that are on other
    threads. `caught_up_at` (wall clock) is when a scrape last found nothing left; only scrapes use it,
    and write it."""

    topic_partition: TopicPartition
    start: int | None = None
    position: int | None = None
    committed: int | None = None
    timestamp: int | None = None
    caught_up_at: float = float("-inf")
    mark: str = ""
    reading: Reading | None = None
    refused: RefusedCommit | None = None
    note: str | None = ""
    in_hand: bool = False
    gone: bool = False
    caution: Caution | None = None
    hold: Hold | None = None
    unfinished: deque[Unfinished] = field(default_factory=deque)
    size: int = 0
    _epoch: int = -1
    # Offsets up to the end of the partition at which there is nothing to read, until something is read again.
    _gap: tuple[int, int] | None = None
    # The log was cut or made anew, and records of the one before are still among the unfinished.
    _mixed: bool = False

    def begin(self, unfinished: Unfinished) -> None:
        """The record that was handled last is not finished before its writes are."""
        self.unfinished.append(unfinished)
        self.size += unfinished.size

    def handled(self, offset: int, leader_epoch: int) -> None:
        """The record at `offset`, and all before it, have been through the handler, or stand in `unfinished`."""
        self.position = offset + 1
        self._epoch = leader_epoch

    def read(self, first: int) -> None:
        """Records of this partition have come, from `first` on: what was known of its end is over, or comes again."""
        self._gap = None
        self._go_back(first)

    def _go_back(self, first: int) -> None:
        """Go back to `first` if it lies lower than what was handed out, which is never read again: the log was cut, or
        made anew. Nobody has handled what stands there now."""
        if self.position is not None and first < self.position:
            self.position, self._epoch, self._mixed = first, -1, bool(self.unfinished)

    def comes(self, first: int) -> None:
        """The record at `first` came to be handled, so reading began no later: as `read`, where nothing was handed out
        yet. History that is only read again does not come to be handled."""
        if self.position is None and self.start is not None and first < self.start:
            self.start = first

    def pass_gap(self, first: int, end: int) -> None:
        """There is nothing to read from `first` up to and without `end`: markers of transactions, compacted offsets."""
        self._go_back(first)
        before = self._gap
        self._gap = (before[0] if before is not None and before[1] == first else first, end)

    def settle(self) -> list[str]:
        """Forget the finished records at the front; their results, in order."""
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
        """The next offset to take up; None while not even the start is known."""
        return self.start if self.position is None else self.position

    def committable(self, mark: str = "") -> OffsetAndMetadata | None:
        """The next offset to read after a restart, with the note, `mark` and the mark of the reading as metadata.

        None when all of it is committed already, or must not be yet.
        """
        if self.reading is None or self.note is None or self.in_hand:
            return None
        if self.unfinished:
            # The epoch is that of the record not yet finished: it exists at this offset, as KIP-320 wants to check.
            first = self.unfinished[0].record
            if self._mixed:
                first = min((each.record for each in self.unfinished), key=lambda record: record.offset)
            offset, epoch = first.offset, first.leader_epoch
            if self._mixed and self.position is not None and self.position < offset:
                offset, epoch = self.position, self._epoch
        elif self.position is not None:
            offset, epoch = self.position, self._epoch
        elif self.start is not None:
            # Worth a commit: under `latest` the next owner would begin at a later end, and skip what came between.
            offset, epoch = self.start, -1
        else:
            return None
        gap = self._gap
        if gap is not None and not self.unfinished and gap[0] <= offset < gap[1]:
            offset = gap[1]
        metadata = " ".join(part for part in (self.note, mark, self.reading.mark(offset)) if part)
        if offset == self.committed and (metadata == self.mark or self._rides_along(mark, metadata)):
            return None
        return OffsetAndMetadata(offset, epoch, metadata)

    def _rides_along(self, mark: str, metadata: str) -> bool:
        """True if only the mark is new, and worth no commit: a closed breaker's where none is marked as open."""
        if read_closed_mark(mark) is None or read_mark(self.mark) is not None:
            return False
        return without_mark(metadata) == without_mark(self.mark)


Partitions = Mapping[TopicPartition, PartitionProgress]


def committable(partitions: Partitions, mark: str = "") -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit now: only where they moved, or have another mark, since the last acknowledged commit."""
    return {each: offset for each, part in partitions.items() if (offset := part.committable(mark)) is not None}


def note_commit(
    partitions: Partitions, offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None, now: float
) -> None:
    """Keep what became of a commit: what is in the group's storage, and what the broker refused at `now` (wall clock).

    Partitions that went away meanwhile are left out.
    """
    missing = error.not_committed if isinstance(error, ConsumerError) else None
    if error is not None and missing is None:
        return
    for topic_partition, offset in offsets.items():
        partition = partitions.get(topic_partition)
        if partition is None:
            continue
        if missing is None or topic_partition not in missing:
            partition.committed, partition.mark, partition.refused = offset.offset, offset.metadata, None
        elif (refusal := missing[topic_partition]) is not None:
            since = now if partition.refused is None else partition.refused.since
            partition.refused = RefusedCommit(refusal, since)


LOG = logging.getLogger("fleet_consumer.worker")


def note_start(consumer: Consumer, partition: PartitionProgress, offset: int | None = None) -> None:
    """Note where the reading of a partition begins: at `offset` if it is known, else at the consumer's position.

    Reading begins where the last commit ended, so these lines explain every record that comes twice.
    """
    if offset is None:
        try:
            offset = consumer.position(partition.topic_partition)
        except ConsumerError:
            return  # it is just being lost; its next owner notes its start
    if offset is not None:
        partition.start = offset
        LOG.info("partition started", extra=fields(**partition.topic_partition._asdict(), offset=offset))


def note_starts(consumer: Consumer, asked: Iterable[TopicPartition], partitions: Partitions) -> None:
    """Note the starts of partitions that have handed out nothing yet; one that has is past its start already."""
    for topic_partition in asked:
        partition = partitions.get(topic_partition)
        if partition is not None and partition.start is None:
            note_start(consumer, partition)


def note_polled(consumer: Consumer, records: Records, partitions: Partitions) -> None:
    """Note starts and gaps of what a poll brought.

    A start is that of the partition's first run, also when that is not going to be handled: the consumer's position is
    past it by now, and committing that would skip it. Commits cover a gap once all before it is done, or a drained
    partition would look behind.
    """
    for run in records.runs:
        partition = partitions[run.topic_partition]
        if partition.start is None:
            note_start(consumer, partition, run.records[0].offset)
        partition.read(as_read(run.records[0]).offset)
    for topic_partition, gap in records.gaps.items():
        partition = partitions[topic_partition]
        if partition.start is None:
            note_start(consumer, partition, gap.first)
        partition.pass_gap(gap.first, gap.next)


WRITES_HELD: Final = "WritesHeld"
"""Paused because what its records wrote is not acknowledged."""
WINDOW_FULL: Final = "WindowFull"
"""Paused because its first unfinished record is too far behind."""
NOT_DUE: Final = "NotDue"
"""Paused because the record that comes next is not due yet."""
BREAKER_OPEN: Final = "BreakerOpen"
"""Paused because too much of what was handled lately failed."""
SUSPECT: Final = "Suspect"
"""Paused because one of the records in hand, or of those that come next, may have killed the partition's last owner."""


class Pauses:
    """The pauses of one consumer, each with its reasons (CamelCase): it ends when the last of them ends. Other threads
    may read `reasons`, which is replaced as a whole."""

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
        """Pause the partitions of these runs, whose records are read again later.

        A poll may bring several runs of one partition. Only its first one is sought back to: a seek to a later run
        would pass by the records before it.
        """
        firsts: dict[TopicPartition, int] = {}
        for run in runs:
            firsts.setdefault(run.topic_partition, run.records[0].offset)
        for partition, offset in firsts.items():
            self._consumer.seek(partition, offset)
            self.pause(partition, reason)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that are not owned any more; the consumer has ended their pauses itself."""
        gone = frozenset(partitions)
        if not gone.isdisjoint(self.reasons):
            self.reasons = {each: why for each, why in self.reasons.items() if each not in gone}
