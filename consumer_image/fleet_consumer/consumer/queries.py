"""Questions to the brokers: those that need no membership, the end offsets of owned partitions, and silent partitions.

End offsets are kept fresh for `Consumer.lag` without ever blocking. librdkafka knows ends only from its fetches, of the
wrong isolation level, and not of partitions that it does not fetch just now. So brokers are asked, one request for each
leader, and only while lags are asked for.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from fleet_consumer.consumer.engine import CallGuard, Engine
from fleet_consumer.consumer.positions import Place
from fleet_consumer.consumer.settings import DEFAULT_TIMEOUT_S
from fleet_consumer.coordinator.damage import find_batch_end
from fleet_consumer.coordinator.flows import Flow, Ticket
from fleet_consumer.coordinator.lookups import Start
from fleet_consumer.coordinator.requests import describe_topics, list_offsets
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata, OffsetAndTimestamp
from fleet_consumer.group.metadata import PartitionInfo
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.topics import EARLIEST, LATEST

T = TypeVar("T")


class Queries:
    """The calls of a consumer that need neither a subscription nor a membership.

    Each waits at most `timeout_s` seconds.
    """

    def __init__(self, engine: Engine, guard: CallGuard) -> None:
        self._engine = engine
        self._guard = guard

    def committed(
        self, partitions: Iterable[TopicPartition] | None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None where there is none; with None, all that there are.

        Raises OffsetLookupFailed (also when the time is up), TopicAuthorizationFailed, GroupAuthorizationFailed,
        GroupIdMissing.
        """
        with self._guard.entered():
            self._engine.check_group("committed")
            self._engine.start_group()
            return self._engine.wait_for(self._engine.group.committed(partitions), timeout_s, "committed offsets")

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record that is not older than its time (milliseconds since the epoch).

        None where there is no such record. Raises ValueError for a negative time, OffsetLookupFailed (also when the
        time is up), TopicAuthorizationFailed.
        """
        negative = {part: time for part, time in times.items() if time < 0}
        if negative:
            raise ValueError(f"times must not be negative: {negative}; see beginning_offsets and end_offsets")
        return {
            part: None if start.offset < 0 else OffsetAndTimestamp(start.offset, start.timestamp, start.leader_epoch)
            for part, start in self._list(times, timeout_s).items()
        }

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition. Raises as `offsets_for_times`."""
        found = self._list(dict.fromkeys(partitions, EARLIEST), timeout_s)
        return {part: start.offset for part, start in found.items()}

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition; under `read_committed` behind the last that is stable.

        Raises as `offsets_for_times`.
        """
        found = self._list(dict.fromkeys(partitions, LATEST), timeout_s)
        return {part: start.offset for part, start in found.items()}

    def batch_end(self, partition: TopicPartition, offset: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """The offset behind the batch that holds `offset`, by its header: for one that cannot be read (`unreadable`).

        Where the partition's leader cannot read the batch either, it is the first offset behind it that can be read.
        Raises OffsetLookupFailed (also when the time is up, and when the header is damaged as well),
        TopicAuthorizationFailed.
        """
        return self._ask(find_batch_end(partition, offset), timeout_s, f"the end of the batch at offset {offset}")

    def partitions_for(self, topic: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> tuple[PartitionInfo, ...]:
        """The partitions of a topic, by number; none when brokers do not know the topic.

        Raises MetadataLookupFailed (also when the time is up), TopicAuthorizationFailed.
        """
        if not topic:
            raise ValueError("the topic's name is empty")
        flow = describe_topics((topic,))
        return self._ask(flow, timeout_s, f"topic {topic!r}", errors.MetadataLookupFailed).get(topic, ())

    def list_topics(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[str, tuple[PartitionInfo, ...]]:
        """All topics that the principal may describe, internal ones too.

        Raises MetadataLookupFailed when the time is up.
        """
        return self._ask(describe_topics(None), timeout_s, "topics", errors.MetadataLookupFailed)

    def _list(self, times: Mapping[TopicPartition, int], timeout_s: float) -> dict[TopicPartition, Start]:
        if not times:
            with self._guard.entered():
                return {}
        flow = list_offsets(dict(times), read_committed=self._engine.settings.read_committed)
        return self._ask(flow, timeout_s, "offsets")

    def _ask(
        self,
        flow: Flow[T],
        timeout_s: float,
        what: str,
        timed_out: type[errors.ConsumerError] = errors.OffsetLookupFailed,
    ) -> T:
        """The result of a flow; `what` it asks for is named in the error `timed_out`."""
        with self._guard.entered():
            self._engine.start_group()
            return self._engine.wait_for(self._engine.group.begin(flow), timeout_s, what, timed_out)


FRESH_S: Final = 1.0
"""The age at which an end is looked up again."""
ASKING_S: Final = 60.0
"""The time after the last `lag` for which polls keep ends fresh."""
PATIENCE_S: Final = 10.0
"""The timeout of one lookup; a broker that hangs must not keep the others' ends old."""


class EndOffsets:
    """The last known ends. Belongs to the user's thread."""

    def __init__(self, group: CoordinatorThread, *, read_committed: bool) -> None:
        self._group = group
        self._read_committed = read_committed
        self._ends: dict[TopicPartition, int] = {}
        self._lookup: Ticket[dict[TopicPartition, int]] | None = None
        self._asked: frozenset[TopicPartition] = frozenset()
        self._asked_at = self._wanted_until = float("-inf")

    def of(self, partition: TopicPartition, owned: frozenset[TopicPartition], now: float) -> int | None:
        """The end of a partition, None while unknown; starts a lookup for all `owned` when their ends are old."""
        self._wanted_until = now + ASKING_S
        self.refresh(owned, now, unknown=partition)
        return self._ends.get(partition)

    def refresh(self, owned: frozenset[TopicPartition], now: float, unknown: TopicPartition | None = None) -> None:
        """Take an answer that has come, and ask again when ends are old and lags were asked for of late."""
        if now >= self._wanted_until:
            return
        self._take(owned)
        if self._lookup is not None and now < self._asked_at + PATIENCE_S:
            return
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None
        # A partition that came since the last lookup need not wait until the others are old.
        new = unknown is not None and unknown not in self._asked
        if owned and (new or now >= self._asked_at + FRESH_S):
            self._asked, self._asked_at = owned, now
            self._lookup = self._group.end_offsets(sorted(owned), read_committed=self._read_committed)

    def look_up(self, partitions: Iterable[TopicPartition]) -> Ticket[dict[TopicPartition, int]]:
        """Look up ends once, whatever is known. Any thread."""
        return self._group.end_offsets(sorted(partitions), read_committed=self._read_committed)

    def _take(self, owned: frozenset[TopicPartition]) -> None:
        if self._lookup is None or not self._lookup.done:
            return
        found, self._lookup = self._lookup.result or {}, None
        # A partition without an answer keeps its last end; one that is not owned any more has none.
        self._ends = {part: end for part, end in {**self._ends, **found}.items() if part in owned}


SILENT_S: Final = 30.0
"""The time without a record or an end after which a place is asked about, and the least time between two questions."""


class SilentPartitions:
    """The places at which one consumer's partitions stand. Belongs to the user's thread.

    To a broker, a batch with too large a length is the end of its file: it answers no bytes and no error, below the end
    of the log, and librdkafka reports nothing. So the leader of a partition that has stood for long is asked about the
    place itself.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # The places of the last look, and those that are asked about.
        self._places: Mapping[TopicPartition, Place] = {}
        self._asked: tuple[Ticket[frozenset[TopicPartition]], Mapping[TopicPartition, Place]] | None = None
        self._look_at = float("-inf")

    def look(self, now: float) -> None:
        """Report places at which leaders turned out to fail, and ask about those that are the same as at the last look.

        Not for polls that take no records, in which partitions wait for their reader. Others may wait, too, and a
        question ends at the first of them: chance gives each its turn.
        """
        positions, fetch, settings = self._engine.positions, self._engine.fetch, self._engine.settings
        if positions is None or fetch is None:
            return
        if self._asked is not None and self._asked[0].done:
            (ticket, places), self._asked = self._asked, None
            for part in ticket.result or ():
                fetch.stands(*places[part])
        if now < self._look_at:
            return
        self._look_at = now + SILENT_S
        before, self._places, known = self._places, positions.places(), fetch.unreadable
        stand = [part for part, place in self._places.items() if before.get(part) == place and part not in known]
        if stand and self._asked is None:
            random.shuffle(stand)
            offsets = {part: self._places[part][1] for part in stand}
            ticket = self._engine.group.find_silent(offsets, read_committed=settings.read_committed)
            self._asked = ticket, self._places
