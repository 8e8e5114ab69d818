"""Commits: building the request, and judging the answer partition by partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet_consumer.group.classification import Api, Rule, Verdict, rule_for
from fleet_consumer.group.membership import OffsetAndMetadata
from fleet_consumer.group.messages import Identity
from fleet_consumer.group.settings import GroupSettings
from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

UNKNOWN_TOPIC_PATIENCE_S = 5.0
"""How long a commit for a topic that the broker does not know is retried; Java retries until its own timer ends, and
so hangs for a minute on a topic that was deleted."""

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


def commit_request(
    settings: GroupSettings, identity: Identity, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> OffsetCommitRequest:
    """The request that stores `offsets` as this member of this generation."""
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), entry in offsets.items():
        topics.setdefault(topic, []).append(
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
        group_instance_id=settings.instance_id,
        topics=tuple(OffsetCommitRequestTopic(name=topic, partitions=tuple(parts)) for topic, parts in topics.items()),
    )


def judge(response: OffsetCommitResponse) -> CommitJudgement:
    """The gravest verdict among the partitions."""
    by_code: dict[int, list[TopicPartition]] = {}
    for topic in response.topics:
        for part in topic.partitions:
            by_code.setdefault(part.error_code, []).append(TopicPartition(topic.name, part.partition_index))
    judgements = [
        CommitJudgement(rule_for(Api.OFFSET_COMMIT, code), code, tuple(parts)) for code, parts in by_code.items()
    ]
    stored = CommitJudgement(rule_for(Api.OFFSET_COMMIT, ErrorCode.NONE), ErrorCode.NONE, ())
    return min(judgements, key=lambda judgement: _GRAVITY.index(judgement.rule.verdict), default=stored)
