"""From assigned to handed out to given back, with both threads played by the test."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fleet_consumer.consumer.resets import OffsetReset, OutOfRangeReport
from fleet_consumer.consumer.start_lookups import LOOKUP_RETRY_S
from fleet_consumer.coordinator.lookups import RETRY_MAX_S, Start
from fleet_consumer.coordinator.starts import ResetPolicy, Starts
from fleet_consumer.group.errors import (
    GroupAuthorizationFailed,
    NoOffsetForPartition,
    NotAssigned,
    OffsetLookupFailed,
    TopicAuthorizationFailed,
)
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import Gap, TopicPartition
from tests.unit.consumer.lab import ONE, OTHER, Lab


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
    lab.positions.discard_partitions([ONE, OTHER])
    with pytest.raises(NotAssigned, match="t-0"):
        lab.positions.position(ONE)


def test_lookup_of_an_assignment_that_is_over_is_cancelled() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    old = lab.group.last
    lab.positions.stop_delivery([ONE])
    lab.positions.discard_partitions([ONE])
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
    lab.positions.discard_partitions([ONE])
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


def test_partition_without_an_offset_is_an_error_until_it_is_sought_found_or_given_up() -> None:
    lab = Lab(ResetPolicy.NONE)

    def look_up_and_find() -> None:
        lab.positions.look_up_unknown()
        lab.found({OTHER: 5})

    ways: tuple[Callable[[], None], ...] = (
        lambda: lab.positions.seek(OTHER, 0),
        lambda: lab.positions.seek_to_edge((OTHER,), ResetPolicy.EARLIEST),
        look_up_and_find,
        lambda: lab.positions.discard_partitions([OTHER]),
    )
    for end_it in ways:
        lab.positions.assign([ONE, OTHER], frozenset())
        lab.positions.look_up_unknown()
        with pytest.raises(NoOffsetForPartition, match="t-1"):
            lab.found({ONE: 3}, without=(OTHER,))
        lab.positions.take_starts()
        error = lab.positions.last_error
        assert isinstance(error, NoOffsetForPartition)
        assert error.partitions == (OTHER,)
        assert "no usable offset; seek, or commit offsets (for example with an OffsetReset): t-1" in str(error)
        end_it()
        assert lab.positions.last_error is None
        lab.positions.discard_partitions([ONE, OTHER])


def test_refused_partition_is_an_error_until_its_start_is_found() -> None:
    lab = Lab()
    lab.positions.assign([ONE, OTHER], frozenset())
    lab.positions.look_up_unknown()
    refusal = TopicAuthorizationFailed("partition t-0: allow it")
    for _ in range(3):
        lab.group.last.end(Starts({OTHER: Start(7)}, refused={ONE: refusal}))
        with pytest.raises(TopicAuthorizationFailed):
            lab.positions.take_starts()
        assert lab.positions.last_error is refusal
    lab.found({ONE: 3})
    assert lab.positions.last_error is None


def test_all_causes_are_named_where_partitions_have_no_start_for_several() -> None:
    lab, parts = Lab(ResetPolicy.NONE), [TopicPartition("t", number) for number in range(6)]
    lab.positions.assign(parts, frozenset())
    lab.positions.look_up_unknown()
    refusals = {part: TopicAuthorizationFailed(f"partition t-{part.partition}: allow it") for part in parts[1:5]}
    lab.group.last.end(Starts(without=(parts[5],), refused=dict(refusals), waiting={parts[0]: "it has no leader"}))
    with pytest.raises(TopicAuthorizationFailed):
        lab.positions.take_starts()
    error = str(lab.positions.last_error)
    assert "no usable offset" in error
    assert "t-5" in error
    assert "partition t-1: allow it; partition t-2: allow it; and 2 more partitions" in error


def test_position_out_of_range_is_looked_up_without_committed_offsets() -> None:
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
    assert "50 offsets were skipped, from 10 up to but not including 60" in caplog.text


def test_deleted_offsets_are_a_gap_so_that_commits_get_past_them_without_a_record_behind() -> None:
    """Else each owner of an idle partition would meet the same gap, and count it, again."""
    lab = Lab().reading(ONE, OTHER)
    lab.lose(ONE)
    lab.found({ONE: 60})
    assert lab.positions.take_records(10).next_offsets == {ONE: 60}
    assert lab.positions.take_records(10).gaps == {}
    lab.lose(ONE)
    lab.found({ONE: 70})
    lab.fetch.read_ahead.put_end(lab.fetch.buffers[ONE], 72)
    assert lab.positions.take_records(10).gaps == {ONE: Gap(60, 72)}


def test_deleted_offsets_are_not_reported_to_a_call_that_takes_nothing() -> None:
    """Such a call only keeps the membership, and its result is ignored."""
    lab = Lab().reading(ONE, OTHER)
    lab.lose(ONE)
    lab.found({ONE: 60})
    assert lab.positions.take_records(0).gaps == {}
    assert lab.positions.take_records(10).next_offsets == {ONE: 60}


def test_deleted_offsets_are_no_gap_where_reading_has_gone_on_behind_them_or_was_sought() -> None:
    lab = Lab().reading(ONE, OTHER)
    for part in (ONE, OTHER):
        lab.lose(part)
        lab.found({part: 60})
    lab.fetch.deliver(ONE, 60, 2)
    lab.positions.seek(OTHER, 5)
    records = lab.positions.take_records(10)
    assert (records.next_offsets, records.gaps) == ({ONE: 62}, {})


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
    lab.positions.discard_partitions([ONE])
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


def test_call_that_names_a_partition_that_is_not_owned_changes_nothing() -> None:
    lab = Lab().reading(ONE)
    with pytest.raises(NotAssigned, match="t-1: currently not assigned"):
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
    lab.positions.discard_partitions([ONE])
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
