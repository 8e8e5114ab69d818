"""The calls of a `Consumer` that are about offsets: commits, positions, and what brokers know of partitions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from fleet_consumer.consumer.base import CommitCallback, ConsumerBase
from fleet_consumer.consumer.resets import OutOfRangeReport, TruncationReport
from fleet_consumer.coordinator.lookups import Start
from fleet_consumer.coordinator.reset_policy import ResetPolicy
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata, OffsetAndTimestamp
from fleet_consumer.group.topics import PartitionInfo
from fleet_consumer.librdkafka.group_metadata import group_metadata
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.list_offsets import EARLIEST, LATEST

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S = 60.0
"""Java's `default.api.timeout.ms`."""


class OffsetCalls(ConsumerBase):
    """Commits, positions and lookups of one consumer; part of `Consumer`."""

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Commit and wait. Retries while that can help, at most `timeout_s` seconds.

        `offsets` None commits the positions of everything owned: all that polls have returned counts as done.
        After `assign` the broker takes commits as long as the group has no members. Raises CommitFailed (no longer
        ours: do not repeat), RebalanceInProgress, RetriableCommitFailed (time is up; unknown whether written),
        CommitRefused, TopicDeleted (the topic that was read; one of its name does not get these offsets),
        TopicAuthorizationFailed, GroupIdMissing, FatalConsumerError.
        """
        with self._entered():
            self._check_group("commit")
            chosen = self._started().committable() if offsets is None else offsets
            if not chosen:
                return
            ticket = self._request_commit(chosen, self._clock.monotonic() + timeout_s)
            # The thread ends the ticket at its deadline; the second on top is for a thread that is busy.
            if not ticket.wait(timeout_s + 1.0):
                raise errors.RetriableCommitFailed(f"group {self._settings.group_id!r}: commit not confirmed in time")
            self._take_commit_results()
            if ticket.error is not None:
                raise ticket.error

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        callback: CommitCallback | None = None,
    ) -> None:
        """Commit without waiting or retrying; None as in `commit`.

        `callback(offsets, error or None)` runs inside a later `poll`, `commit` or `close`.
        """
        with self._entered():
            self._check_group("commit_async")
            chosen = self._started().committable() if offsets is None else offsets
            if chosen:
                ticket = self._request_commit(chosen, None)
                if callback is not None:
                    self._commit_callbacks[ticket] = callback

    def committed(
        self, partitions: Iterable[TopicPartition] | None, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, None where there is none; with None, all that there are.

        Needs no subscription.

        Raises OffsetLookupFailed (also when the time is up), TopicAuthorizationFailed, GroupAuthorizationFailed,
        GroupIdMissing.
        """
        with self._entered():
            self._check_group("committed")
            self._start_group()
            return self._await(self._group.committed(partitions), timeout_s, "committed offsets")

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """For each partition the first record that is not older than its time (milliseconds since the epoch).

        None where there is no such record. Needs no subscription. Raises ValueError for a negative time,
        OffsetLookupFailed (also when the time is up), TopicAuthorizationFailed.
        """
        negative = {part: time for part, time in times.items() if time < 0}
        if negative:
            raise ValueError(f"times must not be negative: {negative}; see beginning_offsets and end_offsets")
        found = self._list(times, timeout_s)
        return {
            part: None if start.offset < 0 else OffsetAndTimestamp(start.offset, start.timestamp, start.leader_epoch)
            for part, start in found.items()
        }

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition. Needs no subscription. Raises as `offsets_for_times`."""
        found = self._list(dict.fromkeys(partitions, EARLIEST), timeout_s)
        return {part: start.offset for part, start in found.items()}

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition; under `read_committed` behind the last that is stable.

        Needs no subscription. Raises as `offsets_for_times`.
        """
        found = self._list(dict.fromkeys(partitions, LATEST), timeout_s)
        return {part: start.offset for part, start in found.items()}

    def group_metadata(self) -> bytes:
        """This member and its generation, for `send_offsets_to_transaction` of confluent-kafka's `Producer`.

        Take it anew for each transaction: it holds until the next rebalance.
        Raises CommitFailed while this consumer is no member (Java gives out metadata that no broker checks then),
        GroupMetadataUnknown when this librdkafka uses another format.
        """
        with self._entered():
            self._check_group("group_metadata")
            self._started()
            picture = self._group.snapshot
            if picture.generation < 0 or not picture.member_id:
                raise errors.CommitFailed(
                    f"group {picture.group_id!r}: this consumer is no member now; poll until it has partitions"
                )
            return group_metadata(picture.group_id, picture.generation, picture.member_id, picture.instance_id)

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset that poll would hand out; None while it is being looked up. Raises NotAssigned.

        Worth a commit even where nothing was handed out yet: under `latest`, whoever owns the partition next would
        otherwise start at what is the end by then.
        """
        with self._entered():
            return self._started().position(partition)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on at `offset`; nothing that was read ahead before comes out. Raises NotAssigned."""
        with self._entered():
            if offset < 0:
                raise ValueError(f"offset {offset} is negative")
            self._started().seek(partition, offset)

    def truncations(self) -> TruncationReport:
        """How often a log turned out to have lost records that were read already, and how many these were."""
        return TruncationReport() if self._positions is None else self._positions.truncations

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on at the first offset that is there, in all owned partitions when none is named. Raises NotAssigned.

        The offset is looked up in the background; `position` is None until then, and nothing is handed out.
        """
        self._seek_to_edge(partitions, ResetPolicy.EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] = ()) -> None:
        """Go on behind the last record, in all owned partitions when none is named; under `read_committed` behind the
        last that is stable. As `seek_to_beginning`: the end counts that a broker has when it is asked.
        """
        self._seek_to_edge(partitions, ResetPolicy.LATEST)

    def _seek_to_edge(self, partitions: Iterable[TopicPartition], edge: ResetPolicy) -> None:
        with self._entered():
            positions = self._started()
            wanted = tuple(partitions) or tuple(sorted(positions.owned))
            if wanted:
                positions.seek_to_edge(wanted, edge)

    def lag(self, partition: TopicPartition) -> int | None:
        """How many offsets the partition's end is ahead of its position; None while either is unknown.

        Never blocks: the first call has the end looked up in the background, and polls keep it fresh from then on
        (`EndOffsets`). Under `read_committed` the end is the last stable offset. Raises NotAssigned.
        """
        with self._entered():
            positions = self._started()
            position = positions.position(partition)
            end = self._ends.of(partition, positions.owned, self._clock.monotonic())
            return None if position is None or end is None else max(0, end - position)

    def partitions_for(self, topic: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> tuple[PartitionInfo, ...]:
        """The partitions of a topic, by number; none when brokers do not know the topic. Needs no subscription.

        Raises MetadataLookupFailed (also when the time is up), TopicAuthorizationFailed.
        """
        if not topic:
            raise ValueError("the topic's name is empty")
        return self._topics((topic,), timeout_s, f"topic {topic!r}").get(topic, ())

    def list_topics(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[str, tuple[PartitionInfo, ...]]:
        """All topics that the principal may describe, internal ones too. Needs no subscription.

        Raises MetadataLookupFailed when the time is up.
        """
        return self._topics(None, timeout_s, "topics")

    def _topics(
        self, names: tuple[str, ...] | None, timeout_s: float, what: str
    ) -> dict[str, tuple[PartitionInfo, ...]]:
        with self._entered():
            self._start_group()
            return self._await(self._group.topics(names), timeout_s, what, errors.MetadataLookupFailed)

    def out_of_range(self) -> OutOfRangeReport:
        """The number of times that brokers did not have the offset that came next, and what was skipped for it."""
        return OutOfRangeReport() if self._positions is None else self._positions.out_of_range

    def _list(self, times: Mapping[TopicPartition, int], timeout_s: float) -> dict[TopicPartition, Start]:
        with self._entered():
            if not times:
                return {}
            self._start_group()
            read_committed = self._settings.isolation_level == "read_committed"
            ticket = self._group.list_offsets(dict(times), read_committed=read_committed)
            return self._await(ticket, timeout_s, "offsets")

    # Commits that nobody asked for one by one.

    def _auto_commit(self) -> None:
        """In poll, before it hands out more: what earlier polls returned counts as done."""
        interval_ms, now = self._settings.auto_commit_interval_ms, self._clock.monotonic()
        if interval_ms is None or now < self._auto_commit_at or self._auto_commit_in_flight:
            return
        self._auto_commit_at = now + interval_ms / 1000
        offsets = self._started().committable()
        if offsets:
            self._auto_commit_in_flight = True
            self._commit_callbacks[self._request_commit(offsets, None)] = self._auto_committed

    def _auto_committed(self, _offsets: Mapping[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        self._auto_commit_in_flight = False
        if error is not None:
            logger.info("group %s: automatic commit failed, the next one follows: %s", self._settings.group_id, error)

    def _auto_commit_before_giving_back(self, partitions: Iterable[TopicPartition], timeout_s: float) -> None:
        if self._settings.auto_commit_interval_ms is None:
            return
        going = frozenset(partitions)
        offsets = {part: entry for part, entry in self._started().committable().items() if part in going}
        if not offsets:
            return
        ticket = self._request_commit(offsets, self._clock.monotonic() + timeout_s)
        if not ticket.wait(timeout_s + 1.0) or ticket.error is not None:
            logger.warning(
                "group %s: automatic commit of %d partitions that are given back failed; their next owner repeats "
                "records: %s",
                *(self._settings.group_id, len(offsets), ticket.error),
            )
