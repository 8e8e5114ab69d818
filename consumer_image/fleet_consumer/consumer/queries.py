"""Queries to brokers: calls that need no membership, end offsets for `lag`, and detection of silent partitions.

End offsets are kept up to date for `Consumer.lag` without blocking. librdkafka knows end offsets only from fetches, at
the wrong isolation level, and only of partitions that it is fetching. So each leader is queried with one request, but
only while `lag` is in use.
"""

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
    """Calls of a consumer that need no subscription or membership; each waits at most `timeout_s` seconds."""

    def __init__(self, engine: Engine, guard: CallGuard) -> None:
        self._engine = engine
        self._guard = guard

    def committed(
        self, partitions: Iterable[TopicPartition] | None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets of `partitions` (None: all partitions). The value is None for a
        partition without a committed offset.

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
        """Return, for each partition, the offset of the first record with the given timestamp (milliseconds since 1970)
        or a later one. The value is None without such a record. Raises ValueError for a negative time,
        OffsetLookupFailed (also when the time is up), TopicAuthorizationFailed."""
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
        """Return the first offset of each partition. Raises the same errors as `offsets_for_times`."""
        found = self._list(dict.fromkeys(partitions, EARLIEST), timeout_s)
        return {part: start.offset for part, start in found.items()}

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition or, under `read_committed`, the last stable offset.
        Raises the same errors as `offsets_for_times`."""
        found = self._list(dict.fromkeys(partitions, LATEST), timeout_s)
        return {part: start.offset for part, start in found.items()}

    def batch_end(self, partition: TopicPartition, offset: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Return the offset after the batch that contains `offset`, according to the header of the batch. A seek to
        this offset skips a batch that `unreadable` reports.

        If the partition's leader also cannot read the batch, the result is the next offset that the leader can read.
        Raises OffsetLookupFailed (also when the time is up, or if the header is damaged), TopicAuthorizationFailed.
        """
        return self._ask(find_batch_end(partition, offset), timeout_s, f"the end of the batch at offset {offset}")

    def partitions_for(self, topic: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> tuple[PartitionInfo, ...]:
        """Return the partitions of a topic, sorted by number; empty for a topic unknown to the brokers. Raises
        MetadataLookupFailed (also when the time is up), TopicAuthorizationFailed."""
        if not topic:
            raise ValueError("the topic's name is empty")
        flow = describe_topics((topic,))
        return self._ask(flow, timeout_s, f"topic {topic!r}", errors.MetadataLookupFailed).get(topic, ())

    def list_topics(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[str, tuple[PartitionInfo, ...]]:
        """Return all topics that the principal may describe, including internal topics.
        Raises MetadataLookupFailed when the time is up."""
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
        """Run a flow and return its result. Raises `timed_out` when the time is up; `what` names the result in the
        message."""
        with self._guard.entered():
            self._engine.start_group()
            return self._engine.wait_for(self._engine.group.start_flow(flow), timeout_s, what, timed_out)


FRESH_S: Final = 1.0
"""Maximum age in seconds of end offsets before a new lookup."""
ASKING_S: Final = 60.0
"""Seconds after the last call of `lag` during which polls update end offsets."""
PATIENCE_S: Final = 10.0
"""Timeout of one lookup in seconds: a hanging broker must not delay the end offsets from other brokers."""


class EndOffsets:
    """The last known end offsets of the owned partitions. Belongs to the user's thread."""

    def __init__(self, group: CoordinatorThread, *, read_committed: bool) -> None:
        self._group = group
        self._read_committed = read_committed
        self._ends: dict[TopicPartition, int] = {}
        self._lookup: Ticket[dict[TopicPartition, int]] | None = None
        self._asked: frozenset[TopicPartition] = frozenset()
        self._asked_at = self._wanted_until = float("-inf")

    def end_of(self, partition: TopicPartition, owned: frozenset[TopicPartition], now: float) -> int | None:
        """Return the end offset, or None while unknown. Starts a lookup for all `owned` partitions if the end offsets
        are old."""
        self._wanted_until = now + ASKING_S
        self.refresh(owned, now, unknown=partition)
        return self._ends.get(partition)

    def refresh(self, owned: frozenset[TopicPartition], now: float, unknown: TopicPartition | None = None) -> None:
        """Take the result of a lookup. Start the next one if the end offsets are old and `lag` was called recently."""
        if now >= self._wanted_until:
            return
        self._take(owned)
        if self._lookup is not None and now < self._asked_at + PATIENCE_S:
            return
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None
        # A new partition is looked up immediately, even if the other end offsets are not old.
        new = unknown is not None and unknown not in self._asked
        if owned and (new or now >= self._asked_at + FRESH_S):
            self._asked, self._asked_at = owned, now
            self._lookup = self._group.end_offsets(sorted(owned), read_committed=self._read_committed)

    def look_up(self, partitions: Iterable[TopicPartition]) -> Ticket[dict[TopicPartition, int]]:
        """Look up end offsets once, without the cache. May be called from any thread."""
        return self._group.end_offsets(sorted(partitions), read_committed=self._read_committed)

    def _take(self, owned: frozenset[TopicPartition]) -> None:
        if self._lookup is None or not self._lookup.done:
            return
        found, self._lookup = self._lookup.result or {}, None
        # A partition without an answer keeps its last end offset. Partitions that are no longer owned are dropped.
        self._ends = {part: end for part, end in {**self._ends, **found}.items() if part in owned}


SILENT_S: Final = 30.0
"""Seconds without progress after which a partition's leader is queried, and minimum seconds between such queries."""


class SilentPartitions:
    """Detects partitions whose leaders return no data at the current position. Belongs to the user's thread.

    If a batch's length field is damaged and too large, the broker treats the batch as the end of the file. Although the
    log continues, the broker then returns neither bytes nor an error, and librdkafka reports nothing. So the leaders of
    partitions without progress are queried.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # The buffers and positions at the last check. Then the pending query, with the buffers and positions to which
        # its answer applies.
        self._places: Mapping[TopicPartition, Place] = {}
        self._asked: tuple[Ticket[frozenset[TopicPartition]], Mapping[TopicPartition, Place]] | None = None
        self._check_at = float("-inf")

    def ask(self, now: float) -> None:
        """Report partitions whose leaders returned no data in the last query. Then query the leaders of partitions
        without progress since the last check.

        Must not be called in polls with `max_records` 0, in which no partition makes progress. In other polls, a
        partition without progress may simply have records that the user has not taken. A query stops at the first such
        partition, so partitions are checked in random order.
        """
        positions, fetch, settings = self._engine.positions, self._engine.fetch, self._engine.settings
        if positions is None or fetch is None:
            return
        if self._asked is not None and self._asked[0].done:
            (ticket, places), self._asked = self._asked, None
            for part in ticket.result or ():
                fetch.stands(*places[part])
        if now < self._check_at:
            return
        self._check_at = now + SILENT_S
        before, self._places, known = self._places, positions.places(), fetch.unreadable
        stand = [part for part, place in self._places.items() if before.get(part) == place and part not in known]
        if stand and self._asked is None:
            random.shuffle(stand)
            offsets = {part: self._places[part][1] for part in stand}
            ticket = self._engine.group.find_silent(offsets, read_committed=settings.read_committed)
            self._asked = ticket, self._places
