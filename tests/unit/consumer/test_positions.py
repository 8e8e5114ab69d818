"""From assigned to handed out to given back, with both threads played by the test."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast
from uuid import UUID

import pytest
from confluent_kafka import Message

from fleet_consumer.consumer.positions import Positions
from fleet_consumer.consumer.resets import OffsetReset, OutOfRangeReport
from fleet_consumer.consumer.settings import ConsumerSettings
from fleet_consumer.consumer.start_lookups import LOOKUP_RETRY_S
from fleet_consumer.coordinator.flows import Ticket
from fleet_consumer.coordinator.lookups import RETRY_MAX_S, Start
from fleet_consumer.coordinator.remade import LogsSeen
from fleet_consumer.coordinator.reset_policy import ResetPolicy
from fleet_consumer.coordinator.starts import StartQuery, Starts
from fleet_consumer.coordinator.thread import CoordinatorThread
from fleet_consumer.fetch.buffer import OutOfRange, PartitionBuffer, ReadAhead, value_bytes
from fleet_consumer.fetch.thread import FetchThread
from fleet_consumer.group.errors import (
    GroupAuthorizationFailed,
    NoOffsetForPartition,
    NotAssigned,
    OffsetLookupFailed,
    TopicAuthorizationFailed,
)
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.net import ConnectionSettings
from fleet_consumer.record import Records, TopicPartition

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
HELD_BYTES_MAX = 100_000


class Group:
    """Notes what is looked up; the test ends the tickets."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[TopicPartition, ...], dict[str, Any], Ticket[Starts]]] = []
        self.looks: list[tuple[Mapping[TopicPartition, UUID | None], Ticket[LogsSeen]]] = []
        self.look_delays: list[float] = []

    def see_logs(self, known: Mapping[TopicPartition, UUID | None], *, delay_s: float) -> Ticket[LogsSeen]:
        ticket: Ticket[LogsSeen] = Ticket()
        self.looks.append((known, ticket))
        self.look_delays.append(delay_s)
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
        """The look that is under way ends."""
        self.group.looks[-1][1].end(seen)
        self.positions.take_starts()

    def taken(self, limit: int = 500) -> list[tuple[int, int]]:
        return [(record.partition, record.offset) for record in self.positions.take_records(limit)]


def test_partition_is_read_from_its_looked_up_offset() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset({ONE}))
    assert lab.positions.position(ONE) is None
    lab.positions.look_up_unknown()
    parts, how, _ = lab.group.asked[0]
    assert (parts, how["appeared"], how["lost"]) == ((ONE,), {ONE}, {})
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


def test_stopped_partition_delivers_nothing_and_keeps_its_position() -> None:
    lab = Lab().reading(ONE, OTHER)
    lab.fetch.deliver(ONE, 0, 3)
    lab.taken(2)
    lab.positions.stop_delivery([ONE, OTHER])
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
    lab.positions.stop_delivery([ONE])
    lab.positions.forget([ONE])
    assert old.cancelled
    lab.positions.assign([ONE], frozenset())
    old.end(Starts({ONE: Start(99)}))
    lab.positions.take_starts()
    assert lab.positions.position(ONE) is None


def test_failed_lookup_is_reported_and_repeated_later() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    lab.group.last.end(None, OffsetLookupFailed("no"))
    with pytest.raises(OffsetLookupFailed):
        lab.positions.take_starts()
    parts, how, _ = lab.group.asked[-1]
    assert (parts, how["delay_s"]) == ((ONE,), LOOKUP_RETRY_S)


def test_partition_without_a_start_delays_no_other_and_is_looked_up_with_backoff() -> None:
    lab = Lab()
    lab.positions.assign([ONE, OTHER], frozenset())
    lab.positions.look_up_unknown()
    lab.group.last.end(Starts({ONE: Start(7)}, waiting={OTHER: "it has no leader"}))
    lab.positions.take_starts()
    assert (lab.positions.position(ONE), lab.positions.position(OTHER)) == (7, None)
    delays = []
    for _ in range(8):
        parts, how, ticket = lab.group.asked[-1]
        assert parts == (OTHER,)
        delays.append(how["delay_s"])
        ticket.end(Starts(waiting={OTHER: "it has no leader"}))
        lab.positions.take_starts()
    assert delays == sorted(delays)
    assert delays[-1] == RETRY_MAX_S
    assert "t-1: it has no leader" in str(lab.positions.last_error)
    lab.found({OTHER: 3})
    assert lab.positions.position(OTHER) == 3
    assert lab.positions.last_error is None


def test_short_wait_for_a_leader_is_no_error() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    lab.group.last.end(Starts(waiting={ONE: "it has no leader"}))
    lab.positions.take_starts()
    assert lab.positions.last_error is None


def test_error_ends_with_the_assignment_of_its_partition() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    for _ in range(6):
        lab.group.last.end(Starts(waiting={ONE: "it has no leader"}))
        lab.positions.take_starts()
    assert lab.positions.last_error is not None
    lab.positions.stop_delivery([ONE])
    lab.positions.forget([ONE])
    assert lab.positions.last_error is None


def test_refused_partition_is_raised_after_the_others_began_and_asked_for_again_after_a_while() -> None:
    lab = Lab()
    lab.positions.assign([ONE, OTHER], frozenset())
    lab.positions.look_up_unknown()
    lab.group.last.end(Starts({OTHER: Start(7)}, refused={ONE: TopicAuthorizationFailed("no")}))
    with pytest.raises(TopicAuthorizationFailed):
        lab.positions.take_starts()
    assert lab.positions.position(OTHER) == 7
    parts, how, _ = lab.group.asked[-1]
    assert (parts, how["delay_s"]) == ((ONE,), LOOKUP_RETRY_S)


def test_refusal_that_ends_the_consumer_is_raised_before_others() -> None:
    lab = Lab()
    for part, error in ((ONE, OffsetLookupFailed("no")), (OTHER, GroupAuthorizationFailed("no"))):
        lab.positions.assign([part], frozenset())
        lab.positions.look_up_unknown()
        lab.group.last.end(None, error)
    with pytest.raises(GroupAuthorizationFailed):
        lab.positions.take_starts()


def test_policy_none_raises_once_and_reads_the_others() -> None:
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
    assert lab.group.asked[-1][1]["lost"] == {ONE: Start(1, -1)}
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


def test_lookup_after_out_of_range_that_fails_is_repeated_without_committed_offsets() -> None:
    """Committed offsets may be what was out of range: it would never end."""
    lab = Lab().reading(ONE)
    lab.fetch.read_ahead.put_out_of_range(lab.fetch.buffers[ONE], "deleted")
    lab.taken()
    lab.group.last.end(None, OffsetLookupFailed("no"))
    with pytest.raises(OffsetLookupFailed):
        lab.positions.take_starts()
    assert lab.group.asked[-1][1]["lost"] == {ONE: Start(0, 2)}


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


def test_pending_lookup_is_not_repeated_and_skips_revoked_partitions() -> None:
    lab = Lab()
    lab.positions.assign([ONE, OTHER], frozenset())
    lab.positions.look_up_unknown()
    both = lab.group.last
    lab.positions.assign([], frozenset())
    lab.positions.look_up_unknown()
    assert len(lab.group.asked) == 1
    lab.positions.stop_delivery([ONE])
    lab.positions.forget([ONE])
    lab.positions.assign([ONE], frozenset())  # it has come again, and its committed offset may be another
    both.end(Starts({ONE: Start(1), OTHER: Start(2)}))
    lab.positions.take_starts()
    assert lab.positions.position(ONE) is None
    assert lab.positions.position(OTHER) == 2


def test_committable_offsets_are_all_known_positions_with_their_last_epochs() -> None:
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
        lab.fetch.deliver(ONE, offset, 1, value=bytes(HELD_BYTES_MAX // 3))
        lab.taken()
    assert [command for command in lab.fetch.commands if command[0] == "hold"] == [("hold", ONE)]


def held_bytes(lab: Lab) -> int:
    return sum(buffer.held_bytes for buffer in lab.positions._buffers.values() if buffer is not None)


def test_all_paused_partitions_together_hold_no_more_than_the_budget_and_none_is_starved() -> None:
    """Each fetch brings four times what a partition's share is; keys and headers count."""
    parts = tuple(TopicPartition("t", number) for number in range(50))
    lab = Lab().reading(*parts)
    lab.positions.pause(parts)
    for part in parts:
        lab.fetch.deliver(part, 0, 2, key=bytes(2_000), headers=[("h", bytes(2_000))])
        lab.taken()
        assert held_bytes(lab) <= HELD_BYTES_MAX
    assert {command[1] for command in lab.fetch.commands if command[0] == "hold"} == set(parts)
    for part in parts:
        lab.positions.resume((part,))
        kept = lab.taken()
        if not kept:  # it was dropped, and is fetched again
            assert ("seek", part, 0, 2) in lab.fetch.commands
            assert lab.fetch.commands[-1] == ("unhold", part)
            lab.fetch.deliver(part, 0, 2)
            kept = lab.taken()
        assert kept == [(part.partition, 0), (part.partition, 1)]
    assert held_bytes(lab) == 0


def test_record_larger_than_the_budget_flows_when_its_pause_ends() -> None:
    lab = Lab().reading(ONE)
    lab.positions.pause((ONE,))
    late = lab.fetch.buffers[ONE]
    lab.fetch.deliver(ONE, 0, 1, value=bytes(2 * HELD_BYTES_MAX))
    lab.taken()
    assert held_bytes(lab) == 0
    assert not late.held, "the fetch thread would keep it in memory for as long as the pause lasts"
    lab.fetch.deliver(ONE, 1, 1, late)  # was on its way, and belongs behind what was dropped
    assert lab.taken() == []
    lab.positions.resume((ONE,))
    lab.fetch.deliver(ONE, 0, 1, value=bytes(2 * HELD_BYTES_MAX))
    assert lab.taken() == [(0, 0)]
    assert lab.positions.position(ONE) == 1


def test_partition_with_dropped_records_is_sought_and_revoked_like_others() -> None:
    lab = Lab().reading(ONE, OTHER)
    lab.positions.pause((ONE, OTHER))
    for part in (ONE, OTHER):
        lab.fetch.deliver(part, 0, 1, value=bytes(2 * HELD_BYTES_MAX))
        lab.taken()
    lab.positions.seek(ONE, 7)
    assert lab.fetch.commands[-2:] == [("unhold", ONE), ("seek", ONE, 7, -1)]
    lab.positions.stop_delivery([OTHER])
    lab.positions.forget([OTHER])
    lab.reading(OTHER)
    lab.fetch.deliver(OTHER, 0, 1)
    assert lab.taken() == [(1, 0)]


def test_pause_outlives_a_seek_and_ends_with_the_assignment() -> None:
    lab = Lab().reading(ONE)
    lab.positions.pause((ONE,))
    lab.positions.seek(ONE, 5)
    lab.fetch.deliver(ONE, 5, 1)
    assert lab.taken() == []
    lab.positions.stop_delivery([ONE])
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


def test_records_that_never_reached_the_user_come_again() -> None:
    """An exception between a take and its return: positions are where they were before it, in every partition."""
    lab = Lab().reading(ONE, OTHER)
    lab.fetch.deliver(ONE, 0, 3)
    assert len(lab.taken()) == 3
    lab.positions.unsettled = False
    lab.fetch.deliver(ONE, 3, 2)
    lab.fetch.deliver(OTHER, 0, 4)
    lab.taken()
    assert lab.positions.unsettled
    lab.positions.start_over()
    assert lab.positions.committable() == {ONE: OffsetAndMetadata(3, -1), OTHER: OffsetAndMetadata(0, 2)}
    assert lab.fetch.commands[-2:] == [("start over", ONE, 3), ("start over", OTHER, 0)]
    assert not lab.positions.unsettled


def test_interruption_before_anything_is_taken_repeats_nothing() -> None:
    lab = Lab().reading(ONE)
    lab.fetch.deliver(ONE, 0, 3)
    lab.taken()
    lab.positions.unsettled = False
    lab.positions._unsettle()
    lab.positions.start_over()
    assert lab.positions.position(ONE) == 3


def test_interrupted_lookup_is_repeated_and_a_stopped_partition_stays_stopped() -> None:
    lab = Lab().reading(ONE, OTHER)
    lab.positions.stop_delivery([OTHER])
    lab.positions.assign([TopicPartition("t", 2)], frozenset())
    lab.positions.start_over()
    assert [command[:2] for command in lab.fetch.commands if command[0] == "start over"] == [("start over", ONE)]
    assert lab.group.asked[-1][0] == (TopicPartition("t", 2),)


def test_seek_to_an_end_looks_it_up_despite_commits_and_delivers_nothing_before() -> None:
    lab = Lab().reading(ONE, OTHER)
    lab.fetch.deliver(ONE, 0, 3)
    lab.positions.seek_to_edge((ONE,), ResetPolicy.LATEST)
    assert lab.positions.position(ONE) is None
    assert lab.fetch.commands[-1] == ("unassign", {ONE})
    assert lab.taken() == []
    parts, how, _ = lab.group.asked[-1]
    assert (parts, how["policy"], how["use_committed"]) == ((ONE,), ResetPolicy.LATEST, False)
    assert lab.positions.committable() == {OTHER: OffsetAndMetadata(0, 2)}
    lab.found({ONE: 30})
    assert lab.positions.position(ONE) == 30


def test_seek_to_the_beginning_that_failed_is_repeated_as_such_and_beats_a_lookup_under_way() -> None:
    lab = Lab(ResetPolicy.NONE)
    lab.positions.assign([ONE, OTHER], frozenset())
    lab.positions.look_up_unknown()
    both = lab.group.last
    lab.positions.seek_to_edge((ONE,), ResetPolicy.EARLIEST)
    sought = lab.group.last
    both.end(Starts({ONE: Start(7), OTHER: Start(8)}))
    lab.positions.take_starts()
    assert (lab.positions.position(ONE), lab.positions.position(OTHER)) == (None, 8)
    sought.end(None, OffsetLookupFailed("no"))
    with pytest.raises(OffsetLookupFailed):
        lab.positions.take_starts()
    parts, how, _ = lab.group.asked[-1]
    assert (parts, how["policy"], how["delay_s"]) == ((ONE,), ResetPolicy.EARLIEST, LOOKUP_RETRY_S)
    lab.found({ONE: 0})
    assert lab.positions.position(ONE) == 0


def test_seek_to_an_end_in_the_callback_that_takes_the_partition_away_is_forgotten_with_it() -> None:
    lab = Lab().reading(ONE)
    lab.positions.stop_delivery([ONE])
    lab.positions.seek_to_edge((ONE,), ResetPolicy.EARLIEST)
    old = lab.group.last
    lab.positions.forget([ONE])
    assert old.cancelled
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    assert lab.group.asked[-1][1]["use_committed"]


def test_seek_after_a_seek_to_an_end_wins() -> None:
    lab = Lab().reading(ONE)
    lab.positions.seek_to_edge((ONE,), ResetPolicy.LATEST)
    lab.positions.seek(ONE, 5)
    lab.found({ONE: 30})
    assert lab.positions.position(ONE) == 5


def test_consumer_without_a_group_asks_for_no_committed_offsets() -> None:
    lab = Lab(group_id=None)
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    assert not lab.group.asked[-1][1]["use_committed"]
