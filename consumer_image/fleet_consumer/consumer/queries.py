"""Queries to the brokers that need neither a subscription nor a membership."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleet_consumer.consumer.call_guard import CallGuard
from fleet_consumer.consumer.engine import Engine
from fleet_consumer.coordinator.lookups import Start
from fleet_consumer.group import errors
from fleet_consumer.group.membership import OffsetAndMetadata, OffsetAndTimestamp
from fleet_consumer.group.topics import PartitionInfo
from fleet_consumer.record import TopicPartition


class Queries:
    """`Consumer.committed`, `offsets_for_times`, `list_topics` and their relatives; their docstrings are there."""

    def __init__(self, engine: Engine, guard: CallGuard) -> None:
        self._engine = engine
        self._guard = guard

    def committed(
        self, partitions: Iterable[TopicPartition] | None, timeout_s: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        with self._guard.entered():
            self._engine.check_group("committed")
            self._engine.start_group()
            return self._engine.wait_for(self._engine.group.committed(partitions), timeout_s, "committed offsets")

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        negative = {part: time for part, time in times.items() if time < 0}
        if negative:
            raise ValueError(f"times must not be negative: {negative}; see beginning_offsets and end_offsets")
        return {
            part: None if start.offset < 0 else OffsetAndTimestamp(start.offset, start.timestamp, start.leader_epoch)
            for part, start in self._list(times, timeout_s).items()
        }

    def edges(self, partitions: Iterable[TopicPartition], edge: int, timeout_s: float) -> dict[TopicPartition, int]:
        """The offsets at one edge of each log, ListOffsets' EARLIEST or LATEST."""
        found = self._list(dict.fromkeys(partitions, edge), timeout_s)
        return {part: start.offset for part, start in found.items()}

    def topics(
        self, names: tuple[str, ...] | None, timeout_s: float, what: str
    ) -> dict[str, tuple[PartitionInfo, ...]]:
        """The partitions of topics, of all with `names` None; `what` names them in errors."""
        with self._guard.entered():
            self._engine.start_group()
            ticket = self._engine.group.topics(names)
            return self._engine.wait_for(ticket, timeout_s, what, errors.MetadataLookupFailed)

    def batch_end(self, partition: TopicPartition, offset: int, timeout_s: float) -> int:
        with self._guard.entered():
            self._engine.start_group()
            ticket = self._engine.group.batch_end(partition, offset)
            return self._engine.wait_for(ticket, timeout_s, f"the end of the batch at offset {offset}")

    def _list(self, times: Mapping[TopicPartition, int], timeout_s: float) -> dict[TopicPartition, Start]:
        engine = self._engine
        with self._guard.entered():
            if not times:
                return {}
            engine.start_group()
            ticket = engine.group.list_offsets(dict(times), read_committed=engine.settings.read_committed)
            return engine.wait_for(ticket, timeout_s, "offsets")
