"""Commits that name topics by id, in virtual time: a topic that took another's name does not get its positions."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest

from fleet_consumer.group import errors
from fleet_consumer.group.classic.states import State
from fleet_consumer.group.commits import UNKNOWN_TOPIC_PATIENCE_S
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.messages import Commit, CommitRequested, ForLookup
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.offsets import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from fleet_consumer.wire.schema import ZERO_UUID
from tests.unit.group.lab import ForCommit, Lab, lookup_answer

ONE, TWO, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
ID, FORMER, OTHERS = UUID(int=1), UUID(int=2), UUID(int=3)
GONE = ErrorCode.UNKNOWN_TOPIC_ID


def commit(
    lab: Lab, ids: Mapping[TopicPartition, UUID], *unknown: TopicPartition, patience_s: float | None = 30.0
) -> None:
    """Commit these partitions, of some of which the topic's id is not known."""
    deadline = None if patience_s is None else lab.now + patience_s
    offsets = dict.fromkeys([*ids, *unknown], OffsetAndMetadata(7))
    lab.feed(CommitRequested(Commit(offsets, deadline, ticket=object(), ids=ids)))


def answer(lab: Lab, codes: Mapping[UUID, int]) -> None:
    """As version 10 answers: partition 0 of topics without names."""
    topics = tuple(
        OffsetCommitResponseTopic(
            topic_id=topic_id, partitions=(OffsetCommitResponsePartition(partition_index=0, error_code=code),)
        )
        for topic_id, code in codes.items()
    )
    lab.answer(ForCommit, OffsetCommitResponse(topics=topics))


def answer_until_told(lab: Lab, codes: Mapping[UUID, int]) -> Exception | None:
    """Answer every try the same until the commit ends; how it ended."""
    told, tries = len(lab.committed()), 0
    while len(lab.committed()) == told:
        before = lab.count(ForCommit)
        answer(lab, codes)
        tries += 1
        assert tries < 100, "it goes on indefinitely"
        if len(lab.committed()) == told:
            lab.run_for(2.0)
            assert lab.count(ForCommit) == before + 1
    return lab.committed()[-1]


def test_commit_names_topics_by_the_ids_under_which_they_were_read() -> None:
    lab = Lab().stable()
    commit(lab, {ONE: ID, TWO: FORMER, OTHER: OTHERS})
    request = lab.request(ForCommit)
    named = [
        (topic.name, topic.topic_id, [part.partition_index for part in topic.partitions]) for topic in request.topics
    ]
    assert named == [("t", ID, [0]), ("t", FORMER, [1]), ("u", OTHERS, [0])]
    assert request.version_max == 10


def test_commit_uses_names_while_any_id_is_unknown() -> None:
    lab = Lab().stable()
    commit(lab, {ONE: ID}, OTHER)
    request = lab.request(ForCommit)
    assert [(topic.name, topic.topic_id) for topic in request.topics] == [("t", ID), ("u", ZERO_UUID)]
    assert request.version_max == 9


def test_answer_by_id_is_about_the_topic_of_that_id() -> None:
    lab = Lab().stable()
    commit(lab, {ONE: ID, OTHER: OTHERS})
    answer(lab, {ID: 0, OTHERS: ErrorCode.OFFSET_METADATA_TOO_LARGE})
    (error,) = lab.committed()
    assert isinstance(error, errors.CommitRefused)
    assert "not committed: u-0: OFFSET_METADATA_TOO_LARGE" in str(error)


def test_answer_with_an_unrequested_id_still_ends_the_commit() -> None:
    lab = Lab().stable()
    commit(lab, {ONE: ID})
    assert isinstance(answer_until_told(lab, {UUID(int=9): GONE}), errors.TopicDeleted)


def test_position_of_a_topic_that_is_gone_is_dropped_after_a_while_and_the_member_stays() -> None:
    lab = Lab().stable()
    began = lab.now
    commit(lab, {ONE: ID, OTHER: OTHERS})
    error = answer_until_told(lab, {ID: GONE, OTHERS: 0})
    assert isinstance(error, errors.TopicDeleted)
    assert isinstance(error, errors.CommitRefused)
    assert error.reason == "TopicDeleted"
    assert "not committed: t-0: UNKNOWN_TOPIC_ID" in str(error)
    assert "u-0" not in str(error)
    assert UNKNOWN_TOPIC_PATIENCE_S <= lab.now - began <= UNKNOWN_TOPIC_PATIENCE_S + 3.0
    assert lab.is_in(State.STABLE)
    assert not lab.machine.commits_pending


def test_commit_of_a_topic_that_the_broker_has_not_heard_of_yet_is_stored_when_it_has() -> None:
    lab = Lab().stable()
    for _ in range(2):  # the first is over and done with when the second comes
        commit(lab, {ONE: ID})
        answer(lab, {ID: GONE})
        lab.run_for(UNKNOWN_TOPIC_PATIENCE_S - 1)
        answer(lab, {ID: 0})
    assert lab.committed() == [None, None]


def test_later_commit_of_a_topic_that_is_gone_ends_with_its_first_answer() -> None:
    lab = Lab().stable()
    commit(lab, {ONE: ID})
    answer_until_told(lab, {ID: GONE})
    tries = lab.count(ForCommit)
    commit(lab, {ONE: ID})
    answer(lab, {ID: GONE})
    assert [type(error) for error in lab.committed()] == [errors.TopicDeleted] * 2
    assert lab.count(ForCommit) == tries + 1


def test_topic_that_is_only_new_is_not_taken_for_gone_with_one_that_is() -> None:
    lab = Lab().stable()
    commit(lab, {ONE: ID})
    answer_until_told(lab, {ID: GONE})
    commit(lab, {ONE: ID, OTHER: OTHERS})
    answer(lab, {ID: GONE, OTHERS: GONE})
    assert len(lab.committed()) == 1
    lab.run_for(1.0)
    answer(lab, {ID: GONE, OTHERS: 0})
    assert "not committed: t-0: UNKNOWN_TOPIC_ID" in str(lab.committed()[1])


def test_commits_without_retries_report_a_topic_as_gone_once_it_was_unknown_for_a_while() -> None:
    lab = Lab().stable()
    for wait_s in (0.0, UNKNOWN_TOPIC_PATIENCE_S):
        lab.run_for(wait_s)
        commit(lab, {ONE: ID}, patience_s=None)
        answer(lab, {ID: GONE})
    assert [type(error) for error in lab.committed()] == [errors.RetriableCommitFailed, errors.TopicDeleted]


@pytest.mark.parametrize("state", ["stable", "revoking"])
def test_commit_ends_with_its_own_shorter_timeout(state: str) -> None:
    lab: Lab = getattr(Lab(), state)()
    commit(lab, {ONE: ID}, patience_s=2.0)
    began = lab.now
    answer_until_told(lab, {ID: GONE})
    assert lab.now - began <= 4.0


def test_commit_without_a_membership_is_by_id_too() -> None:
    lab = Lab()
    lab.feed(CommitRequested(Commit({ONE: OffsetAndMetadata(7)}, lab.now + 30, object(), alone=True, ids={ONE: ID})))
    lab.answer(ForLookup, lookup_answer())
    lab.run_for(1.0)
    assert lab.request(ForCommit).topics[0].topic_id == ID
    assert isinstance(answer_until_told(lab, {ID: GONE}), errors.TopicDeleted)
    assert lab.is_in(State.IDLE)
