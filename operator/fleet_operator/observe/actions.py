"""What the operator does to groups' members, and the guard before any change in Kafka. On the observer's thread.

It reads the live state first and is safe to repeat; nobody else's members are ever touched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from fleet_consumer.net import Coordinator, KafkaError, NetworkClient
from fleet_consumer.wire.describe_groups import DescribeGroupsRequest
from fleet_consumer.wire.leave_group import LeaveGroupRequest, LeaveGroupRequestMember

CALL_SECONDS: Final = 10.0
LEAVE_REASON: Final = "the worker of this static member was removed by scaling down"


class AnotherClusterError(Exception):
    """Another Kafka cluster answers than the one that an action was decided for; nothing was done there."""


def require_cluster(client: NetworkClient, cluster_id: str | None) -> None:
    """Make sure that the brokers at hand are those of this cluster: addresses may have been edited since it was seen.

    Raises AnotherClusterError, and NetError.
    """
    found = client.metadata((), timeout_s=CALL_SECONDS).cluster_id
    if found != cluster_id or cluster_id is None:
        raise AnotherClusterError(f"decided for Kafka cluster {cluster_id}, and {found} answers: nothing is done")


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
