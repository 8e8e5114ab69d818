"""Committed offsets of one Kafka group, read and set. Runs on the observer's thread; blocks.

Offsets are set as an administrator does, without a generation: the coordinator itself refuses that while the group has
members. The commits carry no mark of a worker, so workers begin a new reading of each partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleet_consumer.net import BrokerAddress, Coordinator, KafkaError, NetworkClient
from fleet_consumer.wire.admin.list_groups import ListedGroup, ListGroupsRequest
from fleet_consumer.wire.describe_groups import DescribedGroup, DescribeGroupsRequest
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.list_offsets import EARLIEST, LATEST
from fleet_operator.observe import batches, folding
from fleet_operator.observe.log_offsets import by_leader, read_offsets, read_times
from fleet_operator.planning.offsets.records import Committed, OffsetsByTopic
from fleet_operator.planning.offsets.targets import GroupOffsets, Member, Partition

CALL_SECONDS: Final = 10.0
CLASSIC_TYPES: Final = frozenset({"", "classic"})


def read_group(
    client: NetworkClient, group_id: str, topics: tuple[str, ...], time_ms: int | None, *, read_committed: bool
) -> GroupOffsets:
    """The group, its offsets in these topics, and what the brokers have there. Raises NetError and KafkaError.

    With `read_committed` ends are those of readers that leave out open transactions. Ends are asked for before times: a
    record that arrives between the two is behind the end then, where a partition without a record of that time goes on.
    """
    described = _describe(client, group_id)
    other = _other_type(client, group_id) if described.group_state in ("", "Dead") else None
    metadata = client.metadata(sorted(topics), timeout_s=CALL_SECONDS)
    refused = next((t for t in metadata.topics if t.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)), None)
    if refused is not None:
        raise KafkaError(refused.error_code, f"topic {refused.name!r}")
    counts = {topic.name: len(topic.partitions) for topic in metadata.topics if topic.name and not topic.error_code}
    led = by_leader(client, metadata, tuple(topic.name for topic in metadata.topics if topic.name is not None))
    ends = read_offsets(client, led, LATEST, read_committed=read_committed)
    found = {} if time_ms is None else read_times(client, led, time_ms, read_committed=read_committed)
    return GroupOffsets(
        state=described.group_state if other is None else other.group_state,
        group_type="" if other is None else other.group_type.lower(),
        members=tuple(Member(each.group_instance_id, each.client_id) for each in described.members),
        counts=counts,
        committed={key: each.offset for key, each in _committed(client, group_id, counts).items()},
        starts=read_offsets(client, led, EARLIEST, read_committed=False),
        ends=ends,
        found=found,
    )


def commit(client: NetworkClient, group_id: str, wanted: OffsetsByTopic, mark: str) -> dict[Partition, str]:
    """Set these offsets, with the mark as metadata; returns the partitions that the coordinator refused, with its
    reasons. Raises NetError; some are set then, perhaps, and it may be repeated."""
    coordinator, refusals = _coordinator(client, group_id), dict[Partition, str]()
    for request in batches.offset_commit_requests(group_id, wanted, mark):
        answer = client.call(coordinator, request, timeout_s=CALL_SECONDS)
        refusals |= {
            (topic.name, partition.partition_index): folding.reason_of(partition.error_code)
            for topic in answer.topics
            for partition in topic.partitions
            if partition.error_code
        }
    return refusals


def read_committed(client: NetworkClient, group_id: str, wanted: OffsetsByTopic) -> dict[Partition, Committed]:
    """The commits of the wanted partitions. Raises NetError and KafkaError."""
    counts = {topic: max(offsets) + 1 for topic, offsets in wanted.items() if offsets}
    return _committed(client, group_id, counts)


def _describe(client: NetworkClient, group_id: str) -> DescribedGroup:
    request = DescribeGroupsRequest(groups=(group_id,))
    (group,) = client.call(_coordinator(client, group_id), request, timeout_s=CALL_SECONDS).groups
    if group.error_code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise KafkaError(group.error_code, f"group {group_id!r}")
    return group


def _other_type(client: NetworkClient, group_id: str) -> ListedGroup | None:
    """The group, if its members speak another protocol than the classic one, whose description has no such group.

    Sources: KIP-848, `GroupMetadataManager.describeGroups` ("is not a classic group").
    """
    listed = client.call(_coordinator(client, group_id), ListGroupsRequest(), timeout_s=CALL_SECONDS)
    if listed.error_code:
        raise KafkaError(listed.error_code, "list of groups")
    found = (
        each for each in listed.groups if each.group_id == group_id and each.group_type.lower() not in CLASSIC_TYPES
    )
    return next(found, None)


def _committed(client: NetworkClient, group_id: str, counts: Mapping[str, int]) -> dict[Partition, Committed]:
    if not counts:
        return {}
    (request,) = batches.offset_fetch_requests({group_id: counts})
    (group,) = client.call(_coordinator(client, group_id), request, timeout_s=CALL_SECONDS).groups
    code = group.error_code or next(
        (partition.error_code for topic in group.topics for partition in topic.partitions if partition.error_code), 0
    )
    if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        raise KafkaError(code, f"commits of group {group_id!r}")
    return {
        (topic.name, partition.partition_index): Committed(partition.committed_offset, partition.metadata or "")
        for topic in group.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    }


def _coordinator(client: NetworkClient, group_id: str) -> BrokerAddress:
    found = client.find_coordinators([group_id], timeout_s=CALL_SECONDS)[group_id]
    if not isinstance(found, Coordinator):
        raise found
    return found.address
