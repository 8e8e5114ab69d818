"""Commits: building the request, and judging the answer partition by partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from fleet_consumer.group.classification import Api, Rule, Verdict, rule_for
from fleet_consumer.group.messages import Commit, MemberIdentity
from fleet_consumer.group.settings import GroupSettings
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from fleet_consumer.wire.schema import ZERO_UUID

UNKNOWN_TOPIC_PATIENCE_S = 5.0
"""How long a commit for a topic that the broker does not know is retried; Java retries until its own timer ends, and
so hangs for a minute on a topic that was deleted. By name the time runs from the commit on, by id from the first such
answer about the id: ids are never given twice, so what was found out about one holds for later commits, too."""

_GRAVITY = (
    Verdict.FATAL,
    Verdict.RESET_MEMBER,
    Verdict.RESET_GENERATION,
    Verdict.REJOIN,
    Verdict.COORDINATOR_LOST,
    Verdict.REFUSED,
    Verdict.RETRY,
    Verdict.OK,
)
"""Which verdict wins when partitions of one commit got different ones: the one that changes most."""


@dataclass(frozen=True, slots=True)
class CommitJudgement:
    """The verdict on a whole commit: its rule, the code behind it, and the partitions that got it."""

    rule: Rule
    code: int
    partitions: tuple[TopicPartition, ...]


def commit_request(settings: GroupSettings, identity: MemberIdentity, commit: Commit) -> OffsetCommitRequest:
    """The request that stores a commit as this member of this generation, or as nobody's while the group is empty.

    Topics go by id if the broker takes ids and all of them are known, else all by name, as in Java's client. A commit
    is not split in two: the coordinator writes one request as a whole, and it has one outcome. An id is unknown where
    brokers have none (before Kafka 2.8, where none is taken either), or for partitions that were not read.
    """
    topics: dict[tuple[str, UUID], list[OffsetCommitRequestPartition]] = {}
    for part, entry in commit.offsets.items():
        topic, partition = part
        topics.setdefault((topic, commit.ids.get(part, ZERO_UUID)), []).append(
            OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=entry.offset,
                committed_leader_epoch=entry.leader_epoch,
                committed_metadata=entry.metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=settings.group_id,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=settings.instance_id if identity.valid else None,
        topics=tuple(
            OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=tuple(parts))
            for (topic, topic_id), parts in topics.items()
        ),
    )


def judge(response: OffsetCommitResponse, ids: Mapping[TopicPartition, UUID]) -> CommitJudgement:
    """The gravest verdict among the partitions. `ids` are the commit's, for an answer that has no names."""
    names = {topic_id: part.topic for part, topic_id in ids.items()}
    by_code: dict[int, list[TopicPartition]] = {}
    for topic in response.topics:
        name = topic.name or names.get(topic.topic_id, str(topic.topic_id))
        for part in topic.partitions:
            by_code.setdefault(part.error_code, []).append(TopicPartition(name, part.partition_index))
    judgements = [
        CommitJudgement(rule_for(Api.OFFSET_COMMIT, code), code, tuple(parts)) for code, parts in by_code.items()
    ]
    stored = CommitJudgement(rule_for(Api.OFFSET_COMMIT, ErrorCode.NONE), ErrorCode.NONE, ())
    return min(judgements, key=lambda judgement: _GRAVITY.index(judgement.rule.verdict), default=stored)
