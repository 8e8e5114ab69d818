"""What a consumer owns, where it reads each partition, and what may be handed out of it.

Stands between the coordinator thread, which finds out where a partition begins, and the fetch thread, which reads
from there. A partition goes through: owned without a position (being looked up), read (a `PartitionBuffer`), perhaps
paused, given back. Everything here belongs to the user's thread; nothing here may call user code.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.offsets import Starts
from fleet_consumer.coordinator.reset_policy import ResetPolicy
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.buffer import OutOfRange, PartitionBuffer
from fleet_consumer.fetch.records import Records
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import TopicPartition

logger = logging.getLogger(__name__)

HELD_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of values of a paused partition after which it is not fetched any more: pauses may last for hours."""

LOOKUP_RETRY_S = 5.0
"""How long starting positions that could not be found are left alone, so that their error is not raised hotly."""


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """A position that its broker did not have, and where reading went on instead.

    `skipped` is how many offsets lie between, never to be read: records that were deleted before anybody read them,
    or, when the log was cut off, 0.
    """

    partition: TopicPartition
    position: int
    start: int

    @property
    def skipped(self) -> int:
        """The number of offsets from `position` up to and without `start`."""
        return max(0, self.start - self.position)


@dataclass(frozen=True, slots=True)
class OutOfRangeReport:
    """All of a consumer's OFFSET_OUT_OF_RANGE: how many, how many offsets were skipped in all, and the last one."""

    count: int = 0
    skipped: int = 0
    last: OffsetReset | None = None


class Positions:
    """The partitions that one consumer owns, by its user's view."""

    def __init__(
        self,
        group: CoordinatorThread,
        fetch: FetchThread,
        *,
        group_id: str,
        policy: ResetPolicy,
        read_committed: bool,
        held_records_max: int,
    ) -> None:
        self._group = group
        self._fetch = fetch
        self._group_id = group_id
        self._policy = policy
        self._read_committed = read_committed
        self._held_records_max = held_records_max
        # None until the starting position is known.
        self._buffers: dict[TopicPartition, PartitionBuffer | None] = {}
        self._paused: set[TopicPartition] = set()
        self._appeared: set[TopicPartition] = set()
        # Positions that turned out not to exist, until it is known where reading goes on.
        self._out_of_range: dict[TopicPartition, int] = {}
        self.out_of_range = OutOfRangeReport()
        # Lookups of starting positions under way, with the partitions they are for.
        self._lookups: dict[Ticket[Starts], frozenset[TopicPartition]] = {}

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """Every partition that was assigned and not taken away since."""
        return frozenset(self._buffers)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """What is paused now."""
        return frozenset(self._paused)

    # What the group decides.

    def assign(self, partitions: Iterable[TopicPartition], appeared: frozenset[TopicPartition]) -> None:
        """Own these too; they have no position yet. Those in `appeared` begin at their beginning."""
        for part in partitions:
            self._buffers.setdefault(part, None)
        self._appeared |= appeared

    def look_up_unknown(self) -> None:
        """Find out where those without a position begin, in the background."""
        asked = frozenset[TopicPartition]().union(*self._lookups.values())
        unknown = tuple(part for part, buffer in self._buffers.items() if buffer is None and part not in asked)
        if unknown:
            self._look_up(unknown)

    def void(self, partitions: Iterable[TopicPartition]) -> None:
        """From now on nothing of these comes out; they stay owned, with their positions, until `forget`.

        What the fetch thread still delivers carries buffers that are void by then.
        """
        gone = frozenset(partitions)
        for ticket, parts in list(self._lookups.items()):
            # An answer must not find a partition that was given back and has come again since: it would be too old.
            if parts <= gone:
                ticket.cancel()
                del self._lookups[ticket]
            else:
                self._lookups[ticket] = parts - gone
        read = {part: buffer for part in gone if (buffer := self._buffers.get(part)) is not None}
        for buffer in read.values():
            buffer.current = False
        if read:
            self._fetch.unassign(frozenset(read))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are no longer owned."""
        for part in partitions:
            self._buffers.pop(part, None)
            self._paused.discard(part)
            self._out_of_range.pop(part, None)

    def committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Every position that is known, with the leader epoch of the record before it."""
        return {
            part: OffsetAndMetadata(buffer.position, buffer.leader_epoch)
            for part, buffer in self._buffers.items()
            if buffer is not None
        }

    # What the user decides. Each raises NotAssigned, naming what is not owned, before it changes anything.

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset to hand out, None while it is being looked up."""
        self._check_owned((partition,))
        buffer = self._buffers[partition]
        return None if buffer is None else buffer.position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`."""
        self._check_owned((partition,))
        former = self._buffers[partition]
        self._out_of_range.pop(partition, None)
        buffer = PartitionBuffer(partition, offset, paused=partition in self._paused)
        self._buffers[partition] = buffer
        if former is None:
            # A lookup may be under way; its answer will find that the partition has a position by now.
            self._fetch.assign({partition: (buffer, -1)})
            return
        former.current = False
        if former.on_hold:
            self._fetch.unhold(partition)
        self._fetch.seek(buffer)

    def pause(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Hand out nothing of these."""
        self._check_owned(partitions)
        self._paused.update(partitions)
        for part in partitions:
            buffer = self._buffers[part]
            if buffer is not None:
                buffer.paused = True

    def resume(self, partitions: tuple[TopicPartition, ...]) -> None:
        """End a pause; what was read ahead before it comes out first."""
        self._check_owned(partitions)
        self._paused.difference_update(partitions)
        for part in partitions:
            buffer = self._buffers[part]
            if buffer is not None and buffer.paused:
                buffer.paused = False
                self._fetch.read_ahead.release(buffer)
                if buffer.on_hold:
                    buffer.on_hold = False
                    self._fetch.unhold(part)

    # Reading.

    def take_starts(self) -> None:
        """Begin to read where lookups have ended.

        Raises what they met; the partitions concerned are looked up again after `LOOKUP_RETRY_S`. Raises
        NoOffsetForPartition under the policy `none`; those partitions wait for a seek.
        """
        for ticket in [ticket for ticket in self._lookups if ticket.done]:
            asked = self._lookups.pop(ticket)
            waiting = tuple(part for part in sorted(asked) if part in self._buffers and self._buffers[part] is None)
            if ticket.error is not None:
                # Committed offsets must not lead back to a position that does not exist.
                lost = tuple(part for part in waiting if part in self._out_of_range)
                fresh = tuple(part for part in waiting if part not in self._out_of_range)
                if fresh:
                    self._look_up(fresh, delay_s=LOOKUP_RETRY_S)
                if lost:
                    self._look_up(lost, use_committed=False, delay_s=LOOKUP_RETRY_S)
                raise ticket.error
            assert ticket.result is not None
            self._begin(waiting, ticket.result)

    def take_records(self, limit: int) -> Records:
        """Hand out at most `limit` records of what was read ahead."""
        out_of_range: list[tuple[PartitionBuffer, OutOfRange]] = []
        records = self._fetch.take(limit, lambda buffer, what: out_of_range.append((buffer, what)))
        for part in self._paused:
            buffer = self._buffers.get(part)
            if buffer is not None and not buffer.on_hold and self._holds_enough(buffer):
                buffer.on_hold = True
                self._fetch.hold(part)
        for buffer, what in out_of_range:
            self._reset(buffer, what)
        return records

    def _holds_enough(self, buffer: PartitionBuffer) -> bool:
        return buffer.held_records >= self._held_records_max or buffer.held_bytes >= HELD_BYTES_MAX

    def wait(self, timeout_s: float, news: threading.Event) -> None:
        """Wait until records may be there to be taken, or `news` is set, at most `timeout_s`."""
        self._fetch.wait(timeout_s, news)

    def _look_up(
        self, partitions: tuple[TopicPartition, ...], *, use_committed: bool = True, delay_s: float = 0.0
    ) -> None:
        ticket = self._group.find_starts(
            partitions,
            appeared=frozenset(self._appeared),
            policy=self._policy,
            read_committed=self._read_committed,
            use_committed=use_committed,
            delay_s=delay_s,
        )
        self._lookups[ticket] = frozenset(partitions)

    def _begin(self, partitions: tuple[TopicPartition, ...], starts: Starts) -> None:
        buffers: dict[TopicPartition, tuple[PartitionBuffer, int]] = {}
        for part in partitions:
            start = starts.found.get(part)
            if start is not None:
                buffer = PartitionBuffer(part, start.offset, paused=part in self._paused)
                buffer.leader_epoch = start.leader_epoch
                self._buffers[part] = buffer
                buffers[part] = (buffer, start.leader_epoch)
                if part in self._out_of_range:
                    self._report(OffsetReset(part, self._out_of_range.pop(part), start.offset))
        if buffers:
            self._fetch.assign(buffers)
        without = [part for part in partitions if part in starts.without]
        if without:
            raise errors.NoOffsetForPartition(
                f"group {self._group_id!r}: no usable offset for {_names(without)} and auto_offset_reset is none; "
                "seek these partitions or commit offsets for them",
                without,
            )

    def _reset(self, buffer: PartitionBuffer, what: OutOfRange) -> None:
        """The position does not exist: the broker deleted it, or was truncated. The policy decides, and it is told."""
        part = buffer.topic_partition
        logger.warning(
            "partition %s-%d: offset %d is out of range (%s); reset policy: %s",
            *(part.topic, part.partition, buffer.position, what.detail, self._policy),
        )
        self._out_of_range[part] = buffer.position
        buffer.current = False
        self._buffers[part] = None
        self._fetch.unassign(frozenset((part,)))
        self._look_up((part,), use_committed=False)

    def _report(self, reset: OffsetReset) -> None:
        before = self.out_of_range
        self.out_of_range = OutOfRangeReport(before.count + 1, before.skipped + reset.skipped, reset)
        logger.warning(
            "partition %s-%d: reading goes on at %d; %d offsets were skipped, %d up to and without %d",
            *(*reset.partition, reset.start, reset.skipped, reset.position, max(reset.position, reset.start)),
        )

    def _check_owned(self, partitions: Iterable[TopicPartition]) -> None:
        missing = [part for part in partitions if part not in self._buffers]
        if missing:
            raise errors.NotAssigned(f"{_names(missing)}: not assigned to this consumer now")


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{part.topic}-{part.partition}" for part in partitions)
