"""The partitions that a consumer owns, their positions, and the records that may be returned.

The coordinator thread looks up a partition's starting position, and the fetch thread reads from this position. An owned
partition has no position during the lookup. While being read, it has a `PartitionBuffer`, and may be paused. In the
end, it is revoked or lost. Only the user's thread may use this module, and nothing here may call user code.

Decision: docs/decisions/0021-partition-ends-and-interrupted-polls.md.
"""

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

from fleet_consumer.consumer.resets import OffsetReset, OutOfRangeReport, Truncation, TruncationReport
from fleet_consumer.consumer.settings import ConsumerSettings
from fleet_consumer.consumer.start_lookups import LOOKUP_RETRY_S, LogWatch, SoughtChecks, StartLookups
from fleet_consumer.coordinator.lookups import Start
from fleet_consumer.coordinator.starts import ResetPolicy, Starts
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.buffer import OutOfRange, PartitionBuffer
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Gap, Records, TopicPartition, names

Buffers = dict[TopicPartition, PartitionBuffer | None]
"""One consumer's owned partitions, each with its buffer (None until the starting position is known)."""


class PausedPartitions:
    """The paused partitions among `buffers`. Pauses may last for hours, and thousands of partitions may be paused. So
    the memory of held records (records fetched but not returned) is limited, per partition and in total."""

    def __init__(self, fetch: FetchThread, buffers: Buffers, settings: ConsumerSettings) -> None:
        self._fetch = fetch
        self._buffers = buffers
        self._records_max = settings.max_poll_records
        self._bytes_max = settings.paused_bytes_max
        self.partitions: set[TopicPartition] = set()

    def pause(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.partitions.update(partitions)
        for part in partitions:
            buffer = self._buffers[part]
            if buffer is not None:
                buffer.paused = True

    def resume(self, partitions: tuple[TopicPartition, ...]) -> list[PartitionBuffer]:
        """End the pauses. Returns the buffers that are fetched again because their held records were dropped."""
        sought = []
        self.partitions.difference_update(partitions)
        for part in partitions:
            buffer = self._buffers[part]
            if buffer is not None and buffer.paused:
                buffer.paused = False
                self._fetch.read_ahead.release(buffer)
                if buffer.dropped:
                    buffer.dropped = False
                    self._fetch.seek(buffer)
                    sought.append(buffer)
                if buffer.on_hold:
                    buffer.on_hold = False
                    self._fetch.unhold(part)
        return sought

    def bound_memory(self) -> None:
        """Stop fetching paused partitions that fill their share of the budget; drop held records beyond the budget.

        All paused partitions have equal shares, so none uses the memory of others. A fetch returns many records, so the
        budget may still be exceeded; then the partitions with the most held bytes are dropped. After the pause, dropped
        records are fetched again and returned, even if they exceed the budget.
        """
        held_back = self._fetch.read_ahead.held_back
        share = self._bytes_max // max(1, len(self.partitions))
        for each in held_back:
            enough = each.held_records >= self._records_max or each.held_bytes >= share
            if each.current and enough:
                self._hold(each)
        held_back.clear()
        holding = [buffer for part in self.partitions if (buffer := self._buffers.get(part)) and buffer.held_bytes]
        excess = sum(buffer.held_bytes for buffer in holding) - self._bytes_max
        if excess > 0:
            for buffer in sorted(holding, key=lambda each: each.held_bytes, reverse=True):
                excess -= buffer.held_bytes
                self._drop(buffer)
                if excess <= 0:
                    break

    def _hold(self, buffer: PartitionBuffer) -> None:
        if not buffer.on_hold:
            buffer.on_hold = True
            self._fetch.hold(buffer.topic_partition)

    def _drop(self, former: PartitionBuffer) -> None:
        """Drop the held records of a partition, and all records fetched until the pause ends."""
        self._hold(former)
        buffer = PartitionBuffer(former.topic_partition, former.position, former.leader_epoch, paused=True)
        buffer.on_hold = buffer.dropped = True
        # This order is required: after an interruption, `Positions.start_over` must find a current buffer.
        self._buffers[former.topic_partition] = buffer
        former.current = False
        # Cleared to free memory, because the fetch thread keeps the former buffer until the next seek.
        former.held.clear()


logger = logging.getLogger(__name__)

Place = tuple[PartitionBuffer, int]
"""A partition's progress: its buffer (a seek replaces the buffer) and its position."""


class Positions:
    """The partitions that one consumer owns, after all rebalances that its user's thread has handled."""

    def __init__(self, group: CoordinatorThread, fetch: FetchThread, settings: ConsumerSettings) -> None:
        self._fetch = fetch
        self._buffers: Buffers = {}
        self._paused = PausedPartitions(fetch, self._buffers, settings)
        self._watch = LogWatch(group, settings)
        self._checks = SoughtChecks(group, settings)
        self._starts = StartLookups(group, settings, self._watch)
        self.out_of_range = OutOfRangeReport()
        self.truncations = TruncationReport()
        # True while records may have left the queues without having reached the user. If still True at the next call,
        # an exception has interrupted a poll, and `start_over` is called. A plain assignment cannot be interrupted.
        self.unsettled = False
        # Offsets that were deleted before they were read, and that are not yet reported to the user.
        self._deleted: dict[TopicPartition, Gap] = {}
        # The buffers that an interrupted `start_over` has created.
        self._replaced: dict[TopicPartition, PartitionBuffer] = {}

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(self._buffers)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._paused.partitions)

    @property
    def last_error(self) -> errors.ConsumerError | None:
        """Error if a person must act to get a starting position, or if lookups take long; otherwise None.
        Thread-safe."""
        return self._starts.last_error

    # Called for rebalances and `Consumer.assign`.

    def assign(self, partitions: Iterable[TopicPartition], appeared: frozenset[TopicPartition]) -> None:
        """Add these partitions, without positions. Partitions in `appeared` will start at their beginning."""
        for part in partitions:
            self._buffers.setdefault(part, None)
        self._starts.appeared |= appeared

    def look_up_unknown(self) -> None:
        asked = frozenset[TopicPartition]().union(*self._starts.pending.values())
        self._starts.look_up([part for part, buffer in self._buffers.items() if buffer is None and part not in asked])

    def stop_delivery(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no more records of these partitions. They remain owned and keep their positions until
        `discard_partitions`.

        Records that the fetch thread delivers later are ignored, because the buffers are no longer current.
        """
        gone = frozenset(partitions)
        self._starts.ignore(gone)
        read = {part: buffer for part in gone if (buffer := self._buffers.get(part)) is not None}
        for buffer in read.values():
            buffer.current = False
        if read:
            self._fetch.unassign(frozenset(read))

    def discard_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        gone = frozenset(partitions)
        # A seek in the revocation callback may have started to read a partition without a position; stop reading it.
        self.stop_delivery(part for part in gone if (buffer := self._buffers.get(part)) is not None and buffer.current)
        for part in gone:
            self._buffers.pop(part, None)
        self._paused.partitions -= gone
        self._checks.discard_partitions(gone)
        self._starts.discard_partitions(gone)

    def committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return all known positions, each with the leader epoch of the record before the position."""
        return {
            part: OffsetAndMetadata(buffer.position, buffer.leader_epoch)
            for part, buffer in self._buffers.items()
            if buffer is not None
        }

    def places(self) -> dict[TopicPartition, Place]:
        """Return the buffer and position of each partition that is being read and is not paused."""
        buffers = self._buffers.items()
        return {part: (each, each.position) for part, each in buffers if each is not None and not each.paused}

    def topic_ids(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, UUID]:
        """Return the known ids of the topics to which these offsets belong."""
        found = {}
        for part, entry in offsets.items():
            buffer = self._buffers.get(part)
            topic_id = self._watch.id_at(part, entry.offset, None if buffer is None else buffer.position)
            if topic_id is not None:
                found[part] = topic_id
        return found

    # Calls by the user. Before any change, each call raises NotAssigned if a partition is not owned.

    def position(self, partition: TopicPartition) -> int | None:
        self._check_owned((partition,))
        buffer = self._buffers[partition]
        return None if buffer is None else buffer.position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._check_owned((partition,))
        former = self._buffers[partition]
        lost = self._starts.seek(partition)
        if former is None:
            self._checks.discard_partitions((partition,))
        if former is None and lost is not None and offset <= lost.offset:
            self._starts.seek_unconfirmed(partition, Start(offset, lost.leader_epoch))
            return
        # After a seek backwards, the former position's leader epoch still detects a truncation. After a seek forwards,
        # the new position's epoch is unknown.
        epoch = former.leader_epoch if former is not None and offset <= former.position else -1
        buffer = PartitionBuffer(partition, offset, epoch, paused=partition in self._paused.partitions)
        self._buffers[partition] = buffer
        if former is None:
            self._fetch.assign([buffer])
            return
        former.current = False
        self._watch.leaves(partition, former.position)
        self._checks.sought(partition, offset, epoch)
        if former.on_hold:
            self._fetch.unhold(partition)
        self._fetch.seek(buffer)

    def seek_to_edge(self, partitions: tuple[TopicPartition, ...], edge: ResetPolicy) -> None:
        """Continue at the beginning or end, regardless of the reset policy. The position is None until the lookup
        ends."""
        self._check_owned(partitions)
        self._checks.discard_partitions(partitions)
        self._starts.seek_to_edge(partitions, edge)
        read = {part: buffer for part in partitions if (buffer := self._buffers[part]) is not None}
        if read:
            self._fetch.unassign(frozenset(read))
        for part in partitions:
            self._buffers[part] = None
        for buffer in read.values():
            buffer.current = False
        self._starts.look_up(partitions)

    def pause(self, partitions: tuple[TopicPartition, ...]) -> None:
        self._check_owned(partitions)
        self._paused.pause(partitions)

    def resume(self, partitions: tuple[TopicPartition, ...]) -> None:
        self._check_owned(partitions)
        for buffer in self._paused.resume(partitions):
            self._checks.sought(buffer.topic_partition, buffer.position, buffer.leader_epoch)

    # Reading.

    def take_starts(self) -> None:
        """Start reading at the positions that lookups have found, and look up the remaining partitions again.

        Raises the error of the first refused lookup; its partitions are looked up again after `LOOKUP_RETRY_S` seconds.
        Raises NoOffsetForPartition for partitions without an offset under the policy `none`; these need a seek.
        """
        if not (self._starts.pending or self._checks.pending or self._watch.check_due):
            return
        self._unsettle()
        try:
            self._take_lookups()
        except errors.ConsumerError:
            self.unsettled = False
            raise
        self.unsettled = False

    def _take_lookups(self) -> None:
        refusals: list[Exception] = []
        for asked, ticket in self._starts.ended():
            unplaced = tuple(part for part in sorted(asked) if part in self._buffers and self._buffers[part] is None)
            if ticket.error is not None:
                refusals.append(ticket.error)
                self._starts.look_up(unplaced, delay_s=LOOKUP_RETRY_S)
            else:
                assert ticket.result is not None
                refusals += self._begin(unplaced, ticket.result)
        for buffer, starts in self._checks.cuts(self._buffers):
            part = buffer.topic_partition
            if starts.found[part].offset > buffer.position:
                # The check used the position of the fetch thread, which may be ahead of the user's position. The user
                # has read only records that the log still has, so reading continues at the user's position.
                starts.found[part] = Start(buffer.position, buffer.leader_epoch)
            self._stop_reading(buffer)
            self._begin((part,), starts)
        if self._watch.check_due:
            self._check_logs()
        self._starts.record_error()
        # Fatal errors are raised first.
        for error in sorted(refusals, key=lambda each: not isinstance(each, errors.FatalConsumerError)):
            raise error

    def take_records(self, limit: int) -> Records:
        """Return at most `limit` prefetched records. `unsettled` is True until the user has these records."""
        self._unsettle()
        out_of_range: list[tuple[PartitionBuffer, OutOfRange]] = []
        records = self._fetch.take_records(limit, lambda buffer, what: out_of_range.append((buffer, what)))
        if self._fetch.read_ahead.held_back:
            self._paused.bound_memory()
        for buffer, what in out_of_range:
            self._reset(buffer, what)
        if self._deleted and limit:
            records = Records(records.runs, {**records.gaps, **dict(self._take_deleted(records))})
        if not records and not records.gaps:
            self.unsettled = False
        return records

    def _take_deleted(self, records: Records) -> Iterator[tuple[TopicPartition, Gap]]:
        """Yield deleted offsets as gaps, so that commits include them. Skips partitions whose position has moved
        since."""
        deleted, self._deleted = self._deleted, {}
        for part, gap in deleted.items():
            buffer, behind = self._buffers.get(part), records.gaps.get(part, Gap(gap.next, gap.next))
            if buffer is not None and behind.first == gap.next and buffer.position == behind.next:
                yield part, Gap(gap.first, behind.next)

    def wait(self, timeout_s: float, changed: threading.Event) -> None:
        """Wait until there may be records to take, or `changed` is set."""
        self._unsettle()
        self._fetch.wait(timeout_s, changed)
        self.unsettled = False

    def start_over(self) -> None:
        """After an exception has interrupted a poll, continue at the end of the last complete poll.

        The interrupted poll may have lost messages from librdkafka, and moved positions past records that the user did
        not get. If this method is also interrupted, the next call repeats it completely.
        """
        self._fetch.read_ahead.take_back()
        fresh = self._replaced
        for part, former in list(self._buffers.items()):
            if former is not None and former.current:
                paused = part in self._paused.partitions
                fresh[part] = PartitionBuffer(part, former.position, former.leader_epoch, paused=paused)
                former.current = False
        self._buffers.update(fresh)
        for part, buffer in fresh.items():
            self._checks.sought(part, buffer.position, buffer.leader_epoch)
        self._fetch.start_over(tuple(fresh.values()))
        self.look_up_unknown()
        self._replaced = {}
        self.unsettled = False

    def _unsettle(self) -> None:
        self._fetch.read_ahead.moved = []
        self.unsettled = True

    def _begin(self, partitions: tuple[TopicPartition, ...], starts: Starts) -> list[Exception]:
        """Start reading partitions whose start was found, and look up the others again. Returns the errors to raise."""
        buffers = []
        for part in partitions:
            start = starts.found.get(part)
            if start is not None:
                paused = part in self._paused.partitions
                buffer = PartitionBuffer(part, start.offset, start.leader_epoch, paused=paused)
                self._buffers[part] = buffer
                buffers.append(buffer)
                self._watch.begun(part, starts.ids.get(part))
                self._report(part, start.offset, starts)
        if buffers:
            self._fetch.assign(buffers)
        return self._starts.look_up_missing(partitions, starts)

    def _report(self, part: TopicPartition, start: int, starts: Starts) -> None:
        lost = self._starts.found(part)
        if part in starts.cut:
            cut = Truncation(part, starts.cut[part], start, remade=part in starts.remade)
            self.truncations = self.truncations.plus(cut)
        elif lost is not None and lost.offset != start:
            self.out_of_range = self.out_of_range.plus(OffsetReset(part, lost.offset, start))
            if lost.offset < start:
                self._deleted[part] = Gap(lost.offset, start)

    def _reset(self, buffer: PartitionBuffer, what: OutOfRange) -> None:
        """Look up a new position: retention has deleted the current one, or the log was truncated."""
        part = buffer.topic_partition
        logger.warning("partition %s-%d: offset %d is out of range (%s)", *(*part, buffer.position, what.detail))
        self._stop_reading(buffer)
        self._starts.out_of_range(part, buffer.position)

    def _stop_reading(self, buffer: PartitionBuffer, *, remade: bool = False) -> None:
        """Stop reading, and remove the position (`remade`: the topic was recreated). The caller must start a lookup."""
        part = buffer.topic_partition
        self._starts.set_lost(buffer, remade=remade)
        self._checks.looked_up(buffer)
        # Unassigned first: if an exception follows, `start_over` assigns the partition again, and only once.
        self._fetch.unassign(frozenset((part,)))
        self._buffers[part] = None
        buffer.current = False

    def _check_logs(self) -> None:
        """Look up positions in recreated topics. Check positions that were sought before the last leader election."""
        buffers = {part: buffer for part, buffer in self._buffers.items() if buffer is not None}
        changes = self._watch.changes(buffers)
        for part in changes.remade:
            self._stop_reading(buffers[part], remade=True)
        self._starts.look_up(sorted(changes.remade))
        for buffer, offset, epoch in self._fetch.sought.take():
            if self._buffers.get(buffer.topic_partition) is buffer:
                self._checks.sought(buffer.topic_partition, offset, epoch)
        self._checks.start_checks(changes.epochs, buffers)

    def _check_owned(self, partitions: Iterable[TopicPartition]) -> None:
        missing = [part for part in partitions if part not in self._buffers]
        if missing:
            raise errors.NotAssigned(f"{names(missing)}: currently not assigned to this consumer")
