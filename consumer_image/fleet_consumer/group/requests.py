"""The group's requests, filled in from settings and identity."""

from __future__ import annotations

from fleet_consumer.assignors import Assignor
from fleet_consumer.group.messages import MemberIdentity
from fleet_consumer.group.partitions import PartitionsByTopic
from fleet_consumer.group.planning import offered_protocols
from fleet_consumer.group.reasons import shorten
from fleet_consumer.group.settings import GroupSettings
from fleet_consumer.wire.consumer_protocol import PROTOCOL_TYPE
from fleet_consumer.wire.describe_groups import DescribeGroupsRequest
from fleet_consumer.wire.find_coordinator import GROUP_KEY_TYPE, FindCoordinatorRequest
from fleet_consumer.wire.heartbeat import HeartbeatRequest
from fleet_consumer.wire.join_group import JoinGroupRequest
from fleet_consumer.wire.leave_group import LeaveGroupRequest, LeaveGroupRequestMember
from fleet_consumer.wire.sync_group import SyncGroupRequest, SyncGroupRequestAssignment


def lookup_request(settings: GroupSettings) -> FindCoordinatorRequest:
    """Who coordinates the group (KIP-699's form, which all supported brokers know)."""
    return FindCoordinatorRequest(key_type=GROUP_KEY_TYPE, coordinator_keys=(settings.group_id,))


def join_request(
    settings: GroupSettings,
    identity: MemberIdentity,
    assignors: tuple[Assignor, ...],
    topics: tuple[str, ...],
    owned: PartitionsByTopic,
    reason: str,
) -> JoinGroupRequest:
    """Enter the group, or take part in its next rebalance, telling what is `owned` and will be kept meanwhile.

    Raises AssignorFailed.
    """
    return JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=round(settings.session_timeout_s * 1000),
        rebalance_timeout_ms=round(settings.rebalance_timeout_s * 1000),
        member_id=identity.member_id,
        group_instance_id=settings.instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=offered_protocols(assignors, topics, owned=owned, generation=identity.generation, rack=settings.rack),
        reason=shorten(reason),
    )


def sync_request(
    settings: GroupSettings, identity: MemberIdentity, assignments: tuple[SyncGroupRequestAssignment, ...]
) -> SyncGroupRequest:
    """Hand out (leader) and receive the assignment."""
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
    """This member lives."""
    return HeartbeatRequest(
        group_id=settings.group_id,
        generation_id=identity.generation,
        member_id=identity.member_id,
        group_instance_id=settings.instance_id,
    )


def old_plan_request(settings: GroupSettings) -> DescribeGroupsRequest:
    """What every member of the group was given."""
    return DescribeGroupsRequest(groups=(settings.group_id,))


def leave_request(settings: GroupSettings, identity: MemberIdentity, reason: str) -> LeaveGroupRequest:
    """This member goes; a static one by its instance id, or the broker would keep its place (KIP-1092)."""
    member = LeaveGroupRequestMember(
        member_id=identity.member_id, group_instance_id=settings.instance_id, reason=shorten(reason)
    )
    return LeaveGroupRequest(group_id=settings.group_id, members=(member,))
