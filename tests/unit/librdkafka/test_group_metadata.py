"""Group metadata for librdkafka's producer: the format is compared with librdkafka's own, and a change is told."""

from __future__ import annotations

import sys

import confluent_kafka
import pytest

from fleet_consumer.group.errors import GroupMetadataUnknown
from fleet_consumer.librdkafka import producer as module
from fleet_consumer.librdkafka.producer import group_metadata


def test_bytes_equal_librdkafkas_with_our_generation_and_member() -> None:
    made = group_metadata("grüp", 7, "member-1", None)
    assert made == b"CGMDv2:" + (7).to_bytes(4, sys.byteorder) + "grüp".encode() + b"\0member-1\0\x01"
    assert group_metadata("g", 7, "m", "i").endswith(b"g\0m\0\0i\0")


def test_other_format_is_refused_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Newer:
        def __init__(self, _config: object) -> None:
            pass

        def consumer_group_metadata(self) -> bytes:
            return b"CGMDv3:whatever"

        def close(self) -> None:
            pass

    module._check_format.cache_clear()
    monkeypatch.setattr(confluent_kafka, "Consumer", Newer)
    with pytest.raises(GroupMetadataUnknown, match="CGMDv3"):
        group_metadata("g", 1, "m", None)
    module._check_format.cache_clear()
