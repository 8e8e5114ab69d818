"""Fields that a version cannot carry: an error, or left out where Kafka allows it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from fleet_consumer.net import BrokerAddress
from fleet_consumer.net.negotiation import VersionRange, pick_version
from fleet_consumer.wire.connection import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseKey,
    decode_response_header,
    encode_request,
)
from fleet_consumer.wire.errors import ErrorCode, MalformedMessage, UnencodableMessage
from fleet_consumer.wire.groups import (
    FindCoordinatorRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
)
from fleet_consumer.wire.offsets import OffsetCommitRequest, OffsetCommitRequestTopic
from fleet_consumer.wire.schema import ZERO_UUID
from tests.support.broker_headers import decode_request_header, encode_response


def join_request(**changes: Any) -> JoinGroupRequest:
    values: dict[str, Any] = {
        "group_id": "g", "session_timeout_ms": 1, "member_id": "", "protocol_type": "consumer", "protocols": (),
    }  # fmt: skip
    return JoinGroupRequest(**(values | changes))


def test_static_member_cannot_join_in_a_version_without_instance_ids() -> None:
    """Leaving the id out would make it a dynamic member without anybody noticing."""
    with pytest.raises(UnencodableMessage, match=r"JoinGroupRequest version 4: group_instance_id .* from 5"):
        join_request(group_instance_id="i").encode(4)


def test_reason_is_left_out_where_the_version_lacks_it() -> None:
    assert join_request(reason="rolled out").encode(7) == join_request().encode(7)


def test_batch_of_groups_cannot_be_looked_up_in_a_version_without_batches() -> None:
    with pytest.raises(UnencodableMessage, match="coordinator_keys"):
        FindCoordinatorRequest(coordinator_keys=("a",)).encode(3)


@pytest.mark.parametrize("version", [-1, 1, 11])
def test_version_that_we_do_not_speak_is_refused_both_ways(version: int) -> None:
    with pytest.raises(UnencodableMessage, match="versions 2 to 10"):
        OffsetCommitRequest(group_id="g", member_id="", topics=()).encode(version)
    with pytest.raises(MalformedMessage, match="versions 2 to 10"):
        OffsetCommitRequest.decode(version, b"")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"session_timeout_ms": 2**31}, "<= number <="),
        ({"group_id": None}, "not nullable"),
        ({"group_id": "g" * 40_000}, "string of 40000 bytes"),
        ({"group_id": "\ud800"}, "surrogates"),
        ({"protocols": (1,)}, "name"),
    ],
    ids=["number too big", "missing text", "text too long", "text that is no Unicode", "wrong class"],
)
def test_value_that_fits_no_version_is_refused_with_its_message_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UnencodableMessage, match=r"JoinGroupRequest version 5: .*" + complaint):
        join_request(**changes).encode(5)


def test_null_is_refused_where_the_version_does_not_know_it() -> None:
    answer = JoinGroupResponse(error_code=0, protocol_name=None, leader="", member_id="", members=())
    assert JoinGroupResponse.decode(7, answer.encode(7)).protocol_name is None
    with pytest.raises(UnencodableMessage, match="protocol_name"):
        answer.encode(6)


def test_refused_version_of_api_versions_is_read_as_version_0() -> None:
    """KIP-511: the broker cannot know which newer versions we could read."""
    offer = ApiVersionsResponseKey(api_key=18, min_version=0, max_version=2)
    refusal = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=(offer,))
    assert ApiVersionsRequest.decode_response(4, refusal.encode(0)) == refusal


@pytest.mark.parametrize("version", [3, 4], ids=["old", "flexible"])
def test_headers_survive_the_way_through_both_encodings(version: int) -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    header, start = decode_request_header(data := encode_request(request, version, 77, "é"), HeartbeatRequest)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (12, version, 77, "é")
    assert HeartbeatRequest.decode(version, data[start:]) == request
    response = HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    answer = encode_response(response, version, 77)
    assert decode_response_header(answer, HeartbeatResponse, version) == (77, 5 if version == 4 else 4)


def commit_of(*ids: UUID) -> OffsetCommitRequest:
    topics = tuple(OffsetCommitRequestTopic(name="t", topic_id=each, partitions=()) for each in ids)
    return OffsetCommitRequest(group_id="g", member_id="", topics=topics)


@pytest.mark.parametrize(
    ("ids", "highest", "version"),
    [
        ((UUID(int=1), UUID(int=2)), 10, 10),
        ((UUID(int=1), UUID(int=2)), 11, 10),
        ((UUID(int=1), UUID(int=2)), 9, 9),
        ((UUID(int=1), ZERO_UUID), 10, 9),
        ((ZERO_UUID,), 8, 8),
    ],
    ids=["by id", "a newer broker", "an older broker", "an unknown id", "an older broker, and an unknown id"],
)
def test_commit_goes_by_id_where_the_broker_takes_ids_and_all_are_known(
    ids: tuple[UUID, ...], highest: int, version: int
) -> None:
    offered = {OffsetCommitRequest.API_KEY: VersionRange(2, highest)}
    assert pick_version(commit_of(*ids), offered, BrokerAddress("b", 1)) == version


def test_commit_reads_back_with_the_topic_fields_of_its_version() -> None:
    request = commit_of(UUID(int=7))
    (by_id,) = OffsetCommitRequest.decode(10, request.encode(10)).topics
    assert (by_id.name, by_id.topic_id) == ("", UUID(int=7))
    (by_name,) = OffsetCommitRequest.decode(9, request.encode(9)).topics
    assert (by_name.name, by_name.topic_id) == ("t", ZERO_UUID)


def test_header_of_an_api_versions_answer_is_always_the_old_one() -> None:
    answer = encode_response(ApiVersionsResponse(error_code=0, api_keys=()), 4, 1)
    assert decode_response_header(answer, ApiVersionsResponse, 4) == (1, 4)
