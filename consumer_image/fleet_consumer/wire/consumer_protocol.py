"""Subscriptions and assignments of protocol type "consumer": the blobs in JoinGroup and SyncGroup.

Brokers do not read these blobs, but group members with other client libraries do. A blob starts with its version. Like
Kafka's `ConsumerProtocol`, a reader treats a newer version as the newest version that it knows, and trailing bytes as
extensions.
"""

import struct
from collections.abc import Iterable
from typing import Final, TypeVar

from fleet_consumer.wire.errors import MalformedMessage
from fleet_consumer.wire.message import Message
from fleet_consumer.wire.schema import INT32, STRING, Structure, array, blob, int32, string

PROTOCOL_TYPE: Final = "consumer"

_VERSION: Final = struct.Struct(">h")


class ConsumerProtocolTopicPartitions(Structure):
    topic: str = string()
    partitions: tuple[int, ...] = array(INT32)


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    """A member's topics and owned partitions. `generation_id` is the generation in which `owned_partitions` were
    assigned."""

    topics: tuple[str, ...] = array(STRING)
    user_data: bytes | None = blob(default=None, nullable_since=0)
    owned_partitions: tuple[ConsumerProtocolTopicPartitions, ...] = array(
        ConsumerProtocolTopicPartitions, since=1, default=(), ignorable=True
    )
    generation_id: int = int32(since=2, default=-1, ignorable=True)
    rack_id: str | None = string(since=3, default=None, nullable_since=3, ignorable=True)


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    assigned_partitions: tuple[ConsumerProtocolTopicPartitions, ...] = array(ConsumerProtocolTopicPartitions)
    user_data: bytes | None = blob(default=None, nullable_since=0)


MessageT = TypeVar("MessageT", bound=Message)


def encode_subscription(subscription: ConsumerProtocolSubscription, version: int) -> bytes:
    return _VERSION.pack(version) + subscription.encode(version)


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    return _decode(ConsumerProtocolSubscription, data)


def encode_assignment(assignment: ConsumerProtocolAssignment, version: int) -> bytes:
    return _VERSION.pack(version) + assignment.encode(version)


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    return _decode(ConsumerProtocolAssignment, data)


def partitions_by_topic(listed: Iterable[ConsumerProtocolTopicPartitions]) -> dict[str, tuple[int, ...]]:
    """Return the distinct partition numbers of each topic. Other libraries may list a topic several times."""
    numbers: dict[str, tuple[int, ...]] = {}
    repeated: dict[str, dict[int, None]] = {}
    for entry in listed:
        if entry.topic not in numbers and len(set(entry.partitions)) == len(entry.partitions):
            numbers[entry.topic] = entry.partitions
        else:
            merged = repeated.setdefault(entry.topic, dict.fromkeys(numbers.get(entry.topic, ())))
            merged.update(dict.fromkeys(entry.partitions))
            numbers.setdefault(entry.topic, ())
    return numbers | {topic: tuple(merged) for topic, merged in repeated.items()}


def _decode(cls: type[MessageT], data: bytes) -> MessageT:
    if len(data) < _VERSION.size:
        raise MalformedMessage(f"{cls.__name__}: {len(data)} bytes hold no version")
    version = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise MalformedMessage(f"{cls.__name__}: version {version}")
    message, _ = cls.decode_prefix(min(version, cls.MAX_VERSION), data[_VERSION.size :])
    return message
