"""Lookups of starting positions, repeated until each partition has a position, and periodic checks of logs.

The checks find recreated topics and leader elections, which librdkafka does not handle completely. In a recreated
topic, librdkafka continues at its position in the former topic. After an election, librdkafka checks positions, but not
those set by a seek. If a seek happens at the same moment, it does not report a truncated log.

Decision: docs/decisions/0019-truncated-logs.md.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from fleet_consumer.consumer.settings import ConsumerSettings
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.lookups import RETRY_MAX_S, RETRY_S, LogsSeen, Start
from fleet_consumer.coordinator.starts import ResetPolicy, StartQuery, Starts
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.buffer import PartitionBuffer
from fleet_consumer.group import errors
from fleet_consumer.record import TopicPartition, names

LOGS_INTERVAL_S = 30.0
"""Maximum seconds between two checks of the logs. A check costs one small request, compared with ten heartbeats in the
same time."""


@dataclass(slots=True)
class _Log:
    """One partition's log. Kept after the partition is revoked, to detect later that its topic was recreated."""

    topic_id: UUID | None = None
    # The id under which the partition was read before its topic was recreated.
    former_id: UUID | None = None
    # The highest position, in the current topic, at which a seek has left the partition.
    reached: int = 0
    # True if the id was requested by a check of the logs, because reading began with a seek and no lookup returned the
    # id.
    asked: bool = False


class LogWatch:
    """The logs that one consumer reads. Belongs to the user's thread."""

    def __init__(self, group: CoordinatorThread, settings: ConsumerSettings) -> None:
        self._group = group
        self._every_s = min(settings.metadata_max_age_ms / 1000, LOGS_INTERVAL_S)
        self._logs: defaultdict[TopicPartition, _Log] = defaultdict(_Log)
        self._log_check: Ticket[LogsSeen] | None = None

    @property
    def check_due(self) -> bool:
        """True if `changes` should be called: a check has ended, or no check has started."""
        return self._log_check is None or self._log_check.done

    def ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, UUID]:
        known = {part: self._logs[part].topic_id for part in partitions}
        return {part: topic_id for part, topic_id in known.items() if topic_id is not None}

    def begun(self, partition: TopicPartition, topic_id: UUID | None) -> None:
        """Record the topic id under which a partition's starting position was found."""
        log = self._logs[partition]
        if topic_id is None or topic_id == log.topic_id:
            return
        if log.topic_id is not None:
            log.former_id, log.reached = log.topic_id, 0
        log.topic_id = topic_id

    def leaves(self, partition: TopicPartition, position: int) -> None:
        """Record the position that a partition had before a seek within the same log."""
        log = self._logs[partition]
        log.reached = max(position, log.reached)

    def id_at(self, partition: TopicPartition, offset: int, position: int | None) -> UUID | None:
        """Return the id of the topic that an `offset` to commit belongs to, or None if unknown. `position`: current
        position.

        A caller may commit records of a deleted topic after reading of its replacement has begun. An offset above all
        positions in the new topic belongs to the former topic. Committed under the new id, such an offset would skip
        records.
        """
        log = self._logs.get(partition)
        if log is None:
            return None
        ahead = position is not None and offset > max(position, log.reached)
        return log.former_id if ahead and log.former_id is not None else log.topic_id

    def changes(self, partitions: Collection[TopicPartition]) -> LogsSeen:
        """Return the results of the last check, and start the next check. `partitions`: the partitions being read."""
        check, found = self._log_check, LogsSeen()
        if check is not None and check.done:
            self._log_check = None
            if check.result is not None:
                found = self._compare(check.result, partitions)
        if self._log_check is None and partitions:
            known = {part: self._logs[part].topic_id for part in partitions}
            # Until every id is known, commits identify topics by name. So unknown ids are requested immediately. They
            # are requested only once, because old brokers have no ids.
            nameless = [part for part, topic_id in known.items() if topic_id is None and not self._logs[part].asked]
            for part in nameless:
                self._logs[part].asked = True
            self._log_check = self._group.see_logs(known, delay_s=0.0 if nameless else self._every_s)
        return found

    def _compare(self, seen: LogsSeen, partitions: Collection[TopicPartition]) -> LogsSeen:
        for part, topic_id in seen.ids.items():
            self._logs[part].topic_id = self._logs[part].topic_id or topic_id
        # If a lookup has found the new id since the check began, the partition is already being read from its
        # beginning.
        remade = frozenset(
            part for part in seen.remade if part in partitions and self._logs[part].topic_id != seen.ids[part]
        )
        return LogsSeen(seen.ids, remade, {part: epoch for part, epoch in seen.epochs.items() if part not in remade})


class SoughtChecks:
    """Checks of positions set by a seek before the last leader election, which may have truncated the log.

    A check uses the sought offset and the leader epoch at the time of the seek, even if reading has continued since.
    Later records with a later epoch do not prove that the log before them is unchanged.
    """

    def __init__(self, group: CoordinatorThread, settings: ConsumerSettings) -> None:
        self._group = group
        self._settings = settings
        # Sought positions that have not been checked against the leader epoch yet.
        self.unproven: dict[TopicPartition, Start] = {}
        # A copy of `unproven`, made when the current check of the logs started.
        self._sought_before_check: Mapping[TopicPartition, Start] = {}
        self.pending: dict[Ticket[Starts], dict[TopicPartition, tuple[PartitionBuffer, Start]]] = {}

    def sought(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Record a seek to `offset`, to be checked against `leader_epoch`. An earlier seek with an older epoch may
        still be unchecked. Then the lower of both offsets is checked against the older epoch."""
        before = self.unproven.get(partition)
        if before is not None and 0 <= before.leader_epoch < leader_epoch:
            offset, leader_epoch = min(before.offset, offset), before.leader_epoch
        self.unproven[partition] = Start(offset, leader_epoch)

    def looked_up(self, buffer: PartitionBuffer) -> None:
        """Record that the position of `buffer` is being looked up. This lookup makes a check of the sought position
        unnecessary, unless the sought position has an older epoch."""
        part = buffer.topic_partition
        place = self.unproven.get(part)
        if place is not None and place.leader_epoch >= buffer.leader_epoch:
            del self.unproven[part]

    def discard_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        for part in partitions:
            self.unproven.pop(part, None)

    def start_checks(
        self, epochs: Mapping[TopicPartition, int], buffers: Mapping[TopicPartition, PartitionBuffer]
    ) -> None:
        """Start checks of the sought positions in `buffers` whose leader epoch is older than the current epoch.
        `epochs` has the current epochs, as found by the last check of the logs.

        The caller must first start the next check of the logs. `epochs` may be outdated, because the user's thread may
        have handled records for a long time since the last check.
        """
        seen = {part: place for part, place in sorted(self.unproven.items()) if part in epochs and part in buffers}
        checks = {part: place for part, place in seen.items() if 0 <= place.leader_epoch < epochs[part]}
        # The other positions are not older than `epochs`. They need no check if the seek came before `epochs` were
        # requested, and cannot be checked if they have no epoch.
        others = {part: place for part, place in seen.items() if part not in checks}
        self.discard_partitions(
            part
            for part, place in others.items()
            if place.leader_epoch < 0 or self._sought_before_check.get(part) is place
        )
        self._sought_before_check = dict(self.unproven)
        if checks:
            query = StartQuery(
                tuple(checks),
                policy=self._settings.reset_policy,
                read_committed=self._settings.read_committed,
                lost=checks,
            )
            ticket = self._group.find_starts(query)
            self.pending[ticket] = {part: (buffers[part], place) for part, place in checks.items()}

    def cuts(
        self, buffers: Mapping[TopicPartition, PartitionBuffer | None]
    ) -> Iterator[tuple[PartitionBuffer, Starts]]:
        """Process finished checks. Yields the buffers of truncated logs, with their new starting positions."""
        for ticket in [ticket for ticket in self.pending if ticket.done]:
            checks, starts = self.pending.pop(ticket), ticket.result or Starts()
            for part, (buffer, place) in checks.items():
                if buffers.get(part) is buffer and self.unproven.get(part) is place and part in starts.found:
                    del self.unproven[part]
                    if part in starts.cut:
                        yield buffer, starts


logger = logging.getLogger(__name__)

LOOKUP_RETRY_S = 5.0
"""Seconds before refused lookups are repeated; prevents raising their error in a busy loop."""
PATIENT_ATTEMPTS = 4
"""Number of failed attempts before a missing starting position is reported: about 3 s, longer than an election."""
SHOWN_MAX = 3
"""Maximum number of causes named in an error."""


@dataclass(slots=True)
class _Search:
    """The parameters for the lookup of one partition's starting position, and the attempts so far."""

    # The position that the log no longer has.
    lost: Start | None = None
    remade: bool = False
    # Beginning or end, if the user sought one of them.
    edge: ResetPolicy | None = None
    # Number of consecutive failed attempts, and the reason for the last failure.
    attempts: int = 0
    why: str = ""
    # Set if a person must act: `refusal` if the lookup was refused, `without` if the partition has no offset under the
    # policy `none`.
    refusal: errors.ConsumerError | None = None
    without: bool = False
    # The last out-of-range position, and the number of consecutive repetitions of its report.
    refused: tuple[int, int] = (-1, 0)


class StartLookups:
    """The lookups of starting positions of one consumer. Belongs to the user's thread."""

    def __init__(self, group: CoordinatorThread, settings: ConsumerSettings, log_watch: LogWatch) -> None:
        self._group = group
        self._settings = settings
        self._log_watch = log_watch
        self._searches: defaultdict[TopicPartition, _Search] = defaultdict(_Search)
        # Partitions that did not exist when the consumer subscribed; they start at their beginning.
        self.appeared: frozenset[TopicPartition] = frozenset()
        self.pending: dict[Ticket[Starts], frozenset[TopicPartition]] = {}
        # Only replaced as a whole, so that any thread may read it.
        self.last_error: errors.ConsumerError | None = None

    def look_up(self, partitions: Iterable[TopicPartition], *, delay_s: float = 0.0) -> None:
        """Look up starting positions. If a partition's position is no longer in the log, this position is the start of
        the lookup. The committed offset is not used, because the log may not have it either."""
        by_edge: dict[ResetPolicy | None, list[TopicPartition]] = {}
        for part in partitions:
            by_edge.setdefault(self._searches[part].edge, []).append(part)
        for edge, parts in by_edge.items():
            searches = {part: self._searches[part] for part in parts}
            query = StartQuery(
                tuple(parts),
                appeared=frozenset() if edge else self.appeared,
                policy=edge or self._settings.reset_policy,
                read_committed=self._settings.read_committed,
                lost={part: search.lost for part, search in searches.items() if search.lost is not None},
                remade=frozenset(part for part, search in searches.items() if search.remade),
                # A seek to the beginning or end is valid in a recreated topic, too.
                former={} if edge else self._log_watch.ids(parts),
                use_committed=edge is None and self._settings.group_id is not None,
                delay_s=delay_s,
            )
            self.pending[self._group.find_starts(query)] = frozenset(parts)

    def ended(self) -> Iterator[tuple[frozenset[TopicPartition], Ticket[Starts]]]:
        for ticket in [ticket for ticket in self.pending if ticket.done]:
            yield self.pending.pop(ticket), ticket

    def ignore(self, partitions: frozenset[TopicPartition]) -> None:
        """Ignore the results of pending lookups for these partitions, because the partitions were sought or revoked.
        The results are ignored even if the partitions are assigned again."""
        for ticket, parts in list(self.pending.items()):
            if parts <= partitions:
                ticket.cancel()
                del self.pending[ticket]
            else:
                self.pending[ticket] = parts - partitions

    def discard_partitions(self, partitions: frozenset[TopicPartition]) -> None:
        self.ignore(partitions)
        for part in partitions:
            self._searches.pop(part, None)
        self.record_error()

    # Changes to the parameters of lookups (`_Search`).

    def set_lost(self, buffer: PartitionBuffer, *, remade: bool) -> None:
        """Record that the position of `buffer` is no longer in the log or, if `remade`, that the topic was
        recreated."""
        search = self._searches[buffer.topic_partition]
        search.lost = Start(buffer.position, buffer.leader_epoch)
        search.remade = search.remade or remade

    def seek(self, partition: TopicPartition) -> Start | None:
        """Prepare a seek: clear the parameters of earlier seeks and lookups of the partition. Returns the former
        position if the log no longer has it, else None.

        Pending lookups are ignored. Otherwise the result of an earlier lookup could replace the sought position.
        """
        self.ignore(frozenset((partition,)))
        search = self._searches[partition]
        lost, search.lost, search.edge, search.attempts = search.lost, None, None, 0
        search.refusal, search.without = None, False
        if self.last_error is not None:
            self.record_error()
        return lost

    def seek_unconfirmed(self, partition: TopicPartition, place: Start) -> None:
        """Look up the sought position `place` before reading there. The log has lost an offset of this partition, so it
        may not have the sought offset either."""
        self._searches[partition].lost = place
        self.look_up((partition,))

    def seek_to_edge(self, partitions: Iterable[TopicPartition], edge: ResetPolicy) -> None:
        """Replace all parameters with a seek to the beginning or end of the log. The caller must call `look_up`
        next."""
        self.ignore(frozenset(partitions))
        for part in partitions:
            self._searches[part] = _Search(edge=edge)
        self.record_error()

    def out_of_range(self, partition: TopicPartition, position: int) -> None:
        """Look up a new position for a partition whose current position is out of range on the broker. The delay grows
        if lookups confirm the position but the broker keeps refusing it."""
        search = self._searches[partition]
        last, times = search.refused
        times = times + 1 if last == position else 0
        search.refused = position, times
        self.look_up((partition,), delay_s=_backoff_s(times))

    # Answers.

    def found(self, partition: TopicPartition) -> Start | None:
        """Record that a starting position was found. Returns the former position if it was no longer in the log, else
        None."""
        search = self._searches[partition]
        lost, search.lost, search.edge, search.remade = search.lost, None, None, False
        return lost

    def look_up_missing(self, partitions: Iterable[TopicPartition], starts: Starts) -> list[Exception]:
        """Repeat the lookup, with growing delays, for partitions without a starting position. Returns the errors to
        raise: those of refused lookups, and NoOffsetForPartition under the policy `none`."""
        again: dict[float, list[TopicPartition]] = {}
        for part in partitions:
            search = self._searches[part]
            search.refusal, search.without = starts.refused.get(part), part in starts.without
            if part in starts.waiting:
                search.attempts += 1
                search.why = starts.waiting[part]
                again.setdefault(max(starts.patience_s, _backoff_s(search.attempts)), []).append(part)
            elif part in starts.refused:
                again.setdefault(LOOKUP_RETRY_S, []).append(part)
            else:
                search.attempts = 0
        for delay_s, parts in again.items():
            self.look_up(parts, delay_s=delay_s)
        raised: list[Exception] = [starts.refused[part] for part in partitions if part in starts.refused]
        without = [part for part in partitions if part in starts.without]
        if without:
            raised.append(self._no_offset(without))
        return raised

    def _no_offset(self, partitions: list[TopicPartition]) -> errors.NoOffsetForPartition:
        return errors.NoOffsetForPartition(
            f"group {self._settings.group_id!r}: auto_offset_reset is none and these partitions have no usable offset; "
            f"seek, or commit offsets (for example with an OffsetReset): {names(partitions)}",
            partitions,
        )

    def record_error(self) -> None:
        """Set `last_error` if a person must act to get starting positions, or if lookups outlast a leader election."""
        searches = sorted(self._searches.items())
        without = [part for part, search in searches if search.without]
        late = [(part, search.why) for part, search in searches if search.attempts >= PATIENT_ATTEMPTS]
        found: list[errors.ConsumerError] = [self._no_offset(without)] if without else []
        if late:
            (first, why), others = late[0], f", and {len(late) - 1} more partitions" if len(late) > 1 else ""
            about = f"no starting position found yet for {first.name}{others}: {why}; retrying"
            found.append(errors.OffsetLookupFailed(f"group {self._settings.group_id!r}: {about}"))
        found += [search.refusal for _, search in searches if search.refusal is not None]
        error = found[0] if found else None
        if len(found) > 1:
            others = f"; and {len(found) - SHOWN_MAX} more partitions" if len(found) > SHOWN_MAX else ""
            error = errors.OffsetLookupFailed("; ".join(map(str, found[:SHOWN_MAX])) + others)
        if error is not None and self.last_error is None:
            logger.warning("%s", error)
        if str(error) != str(self.last_error):
            self.last_error = error


def _backoff_s(times: int) -> float:
    return min(RETRY_S * 2.0 ** min(times - 1, 30), RETRY_MAX_S) if times else 0.0
