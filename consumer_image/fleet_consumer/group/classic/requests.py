"""Requests of a classic member, filled in from settings and identity."""

from __future__ import annotations

from collections.abc import Mapping

from fleet_consumer.group.membership import GroupSettings
from fleet_consumer.group.messages import MemberIdentity, RebalanceAttempt
from fleet_consumer.group.metadata import PartitionsByTopic
from fleet_consumer.group.reasons import LENGTH_MAX
from fleet_consumer.wire.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartitions,
    encode_subscription,
)
from fleet_consumer.wire.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

SUBSCRIPTION_VERSION = 3
"""Version written; readers fall back to the newest that they know."""


def join_request(
    settings: GroupSettings, attempt: RebalanceAttempt, owned: PartitionsByTopic, user_data: Mapping[str, bytes | None]
) -> JoinGroupRequest:
    """Enter the group, or take part in its next rebalance. `owned` is kept meanwhile.

    `user_data` has one entry for each assignor, the preferred first. The subscription goes along once for each.
    """
    partitions = tuple(ConsumerProtocolTopicPartitions(topic=topic, partitions=owned[topic]) for topic in sorted(owned))
    return JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=round(settings.session_timeout_s * 1000),
        rebalance_timeout_ms=round(settings.rebalance_timeout_s * 1000),
        member_id=attempt.identity.member_id,
        group_instance_id=settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=tuple(
            JoinGroupRequestProtocol(
                name=name,
                metadata=encode_subscription(
                    ConsumerProtocolSubscription(
                        topics=attempt.topics,
                        user_data=data,
                        owned_partitions=partitions,
                        generation_id=attempt.identity.generation,
                        rack_id=settings.rack,
                    ),
                    SUBSCRIPTION_VERSION,
                ),
            )
            for name, data in user_data.items()
        ),
        reason=attempt.reason[:LENGTH_MAX],
    )


def sync_request(
    settings: GroupSettings, identity: MemberIdentity, assignments: tuple[SyncGroupRequestAssignment, ...]
) -> SyncGroupRequest:
    """Hand in the plan (leader) and receive the assignment."""
    return SyncGroupRequest(
        group_id=settings.group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=identity.protocol,
        assignments=assignments,
    )


def heartbeat_request(settings: GroupSettings, identity: MemberIdentity) -> HeartbeatRequest:
    """Renew the session."""
    return HeartbeatRequest(
        group_id=settings.group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=settings.instance_id,
    )


def leave_request(settings: GroupSettings, identity: MemberIdentity, reason: str) -> LeaveGroupRequest:
    """Leave the group; a static member by its instance id, otherwise the broker would keep its place (KIP-1092)."""
    member = LeaveGroupRequestMember(
        member_id=identity.member_id, group_instance_id=settings.instance_id, reason=reason[:LENGTH_MAX]
    )
    return LeaveGroupRequest(group_id=settings.group_id, members=(member,))
