"""Our bytes are those of two independent codecs, for every API and version, in both directions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet_consumer.wire.api_versions import ApiVersionsResponse
from fleet_consumer.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from fleet_consumer.wire.message import Message
from tests.protocol.feeding import feed
from tests.protocol.kafka_python_oracle import kafka_python_class, to_kafka_python
from tests.protocol.kio_oracle import kio_class, kio_decode, kio_encode, to_kio
from tests.protocol.messages import MESSAGE_IDS, MESSAGES, messages

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
    """A member of another library may be ahead of us; the group must still be led."""
    blob = encode_subscription(ours, 3)
    assert decode_subscription(version.to_bytes(2, "big") + blob[2:] + extension) == ours
