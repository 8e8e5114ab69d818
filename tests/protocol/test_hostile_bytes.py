"""For any bytes of a peer the codec returns a message or raises MalformedMessage, in bounded memory."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet_consumer.wire import primitives
from fleet_consumer.wire.connection import decode_response_header
from fleet_consumer.wire.consumer_protocol import decode_assignment, decode_subscription
from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.groups import ListedGroup, ListGroupsResponse
from fleet_consumer.wire.message import Message
from fleet_consumer.wire.offsets import OffsetFetchResponse
from fleet_consumer.wire.schema import fields_of
from fleet_consumer.wire.topics import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from tests.protocol.feeding import feed
from tests.protocol.messages import MESSAGE_IDS, MESSAGES, REQUESTS, messages
from tests.support.broker_headers import decode_request_header

EXAMPLES = settings(max_examples=10, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
MEMORY_BYTES_MAX = 20_000_000


def _tolerant(decode: Any, data: bytes) -> None:
    try:
        decode(data)
    except MalformedMessage:
        return


@pytest.mark.parametrize(("cls", "version"), MESSAGES, ids=MESSAGE_IDS)
def test_damaged_message_is_read_or_refused(cls: type[Message], version: int) -> None:
    """Bytes overwritten, removed and put in at random places of valid messages, and plain noise."""

    @EXAMPLES
    @given(messages(cls, version), st.integers(0, 2**32), st.binary(max_size=200))
    def check(ours: Any, seed: int, noise: bytes) -> None:
        chance = random.Random(seed)
        valid = ours.encode(version)
        for _ in range(8):
            damaged = bytearray(valid)
            for _ in range(chance.randint(1, 4)):
                at = chance.randrange(len(damaged) + 1)
                damaged[at : at + chance.randint(0, 4)] = chance.choice((b"\xff", b"\x7f\xff\xff\xff", b"\x80", b""))
            _tolerant(lambda data: cls.decode(version, data), bytes(damaged))
        _tolerant(lambda data: cls.decode(version, data), noise)

    check()


@settings(max_examples=300, deadline=None, print_blob=True)
@given(st.binary(max_size=100), st.sampled_from(REQUESTS))
def test_noise_in_headers_and_blobs_is_read_or_refused(noise: bytes, request: Any) -> None:
    _tolerant(decode_subscription, noise)
    _tolerant(decode_assignment, noise)
    _tolerant(lambda data: decode_request_header(data, request), noise)
    _tolerant(lambda data: decode_response_header(data, request.RESPONSE, request.MAX_VERSION), noise)


def test_absurd_lengths_cost_no_memory() -> None:
    """An array that claims two thousand million elements is refused before anything is allocated for it."""
    tracemalloc.start()
    try:
        for cls, version in MESSAGES:
            for absurd in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xfe", b"\x7f\xff"):
                for offset in range(12):
                    _tolerant(lambda data, c=cls, v=version: c.decode(v, data), b"\0" * offset + absurd * 4)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEMORY_BYTES_MAX


def test_array_beyond_the_limit_is_refused_though_its_bytes_are_there() -> None:
    limit = primitives.ARRAY_ELEMENTS_MAX
    empty_topic = b"\0\0\0\0\0\0"
    prefix = b"\0\0\0\0"  # no brokers
    MetadataResponse.decode(0, prefix + (2).to_bytes(4, "big") + b"\0\0\0\0\0\0\0\0" * 2)
    with pytest.raises(MalformedMessage, match="array of 1000001 elements"):
        MetadataResponse.decode(0, prefix + (limit + 1).to_bytes(4, "big") + empty_topic * (limit + 1))


def _dense_groups(groups: int, topics: int) -> bytes:
    """An OffsetFetch answer of groups with topics of three bytes each, which become seventy in memory."""
    out = bytearray(b"\0\0\0\0")
    primitives.write_uvarint(out, groups + 1)
    for _ in range(groups):
        out += b"\x02g"
        primitives.write_uvarint(out, topics + 1)
        out += b"\x01\x01\0" * topics + b"\0\0\0"
    return bytes(out + b"\0")


def test_elements_of_all_arrays_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array is within the limit; all of them would take twenty times the received bytes."""
    monkeypatch.setattr(OffsetFetchResponse, "BYTES_MAX", 2_000_000)
    assert len(OffsetFetchResponse.decode(8, _dense_groups(10, 10_000)).groups) == 10
    hostile = _dense_groups(60, 10_000)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage, match="exceeds its message's limit of elements"):
            OffsetFetchResponse.decode(8, hostile)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(hostile) < OffsetFetchResponse.BYTES_MAX
    assert peak < 8 * OffsetFetchResponse.BYTES_MAX


def test_numbers_of_all_arrays_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetadataResponse, "BYTES_MAX", 100_000)
    part = MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=1, replica_nodes=tuple(range(1_000)), isr_nodes=()
    )
    wide = MetadataResponse(
        brokers=(), topics=(MetadataResponseTopic(error_code=0, name="t", partitions=(part,) * 30),)
    )
    with pytest.raises(MalformedMessage, match=r"array of 1000 elements .* exceeds its message's limit"):
        MetadataResponse.decode(12, wide.encode(12))


def test_metadata_of_half_a_million_partitions_is_read() -> None:
    """Three replicas each: as large as clusters get."""
    part = MetadataResponsePartition(
        error_code=0, partition_index=7, leader_id=1, leader_epoch=3, replica_nodes=(1, 2, 3), isr_nodes=(1, 2, 3)
    )
    topic = MetadataResponseTopic(error_code=0, name="t" * 40, partitions=(part,) * 100)
    encoded = MetadataResponse(brokers=(), topics=(topic,) * 5_000).encode(12)
    assert len(encoded) < MetadataResponse.BYTES_MAX
    assert len(MetadataResponse.decode(12, encoded).topics) == 5_000


def _with_extra_tags(data: bytes, tags: list[tuple[int, bytes]]) -> bytes:
    """A flexible message without tagged fields of its own ends in an empty tagged section: fill it."""
    assert data[-1:] == b"\0"
    out = bytearray(data[:-1])
    primitives.write_uvarint(out, len(tags))
    for tag, content in tags:
        primitives.write_uvarint(out, tag)
        primitives.write_uvarint(out, len(content))
        out += content
    return bytes(out)


FLEXIBLE = [
    (cls, version)
    for cls, version in MESSAGES
    if cls.is_flexible(version) and all(spec.tag is None for _, spec, _ in fields_of(cls))
]


@pytest.mark.parametrize(("cls", "version"), FLEXIBLE, ids=[f"{cls.__name__}-{version}" for cls, version in FLEXIBLE])
def test_unknown_tagged_fields_are_skipped(cls: type[Message], version: int) -> None:
    """A newer broker may add them to any version (KIP-482)."""

    @EXAMPLES
    @given(messages(cls, version), st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=9)), max_size=5))
    def check(ours: Any, tags: list[tuple[int, bytes]]) -> None:
        feed(lambda buffer: cls.decode(version, buffer), _with_extra_tags(ours.encode(version), tags), ours)

    check()


def test_unknown_tagged_field_inside_a_nested_structure_is_skipped() -> None:
    group = ListedGroup(group_id="g", protocol_type="consumer", group_state="Stable", group_type="classic")
    answer = ListGroupsResponse(error_code=0, groups=(group,))
    data = answer.encode(5)
    assert data[-2:] == b"\0\0"  # the group's tagged section and the answer's
    feed(lambda buffer: ListGroupsResponse.decode(5, buffer), data[:-2] + b"\x01\x07\x02ab" + b"\0", answer)


def test_more_tagged_fields_than_allowed_are_refused() -> None:
    data = ListGroupsResponse(error_code=0, groups=()).encode(5)
    within = [(100, b"")] * primitives.TAGGED_FIELDS_MAX
    assert ListGroupsResponse.decode(5, _with_extra_tags(data, within)).error_code == 0
    with pytest.raises(MalformedMessage, match="10001 tagged fields"):
        ListGroupsResponse.decode(5, _with_extra_tags(data, [*within, (100, b"")]))


def test_unknown_error_code_is_kept() -> None:
    answer = ListGroupsResponse(error_code=12345, groups=())
    feed(lambda buffer: ListGroupsResponse.decode(5, buffer), answer.encode(5), answer)
