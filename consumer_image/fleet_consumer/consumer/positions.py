"""The partitions that a consumer owns, the position of each, and the records that may be handed out.

Stands between the coordinator thread, which finds out where a partition begins, and the fetch thread, which reads
from there. A partition is owned without a position (being looked up), then read (a `PartitionBuffer`), perhaps paused,
then given back. Everything here belongs to the user's thread; nothing here may call user code.
"""

from __future__ import annotations

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
"""The owned partitions of one consumer; None until the starting position is known."""


class PausedPartitions:
    """The paused ones among `buffers`, and the bound on the memory of what is held back for them.

    Pauses may last for hours, and there may be thousands, so both one partition and all together are bounded.
    """

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
        """End the pauses; returns the buffers whose partitions were sought, because their records had been dropped."""
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
        """Fetch no more of paused partitions that hold their share; hold no more in all than the budget.

        Every paused partition has an equal share, so none takes the room of the others. A fetch brings many records at
        a time; what exceeds the budget is dropped where most is held. It is fetched again when its pause ends, and then
        handed out without being held, however large it is.
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
        """Drop the held records of a partition until the pause ends; what was fetched behind them is void, too."""
        self._hold(former)
        buffer = PartitionBuffer(former.topic_partition, former.position, former.leader_epoch, paused=True)
        buffer.on_hold = buffer.dropped = True
        # In this order: an interruption in between must find a buffer that is current (`Positions.start_over`).
        self._buffers[former.topic_partition] = buffer
        former.current = False
        # The fetch thread knows the former one until the partition is sought.
        former.held.clear()


logger = logging.getLogger(__name__)

Place = tuple[PartitionBuffer, int]
"""The buffer of a partition, which a seek replaces, and the position in it."""


class Positions:
    """The partitions of one consumer, by its user's view."""

    def __init__(self, group: CoordinatorThread, fetch: FetchThread, settings: ConsumerSettings) -> None:
        self._fetch = fetch
        self._buffers: Buffers = {}
        self._paused = PausedPartitions(fetch, self._buffers, settings)
        self._watch = LogWatch(group, settings)
        self._checks = SoughtChecks(group, settings)
        self._starts = StartLookups(group, settings, self._watch)
        self.out_of_range = OutOfRangeReport()
        self.truncations = TruncationReport()
        # True from when reading begins until what was read has reached the user. If the next call finds it true, an
        # exception came in between (`start_over`). A plain attribute: assigning it cannot be interrupted.
        self.unsettled = False
        # Offsets that were deleted before they were read, and that the user has not been told yet.
        self._deleted: dict[TopicPartition, Gap] = {}
        # The replacements that an interrupted `start_over` had made.
        self._replaced: dict[TopicPartition, PartitionBuffer] = {}

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """Every partition that was assigned and not taken away since."""
        return frozenset(self._buffers)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(self._paused.partitions)

    @property
    def last_error(self) -> errors.ConsumerError | None:
        """The reason why partitions have no start until a person acts, or have had none for long. Any thread."""
        return self._starts.last_error

    # The group's decisions.

    def assign(self, partitions: Iterable[TopicPartition], appeared: frozenset[TopicPartition]) -> None:
        """Own these too; they have no position yet. Those in `appeared` begin at their beginning."""
        for part in partitions:
            self._buffers.setdefault(part, None)
        self._starts.appeared |= appeared

    def look_up_unknown(self) -> None:
        """Look up where those without a position begin, in the background."""
        asked = frozenset[TopicPartition]().union(*self._starts.pending.values())
        self._starts.look_up([part for part, buffer in self._buffers.items() if buffer is None and part not in asked])

    def stop_delivery(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these from now on; they stay owned, with their positions, until `forget`.

        What the fetch thread still delivers carries buffers that are void by then.
        """
        gone = frozenset(partitions)
        self._starts.ignore(gone)
        read = {part: buffer for part in gone if (buffer := self._buffers.get(part)) is not None}
        for buffer in read.values():
            buffer.current = False
        if read:
            self._fetch.unassign(frozenset(read))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        gone = frozenset(partitions)
        # The user may have sought one in the callback that took it away. If it had no start before, it is read now.
        self.stop_delivery(part for part in gone if (buffer := self._buffers.get(part)) is not None and buffer.current)
        for part in gone:
            self._buffers.pop(part, None)
        self._paused.partitions -= gone
        self._checks.forget(gone)
        self._starts.forget(gone)

    def committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Every position that is known, with the leader epoch of the record before it."""
        return {
            part: OffsetAndMetadata(buffer.position, buffer.leader_epoch)
            for part, buffer in self._buffers.items()
            if buffer is not None
        }

    def places(self) -> dict[TopicPartition, Place]:
        """The place of each partition that is read now."""
        reading = self._buffers.items()
        return {part: (each, each.position) for part, each in reading if each is not None and not each.paused}

    def topic_ids(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, UUID]:
        """The ids of the topics in which these offsets were reached, as far as they are known."""
        found = {}
        for part, entry in offsets.items():
            buffer = self._buffers.get(part)
            topic_id = self._watch.id_at(part, entry.offset, None if buffer is None else buffer.position)
            if topic_id is not None:
                found[part] = topic_id
        return found

    # The user's decisions. Each raises NotAssigned, naming what is not owned, before it changes anything.

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset to hand out, None while it is being looked up."""
        self._check_owned((partition,))
        buffer = self._buffers[partition]
        return None if buffer is None else buffer.position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._check_owned((partition,))
        former = self._buffers[partition]
        lost = self._starts.seek(partition)
        if former is None:
            self._checks.forget((partition,))
        if former is None and lost is not None and offset <= lost.offset:
            self._starts.seek_in_doubt(partition, Start(offset, lost.leader_epoch))
            return
        # What was read up to a later offset proves the same log for an earlier one: a cut is still noticed.
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
        """Go on at the beginning or the end, whatever the reset policy says; no position until that offset is known."""
        self._check_owned(partitions)
        self._checks.forget(partitions)
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
        """Begin to read where lookups have ended, and look up again what they could not find.

        Raises the first refusal; its partitions are looked up again after `LOOKUP_RETRY_S`. Raises
        NoOffsetForPartition under the policy `none`; those partitions wait for a seek.
        """
        if not (self._starts.pending or self._checks.pending or self._watch.due):
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
                # The fetch thread's place: the log was cut within what was read ahead.
                starts.found[part] = Start(buffer.position, buffer.leader_epoch)
            self._stop_reading(buffer)
            self._begin((part,), starts)
        if self._watch.due:
            self._check_logs()
        self._starts.note_error()
        # One that ends the consumer goes before those that it survives.
        for error in sorted(refusals, key=lambda each: not isinstance(each, errors.FatalConsumerError)):
            raise error

    def take_records(self, limit: int) -> Records:
        """Hand out at most `limit` records of what was read ahead. They are `unsettled` until the user has them."""
        self._unsettle()
        out_of_range: list[tuple[PartitionBuffer, OutOfRange]] = []
        records = self._fetch.take(limit, lambda buffer, what: out_of_range.append((buffer, what)))
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
        """The deleted offsets of partitions that have not moved on since, so that commits get past them.

        A record behind them, or a seek, leaves nothing to tell.
        """
        deleted, self._deleted = self._deleted, {}
        for part, gap in deleted.items():
            buffer, behind = self._buffers.get(part), records.gaps.get(part, Gap(gap.next, gap.next))
            if buffer is not None and behind.first == gap.next and buffer.position == behind.next:
                yield part, Gap(gap.first, behind.next)

    def wait(self, timeout_s: float, news: threading.Event) -> None:
        """Wait until records may be there to be taken, or `news` is set, at most `timeout_s`."""
        self._unsettle()
        self._fetch.wait(timeout_s, news)
        self.unsettled = False

    def start_over(self) -> None:
        """Read on from where the last complete poll ended: an exception came between a read and its return.

        Messages that librdkafka had handed over are lost then, and positions may be past records that were not
        delivered. May be interrupted itself: it is done as a whole the next time.
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
        """Read what was found, and look up the rest again. Returns the errors to raise."""
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
        """Count and log a start that is not where reading had come to."""
        lost = self._starts.found(part)
        if part in starts.cut:
            cut = Truncation(part, starts.cut[part], start, remade=part in starts.remade)
            self.truncations = self.truncations.plus(cut)
        elif lost is not None and lost.offset != start:
            self.out_of_range = self.out_of_range.plus(OffsetReset(part, lost.offset, start))
            if lost.offset < start:
                self._deleted[part] = Gap(lost.offset, start)

    def _reset(self, buffer: PartitionBuffer, what: OutOfRange) -> None:
        """Look up a position that its broker does not have: the lookup finds out if retention deleted it, or the log
        was cut."""
        part = buffer.topic_partition
        logger.warning("partition %s-%d: offset %d is out of range (%s)", *(*part, buffer.position, what.detail))
        self._stop_reading(buffer)
        self._starts.out_of_range(part, buffer.position)

    def _stop_reading(self, buffer: PartitionBuffer, *, remade: bool = False) -> None:
        """Take away the position of a partition; a lookup is to follow."""
        part = buffer.topic_partition
        self._starts.set_lost(buffer, remade=remade)
        self._checks.looked_up(buffer)
        # First: what is interrupted behind this is assigned again by `start_over`, and never assigned twice.
        self._fetch.unassign(frozenset((part,)))
        self._buffers[part] = None
        buffer.current = False

    def _check_logs(self) -> None:
        """Begin anew in topics that were created again, and check places that were sought before the last election."""
        reading = {part: buffer for part, buffer in self._buffers.items() if buffer is not None}
        changes = self._watch.changes(reading)
        for part in changes.remade:
            self._stop_reading(reading[part], remade=True)
        self._starts.look_up(sorted(changes.remade))
        for buffer, offset, epoch in self._fetch.sought.take():
            if self._buffers.get(buffer.topic_partition) is buffer:
                self._checks.sought(buffer.topic_partition, offset, epoch)
        self._checks.begin(changes.epochs, reading)

    def _check_owned(self, partitions: Iterable[TopicPartition]) -> None:
        missing = [part for part in partitions if part not in self._buffers]
        if missing:
            raise errors.NotAssigned(f"{names(missing)}: not assigned to this consumer now")
