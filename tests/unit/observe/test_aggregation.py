"""From answers to observations: unknown stays unknown, history reaches back, changes are told from noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolTopicPartitions,
    encode_assignment,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import DescribedGroup, DescribedGroupMember
from fleet_consumer.wire.offsets import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from fleet_operator.observe import aggregation
from fleet_operator.observe.aggregation import GroupFacts, TopicLog
from fleet_operator.observe.changes import differs, moved
from fleet_operator.observe.group_aggregation import GROUP_UNCONFIRMED_SECONDS, aggregate_group
from fleet_operator.planning.observation import (
    GroupObservation,
    ManagedTopic,
    MemberObservation,
    OffsetSample,
    OpenTransaction,
    RetryObservation,
    last_known_group,
)

KEY = ("flights", 0)


def described(state: str = "Stable", *, error: int = 0, assignment: bytes = b"") -> DescribedGroup:
    member = DescribedGroupMember(
        member_id="m-1",
        group_instance_id="ns.flights.abc-0",
        client_id="c",
        client_host="/10.0.0.1",
        member_metadata=b"",
        member_assignment=assignment,
    )
    return DescribedGroup(
        error_code=error,
        group_id="g",
        group_state=state,
        protocol_type="consumer",
        protocol_data="range",
        members=(member,) if not error else (),
    )


def owned(*partitions: int) -> bytes:
    topics = (ConsumerProtocolTopicPartitions(topic="flights", partitions=partitions),)
    return encode_assignment(ConsumerProtocolAssignment(assigned_partitions=topics), 3)


def test_group_that_answers_is_mirrored() -> None:
    log, failed = TopicLog(ends={KEY: 9}, starts={KEY: 0}), TopicLog(ends={("f", 0): 4}, starts={("f", 0): 1})
    facts = GroupFacts("g", 1, described(assignment=owned(2, 0, 1)), {KEY: 7}, log, failed, 1)
    seen = aggregate_group(facts, None, 100.0)
    assert (seen.committed, seen.end_offsets, seen.log_starts) == ({KEY: 7}, {KEY: 9}, {KEY: 0})
    assert (seen.state, seen.assignor, seen.coordinator_id, seen.failed_records) == ("Stable", "range", 1, 3)
    assert seen.members[0].partitions == {"flights": (0, 1, 2)}
    assert seen.error is None


@pytest.mark.parametrize(
    ("ends", "starts", "counted"),
    [
        ({0: 9, 1: 5}, {0: 2, 1: 5}, (7, 14)),
        ({0: 9}, {0: 2, 1: 5}, (None, None)),
        ({0: 9, 1: 5}, {0: 2}, (None, None)),
        ({0: 9, 1: 4}, {0: 2, 1: 5}, (None, None)),
        ({}, {}, (None, None)),
    ],
)
def test_failed_records_are_counted_when_every_partition_could_be_asked(
    ends: dict[int, int], starts: dict[int, int], counted: tuple[int | None, int | None]
) -> None:
    """Without one partition, or with the start of a topic that was created again, failures would be hidden."""
    ends_of, starts_of = ({("f", number): at for number, at in told.items()} for told in (ends, starts))
    failed = TopicLog(ends=ends_of, starts=starts_of)
    facts = GroupFacts("g", 1, described(), {}, failed=failed, failed_partitions=2)
    seen = aggregate_group(facts, None, 100.0)
    assert (seen.failed_records, seen.failed_end) == counted


def test_assignment_is_ignored_outside_stable() -> None:
    facts = GroupFacts("g", 1, described("PreparingRebalance", assignment=owned(0)), {})
    assert aggregate_group(facts, None, 1.0).members[0].partitions == {}


def test_assignment_of_another_library_is_no_error() -> None:
    facts = GroupFacts("g", 1, described(assignment=b"\x00"), {})
    seen = aggregate_group(facts, None, 1.0)
    assert seen.error is None
    assert seen.members[0].partitions == {}


def test_group_that_does_not_exist_yet_is_dead() -> None:
    facts = GroupFacts("g", 1, described("", error=ErrorCode.GROUP_ID_NOT_FOUND), {})
    assert aggregate_group(facts, None, 1.0).state == "Dead"


def test_unobservable_group_keeps_its_last_values_and_reports_the_reason() -> None:
    last = GroupObservation(group_id="g", observed_at=50.0, state="Stable", committed={KEY: 7})
    seen = aggregate_group(GroupFacts("g", error="CoordinatorLoadInProgress"), last, 100.0)
    assert seen == replace(last, error="CoordinatorLoadInProgress", failing_since=100.0, unconfirmed=True)


def test_unobservable_group_is_urgent_only_when_it_lasts() -> None:
    good = GroupObservation(group_id="g", observed_at=95.0, state="Stable", committed={KEY: 7})
    moving = GroupFacts("g", error="CoordinatorLoadInProgress")
    first = aggregate_group(moving, good, 100.0)
    later = aggregate_group(moving, first, 100.0 + GROUP_UNCONFIRMED_SECONDS - 1)
    lasting = aggregate_group(moving, later, 100.0 + GROUP_UNCONFIRMED_SECONDS)
    assert [seen.unconfirmed for seen in (first, later, lasting)] == [True, True, False]
    assert not differs(good, first)
    assert not differs(first, later)
    assert differs(later, lasting)
    assert not aggregate_group(moving, None, 100.0).unconfirmed


def test_partition_without_a_leader_shows_as_unknown_only_when_it_lasts() -> None:
    """Actions rest on what answered; a status is not rewritten twice because a partition gets another leader."""

    def seen_with(log: TopicLog, last: GroupObservation | None, at: float) -> GroupObservation:
        return aggregate_group(GroupFacts("g", 1, described(), {KEY: 7}, log=log), last, at)

    good = seen_with(TopicLog(ends={KEY: 9}, starts={KEY: 2}), None, 95.0)
    first = seen_with(TopicLog(), good, 100.0)
    later = seen_with(TopicLog(), first, 100.0 + GROUP_UNCONFIRMED_SECONDS - 1)
    lasting = seen_with(TopicLog(), later, 100.0 + GROUP_UNCONFIRMED_SECONDS)
    assert [seen.end_offsets for seen in (first, later, lasting)] == [{}, {}, {}]
    shown = [last_known_group(seen) for seen in (first, later, lasting)]
    assert [seen.end_offsets for seen in shown] == [{KEY: 9}, {KEY: 9}, {}]
    assert [seen.log_starts for seen in shown] == [{KEY: 2}, {KEY: 2}, {}]
    assert not moved(first, later)
    assert moved(later, lasting)
    assert last_known_group(good) is good
    again = seen_with(TopicLog(ends={KEY: 12}, starts={KEY: 2}), later, 120.0)
    assert (again.missing_ends, again.end_offsets) == ({}, {KEY: 12})


def test_end_that_was_last_known_before_an_outage_of_the_group_is_not_shown() -> None:
    good = GroupObservation(group_id="g", observed_at=95.0, state="Stable", end_offsets={KEY: 9})
    lasting = replace(good, error="CoordinatorNotAvailable", failing_since=20.0)
    assert aggregate_group(GroupFacts("g", 1, described(), {KEY: 7}), lasting, 100.0).missing_ends == {}
    moved = replace(lasting, unconfirmed=True)
    assert aggregate_group(GroupFacts("g", 1, described(), {KEY: 7}), moved, 100.0).missing_ends.keys() == {KEY}


def test_clock_that_is_set_back_does_not_prolong_an_unconfirmed_state() -> None:
    """Decisions wait during that time, and no status shows the failure."""
    good = GroupObservation(group_id="g", observed_at=7295.0, state="Stable", end_offsets={KEY: 9})
    moving, silent = GroupFacts("g", error="CoordinatorLoadInProgress"), GroupFacts("g", 1, described(), {KEY: 7})
    for facts in (moving, silent):
        first = aggregate_group(facts, good, 7300.0)
        later = aggregate_group(facts, first, 100.0)
        lasting = aggregate_group(facts, later, 100.0 + GROUP_UNCONFIRMED_SECONDS)
        unconfirmed = [seen.unconfirmed or bool(seen.missing_ends) for seen in (first, later, lasting)]
        assert unconfirmed == [True, True, False]


def test_group_that_was_never_seen_is_unknown_not_empty() -> None:
    seen = aggregate_group(GroupFacts("g", 1, described(error=ErrorCode.GROUP_AUTHORIZATION_FAILED), {}), None, 1.0)
    assert (seen.state, seen.error) == ("Unknown", "AuthorizationFailed")


def test_code_of_a_newer_broker_still_has_a_reason() -> None:
    assert aggregation.reason_of(9999) == "Error9999"
    assert aggregation.reason_of(ErrorCode.COORDINATOR_NOT_AVAILABLE) == "CoordinatorNotAvailable"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300))
def test_history_stays_small_in_order_and_keeps_the_newest(steps: list[int]) -> None:
    """Invariants: bounded, times and offsets never go back, the newest sample is there, the oldest is kept."""
    history: dict[tuple[str, int], tuple[OffsetSample, ...]] = {}
    end = 0
    for second, step in enumerate(steps):
        end += step
        history = aggregation.extend_history(history, {KEY: end}, float(second))
    samples = history[KEY]
    assert len(samples) <= aggregation.HISTORY_SAMPLES_MAX
    assert list(samples) == sorted(samples)
    assert samples[-1] == (len(steps) - 1, end)
    assert samples[0] == (0, steps[0])


def test_idle_hour_is_two_samples() -> None:
    history: dict[tuple[str, int], tuple[OffsetSample, ...]] = {}
    for second in range(3600):
        history = aggregation.extend_history(history, {KEY: 5}, float(second))
    assert history[KEY] == ((0.0, 5), (3599.0, 5))


def test_recreated_topic_starts_its_history_afresh() -> None:
    history = aggregation.extend_history({KEY: (OffsetSample(1.0, 500),)}, {KEY: 3}, 2.0)
    assert history[KEY] == ((2.0, 3),)


def test_moving_offsets_are_not_urgent() -> None:
    before = GroupObservation(group_id="g", observed_at=1.0, state="Stable", committed={KEY: 1}, end_offsets={KEY: 2})
    after = replace(before, observed_at=6.0, committed={KEY: 2})
    assert not differs(before, after)
    assert moved(before, after)
    assert not moved(before, replace(before, observed_at=6.0))
    assert differs(before, replace(before, state="PreparingRebalance"))


def test_due_records_are_urgent_only_without_workers() -> None:
    flow = RetryObservation(observed_at=1.0, state="Empty", waiting=0, due_lag=0)
    before = GroupObservation(group_id="g", observed_at=1.0, state="Stable", retry=flow)

    def after(**changes: Any) -> GroupObservation:
        return replace(before, retry=replace(flow, **changes))

    assert differs(before, after(waiting=1))
    assert not differs(after(waiting=1), after(waiting=2))
    assert differs(after(waiting=1), after(waiting=1, due_lag=1))
    assert moved(before, after(next_due_at=2.0))
    worker = (MemberObservation(member_id="m", instance_id=None, client_id="c", host="h"),)
    attended = after(members=worker)
    assert not differs(attended, after(members=worker, waiting=1, due_lag=1))
    assert moved(attended, after(members=worker, waiting=1, due_lag=1))
    assert differs(before, after(topics={"t": ManagedTopic(partitions=1)}))


def test_commit_beyond_the_end_counts_once_it_is_old() -> None:
    """A commit of this moment may be newer than the end that was asked for next to it."""

    def poll(last: GroupObservation | None, committed: int, end: int) -> GroupObservation:
        log = TopicLog(ends={KEY: end}, starts={KEY: 0})
        return aggregate_group(GroupFacts("g", 1, described(), {KEY: committed}, log), last, 1.0)

    good = poll(None, 90, 100)
    assert good.beyond_end == frozenset()
    moving = poll(good, 103, 101)
    assert moving.beyond_end == frozenset()
    assert poll(moving, 110, 105).beyond_end == frozenset()
    assert poll(moving, 103, 5).beyond_end == {KEY}, "the topic was created again"
    assert poll(None, 103, 5).beyond_end == {KEY}, "nothing is known of its age"
    assert poll(poll(None, 103, 5), 5, 5).beyond_end == frozenset()


def test_right_to_be_a_member_is_known_where_the_broker_says_so() -> None:
    group = DescribedGroup(
        error_code=0, group_id="g", group_state="Dead", protocol_type="", protocol_data="", members=()
    )
    reading, describing = 1 << 3 | 1 << 8, 1 << 8
    told = [aggregation.may_read(replace(group, authorized_operations=each)) for each in (reading, describing)]
    assert told == [True, False]
    assert aggregation.may_read(replace(group, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)) is False
    for unknown in (None, group, replace(group, authorized_operations=reading, error_code=ErrorCode.NOT_COORDINATOR)):
        assert aggregation.may_read(unknown) is None


def test_transaction_that_hangs_is_a_change_when_it_begins_to_when_much_more_waits_and_when_it_ends() -> None:
    def held(stood_s: float, end: int = 9) -> GroupObservation:
        opened = OpenTransaction(offset=5, since=1.0, stood_s=stood_s, end_offset=end)
        log = TopicLog(ends={KEY: 5}, starts={KEY: 0}, transactions={KEY: opened})
        return aggregate_group(GroupFacts("g", 1, described(), {KEY: 5}, log), None, 5.0)

    young, old = held(100.0), held(120.0)
    assert (young.hanging, list(old.hanging)) == ({}, [KEY])
    assert not differs(held(20.0), young)
    assert differs(young, old)
    assert not differs(old, held(500.0, 12))
    assert differs(old, held(500.0, 13))
    assert differs(old, replace(old, open_transactions={}))


def test_commit_that_a_coordinator_does_not_tell_is_not_taken_for_none() -> None:
    """Its ACLs may lag behind those of the broker that listed the topic's partitions."""

    def answer(group_id: str, *codes: int) -> OffsetFetchResponseGroup:
        partitions = tuple(
            OffsetFetchResponsePartitions(
                partition_index=number, committed_offset=-1 if code else 7, metadata="", error_code=code
            )
            for number, code in enumerate(codes)
        )
        topics = (OffsetFetchResponseTopics(name="orders", partitions=partitions),)
        return OffsetFetchResponseGroup(group_id=group_id, topics=topics)

    response = OffsetFetchResponse(
        groups=(answer("whole", 0, 0), answer("part", 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    )
    assert aggregation.positions(response) == {
        "whole": {("orders", 0): 7, ("orders", 1): 7},
        "part": aggregation.reason_of(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    }
