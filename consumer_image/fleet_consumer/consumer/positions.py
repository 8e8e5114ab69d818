"""What a consumer owns, where it reads each partition, and what may be handed out of it.

Stands between the coordinator thread, which finds out where a partition begins, and the fetch thread, which reads
from there. A partition goes through: owned without a position (being looked up), read (a `PartitionBuffer`), perhaps
paused, given back. Everything here belongs to the user's thread; nothing here may call user code.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from uuid import UUID

from fleet_consumer.consumer.log_watch import LOOK_S, LogWatch
from fleet_consumer.consumer.resets import OffsetReset, OutOfRangeReport, Truncation, TruncationReport
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.lookups import RETRY_S, Start
from fleet_consumer.coordinator.offsets import RETRY_MAX_S
from fleet_consumer.coordinator.reset_policy import ResetPolicy
from fleet_consumer.coordinator.starts import StartQuery, Starts
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.buffer import OutOfRange, PartitionBuffer
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Records, TopicPartition

logger = logging.getLogger(__name__)

LOOKUP_RETRY_S = 5.0
"""How long starting positions that were refused are left alone, so that their error is not raised hotly."""
PATIENT_ATTEMPTS = 4
"""After this many attempts in vain, about three seconds, a partition without a start is reported: no election takes
that long."""


class Positions:
    """The partitions that one consumer owns, by its user's view."""

    def __init__(
        self,
        group: CoordinatorThread,
        fetch: FetchThread,
        *,
        group_id: str | None,
        policy: ResetPolicy,
        read_committed: bool,
        held_records_max: int,
        held_bytes_max: int,
        look_every_s: float = LOOK_S,
    ) -> None:
        self._group = group
        self._fetch = fetch
        self._group_id = group_id
        self._policy = policy
        self._read_committed = read_committed
        # Of one paused partition, and of all together: pauses may last for hours, and there may be thousands.
        self._held_records_max = held_records_max
        self._held_bytes_max = held_bytes_max
        # None until the starting position is known.
        self._buffers: dict[TopicPartition, PartitionBuffer | None] = {}
        self._paused: set[TopicPartition] = set()
        self._appeared: set[TopicPartition] = set()
        # Positions that turned out not to exist, until it is known where reading goes on; and how often in a row the
        # same one did.
        self._lost: dict[TopicPartition, Start] = {}
        self._lost_again: dict[TopicPartition, tuple[int, int]] = {}
        self._remade: set[TopicPartition] = set()
        self._watch = LogWatch(group, look_every_s)
        # Places that were sought, which nobody has compared with an election before; and checks of such, under way.
        self._unproven: set[TopicPartition] = set()
        self._checks: dict[Ticket[Starts], dict[TopicPartition, PartitionBuffer]] = {}
        self.out_of_range = OutOfRangeReport()
        self.truncations = TruncationReport()
        # The end to which a partition was sought, until it is known which offset that is.
        self._sought: dict[TopicPartition, ResetPolicy] = {}
        # Lookups of starting positions under way, with the partitions they are for.
        self._lookups: dict[Ticket[Starts], frozenset[TopicPartition]] = {}
        # Attempts in vain, one after the other, and why the last one was.
        self._waiting: dict[TopicPartition, tuple[int, str]] = {}
        # Replaced as a whole; any thread may read it.
        self.last_error: errors.OffsetLookupFailed | None = None
        # True from when reading begins until what was read has reached the user. Whoever finds it true in the next call
        # knows that an exception came in between (`start_over`). A plain attribute: assigning it cannot be interrupted.
        self.unsettled = False
        # What an interrupted `start_over` had put in place of which buffers.
        self._replaced: dict[TopicPartition, PartitionBuffer] = {}

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

    def stop_delivery(self, partitions: Iterable[TopicPartition]) -> None:
        """From now on nothing of these comes out; they stay owned, with their positions, until `forget`.

        What the fetch thread still delivers carries buffers that are void by then.
        """
        gone = frozenset(partitions)
        self._ignore_lookups(gone)
        read = {part: buffer for part in gone if (buffer := self._buffers.get(part)) is not None}
        for buffer in read.values():
            buffer.current = False
        if read:
            self._fetch.unassign(frozenset(read))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are no longer owned."""
        gone = frozenset(partitions)
        # The user may have sought one in the callback that took it away.
        self._ignore_lookups(gone)
        for part in gone:
            self._buffers.pop(part, None)
            self._paused.discard(part)
            self._lost.pop(part, None)
            self._lost_again.pop(part, None)
            self._remade.discard(part)
            self._unproven.discard(part)
            self._waiting.pop(part, None)
            self._sought.pop(part, None)
        self._note_error()

    def committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Every position that is known, with the leader epoch of the record before it."""
        return {
            part: OffsetAndMetadata(buffer.position, buffer.leader_epoch)
            for part, buffer in self._buffers.items()
            if buffer is not None
        }

    def topic_ids(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, UUID]:
        """The ids of the topics in which these offsets were reached, as far as they are known."""
        found = {}
        for part, entry in offsets.items():
            buffer = self._buffers.get(part)
            topic_id = self._watch.id_at(part, entry.offset, None if buffer is None else buffer.position)
            if topic_id is not None:
                found[part] = topic_id
        return found

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
        self._sought.pop(partition, None)
        lost = self._lost.pop(partition, None)
        self._waiting.pop(partition, None)
        if former is None and lost is not None and offset <= lost.offset:
            # The log is in doubt, so the place that was sought is, too: it may lie behind a cut.
            self._lost[partition] = Start(offset, lost.leader_epoch)
            self._ignore_lookups(frozenset((partition,)))
            self._look_up((partition,))
            return
        buffer = PartitionBuffer(partition, offset, paused=partition in self._paused)
        if former is not None and offset <= former.position:
            # What was read up to a later offset proves the same log for an earlier one: a cut is still noticed.
            buffer.leader_epoch = former.leader_epoch
        self._buffers[partition] = buffer
        if former is None:
            # A lookup may be under way; its answer will find that the partition has a position by now.
            self._fetch.assign({partition: (buffer, -1)})
            return
        former.current = False
        self._watch.leaves(partition, former.position)
        self._unproven.add(partition)
        if former.on_hold:
            self._fetch.unhold(partition)
        self._fetch.seek(buffer)

    def seek_to_edge(self, partitions: tuple[TopicPartition, ...], edge: ResetPolicy) -> None:
        """Go on at the beginning or the end, whatever the reset policy says; no position until that offset is known."""
        self._check_owned(partitions)
        self._ignore_lookups(frozenset(partitions))
        read = {part: buffer for part in partitions if (buffer := self._buffers[part]) is not None}
        if read:
            self._fetch.unassign(frozenset(read))
        for part in partitions:
            self._sought[part] = edge
            self._buffers[part] = None
            self._lost.pop(part, None)
            self._lost_again.pop(part, None)
            self._remade.discard(part)
            self._waiting.pop(part, None)
        for buffer in read.values():
            buffer.current = False
        self._look_up(partitions)

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
                if buffer.dropped:
                    buffer.dropped = False
                    self._fetch.seek(buffer)
                if buffer.on_hold:
                    buffer.on_hold = False
                    self._fetch.unhold(part)

    # Reading.

    def take_starts(self) -> None:
        """Begin to read where lookups have ended, and look up again what they could not find.

        Raises the first refusal; its partitions are looked up again after `LOOKUP_RETRY_S`. Raises
        NoOffsetForPartition under the policy `none`; those partitions wait for a seek.
        """
        if not (self._lookups or self._checks or self._watch.due):
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
        for ticket in [ticket for ticket in self._lookups if ticket.done]:
            asked = self._lookups.pop(ticket)
            unplaced = tuple(part for part in sorted(asked) if part in self._buffers and self._buffers[part] is None)
            if ticket.error is not None:
                refusals.append(ticket.error)
                self._look_up(unplaced, delay_s=LOOKUP_RETRY_S)
            else:
                assert ticket.result is not None
                refusals += self._begin(unplaced, ticket.result)
        self._take_checks()
        self._look_at_logs()
        self._note_error()
        # One that ends the consumer goes before those that it survives.
        for error in sorted(refusals, key=lambda each: not isinstance(each, errors.FatalConsumerError)):
            raise error

    def take_records(self, limit: int) -> Records:
        """Hand out at most `limit` records of what was read ahead. They are `unsettled` until the user has them."""
        self._unsettle()
        out_of_range: list[tuple[PartitionBuffer, OutOfRange]] = []
        records = self._fetch.take(limit, lambda buffer, what: out_of_range.append((buffer, what)))
        if self._fetch.read_ahead.held_back:
            self._bound_held()
        for buffer, what in out_of_range:
            self._reset(buffer, what)
        if not records and not records.gaps:
            self.unsettled = False
        return records

    def _unsettle(self) -> None:
        self._fetch.read_ahead.moved = []
        self.unsettled = True

    def start_over(self) -> None:
        """Read on from where the last complete poll ended: an exception came between a read and its return.

        Messages that librdkafka had handed over are lost then, and positions may be past records that nobody got. May
        be interrupted itself: it is done as a whole the next time.
        """
        self._fetch.read_ahead.take_back()
        fresh = self._replaced
        for part, former in list(self._buffers.items()):
            if former is not None and former.current:
                buffer = PartitionBuffer(part, former.position, paused=part in self._paused)
                buffer.leader_epoch = former.leader_epoch
                fresh[part] = buffer
                former.current = False
        self._buffers.update(fresh)
        self._unproven.update(fresh)
        self._fetch.start_over(tuple(fresh.values()))
        self.look_up_unknown()
        self._replaced = {}
        self.unsettled = False

    def _bound_held(self) -> None:
        """Fetch no more of paused partitions that hold their share; hold no more in all than the budget.

        Every paused partition has an equal share, so none takes the room of the others. What has come beyond the budget
        all the same, for a fetch brings many records at a time, is dropped where most is held. It is fetched again when
        its pause ends, and then handed out without being held, however large it is.
        """
        held_back = self._fetch.read_ahead.held_back
        share = self._held_bytes_max // max(1, len(self._paused))
        for each in held_back:
            enough = each.held_records >= self._held_records_max or each.held_bytes >= share
            if each.current and enough and not each.on_hold:
                each.on_hold = True
                self._fetch.hold(each.topic_partition)
        held_back.clear()
        holding = [buffer for part in self._paused if (buffer := self._buffers.get(part)) and buffer.held_bytes]
        excess = sum(buffer.held_bytes for buffer in holding) - self._held_bytes_max
        if excess > 0:
            for buffer in sorted(holding, key=lambda each: each.held_bytes, reverse=True):
                excess -= buffer.held_bytes
                self._drop_held(buffer)
                if excess <= 0:
                    break

    def _drop_held(self, former: PartitionBuffer) -> None:
        """Forget what a paused partition holds, until the pause ends; what was fetched behind it is void, too."""
        part = former.topic_partition
        if not former.on_hold:
            former.on_hold = True
            self._fetch.hold(part)
        buffer = PartitionBuffer(part, former.position, paused=True)
        buffer.leader_epoch = former.leader_epoch
        buffer.on_hold = buffer.dropped = True
        self._buffers[part] = buffer
        former.current = False
        # The fetch thread knows the former one until the partition is sought.
        former.held.clear()

    def wait(self, timeout_s: float, news: threading.Event) -> None:
        """Wait until records may be there to be taken, or `news` is set, at most `timeout_s`."""
        self._unsettle()
        self._fetch.wait(timeout_s, news)
        self.unsettled = False

    def _look_up(self, partitions: tuple[TopicPartition, ...], *, delay_s: float = 0.0) -> None:
        """Committed offsets must not lead back to a position that does not exist: a lost one goes along instead."""
        by_edge: dict[ResetPolicy | None, list[TopicPartition]] = {}
        for part in partitions:
            by_edge.setdefault(self._sought.get(part), []).append(part)
        for edge, parts in by_edge.items():
            # Who seeks an end of the log wants that one, whatever became of the log.
            former = {} if edge else {part: self._watch.ids[part] for part in parts if part in self._watch.ids}
            query = StartQuery(
                tuple(parts),
                appeared=frozenset() if edge else frozenset(self._appeared),
                policy=edge or self._policy,
                read_committed=self._read_committed,
                lost={part: self._lost[part] for part in parts if part in self._lost},
                remade=frozenset(part for part in parts if part in self._remade),
                former=former,
                use_committed=edge is None and self._group_id is not None,
                delay_s=delay_s,
            )
            ticket = self._group.find_starts(query)
            self._lookups[ticket] = frozenset(parts)

    def _ignore_lookups(self, partitions: frozenset[TopicPartition]) -> None:
        """An answer must not find a partition that was given back and has come again, or was sought: it is too old."""
        for ticket, parts in list(self._lookups.items()):
            if parts <= partitions:
                ticket.cancel()
                del self._lookups[ticket]
            else:
                self._lookups[ticket] = parts - partitions

    def _begin(self, partitions: tuple[TopicPartition, ...], starts: Starts) -> list[Exception]:
        """Read what was found. Returns what is to be raised."""
        buffers: dict[TopicPartition, tuple[PartitionBuffer, int]] = {}
        for part in partitions:
            start = starts.found.get(part)
            if start is not None:
                buffer = PartitionBuffer(part, start.offset, paused=part in self._paused)
                buffer.leader_epoch = start.leader_epoch
                self._buffers[part] = buffer
                buffers[part] = (buffer, start.leader_epoch)
                self._sought.pop(part, None)
                self._watch.begun(part, starts.ids.get(part))
                self._remade.discard(part)
                self._report(part, start.offset, starts)
        if buffers:
            self._fetch.assign(buffers)
        self._try_again(partitions, starts)
        refusals: list[Exception] = [starts.refused[part] for part in partitions if part in starts.refused]
        without = [part for part in partitions if part in starts.without]
        if without:
            refusals.append(
                errors.NoOffsetForPartition(
                    f"group {self._group_id!r}: no usable offset for {_names(without)} and auto_offset_reset is none; "
                    "seek these partitions or commit offsets for them",
                    without,
                )
            )
        return refusals

    def _try_again(self, partitions: tuple[TopicPartition, ...], starts: Starts) -> None:
        """Look up again what has no start yet, ever more slowly; one that has none holds up no other."""
        again: dict[float, list[TopicPartition]] = {}
        for part in partitions:
            if part in starts.waiting:
                attempts = self._waiting.get(part, (0, ""))[0] + 1
                self._waiting[part] = (attempts, starts.waiting[part])
                again.setdefault(max(starts.patience_s, _backoff_s(attempts)), []).append(part)
            elif part in starts.refused:
                again.setdefault(LOOKUP_RETRY_S, []).append(part)
            else:
                self._waiting.pop(part, None)
        for delay_s, parts in again.items():
            self._look_up(tuple(parts), delay_s=delay_s)

    def _note_error(self) -> None:
        """Report what has no start for longer than an election takes."""
        stuck = {
            part: why
            for part, (attempts, why) in sorted(self._waiting.items())
            if attempts >= PATIENT_ATTEMPTS and self._buffers.get(part, self) is None
        }
        if not stuck:
            self.last_error = None
            return
        first, why = next(iter(stuck.items()))
        others = f", and {len(stuck) - 1} more partitions" if len(stuck) > 1 else ""
        text = f"group {self._group_id!r}: no start found yet for {_names((first,))}{others}: {why}; asked again"
        if self.last_error is None:
            logger.warning("%s", text)
        if self.last_error is None or str(self.last_error) != text:
            self.last_error = errors.OffsetLookupFailed(text)

    def _reset(self, buffer: PartitionBuffer, what: OutOfRange) -> None:
        """The broker does not have the position: retention deleted it, or the log was cut. The lookup finds out which,
        and only for the former does the policy decide."""
        part = buffer.topic_partition
        logger.warning(
            "partition %s-%d: offset %d is out of range (%s); reset policy: %s",
            *(part.topic, part.partition, buffer.position, what.detail, self._policy),
        )
        position, times = self._lost_again.get(part, (-1, 0))
        times = times + 1 if position == buffer.position else 0
        self._lost_again[part] = (buffer.position, times)
        self._stop_reading(buffer)
        # A position that stands by the lookup and is refused by its broker over and over must not be asked hotly.
        self._look_up((part,), delay_s=_backoff_s(times))

    def _stop_reading(self, buffer: PartitionBuffer) -> None:
        """Take away the position of a partition; a lookup is to follow."""
        part = buffer.topic_partition
        self._lost[part] = Start(buffer.position, buffer.leader_epoch)
        # First: what is interrupted behind this is assigned again by `start_over`, and never assigned twice.
        self._fetch.unassign(frozenset((part,)))
        self._buffers[part] = None
        buffer.current = False

    def _look_at_logs(self) -> None:
        """Begin anew in topics that were made anew, and check places that were sought before the last election."""
        if not self._watch.due:
            return
        reading = {part: buffer for part, buffer in self._buffers.items() if buffer is not None}
        changes = self._watch.changes(reading)
        for part in changes.remade:
            self._remade.add(part)
            self._stop_reading(reading[part])
        self._look_up(tuple(sorted(changes.remade)))
        # A position in the leader's own epoch is beyond doubt, and one without an epoch beyond a check.
        seen = {part: reading[part] for part in sorted(self._unproven) if part in changes.epochs and part in reading}
        checks = {part: buffer for part, buffer in seen.items() if 0 <= buffer.leader_epoch < changes.epochs[part]}
        self._unproven -= seen.keys() - checks.keys()
        if checks:
            query = StartQuery(
                tuple(checks),
                policy=self._policy,
                read_committed=self._read_committed,
                lost={part: Start(buffer.position, buffer.leader_epoch) for part, buffer in checks.items()},
            )
            ticket = self._group.find_starts(query)
            self._checks[ticket] = checks

    def _take_checks(self) -> None:
        """Go back to where a log was cut under a place that was sought."""
        for ticket in [ticket for ticket in self._checks if ticket.done]:
            checks, starts = self._checks.pop(ticket), ticket.result or Starts()
            for part, buffer in checks.items():
                if self._buffers.get(part) is buffer and part in starts.found:
                    self._unproven.discard(part)
                    if part in starts.cut:
                        self._stop_reading(buffer)
                        self._begin((part,), starts)

    def _report(self, part: TopicPartition, start: int, starts: Starts) -> None:
        """Count and log a start that is not where reading had come to."""
        lost = self._lost.pop(part, None)
        if part in starts.cut:
            cut = Truncation(part, starts.cut[part], start, remade=part in starts.remade)
            self.truncations = self.truncations.plus(cut)
        elif lost is not None and lost.offset != start:
            self.out_of_range = self.out_of_range.plus(OffsetReset(part, lost.offset, start))

    def _check_owned(self, partitions: Iterable[TopicPartition]) -> None:
        missing = [part for part in partitions if part not in self._buffers]
        if missing:
            raise errors.NotAssigned(f"{_names(missing)}: not assigned to this consumer now")


def _backoff_s(times: int) -> float:
    """The wait after so many attempts in vain: none, then ever longer."""
    return min(RETRY_S * 2.0 ** min(times - 1, 30), RETRY_MAX_S) if times else 0.0


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{part.topic}-{part.partition}" for part in partitions)
