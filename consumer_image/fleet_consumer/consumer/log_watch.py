"""Regular checks of the logs that are read, for topics deleted and created again and for leader elections.

After a topic was created again, librdkafka goes on where it stood in the former one. It checks positions when a leader
was elected; what it reports is void if a seek happens at that moment, and it does not check a place that was sought.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from fleet_consumer.consumer.settings import ConsumerSettings
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.lookups import Start
from fleet_consumer.coordinator.remade import LogsSeen
from fleet_consumer.coordinator.starts import StartQuery, Starts
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.buffer import PartitionBuffer
from fleet_consumer.record import TopicPartition

LOOK_S = 30.0
"""The longest interval of these checks: each is one small request, as often as ten heartbeats."""


@dataclass(frozen=True, slots=True)
class LogChanges:
    """Partitions of topics that were created again, and the leader epochs of the others."""

    remade: frozenset[TopicPartition] = frozenset()
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)


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

    def changes(self, partitions: Collection[TopicPartition]) -> LogChanges:
        """The findings of the last check about `partitions`, the ones that are read; starts the next check."""
        look, found = self._look, LogChanges()
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

    def _compare(self, seen: LogsSeen, partitions: Collection[TopicPartition]) -> LogChanges:
        for part, topic_id in seen.ids.items():
            self._logs[part].topic_id = self._logs[part].topic_id or topic_id
        # Found under another id since the check began, a partition is read anew already.
        remade = frozenset(
            part for part in seen.remade if part in partitions and self._logs[part].topic_id != seen.ids[part]
        )
        return LogChanges(remade, {part: epoch for part, epoch in seen.epochs.items() if part not in remade})


class SoughtChecks:
    """Checks of places that were sought before the last leader election: the log may have been cut under them."""

    def __init__(self, group: CoordinatorThread, settings: ConsumerSettings) -> None:
        self._group = group
        self._settings = settings
        # Partitions whose place was sought and not compared with an election since.
        self.unproven: set[TopicPartition] = set()
        self.pending: dict[Ticket[Starts], dict[TopicPartition, PartitionBuffer]] = {}

    def begin(self, epochs: Mapping[TopicPartition, int], reading: Mapping[TopicPartition, PartitionBuffer]) -> None:
        """Check the unproven places of `reading` against the leader epochs that were seen."""
        # A position in the leader's own epoch is beyond doubt, and one without an epoch beyond a check.
        seen = {part: reading[part] for part in sorted(self.unproven) if part in epochs and part in reading}
        checks = {part: buffer for part, buffer in seen.items() if 0 <= buffer.leader_epoch < epochs[part]}
        self.unproven -= seen.keys() - checks.keys()
        if checks:
            query = StartQuery(
                tuple(checks),
                policy=self._settings.reset_policy,
                read_committed=self._settings.read_committed,
                lost={part: Start(buffer.position, buffer.leader_epoch) for part, buffer in checks.items()},
            )
            self.pending[self._group.find_starts(query)] = checks

    def cuts(
        self, buffers: Mapping[TopicPartition, PartitionBuffer | None]
    ) -> Iterator[tuple[PartitionBuffer, Starts]]:
        """Take the checks that have ended; yields each of `buffers` whose log was cut, with where to go back to."""
        for ticket in [ticket for ticket in self.pending if ticket.done]:
            checks, starts = self.pending.pop(ticket), ticket.result or Starts()
            for part, buffer in checks.items():
                if buffers.get(part) is buffer and part in starts.found:
                    self.unproven.discard(part)
                    if part in starts.cut:
                        yield buffer, starts
