"""The few things the operator does to a Kafka cluster. They run on the observer's thread, one after the other.

Each reads the live state first and is safe to repeat; nobody else's topics or members are ever touched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from fleet_consumer.net import Coordinator, KafkaError, NetworkClient
from fleet_consumer.wire.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from fleet_consumer.wire.describe_groups import DescribeGroupsRequest
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.leave_group import LeaveGroupRequest, LeaveGroupRequestMember
from fleet_operator.observe import folding

CALL_SECONDS: Final = 10.0
BROKER_DEFAULT: Final = -1
LEAVE_REASON: Final = "the worker of this static member was removed by scaling down"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create; a replication factor of -1 is the cluster's default (KIP-464)."""

    name: str
    partitions: int
    replication_factor: int = BROKER_DEFAULT
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a broker did not do what was asked: a CamelCase reason and its own words."""

    reason: str
    message: str


def create_topic(client: NetworkClient, topic: NewTopic) -> Refusal | None:
    """Create a topic that may exist already, which is as good. Raises NetError when no broker answers in time."""
    wanted = CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=name, value=value) for name, value in topic.configs),
    )
    request = CreateTopicsRequest(topics=(wanted,), timeout_ms=int(CALL_SECONDS * 1000))
    (result,) = client.call(None, request, timeout_s=CALL_SECONDS).topics
    if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
        return None
    return Refusal(folding.reason_of(result.error_code), result.error_message or "the broker gave no reason")


def remove_members(client: NetworkClient, group_id: str, instance_ids: Collection[str]) -> Sequence[str]:
    """Take static members out of a group by instance id, and return those that were taken out.

    Only members that the group has at this moment are named to the broker. Raises NetError, or KafkaError when the
    coordinator is not to be had just now; the next reconcile asks again.
    """
    found = client.find_coordinators([group_id], timeout_s=CALL_SECONDS)[group_id]
    if not isinstance(found, Coordinator):
        raise found
    described = client.call(found.address, DescribeGroupsRequest(groups=(group_id,)), timeout_s=CALL_SECONDS)
    present = sorted(
        {
            member.group_instance_id
            for group in described.groups
            for member in group.members
            if member.group_instance_id is not None and member.group_instance_id in instance_ids
        }
    )
    if not present:
        return ()
    leaving = tuple(
        LeaveGroupRequestMember(member_id="", group_instance_id=instance, reason=LEAVE_REASON) for instance in present
    )
    response = client.call(found.address, LeaveGroupRequest(group_id=group_id, members=leaving), timeout_s=CALL_SECONDS)
    if response.error_code:
        raise KafkaError(response.error_code, f"group {group_id!r}")
    return [
        member.group_instance_id
        for member in response.members
        if member.group_instance_id is not None and not member.error_code
    ]
