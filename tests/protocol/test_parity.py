"""Our bytes are those of two independent codecs, for every API and version, in both directions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet_consumer.wire.connection import ApiVersionsResponse, decode_response_header, encode_request
from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from fleet_consumer.wire.message import Message, Request
from tests.protocol.feeding import feed
from tests.protocol.kafka_python_oracle import kafka_python_class, to_kafka_python
from tests.protocol.kio_oracle import kio_class, kio_decode, kio_encode, to_kio
from tests.protocol.messages import MESSAGE_IDS, MESSAGES, REQUESTS, messages
from tests.support.broker_headers import encode_response

EXAMPLES = settings(max_examples=15, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
BLOBS = [(cls, version) for cls in (ConsumerProtocolSubscription, ConsumerProtocolAssignment) for version in range(4)]
BLOB_IDS = [f"{cls.__name__}-{version}" for cls, version in BLOBS]


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_messages_equal_kio_in_both_directions(cls: type[Message], version: int) -> None:
    target = kio_class(cls, version)

    @EXAMPLES
    @given(messages(cls, version))
    def check(ours: Any) -> None:
        theirs = to_kio(ours, target)
        data = ours.encode(version)
        assert data == kio_encode(theirs)
        assert kio_decode(target, data) == theirs
        feed(lambda buffer: cls.decode(version, buffer), data, ours)

    check()


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_messages_equal_kafka_python_in_both_directions(cls: type[Message], version: int) -> None:
    target = kafka_python_class(cls)

    @EXAMPLES
    @given(messages(cls, version))
    def check(ours: Any) -> None:
        theirs = to_kafka_python(ours, target, version)
        data = ours.encode(version)
        assert data == bytes(theirs.encode(version=version))
        # Its reader of ApiVersions takes every answer with an error for one of version 0.
        if not (isinstance(ours, ApiVersionsResponse) and ours.error_code):
            assert target.decode(data, version=version) == theirs
        assert cls.decode(version, data) == ours

    check()


@pytest.mark.parametrize(("cls", "version"), BLOBS, ids=BLOB_IDS)
def test_blobs_of_the_consumer_protocol_equal_both_codecs(cls: type[Message], version: int) -> None:
    """kio leaves the version in front to its caller, kafka-python writes it."""
    encode: Any = encode_subscription if cls is ConsumerProtocolSubscription else encode_assignment
    decode: Any = decode_subscription if cls is ConsumerProtocolSubscription else decode_assignment

    @EXAMPLES
    @given(messages(cls, version))
    def check(ours: Any) -> None:
        blob = encode(ours, version)
        assert blob[2:] == kio_encode(to_kio(ours, kio_class(cls, version)))
        assert blob == bytes(to_kafka_python(ours, kafka_python_class(cls), version).encode(version=version))
        assert decode(blob) == ours
        feed(lambda buffer: cls.decode(version, buffer), blob[2:], ours)

    check()


@EXAMPLES
@given(messages(ConsumerProtocolSubscription, 3), st.integers(4, 32767), st.binary(max_size=20))
def test_blob_of_a_newer_version_is_read_as_our_newest(ours: Any, version: int, extension: bytes) -> None:
    """A member of another library may have a newer version; the group must still be led."""
    blob = encode_subscription(ours, 3)
    assert decode_subscription(version.to_bytes(2, "big") + blob[2:] + extension) == ours


CLIENT_APIS = {
    "ListOffsets": 8,
    "Metadata": 12,
    "OffsetCommit": 10,
    "OffsetFetch": 9,
    "OffsetForLeaderEpoch": 4,
    "FindCoordinator": 6,
    "JoinGroup": 9,
    "Heartbeat": 4,
    "LeaveGroup": 5,
    "SyncGroup": 5,
    "DescribeGroups": 5,
    "ListGroups": 5,
    "SaslHandshake": 1,
    "ApiVersions": 4,
    "SaslAuthenticate": 2,
}
"""The APIs of a classic member and its tools, and the highest version of each that this client implements."""
ONE_ENCODING = {"SaslHandshake"}
"""Kafka has never given it the flexible encoding."""
ADMIN_APIS = {
    "CreateTopics": 7,
    "DeleteTopics": 6,
    "DescribeConfigs": 4,
    "CreatePartitions": 3,
    "DeleteGroups": 2,
    "IncrementalAlterConfigs": 1,
}
"""The APIs for a group's retry topics, and the highest version of each that this client implements."""


def test_every_api_of_members_and_of_topic_keeping_is_compared_in_both_encodings() -> None:
    """The comparisons above cover the existing messages; this test names the required ones."""
    wanted = CLIENT_APIS | ADMIN_APIS
    spoken = {request.__name__.removesuffix("Request"): request for request in REQUESTS}
    assert {name: spoken[name].MAX_VERSION for name in wanted} == wanted
    for name in wanted:
        request = spoken[name]
        for cls in (request, request.RESPONSE):
            versions = {version for each, version in MESSAGES if each is cls}
            assert versions == set(range(request.MIN_VERSION, request.MAX_VERSION + 1)), name
            encodings = {cls.is_flexible(version) for version in versions}
            assert encodings == ({False} if name in ONE_ENCODING else {False, True}), name


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_headers_equal_kio(cls: Any, version: int) -> None:
    """The API and its version decide the version of a header, with one famous exception."""
    header_of = kio_class(cls, version).__header_schema__

    @settings(EXAMPLES, max_examples=3)
    @given(messages(cls, version), st.integers(0, 2**31 - 1), st.none() | st.text(max_size=20))
    def check(ours: Any, number: int, client_id: str | None) -> None:
        body = ours.encode(version)
        if not issubclass(cls, Request):
            header = kio_encode(header_of(correlation_id=number))
            assert encode_response(ours, version, number) == header + body
            assert decode_response_header(header + body, cls, version) == (number, len(header))
            return
        header = kio_encode(
            header_of(
                request_api_key=cls.API_KEY,
                request_api_version=version,
                correlation_id=number,
                client_id=client_id,
            )
        )
        assert encode_request(ours, version, number, client_id) == header + body

    check()
