"""Positions with a coordinator thread and a fetch thread that a test plays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast
from uuid import UUID

from confluent_kafka import Message

from fleet_consumer.consumer.positions import Positions
from fleet_consumer.consumer.settings import ConsumerSettings
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.lookups import LogsSeen, Start
from fleet_consumer.coordinator.starts import ResetPolicy, StartQuery, Starts
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.buffer import OutOfRange, PartitionBuffer, ReadAhead, SoughtPlaces, value_bytes
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import Records, TopicPartition

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
HELD_BYTES_MAX = 100_000


class Group:
    """Notes what is looked up; the test ends the tickets."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[TopicPartition, ...], dict[str, Any], Ticket[Starts]]] = []
        self.log_checks: list[tuple[Mapping[TopicPartition, UUID | None], Ticket[LogsSeen]]] = []
        self.log_check_delays: list[float] = []

    def see_logs(self, known: Mapping[TopicPartition, UUID | None], *, delay_s: float) -> Ticket[LogsSeen]:
        ticket: Ticket[LogsSeen] = Ticket()
        self.log_checks.append((known, ticket))
        self.log_check_delays.append(delay_s)
        return ticket

    def find_starts(self, query: StartQuery) -> Ticket[Starts]:
        ticket: Ticket[Starts] = Ticket()
        how = {each.name: getattr(query, each.name) for each in dataclasses.fields(query)}
        self.asked.append((query.partitions, how, ticket))
        return ticket

    @property
    def last(self) -> Ticket[Starts]:
        return self.asked[-1][2]


class Fetch:
    """Notes commands; `deliver` puts messages where the fetch thread would."""

    def __init__(self) -> None:
        self.read_ahead = ReadAhead()
        self.commands: list[tuple[Any, ...]] = []
        self.buffers: dict[TopicPartition, PartitionBuffer] = {}
        self.sought = SoughtPlaces()

    def assign(self, buffers: Collection[PartitionBuffer]) -> None:
        for buffer in buffers:
            self.commands.append(("assign", buffer.topic_partition, buffer.position, buffer.leader_epoch))
            self.buffers[buffer.topic_partition] = buffer

    def unassign(self, partitions: frozenset[TopicPartition]) -> None:
        self.commands.append(("unassign", partitions))

    def seek(self, buffer: PartitionBuffer) -> None:
        self.commands.append(("seek", buffer.topic_partition, buffer.position, buffer.leader_epoch))
        self.buffers[buffer.topic_partition] = buffer

    def hold(self, partition: TopicPartition) -> None:
        self.commands.append(("hold", partition))

    def unhold(self, partition: TopicPartition) -> None:
        self.commands.append(("unhold", partition))

    def start_over(self, buffers: Collection[PartitionBuffer]) -> None:
        self.read_ahead = ReadAhead()
        for buffer in buffers:
            self.commands.append(("start over", buffer.topic_partition, buffer.position))
            self.buffers[buffer.topic_partition] = buffer

    def take_records(self, limit: int, on_out_of_range: Callable[[PartitionBuffer, OutOfRange], None]) -> Records:
        return self.read_ahead.take_records(limit, on_out_of_range)

    def deliver(
        self,
        part: TopicPartition,
        first: int,
        count: int,
        buffer: PartitionBuffer | None = None,
        *,
        value: bytes = b"v",
        key: bytes | None = None,
        headers: Any = None,
    ) -> None:
        fields = {"topic": part.topic, "partition": part.partition, "value": value, "key": key, "headers": headers}
        run = [Message(offset=first + n, **fields) for n in range(count)]
        self.read_ahead.put(buffer or self.buffers[part], run, value_bytes(run))


class Lab:
    def __init__(self, policy: ResetPolicy = ResetPolicy.EARLIEST, group_id: str | None = "g") -> None:
        self.group, self.fetch = Group(), Fetch()
        settings = ConsumerSettings(
            connection=ConnectionSettings(bootstrap_servers=("localhost:1",), client_id="c"),
            group_id=group_id,
            auto_offset_reset=policy.word,
            max_poll_records=10,
            paused_bytes_max=HELD_BYTES_MAX,
        )
        self.positions = Positions(cast(CoordinatorThread, self.group), cast(FetchThread, self.fetch), settings)

    def reading(self, *parts: TopicPartition) -> Lab:
        """Own these and read them from offset 0."""
        self.positions.assign(parts, frozenset())
        self.positions.look_up_unknown()
        self.found(dict.fromkeys(parts, 0))
        return self

    def found(self, offsets: Mapping[TopicPartition, int], without: tuple[TopicPartition, ...] = ()) -> None:
        self.group.last.end(Starts({part: Start(offset, 2) for part, offset in offsets.items()}, without))
        self.positions.take_starts()

    def lose(self, part: TopicPartition) -> None:
        """The broker says that it does not have the position."""
        self.fetch.read_ahead.put_out_of_range(self.fetch.buffers[part], "gone")
        self.taken()

    def saw(self, seen: LogsSeen) -> None:
        """The check that is under way ends."""
        self.group.log_checks[-1][1].end(seen)
        self.positions.take_starts()

    def taken(self, limit: int = 500) -> list[tuple[int, int]]:
        return [(record.partition, record.offset) for record in self.positions.take_records(limit)]
