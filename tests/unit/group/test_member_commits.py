"""Commits of a member and of a consumer without a membership, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fleet_consumer.group import errors
from fleet_consumer.group.classic.states import State
from fleet_consumer.group.commits import UNANSWERED_WORDS, commit_parts, judge
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.messages import (
    ForLookup,
    Send,
)
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.offsets import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tests.unit.group.lab import (
    ME,
    ForCommit,
    Lab,
    commit_answer,
    lookup_answer,
)


def test_commit_carries_generation_member_and_epoch() -> None:
    lab = Lab(instance_id="a").committing()
    request = lab.request(ForCommit)
    assert (request.generation_id_or_member_epoch, request.member_id, request.group_instance_id) == (1, ME, "a")
    part = request.topics[0].partitions[0]
    assert (request.topics[0].name, part.partition_index, part.committed_offset) == ("t", 0, 7)


def test_waiting_commit_is_sent_again_to_the_new_coordinator() -> None:
    lab = Lab().committing()
    lab.fail(ForCommit)
    lab.run_for(0.2)
    lab.answer(ForLookup, lookup_answer(address=("other", 1)))
    lab.run_for(0.5)
    assert lab.asked(ForCommit).address == ("other", 1)
    lab.answer(ForCommit, commit_answer())
    assert lab.committed() == [None]


def test_waiting_commit_ends_unknown_when_its_time_is_up() -> None:
    lab = Lab().committing()
    lab.fail(ForCommit)
    lab.run_for(11.0)
    assert [type(error) for error in lab.committed()] == [errors.RetriableCommitFailed]


def test_commit_for_a_topic_that_stays_unknown_is_refused_after_a_while() -> None:
    """Java would retry until the caller's own timer ends."""
    lab = Lab().committing()
    for _ in range(100):
        if lab.committed():
            break
        lab.answer(ForCommit, commit_answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        lab.run_for(1.0)
    assert [type(error) for error in lab.committed()] == [errors.CommitRefused]
    assert lab.now < 110.0


def commit_answers(codes: Mapping[TopicPartition, int]) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=tuple(
            OffsetCommitResponseTopic(
                name=part.topic,
                partitions=(OffsetCommitResponsePartition(partition_index=part.partition, error_code=code),),
            )
            for part, code in codes.items()
        )
    )


def test_commit_that_is_not_allowed_names_the_topics_that_are_refused() -> None:
    lab = Lab().committing()
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    codes = {TopicPartition("t", 0): 0, TopicPartition("secret", 0): refused, TopicPartition("secret", 1): refused}
    lab.answer(ForCommit, commit_answers(codes))
    (error,) = lab.committed()
    assert isinstance(error, errors.TopicAuthorizationFailed)
    assert "topics secret: TOPIC_AUTHORIZATION_FAILED" in str(error)
    assert "allow the principal Read" in str(error)


def test_commit_that_is_refused_in_part_tells_what_is_stored() -> None:
    lab = Lab().committing()
    large, unknown = ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = {TopicPartition("t", 0): 0, TopicPartition("t", 1): large, TopicPartition("t", 2): unknown}
    lab.answer(ForCommit, commit_answers(codes))
    (error,) = lab.committed()
    assert isinstance(error, errors.CommitRefused)
    assert error.not_committed == {
        TopicPartition("t", 1): errors.Refusal(
            "OFFSET_METADATA_TOO_LARGE (12); shorten the metadata below the broker's offset.metadata.max.bytes", True
        ),
        TopicPartition("t", 2): errors.Refusal("UNKNOWN_TOPIC_OR_PARTITION (3)", False),
    }


def test_partition_that_the_answer_leaves_out_is_not_stored_and_committed_again() -> None:
    lab = Lab().committing()
    tries = lab.count(ForCommit)
    lab.answer(ForCommit, commit_answers({}))
    assert lab.committed() == []
    lab.run_for(2.0)
    assert lab.count(ForCommit) == tries + 1
    lab.answer(ForCommit, commit_answer())
    assert lab.committed() == [None]


def test_asynchronous_commit_tells_which_partitions_the_answer_leaves_out() -> None:
    lab = Lab().stable()
    lab.commit(sync=False)
    lab.answer(ForCommit, commit_answers({TopicPartition("other", 0): 0}))
    (error,) = lab.committed()
    assert isinstance(error, errors.RetriableCommitFailed)
    assert "lacks partitions" in str(error)
    assert error.not_committed == {TopicPartition("t", 0): errors.Refusal(UNANSWERED_WORDS, False)}


def test_graver_code_counts_before_what_the_answer_leaves_out_and_both_are_not_stored() -> None:
    large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    offsets = {TopicPartition("t", number): OffsetAndMetadata(1) for number in range(3)}
    judgement = judge(commit_answers({TopicPartition("t", 0): 0, TopicPartition("t", 1): large}), offsets, {})
    assert (judgement.code, judgement.partitions) == (large, (TopicPartition("t", 1),))
    assert judgement.refused.keys() == {TopicPartition("t", 1), TopicPartition("t", 2)}


@pytest.mark.parametrize(("metadata", "most"), [("", 1000), ("x" * 4000, 32)], ids=["short", "long"])
def test_commit_of_many_partitions_is_cut_into_batches_that_the_broker_takes(metadata: str, most: int) -> None:
    offsets = {TopicPartition("t", number): OffsetAndMetadata(number, -1, metadata) for number in range(2_500)}
    parts = list(commit_parts(offsets))
    assert {each: entry for part in parts for each, entry in part.items()} == offsets
    assert sum(map(len, parts)) == 2_500
    assert {len(part) for part in parts[:-1]} == {most}
    assert list(commit_parts({})) == []


def test_commit_that_is_refused_names_the_partitions_and_not_thousands_of_them() -> None:
    lab = Lab().committing()
    codes = {TopicPartition("t", number): ErrorCode.OFFSET_METADATA_TOO_LARGE for number in range(2_000)}
    lab.answer(ForCommit, commit_answers(codes))
    (error,) = lab.committed()
    assert isinstance(error, errors.CommitRefused)
    assert "t-0, t-1," in str(error)
    assert "and 1980 more: OFFSET_METADATA_TOO_LARGE" in str(error)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("subscribed", errors.CommitFailed),
        ("joining", errors.RebalanceInProgress),
        ("planning", errors.RebalanceInProgress),
        ("syncing", errors.RebalanceInProgress),
    ],
)
def test_commit_outside_a_generation_is_refused_here(state: str, error: type[Exception]) -> None:
    lab: Lab = getattr(Lab(), state)()
    lab.commit()
    assert [type(told) for told in lab.committed()] == [error]
    assert lab.count(ForCommit) == 0


def test_commit_of_a_consumer_without_a_membership_waits_for_the_coordinator_and_carries_no_generation() -> None:
    lab = Lab(instance_id="a")
    commits = [lab.commit(sync=False, alone=True) for _ in range(2)]
    lab.answer(ForLookup, lookup_answer())
    requests: list[Any] = [action.request for action in lab.of(Send) if isinstance(action.context, ForCommit)]
    assert [action.context.commit for action in lab.of(Send) if isinstance(action.context, ForCommit)] == commits
    assert {(each.generation_id_or_member_epoch, each.member_id, each.group_instance_id) for each in requests} == {
        (-1, "", None)
    }
    assert lab.state is State.IDLE


def test_commit_without_a_membership_to_a_group_that_has_members_fails_and_changes_nothing() -> None:
    lab = Lab()
    lab.commit(alone=True)
    lab.answer(ForLookup, lookup_answer())
    lab.run_for(1)
    lab.answer(ForCommit, commit_answer(ErrorCode.UNKNOWN_MEMBER_ID))
    (error,) = lab.committed()
    assert isinstance(error, errors.CommitFailed)
    assert "the group has members" in str(error)
    assert lab.state is State.IDLE


def test_commit_without_a_membership_that_met_a_lost_coordinator_is_sent_to_the_next() -> None:
    lab = Lab()
    lab.commit(alone=True)
    lab.answer(ForLookup, lookup_answer())
    lab.run_for(1)
    lab.answer(ForCommit, commit_answer(ErrorCode.NOT_COORDINATOR))
    lab.run_for(1)
    lab.answer(ForLookup, lookup_answer())
    lab.run_for(1)
    lab.answer(ForCommit, commit_answer())
    assert lab.committed() == [None]


def test_commit_without_a_membership_and_without_a_coordinator_ends_unknown() -> None:
    lab = Lab()
    lab.commit(sync=False, alone=True)
    lab.run_for(lab.settings.request_timeout_s + 5)
    assert [type(error) for error in lab.committed()] == [errors.RetriableCommitFailed]
