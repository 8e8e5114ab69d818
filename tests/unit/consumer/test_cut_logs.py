"""Positions in logs that were cut or created again, from the user's view: given up, checked, reported."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest

from fleet_consumer.consumer.resets import OutOfRangeReport, Truncation, TruncationReport
from fleet_consumer.consumer.start_lookups import LOGS_INTERVAL_S
from fleet_consumer.coordinator.lookups import LogsSeen, Start
from fleet_consumer.coordinator.starts import ResetPolicy, Starts
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.record import TopicPartition
from tests.unit.consumer.lab import HELD_BYTES_MAX, ONE, OTHER, Lab

FORMER, RECREATED = UUID(int=1), UUID(int=2)


def test_truncation_is_reported_apart_from_skipped_records(caplog: pytest.LogCaptureFixture) -> None:
    lab = Lab(ResetPolicy.LATEST).reading(ONE, OTHER)
    lab.fetch.deliver(ONE, 0, 10)
    lab.taken()
    lab.lose(ONE)
    lab.group.last.end(Starts({ONE: Start(7, 3)}, cut={ONE: 10}))
    lab.positions.take_starts()
    assert lab.fetch.commands[-1] == ("assign", ONE, 7, 3)
    assert lab.positions.out_of_range == OutOfRangeReport()
    assert lab.positions.truncations == TruncationReport(count=1, cut=3, last=Truncation(ONE, 10, 7))
    assert "partition t-0: 3 offsets were lost while the position was 10; reading continues at 7" in caplog.text


def test_committed_offset_of_a_cut_log_is_reported_too() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    lab.group.last.end(Starts({ONE: Start(7, 3)}, cut={ONE: 10}))
    lab.positions.take_starts()
    assert lab.positions.position(ONE) == 7
    assert lab.positions.truncations.cut == 3


def test_recreated_topic_is_reported_as_such_and_not_as_truncated() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    lab.group.last.end(Starts({ONE: Start(0, 0)}, cut={ONE: 10}, remade={ONE}))
    lab.positions.take_starts()
    last = Truncation(ONE, 10, 0, remade=True)
    assert lab.positions.truncations == TruncationReport(count=1, remade=1, cut=0, last=last)


def test_confirmed_position_is_not_reported_and_its_next_check_waits() -> None:
    """A broker that refuses what its log has must not be asked in a loop."""
    lab = Lab().reading(ONE)
    delays = []
    for _ in range(6):
        lab.lose(ONE)
        delays.append(lab.group.asked[-1][1]["delay_s"])
        lab.found({ONE: 0})
    assert lab.positions.out_of_range == OutOfRangeReport()
    assert lab.positions.truncations == TruncationReport()
    assert delays[0] == 0.0
    assert delays[1:] == sorted(set(delays[1:]))
    lab.fetch.deliver(ONE, 0, 1)
    lab.taken()
    lab.lose(ONE)
    assert lab.group.asked[-1][1]["delay_s"] == 0.0


def test_seek_back_keeps_the_epoch_that_detects_truncation_and_seek_ahead_has_none() -> None:
    lab = Lab().reading(ONE)
    lab.fetch.buffers[ONE].leader_epoch = 4
    lab.fetch.buffers[ONE].position = 9
    lab.positions.seek(ONE, 5)
    assert lab.fetch.commands[-1] == ("seek", ONE, 5, 4)
    lab.positions.seek(ONE, 6)
    assert lab.fetch.commands[-1] == ("seek", ONE, 6, -1)


def test_seek_back_while_the_log_is_unconfirmed_is_checked_like_the_position() -> None:
    lab = Lab().reading(ONE)
    lab.fetch.buffers[ONE].leader_epoch = 4
    lab.fetch.buffers[ONE].position = 100
    lab.lose(ONE)
    before = lab.group.last
    lab.positions.seek(ONE, 96)
    assert before.cancelled
    assert lab.group.asked[-1][1]["lost"] == {ONE: Start(96, 4)}
    lab.group.last.end(Starts({ONE: Start(90, 4)}, cut={ONE: 96}))
    lab.positions.take_starts()
    assert lab.positions.position(ONE) == 90


def reading_under(topic_id: UUID) -> Lab:
    lab = Lab(ResetPolicy.LATEST)
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    lab.group.last.end(Starts({ONE: Start(40, 3)}, ids={ONE: topic_id}))
    lab.positions.take_starts()
    return lab


def test_position_in_a_recreated_topic_is_reset_to_its_beginning() -> None:
    lab = reading_under(FORMER)
    assert lab.group.log_checks[-1][0] == {ONE: FORMER}
    lab.saw(LogsSeen({ONE: RECREATED}, frozenset({ONE}), {ONE: 0}))
    assert lab.positions.position(ONE) is None
    how = lab.group.asked[-1][1]
    assert (how["remade"], how["lost"]) == ({ONE}, {ONE: Start(40, 3)})
    lab.group.last.end(Starts({ONE: Start(0, 0)}, cut={ONE: 40}, remade={ONE}, ids={ONE: RECREATED}))
    lab.positions.take_starts()
    assert lab.fetch.commands[-2:] == [("unassign", {ONE}), ("assign", ONE, 0, 0)]
    assert lab.positions.truncations.remade == 1
    lab.saw(
        LogsSeen({ONE: RECREATED}, frozenset({ONE}), {ONE: 0})
    )  # the check had begun before the topic was found again
    assert lab.positions.position(ONE) == 0


def ids_of(lab: Lab, offset: int) -> Mapping[TopicPartition, UUID]:
    """Under which id a commit of this offset goes."""
    return lab.positions.topic_ids({ONE: OffsetAndMetadata(offset), OTHER: OffsetAndMetadata(offset)})


def test_position_is_of_the_topic_in_which_it_was_reached() -> None:
    lab = reading_under(FORMER)
    assert ids_of(lab, 40) == {ONE: FORMER}
    lab.saw(LogsSeen({ONE: RECREATED}, frozenset({ONE}), {ONE: 0}))
    assert ids_of(lab, 40) == {ONE: FORMER}
    lab.group.last.end(Starts({ONE: Start(0, 0)}, cut={ONE: 40}, remade={ONE}, ids={ONE: RECREATED}))
    lab.positions.take_starts()
    assert ids_of(lab, 0) == {ONE: RECREATED}
    assert ids_of(lab, 40) == {ONE: FORMER}  # of somebody who was still busy with the records before it
    lab.fetch.deliver(ONE, 0, 40)
    lab.taken()
    assert ids_of(lab, 40) == {ONE: RECREATED}
    lab.positions.seek(ONE, 10)
    assert ids_of(lab, 40) == {ONE: RECREATED}
    assert ids_of(lab, 41) == {ONE: FORMER}


def test_place_ahead_of_the_position_is_of_the_only_topic_that_was_ever_read() -> None:
    assert ids_of(reading_under(FORMER), 1_000) == {ONE: FORMER}


def test_topic_of_an_early_seek_is_looked_up_once_and_at_once() -> None:
    lab = Lab()
    lab.positions.assign([ONE], frozenset())
    lab.positions.seek(ONE, 5)
    lab.positions.take_starts()
    assert lab.group.log_checks[-1][0] == {ONE: None}
    assert ids_of(lab, 5) == {}
    lab.saw(LogsSeen())  # nobody answers, or the broker has no ids
    lab.saw(LogsSeen({ONE: FORMER}))
    assert ids_of(lab, 5) == {ONE: FORMER}
    assert lab.group.log_check_delays == [0.0, LOGS_INTERVAL_S, LOGS_INTERVAL_S]


def test_last_position_of_a_partition_that_was_given_back_is_of_the_topic_that_was_read() -> None:
    lab = reading_under(FORMER)
    lab.positions.stop_delivery([ONE])
    assert ids_of(lab, 40) == {ONE: FORMER}
    lab.positions.discard_partitions([ONE])
    assert ids_of(lab, 40) == {ONE: FORMER}


def test_failed_lookup_in_a_recreated_topic_is_repeated_as_such() -> None:
    lab = reading_under(FORMER)
    lab.saw(LogsSeen({ONE: RECREATED}, frozenset({ONE}), {ONE: 0}))
    lab.group.last.end(Starts(waiting={ONE: "it has no leader"}))
    lab.positions.take_starts()
    assert lab.group.asked[-1][1]["remade"] == {ONE}


def test_partition_that_comes_back_is_looked_up_with_the_id_that_its_topic_had() -> None:
    lab = reading_under(FORMER)
    lab.positions.stop_delivery([ONE])
    lab.positions.discard_partitions([ONE])
    lab.positions.assign([ONE], frozenset())
    lab.positions.look_up_unknown()
    assert lab.group.asked[-1][1]["former"] == {ONE: FORMER}


def sought_back_under(topic_id: UUID) -> Lab:
    lab = reading_under(topic_id)
    lab.positions.seek(ONE, 38)
    return lab


def test_place_that_was_sought_is_checked_against_a_later_election_and_goes_back_to_the_cut() -> None:
    lab = sought_back_under(FORMER)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    parts, how, check = lab.group.asked[-1]
    assert (parts, how["lost"]) == ((ONE,), {ONE: Start(38, 3)})
    assert lab.positions.position(ONE) == 38
    check.end(Starts({ONE: Start(30, 3)}, cut={ONE: 38}))
    lab.positions.take_starts()
    assert lab.positions.position(ONE) == 30
    assert lab.positions.truncations.cut == 8


def reads_on(lab: Lab, position: int, leader_epoch: int) -> None:
    buffer = lab.fetch.buffers[ONE]
    buffer.position, buffer.leader_epoch = position, leader_epoch


def test_records_of_a_later_leader_do_not_prove_the_place_before_them() -> None:
    """Without the check, the records from the truncation to the sought position are skipped."""
    lab = sought_back_under(FORMER)
    reads_on(lab, 45, 4)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    parts, how, check = lab.group.asked[-1]
    assert (parts, how["lost"]) == ((ONE,), {ONE: Start(38, 3)})
    reads_on(lab, 50, 4)
    check.end(Starts({ONE: Start(30, 3)}, cut={ONE: 38}))
    lab.positions.take_starts()
    assert lab.positions.position(ONE) == 30


def test_a_further_seek_back_does_not_prove_the_first_one() -> None:
    lab = sought_back_under(FORMER)
    reads_on(lab, 45, 4)
    lab.positions.seek(ONE, 41)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    assert lab.group.asked[-1][1]["lost"] == {ONE: Start(38, 3)}


def test_check_that_ended_before_a_seek_does_not_prove_the_place() -> None:
    """Its epochs may be old, because the user's thread may have handled records for minutes."""
    lab = reading_under(FORMER)
    lab.group.log_checks[-1][1].end(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 3}))
    lab.positions.seek(ONE, 38)
    lab.positions.take_starts()
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    assert lab.group.asked[-1][1]["lost"] == {ONE: Start(38, 3)}


def test_check_that_began_after_a_seek_proves_the_place_in_the_leaders_own_epoch() -> None:
    lab = sought_back_under(FORMER)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 3}))
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 3}))
    asked = len(lab.group.asked)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    assert len(lab.group.asked) == asked, "librdkafka checks later elections"


@pytest.mark.parametrize(("position", "goes_on"), [(40, 36), (36, 36), (34, 34)])
def test_place_that_was_read_again_without_the_user_is_checked(position: int, goes_on: int) -> None:
    """Records between `position` and the truncation were read ahead but not handed out; they are not skipped."""
    lab = reading_under(FORMER)
    reads_on(lab, position, 3)
    lab.fetch.sought.record(lab.fetch.buffers[ONE], (40, 3))
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    assert lab.group.asked[-1][1]["lost"] == {ONE: Start(40, 3)}
    lab.group.last.end(Starts({ONE: Start(36, 3)}, cut={ONE: 40}))
    lab.positions.take_starts()
    assert lab.positions.position(ONE) == goes_on


def test_place_after_a_long_pause_is_checked_if_records_behind_it_were_dropped() -> None:
    lab = reading_under(FORMER)
    lab.positions.pause((ONE,))
    lab.fetch.deliver(ONE, 40, 1, value=bytes(2 * HELD_BYTES_MAX))
    lab.taken()
    lab.positions.resume((ONE,))
    assert lab.fetch.commands[-2:] == [("seek", ONE, 40, 3), ("unhold", ONE)]
    reads_on(lab, 45, 4)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    assert lab.group.asked[-1][1]["lost"] == {ONE: Start(40, 3)}


def test_place_is_checked_once_whatever_finds_the_cut_and_not_after_a_seek_to_an_end() -> None:
    lab = sought_back_under(FORMER)
    lab.lose(ONE)
    lab.group.last.end(Starts({ONE: Start(30, 3)}, cut={ONE: 38}))
    lab.positions.take_starts()
    lab.positions.seek(ONE, 29)
    lab.positions.seek_to_edge((ONE,), ResetPolicy.LATEST)
    lab.found({ONE: 60})
    asked = len(lab.group.asked)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    assert len(lab.group.asked) == asked
    assert lab.positions.truncations.count == 1


def test_valid_place_is_read_on_and_not_checked_again() -> None:
    lab = sought_back_under(FORMER)
    before = list(lab.fetch.commands)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    lab.group.last.end(Starts({ONE: Start(38, 3)}))
    lab.positions.take_starts()
    asked = len(lab.group.asked)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 5}))
    assert len(lab.group.asked) == asked
    assert lab.fetch.commands == before


def test_check_without_an_answer_is_made_again() -> None:
    lab = sought_back_under(FORMER)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    lab.group.last.end(Starts(waiting={ONE: "it has no leader"}))
    lab.positions.take_starts()
    asked = len(lab.group.asked)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    assert len(lab.group.asked) == asked + 1


def test_position_without_a_seek_is_left_to_librdkafkas_own_check() -> None:
    lab = reading_under(FORMER)
    asked = len(lab.group.asked)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    assert len(lab.group.asked) == asked


def test_check_that_ends_after_a_seek_changes_nothing() -> None:
    lab = sought_back_under(FORMER)
    lab.saw(LogsSeen({ONE: FORMER}, frozenset(), {ONE: 4}))
    lab.positions.seek(ONE, 5)
    lab.group.last.end(Starts({ONE: Start(30, 3)}, cut={ONE: 38}))
    lab.positions.take_starts()
    assert lab.positions.position(ONE) == 5


def test_unanswered_check_changes_nothing_and_is_repeated() -> None:
    lab = reading_under(FORMER)
    log_checks = len(lab.group.log_checks)
    lab.saw(LogsSeen())
    assert lab.positions.position(ONE) == 40
    assert len(lab.group.log_checks) == log_checks + 1
