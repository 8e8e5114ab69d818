"""A regular look at the logs that are read: topics made anew, and elections after which positions are to be checked.

librdkafka goes on in a topic that was made anew where it stood in the former one. It checks positions when a leader
was elected; what it reports is void when somebody seeks at that moment, and a place that was sought is not checked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.remade import LogsSeen
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.record import TopicPartition

LOOK_S = 30.0
"""How often a consumer looks, at most: one small request, as often as ten heartbeats."""


@dataclass(frozen=True, slots=True)
class LogChanges:
    """Partitions of topics that were made anew, and the leader epochs of the others."""

    remade: frozenset[TopicPartition] = frozenset()
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)


class LogWatch:
    """What one consumer knows of the logs that it reads. Belongs to the user's thread."""

    def __init__(self, group: CoordinatorThread, every_s: float) -> None:
        self._group = group
        self._every_s = min(every_s, LOOK_S)
        # Also of partitions that went away: when they come again, their topic may be another.
        self.ids: dict[TopicPartition, UUID] = {}
        # Under which a partition was read before its topic was made anew.
        self._former: dict[TopicPartition, UUID] = {}
        # How far reading had come before somebody sought another place.
        self._reached: dict[TopicPartition, int] = {}
        # Whose ids were asked for because nobody had looked them up: those of places that were sought at once.
        self._asked: set[TopicPartition] = set()
        self._look: Ticket[LogsSeen] | None = None

    @property
    def due(self) -> bool:
        """Whether a look has ended or none has begun: time to ask for `changes`."""
        return self._look is None or self._look.done

    def begun(self, partition: TopicPartition, topic_id: UUID | None) -> None:
        """A partition is read from a place that was found under this id."""
        if topic_id is not None:
            before = self.ids.get(partition, topic_id)
            if before != topic_id:
                self._former[partition] = before
                self._reached.pop(partition, None)
            self.ids[partition] = topic_id

    def leaves(self, partition: TopicPartition, position: int) -> None:
        """Reading goes on elsewhere in the same log."""
        self._reached[partition] = max(position, self._reached.get(partition, 0))

    def id_at(self, partition: TopicPartition, offset: int, position: int | None) -> UUID | None:
        """The id of the topic in which reading came to `offset`; None while unknown. `position` is where it is now.

        Somebody who is still busy with records of a topic may commit them when its successor is being read already.
        Reading has not come so far there, and the position would skip what is between.
        """
        ahead = position is not None and offset > max(position, self._reached.get(partition, 0))
        return self._former[partition] if ahead and partition in self._former else self.ids.get(partition)

    def changes(self, partitions: Collection[TopicPartition]) -> LogChanges:
        """What the last look has found about `partitions`, the ones that are read; starts the next look."""
        look, found = self._look, LogChanges()
        if look is not None and look.done:
            self._look = None
            if look.result is not None:
                found = self._compare(look.result, partitions)
        if self._look is None and partitions:
            known = {part: self.ids.get(part) for part in partitions}
            # Commits go by name until every id is known. Old brokers have none, so each is asked for only once.
            nameless = {part for part, topic_id in known.items() if topic_id is None} - self._asked
            self._asked |= nameless
            self._look = self._group.see_logs(known, delay_s=0.0 if nameless else self._every_s)
        return found

    def _compare(self, seen: LogsSeen, partitions: Collection[TopicPartition]) -> LogChanges:
        for part, topic_id in seen.ids.items():
            self.ids.setdefault(part, topic_id)
        # Found under another id since the look began, a partition is read anew already.
        remade = frozenset(part for part in seen.remade if part in partitions and self.ids[part] != seen.ids[part])
        return LogChanges(remade, {part: epoch for part, epoch in seen.epochs.items() if part not in remade})
