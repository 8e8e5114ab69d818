"""From assigned to handed out to given back, with both threads played by the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from confluent_kafka import Message

from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.offsets import Start, Starts
from fleet_consumer.coordinator.reset_policy import ResetPolicy
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.buffer import OutOfRange, PartitionBuffer, ReadAhead, value_bytes
from fleet_consumer.fetch.records import Records
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group.errors import NoOffsetForPartition, NotAssigned, OffsetLookupFailed
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.positions import HELD_BYTES_MAX, LOOKUP_RETRY_S, OffsetReset, OutOfRangeReport, Positions
from fleet_consumer.record import TopicPartition

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Group:
    """Notes what is looked up; the test ends the tickets."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[TopicPartition, ...], dict[str, Any], Ticket[Starts]]] = []

    def find_starts(self, partitions: tuple[TopicPartition, ...], **how: Any) -> Ticket[Starts]:
        ticket: Ticket[Starts] = Ticket()
        self.asked.append((partitions, how, ticket))
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

    def assign(self, buffers: Mapping[TopicPartition, tuple[PartitionBuffer, int]]) -> None:
        for part, (buffer, epoch) in buffers.items():
            self.commands.append(("assign", part, buffer.position, epoch))
            self.buffers[part] = buffer

    def unassign(self, partitions: frozenset[TopicPartition]) -> None:
        self.commands.append(("unassign", partitions))

    def seek(self, buffer: PartitionBuffer) -> None:
        self.commands.append(("seek", buffer.topic_partition, buffer.position))
        self.buffers[buffer.topic_partition] = buffer

    def hold(self, partition: TopicPartition) -> None:
        self.commands.append(("hold", partition))

    def unhold(self, partition: TopicPartition) -> None:
        self.commands.append(("unhold", partition))

    def take(self, limit: int, on_out_of_range: Callable[[PartitionBuffer, OutOfRange], None]) -> Records:
        return self.read_ahead.take(limit, on_out_of_range)

    def deliver(
        self,
        part: TopicPartition,
        first: int,
        count: int,
        buffer: PartitionBuffer | None = None,
        *,
        value: bytes = b"v",
    ) -> None:
        run = [Message(topic=part.topic, partition=part.partition, offset=first + n, value=value) for n in range(count)]
        self.read_ahead.put(buffer or self.buffers[part], run, value_bytes(run))


class Lab:
    def __init__(self, policy: ResetPolicy = ResetPolicy.EARLIEST) -> None:
        self.group, self.fetch = Group(), Fetch()
        self.positions = Positions(
            cast(CoordinatorThread, self.group),
            cast(FetchThread, self.fetch),
            group_id="g",
            policy=policy,
            read_committed=False,
            held_records_max=10,
        )

    def reading(self, *parts: TopicPartition) -> Lab:
        """Own these and read them from offset 0."""
        self.positions.assign(parts, frozenset())
        self.positions.look_up_unknown()
        self.found(dict.fromkeys(parts, 0))
        return self

    def found(self, offsets: Mapping[TopicPartition, int], without: tuple[TopicPartition, ...] = ()) -> None:
        self.group.last.end(Starts({part: Start(offset, 2) for part, offset in offsets.items()}, without))
        self.positions.take_starts()

    def taken(self, limit: int = 500) -> list[tuple[int, int]]:
        return [(record.partition, record.offset) for record in self.positions.take_records(limit)]


def test_partition_is_read_from_where_its_lookup_says() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset({ONE}))
    assert lab.positions.position(ONE) is None
    lab.positions.look_up_unknown()
    parts, how, _ = lab.group.asked[0]
    assert (parts, how["appeared"], how["use_committed"]) == ((ONE,), {ONE}, True)
    lab.found({ONE: 7})
    assert lab.fetch.commands == [("assign", ONE, 7, 2)]
    lab.fetch.deliver(ONE, 7, 2)
    assert lab.taken() == [(0, 7), (0, 8)]
    assert lab.positions.position(ONE) == 9


def test_seek_inside_the_callback_makes_the_lookup_needless() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.seek(ONE, 5)
    lab.positions.look_up_unknown()
    assert lab.group.asked == []
    assert lab.fetch.commands == [("assign", ONE, 5, -1)]


def test_seek_during_the_lookup_wins_over_its_answer() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    lab.positions.seek(ONE, 5)
    lab.found({ONE: 0})
    assert lab.positions.position(ONE) == 5
    assert lab.fetch.commands == [("assign", ONE, 5, -1)]


def test_nothing_read_before_a_seek_comes_out_after_it() -> None:
    lab = Lab().reading(ONE)
    old = lab.fetch.buffers[ONE]
    lab.fetch.deliver(ONE, 0, 5)
    lab.positions.seek(ONE, 2)
    lab.fetch.deliver(ONE, 5, 5, buffer=old)  # the fetch thread had not obeyed yet
    lab.fetch.deliver(ONE, 2, 2)
    assert lab.taken() == [(0, 2), (0, 3)]


def test_nothing_comes_out_once_a_partition_is_void_and_its_position_stays_until_forgotten() -> None:
    lab = Lab().reading(ONE, OTHER)
    lab.fetch.deliver(ONE, 0, 3)
    lab.taken(2)
    lab.positions.void([ONE, OTHER])
    assert lab.taken() == []
    assert lab.positions.position(ONE) == 2
    assert lab.fetch.commands[-1] == ("unassign", {ONE, OTHER})
    lab.positions.forget([ONE, OTHER])
    with pytest.raises(NotAssigned, match="t-0"):
        lab.positions.position(ONE)


def test_lookup_of_an_assignment_that_is_over_is_cancelled() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    old = lab.group.last
    lab.positions.void([ONE])
    lab.positions.forget([ONE])
    assert old.cancelled
    lab.positions.assign([ONE], frozenset())
    old.end(Starts({ONE: Start(99)}))
    lab.positions.take_starts()
    assert lab.positions.position(ONE) is None


def test_failed_lookup_is_told_and_repeated_after_a_while() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    lab.group.last.end(None, OffsetLookupFailed("no"))
    with pytest.raises(OffsetLookupFailed):
        lab.positions.take_starts()
    parts, how, _ = lab.group.asked[-1]
    assert (parts, how["delay_s"]) == ((ONE,), LOOKUP_RETRY_S)


def test_policy_none_tells_once_and_reads_the_others() -> None:
    lab = Lab(ResetPolicy.NONE)
    lab.positions.assign([ONE, OTHER], frozenset())
    lab.positions.look_up_unknown()
    with pytest.raises(NoOffsetForPartition, match="t-1"):
        lab.found({ONE: 3}, without=(OTHER,))
    assert lab.positions.position(ONE) == 3
    lab.positions.take_starts()
    lab.positions.seek(OTHER, 0)
    assert lab.positions.position(OTHER) == 0


def test_position_out_of_range_is_looked_up_by_the_policy_alone() -> None:
    lab = Lab().reading(ONE)
    lab.fetch.deliver(ONE, 0, 1)
    lab.fetch.read_ahead.put_out_of_range(lab.fetch.buffers[ONE], "deleted")
    assert lab.taken() == [(0, 0)]
    assert lab.taken() == []
    assert lab.positions.position(ONE) is None
    assert lab.fetch.commands[-1] == ("unassign", {ONE})
    assert not lab.group.asked[-1][1]["use_committed"]
    lab.found({ONE: 50})
    assert lab.positions.position(ONE) == 50


def test_out_of_range_is_counted_and_reported_with_the_range_that_was_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lab = Lab().reading(ONE, OTHER)
    assert lab.positions.out_of_range == OutOfRangeReport()
    lab.fetch.deliver(ONE, 0, 10)
    lab.taken()
    lab.fetch.read_ahead.put_out_of_range(lab.fetch.buffers[ONE], "deleted")
    lab.taken()
    lab.found({ONE: 60})
    reset = OffsetReset(ONE, 10, 60)
    assert lab.positions.out_of_range == OutOfRangeReport(count=1, skipped=50, last=reset)
    assert "50 offsets were skipped, 10 up to and without 60" in caplog.text
    # A log that was cut off leads backwards: nothing is skipped.
    lab.fetch.deliver(ONE, 60, 5)
    lab.taken()
    lab.fetch.read_ahead.put_out_of_range(lab.fetch.buffers[ONE], "truncated")
    lab.taken()
    lab.found({ONE: 30})
    assert lab.positions.out_of_range == OutOfRangeReport(count=2, skipped=50, last=OffsetReset(ONE, 65, 30))


def test_lookup_after_out_of_range_that_fails_is_repeated_without_committed_offsets() -> None:
    """They may be what was out of range: it would never end."""
    lab = Lab().reading(ONE)
    lab.fetch.read_ahead.put_out_of_range(lab.fetch.buffers[ONE], "deleted")
    lab.taken()
    lab.group.last.end(None, OffsetLookupFailed("no"))
    with pytest.raises(OffsetLookupFailed):
        lab.positions.take_starts()
    assert not lab.group.asked[-1][1]["use_committed"]


def test_cooperative_assignment_adds_and_leaves_the_rest_as_it_is() -> None:
    lab = Lab().reading(ONE)
    lab.fetch.deliver(ONE, 0, 3)
    lab.taken(2)
    lab.positions.assign([OTHER], frozenset())
    lab.positions.look_up_unknown()
    assert lab.group.asked[-1][0] == (OTHER,)
    assert lab.positions.position(ONE) == 2
    lab.found({OTHER: 7})
    assert lab.taken() == [(0, 2)]
    assert lab.positions.owned == {ONE, OTHER}


def test_lookup_under_way_is_not_repeated_and_forgets_what_was_given_back_meanwhile() -> None:
    lab = Lab()
    lab.positions.assign([ONE, OTHER], frozenset())
    lab.positions.look_up_unknown()
    both = lab.group.last
    lab.positions.assign([], frozenset())
    lab.positions.look_up_unknown()
    assert len(lab.group.asked) == 1
    lab.positions.void([ONE])
    lab.positions.forget([ONE])
    lab.positions.assign([ONE], frozenset())  # it has come again, and its committed offset may be another
    both.end(Starts({ONE: Start(1), OTHER: Start(2)}))
    lab.positions.take_starts()
    assert lab.positions.position(ONE) is None
    assert lab.positions.position(OTHER) == 2


def test_committable_is_every_known_position_with_the_epoch_of_what_came_before() -> None:
    lab = Lab().reading(ONE)
    lab.positions.assign([OTHER], frozenset())
    assert lab.positions.committable() == {ONE: OffsetAndMetadata(0, 2)}
    lab.fetch.deliver(ONE, 0, 3)
    lab.taken()
    assert lab.positions.committable() == {ONE: OffsetAndMetadata(3, -1)}


def test_long_pause_is_handed_to_librdkafka_once_enough_is_held() -> None:
    lab = Lab().reading(ONE, OTHER)
    lab.positions.pause((ONE,))
    for first in range(0, 30, 5):
        lab.fetch.deliver(ONE, first, 5)
        lab.taken()
    assert [command for command in lab.fetch.commands if command[0] == "hold"] == [("hold", ONE)]
    lab.positions.resume((ONE,))
    assert lab.fetch.commands[-1] == ("unhold", ONE)
    assert lab.taken() == [(0, offset) for offset in range(30)]


def test_long_pause_of_a_partition_with_large_records_holds_few_of_them() -> None:
    lab = Lab().reading(ONE)
    lab.positions.pause((ONE,))
    for offset in range(3):
        lab.fetch.deliver(ONE, offset, 1, value=bytes(HELD_BYTES_MAX // 2))
        lab.taken()
    assert [command for command in lab.fetch.commands if command[0] == "hold"] == [("hold", ONE)]


def test_pause_outlives_a_seek_and_ends_with_the_assignment() -> None:
    lab = Lab().reading(ONE)
    lab.positions.pause((ONE,))
    lab.positions.seek(ONE, 5)
    lab.fetch.deliver(ONE, 5, 1)
    assert lab.taken() == []
    lab.positions.void([ONE])
    lab.positions.forget([ONE])
    lab.reading(ONE)
    assert lab.positions.paused == frozenset()
    lab.fetch.deliver(ONE, 0, 1)
    assert lab.taken() == [(0, 0)]


def test_call_that_names_a_partition_that_is_not_owned_changes_nothing() -> None:
    lab = Lab().reading(ONE)
    with pytest.raises(NotAssigned, match="t-1: not assigned"):
        lab.positions.pause((ONE, OTHER))
    assert lab.positions.paused == frozenset()
