"""Every API in every version that we and the broker share gets an answer that is readable to its last byte."""

from __future__ import annotations

import socket
import struct
from typing import Any

import pytest

from fleet_consumer.net import parse_address
from fleet_consumer.wire.admin import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    AlterConfigsResource,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
)
from fleet_consumer.wire.connection import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    decode_response_header,
    encode_request,
)
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    LeaveGroupRequestMember,
    ListGroupsRequest,
    SyncGroupRequest,
)
from fleet_consumer.wire.message import Request, Response
from fleet_consumer.wire.offsets import OffsetCommitRequest, OffsetFetchRequest, OffsetFetchRequestGroup
from fleet_consumer.wire.topics import (
    LATEST,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.protocol.messages import REQUESTS
from tests.support.kafka import KafkaBroker

GROUP = "versions"
SASL_KEYS = {17, 36}
"""Tested with a login; a listener without one refuses them."""


def sample(cls: type[Request[Any]], version: int) -> Request[Any]:
    """A harmless request of this version. The group has no members, so most APIs refuse something."""
    protocols = (JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\0\0\0\0"),)
    partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    samples: dict[type[Request[Any]], Request[Any]] = {
        ApiVersionsRequest: ApiVersionsRequest(client_software_name="test", client_software_version="1"),
        MetadataRequest: MetadataRequest(topics=None if version else ()),
        FindCoordinatorRequest: FindCoordinatorRequest(key=GROUP)
        if version < 4
        else FindCoordinatorRequest(coordinator_keys=(GROUP,)),
        JoinGroupRequest: JoinGroupRequest(
            group_id="", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
            protocol_type="consumer", protocols=protocols,
        ),
        SyncGroupRequest: SyncGroupRequest(group_id=GROUP, generation_id=1, member_id="m", assignments=()),
        HeartbeatRequest: HeartbeatRequest(group_id=GROUP, generation_id=1, member_id="m"),
        LeaveGroupRequest: LeaveGroupRequest(group_id=GROUP, member_id="m")
        if version < 3
        else LeaveGroupRequest(group_id=GROUP, members=(LeaveGroupRequestMember(member_id="m"),)),
        OffsetCommitRequest: OffsetCommitRequest(group_id=GROUP, member_id="", topics=()),
        OffsetFetchRequest: OffsetFetchRequest(group_id=GROUP, topics=() if version < 2 else None)
        if version < 8
        else OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=GROUP, topics=None),)),
        ListOffsetsRequest: ListOffsetsRequest(
            replica_id=-1, topics=(ListOffsetsTopic(name="missing", partitions=(partition,)),)
        ),
        OffsetForLeaderEpochRequest: OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=(OffsetForLeaderTopic(topic="missing", partitions=(
                OffsetForLeaderPartition(partition=0, leader_epoch=0),
            )),),
        ),
        FetchRequest: FetchRequest(replica_id=-1, max_wait_ms=0, min_bytes=0, topics=()),
        DescribeGroupsRequest: DescribeGroupsRequest(groups=(GROUP,)),
        ListGroupsRequest: ListGroupsRequest(states_filter=(), types_filter=()),
        CreateTopicsRequest: CreateTopicsRequest(topics=(), timeout_ms=1_000, validate_only=True),
        CreatePartitionsRequest: CreatePartitionsRequest(
            topics=(CreatePartitionsTopic(name="missing", count=2, assignments=None),),
            timeout_ms=1_000, validate_only=True,
        ),
        DeleteTopicsRequest: DeleteTopicsRequest(topic_names=("missing",), timeout_ms=1_000)
        if version < 6
        else DeleteTopicsRequest(topics=(DeleteTopicState(name="missing"),), timeout_ms=1_000),
        DeleteGroupsRequest: DeleteGroupsRequest(groups_names=("missing",)),
        IncrementalAlterConfigsRequest: IncrementalAlterConfigsRequest(
            resources=(AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name="missing", configs=()),),
            validate_only=True,
        ),
        DescribeConfigsRequest: DescribeConfigsRequest(
            resources=(
                DescribeConfigsResource(resource_type=BROKER_RESOURCE, resource_name="1", configuration_keys=None),
            )
        ),
    }  # fmt: skip
    return samples[cls]


def ask(connection: socket.socket, request: Request[Any], version: int) -> Response:
    message = encode_request(request, version, 5, "versions")
    connection.sendall(struct.pack(">i", len(message)) + message)
    stream = connection.makefile("rb")
    size = struct.unpack(">i", stream.read(4))[0]
    answer = stream.read(size)
    correlation_id, start = decode_response_header(answer, request.RESPONSE, version)
    assert correlation_id == 5
    return request.decode_response(version, answer[start:])


@pytest.mark.parametrize(
    "request_class", [cls for cls in REQUESTS if cls.API_KEY not in SASL_KEYS], ids=lambda cls: cls.__name__
)
def test_every_shared_version_is_answered_in_full(broker: KafkaBroker, request_class: type[Request[Any]]) -> None:
    with socket.create_connection(parse_address(broker.bootstrap), timeout=30) as connection:
        offer = ask(connection, sample(ApiVersionsRequest, 4), 4)
        assert isinstance(offer, ApiVersionsResponse)
        spoken = {entry.api_key: range(entry.min_version, entry.max_version + 1) for entry in offer.api_keys}
        ours = range(request_class.MIN_VERSION, request_class.MAX_VERSION + 1)
        shared = [version for version in ours if version in spoken[request_class.API_KEY]]
        assert shared
        assert shared[-1] == ours[-1]
        for version in shared:
            answer = ask(connection, sample(request_class, version), version)
            assert getattr(answer, "error_code", 0) != ErrorCode.UNSUPPORTED_VERSION
