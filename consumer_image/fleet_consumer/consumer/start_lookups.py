"""Lookups of starting positions, repeated for each partition until it has one, and regular checks of the logs that are
read.

The checks find topics deleted and created again, and leader elections. After a topic was created again, librdkafka goes
on where it stood in the former one. It checks positions when a leader was elected; what it reports is void if a seek
happens at that moment, and it does not check a place that was sought.
"""

from __future__ import annotations

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

LOOK_S = 30.0
"""The longest interval of these checks: each is one small request, as often as ten heartbeats."""


@dataclass(slots=True)
class _Log:
    """One partition's log, remembered when the partition goes away: its topic may be another when it returns."""

    topic_id: UUID | None = None
    # The id under which it was read before its topic was created again.
    former_id: UUID | None = None
    # How far reading had come before a seek.
    reached: int = 0
    # The id was asked for because no lookup had brought it: the partition was sought before it had a start.
    asked: bool = False


class LogWatch:
    """The logs that one consumer reads. Belongs to the user's thread."""

    def __init__(self, group: CoordinatorThread, settings: ConsumerSettings) -> None:
        self._group = group
        self._every_s = min(settings.metadata_max_age_ms / 1000, LOOK_S)
        self._logs: defaultdict[TopicPartition, _Log] = defaultdict(_Log)
        self._look: Ticket[LogsSeen] | None = None

    @property
    def due(self) -> bool:
        """True when a check has ended or none has begun: time to call `changes`."""
        return self._look is None or self._look.done

    def ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, UUID]:
        """The topic ids of these, as far as they are known."""
        known = {part: self._logs[part].topic_id for part in partitions}
        return {part: topic_id for part, topic_id in known.items() if topic_id is not None}

    def begun(self, partition: TopicPartition, topic_id: UUID | None) -> None:
        """Note that a partition is read from a place that was found under this id."""
        log = self._logs[partition]
        if topic_id is None or topic_id == log.topic_id:
            return
        if log.topic_id is not None:
            log.former_id, log.reached = log.topic_id, 0
        log.topic_id = topic_id

    def leaves(self, partition: TopicPartition, position: int) -> None:
        """Note that reading goes on elsewhere in the same log."""
        log = self._logs[partition]
        log.reached = max(position, log.reached)

    def id_at(self, partition: TopicPartition, offset: int, position: int | None) -> UUID | None:
        """The id of the topic in which reading came to `offset`; None while unknown. `position` is where it is now.

        A caller still busy with records of a deleted topic may commit them while its successor is being read already.
        Reading has not come so far there, and the position would skip what is between.
        """
        log = self._logs.get(partition)
        if log is None:
            return None
        ahead = position is not None and offset > max(position, log.reached)
        return log.former_id if ahead and log.former_id is not None else log.topic_id

    def changes(self, partitions: Collection[TopicPartition]) -> LogsSeen:
        """The findings of the last check about `partitions`, the ones that are read; starts the next check."""
        look, found = self._look, LogsSeen()
        if look is not None and look.done:
            self._look = None
            if look.result is not None:
                found = self._compare(look.result, partitions)
        if self._look is None and partitions:
            known = {part: self._logs[part].topic_id for part in partitions}
            # Commits go by name until every id is known. Old brokers have none, so each is asked for only once.
            nameless = [part for part, topic_id in known.items() if topic_id is None and not self._logs[part].asked]
            for part in nameless:
                self._logs[part].asked = True
            self._look = self._group.see_logs(known, delay_s=0.0 if nameless else self._every_s)
        return found

    def _compare(self, seen: LogsSeen, partitions: Collection[TopicPartition]) -> LogsSeen:
        for part, topic_id in seen.ids.items():
            self._logs[part].topic_id = self._logs[part].topic_id or topic_id
        # Found under another id since the check began, a partition is read anew already.
        remade = frozenset(
            part for part in seen.remade if part in partitions and self._logs[part].topic_id != seen.ids[part]
        )
        return LogsSeen(seen.ids, remade, {part: epoch for part, epoch in seen.epochs.items() if part not in remade})


class SoughtChecks:
    """Checks of places that were sought before the last leader election: the log may have been cut under them.

    A place is checked as it was when it was sought, in the epoch that had been read by then: records that were read
    behind it since, in a later epoch, do not prove what is before it.
    """

    def __init__(self, group: CoordinatorThread, settings: ConsumerSettings) -> None:
        self._group = group
        self._settings = settings
        # The places that were sought and not compared with an election since.
        self.unproven: dict[TopicPartition, Start] = {}
        # Those that had been sought when the look under way began.
        self._looked_for: Mapping[TopicPartition, Start] = {}
        self.pending: dict[Ticket[Starts], dict[TopicPartition, tuple[PartitionBuffer, Start]]] = {}

    def sought(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        """Note a place that is read from now on. A seek back does not prove an earlier place of an older epoch."""
        before = self.unproven.get(partition)
        if before is not None and 0 <= before.leader_epoch < leader_epoch:
            offset, leader_epoch = min(before.offset, offset), before.leader_epoch
        self.unproven[partition] = Start(offset, leader_epoch)

    def looked_up(self, buffer: PartitionBuffer) -> None:
        """Note that the position of `buffer` is looked up: that is the check of a place in no older epoch, too."""
        part = buffer.topic_partition
        place = self.unproven.get(part)
        if place is not None and place.leader_epoch >= buffer.leader_epoch:
            del self.unproven[part]

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for part in partitions:
            self.unproven.pop(part, None)

    def begin(self, epochs: Mapping[TopicPartition, int], reading: Mapping[TopicPartition, PartitionBuffer]) -> None:
        """Check the unproven places of `reading` against the leader epochs that were seen; the next look has begun.

        What was seen may be old: the user's thread may have been away with records for long.
        """
        seen = {part: place for part, place in sorted(self.unproven.items()) if part in epochs and part in reading}
        checks = {part: place for part, place in seen.items() if 0 <= place.leader_epoch < epochs[part]}
        # One in the leader's own epoch, seen after it was sought, is beyond doubt; one without an epoch beyond a check.
        others = {part: place for part, place in seen.items() if part not in checks}
        self.forget(
            part for part, place in others.items() if place.leader_epoch < 0 or self._looked_for.get(part) is place
        )
        self._looked_for = dict(self.unproven)
        if checks:
            query = StartQuery(
                tuple(checks),
                policy=self._settings.reset_policy,
                read_committed=self._settings.read_committed,
                lost=checks,
            )
            ticket = self._group.find_starts(query)
            self.pending[ticket] = {part: (reading[part], place) for part, place in checks.items()}

    def cuts(
        self, buffers: Mapping[TopicPartition, PartitionBuffer | None]
    ) -> Iterator[tuple[PartitionBuffer, Starts]]:
        """Take the checks that have ended; yields each of `buffers` whose log was cut, with where to go back to."""
        for ticket in [ticket for ticket in self.pending if ticket.done]:
            checks, starts = self.pending.pop(ticket), ticket.result or Starts()
            for part, (buffer, place) in checks.items():
                if buffers.get(part) is buffer and self.unproven.get(part) is place and part in starts.found:
                    del self.unproven[part]
                    if part in starts.cut:
                        yield buffer, starts


logger = logging.getLogger(__name__)

LOOKUP_RETRY_S = 5.0
"""The delay before refused starting positions are looked up again, so that their error is not raised hotly."""
PATIENT_ATTEMPTS = 4
"""After this many failed attempts, about three seconds, a partition without a start is reported: no election takes that
long."""
SHOWN_MAX = 3
"""Causes that an error names, where partitions have no start for several."""


@dataclass(slots=True)
class _Search:
    """The conditions of one partition's lookup, and its attempts so far."""

    # The position that its log no longer has.
    lost: Start | None = None
    # Its topic was deleted and created again.
    remade: bool = False
    # The end of the log that the user sought.
    edge: ResetPolicy | None = None
    # Failed attempts in a row, and the reason of the last one.
    attempts: int = 0
    why: str = ""
    # It has no start until a person acts: its lookup was refused, or it is `without` an offset under the policy `none`.
    refusal: errors.ConsumerError | None = None
    without: bool = False
    # The last position that was out of range, and how often in a row it had been before.
    refused: tuple[int, int] = (-1, 0)


class StartLookups:
    """The lookups of one consumer. Belongs to the user's thread."""

    def __init__(self, group: CoordinatorThread, settings: ConsumerSettings, log_watch: LogWatch) -> None:
        self._group = group
        self._settings = settings
        self._log_watch = log_watch
        self._searches: defaultdict[TopicPartition, _Search] = defaultdict(_Search)
        # Partitions that appeared after the first assignment: they begin at their beginning.
        self.appeared: frozenset[TopicPartition] = frozenset()
        self.pending: dict[Ticket[Starts], frozenset[TopicPartition]] = {}
        # Replaced as a whole; any thread may read it.
        self.last_error: errors.ConsumerError | None = None

    def look_up(self, partitions: Iterable[TopicPartition], *, delay_s: float = 0.0) -> None:
        """Look up where these begin, after `delay_s`.

        Committed offsets must not lead back to a position that does not exist: the lookup gets lost positions instead.
        """
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
                # A seek to an end of the log holds whatever became of the log.
                former={} if edge else self._log_watch.ids(parts),
                use_committed=edge is None and self._settings.group_id is not None,
                delay_s=delay_s,
            )
            self.pending[self._group.find_starts(query)] = frozenset(parts)

    def ended(self) -> Iterator[tuple[frozenset[TopicPartition], Ticket[Starts]]]:
        for ticket in [ticket for ticket in self.pending if ticket.done]:
            yield self.pending.pop(ticket), ticket

    def ignore(self, partitions: frozenset[TopicPartition]) -> None:
        """Discard answers for these: they are outdated once a partition is given back, even if it returns, or
        sought."""
        for ticket, parts in list(self.pending.items()):
            if parts <= partitions:
                ticket.cancel()
                del self.pending[ticket]
            else:
                self.pending[ticket] = parts - partitions

    def forget(self, partitions: frozenset[TopicPartition]) -> None:
        self.ignore(partitions)
        for part in partitions:
            self._searches.pop(part, None)
        self.note_error()

    # Changes of what is to be looked up.

    def set_lost(self, buffer: PartitionBuffer, *, remade: bool) -> None:
        """Note that the log no longer has the position of `buffer`, or was `remade`: deleted and created again."""
        search = self._searches[buffer.topic_partition]
        search.lost = Start(buffer.position, buffer.leader_epoch)
        search.remade = search.remade or remade

    def seek(self, partition: TopicPartition) -> Start | None:
        """Clear what an earlier seek or lookup left; returns the lost position, if the log was in doubt.

        A lookup under way must not decide if the place that was sought turns out not to exist.
        """
        self.ignore(frozenset((partition,)))
        search = self._searches[partition]
        lost, search.lost, search.edge, search.attempts = search.lost, None, None, 0
        search.refusal, search.without = None, False
        if self.last_error is not None:
            self.note_error()
        return lost

    def seek_in_doubt(self, partition: TopicPartition, place: Start) -> None:
        """Look up a place that was sought while the log was in doubt: it may lie behind a cut, too."""
        self._searches[partition].lost = place
        self.look_up((partition,))

    def seek_to_edge(self, partitions: Iterable[TopicPartition], edge: ResetPolicy) -> None:
        """Replace all conditions of these by an end of the log; `look_up` is to follow."""
        self.ignore(frozenset(partitions))
        for part in partitions:
            self._searches[part] = _Search(edge=edge)
        self.note_error()

    def out_of_range(self, partition: TopicPartition, position: int) -> None:
        """Look up a partition whose broker does not have its position.

        A position that the lookup confirms and the broker refuses over and over must not be looked up hotly.
        """
        search = self._searches[partition]
        last, times = search.refused
        times = times + 1 if last == position else 0
        search.refused = position, times
        self.look_up((partition,), delay_s=_backoff_s(times))

    # Answers.

    def found(self, partition: TopicPartition) -> Start | None:
        """Note that a start was found; returns the lost position that it replaces."""
        search = self._searches[partition]
        lost, search.lost, search.edge, search.remade = search.lost, None, None, False
        return lost

    def look_up_missing(self, partitions: Iterable[TopicPartition], starts: Starts) -> list[Exception]:
        """Look up again, ever more slowly, what has no start yet; one that has none delays no other.

        Returns the errors to raise: refusals, and NoOffsetForPartition under the policy `none`.
        """
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
            f"group {self._settings.group_id!r}: auto_offset_reset is none and partitions have no usable offset; seek "
            f"them or commit offsets for them (with an OffsetReset): {names(partitions)}",
            partitions,
        )

    def note_error(self) -> None:
        """Set `last_error` to what has no start until a person acts, or has had none for longer than an election takes.

        It lasts as long as that, whatever becomes of other partitions.
        """
        searches = sorted(self._searches.items())
        without = [part for part, search in searches if search.without]
        late = [(part, search.why) for part, search in searches if search.attempts >= PATIENT_ATTEMPTS]
        found: list[errors.ConsumerError] = [self._no_offset(without)] if without else []
        if late:
            (first, why), others = late[0], f", and {len(late) - 1} more partitions" if len(late) > 1 else ""
            about = f"no start found yet for {first.name}{others}: {why}; asked again"
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
    """The delay after so many failed attempts: none, then growing."""
    return min(RETRY_S * 2.0 ** min(times - 1, 30), RETRY_MAX_S) if times else 0.0
