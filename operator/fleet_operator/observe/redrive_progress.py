"""How far a Redrive is: the offsets that its run commits in a Kafka group of its own. Runs on the observer's thread."""

from __future__ import annotations

from fleet_consumer.net import Coordinator, KafkaError, NetworkClient
from fleet_operator.observe import batches
from fleet_operator.observe.actions import CALL_SECONDS
from fleet_operator.planning.redrive.readings import Position


def read_positions(client: NetworkClient, group_id: str) -> tuple[Position, ...]:
    """Every committed offset of the group with its metadata; empty before the first commit.

    Raises NetError, or KafkaError when the coordinator is not to be had just now.
    """
    found = client.find_coordinators([group_id], timeout_s=CALL_SECONDS)[group_id]
    if not isinstance(found, Coordinator):
        raise found
    (request,) = batches.offset_fetch_requests({group_id: None})
    (group,) = client.call(found.address, request, timeout_s=CALL_SECONDS).groups
    if group.error_code:
        raise KafkaError(group.error_code, f"group {group_id!r}")
    return tuple(
        Position(offset=partition.committed_offset, metadata=partition.metadata or "")
        for topic in group.topics
        for partition in topic.partitions
        if not partition.error_code and partition.committed_offset >= 0
    )
