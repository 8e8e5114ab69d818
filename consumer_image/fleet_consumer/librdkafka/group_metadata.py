"""The group metadata that librdkafka's producer sends with the offsets of a transaction.

librdkafka makes them for its own group members only, so they are built here, in a format private to librdkafka. It is
compared, once per process, with what the linked librdkafka makes itself.
"""

from __future__ import annotations

import struct
from functools import cache

import confluent_kafka

from fleet_consumer.group.errors import GroupMetadataUnknown

MAGIC = b"CGMDv2:"
_GENERATION = struct.Struct("=i")
_PROBE = "fleet-probe"


def group_metadata(group_id: str, generation: int, member_id: str, instance_id: str | None) -> bytes:
    """The argument of `Producer.send_offsets_to_transaction`. Raises GroupMetadataUnknown."""
    _check_format()
    return _built(group_id, generation, member_id, instance_id)


def _built(group_id: str, generation: int, member_id: str, instance_id: str | None) -> bytes:
    texts = [group_id, member_id]
    absent = b"\x01"
    if instance_id is not None:
        texts.append(instance_id)
        absent = b"\x00"
    group, member, *instance = [text.encode() + b"\x00" for text in texts]
    return MAGIC + _GENERATION.pack(generation) + group + member + absent + b"".join(instance)


@cache
def _check_format() -> None:
    """Compare with librdkafka's own, for a static and a dynamic consumer that never connect."""
    for instance in (None, "probe-instance"):
        extra = {} if instance is None else {"group.instance.id": instance}
        consumer = confluent_kafka.Consumer({"group.id": _PROBE, **extra})
        try:
            real = bytes(consumer.consumer_group_metadata())
        finally:
            consumer.close()
        if real != _built(_PROBE, -1, "", instance):
            raise GroupMetadataUnknown(
                f"librdkafka {confluent_kafka.libversion()[0]} writes group metadata as {real[:16]!r}…, here only "
                f"{MAGIC!r} is known; offsets cannot be part of a transaction with it"
            )
