"""Records of `__consumer_offsets` in every version, from bytes written by hand after Kafka's message definitions."""

from __future__ import annotations

import random
import struct

import pytest

from fleet_consumer.record import TopicPartition
from fleet_consumer.wire.offsets_topic import (
    CommittedOffset,
    GroupMetadataMember,
    GroupMetadataValue,
    OffsetCommitValue,
    StoredGroup,
    Unknown,
    decode,
)


def text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value.encode())) + value.encode()


def compact(value: bytes) -> bytes:
    return bytes([len(value) + 1]) + value


def offset_key(version: int) -> bytes:
    return struct.pack(">h", version) + text("g") + text("t") + struct.pack(">i", 3)


GROUP_KEY = struct.pack(">h", 2) + text("g")
VALUES = {
    0: struct.pack(">q", 42) + text("note") + struct.pack(">q", 1_000),
    1: struct.pack(">q", 42) + text("note") + struct.pack(">qq", 1_000, 2_000),
    2: struct.pack(">q", 42) + text("note") + struct.pack(">q", 1_000),
    3: struct.pack(">qi", 42, 5) + text("note") + struct.pack(">q", 1_000),
    # Version 4 is flexible, and newer brokers add the topic's id as a tagged field.
    4: struct.pack(">qi", 42, 5) + compact(b"note") + struct.pack(">q", 1_000) + b"\x01\x00\x10" + bytes(16),
}


@pytest.mark.parametrize("key_version", [0, 1])
@pytest.mark.parametrize("version", sorted(VALUES))
def test_committed_offset_of_every_version(key_version: int, version: int) -> None:
    entry = decode(offset_key(key_version), struct.pack(">h", version) + VALUES[version])
    assert entry == CommittedOffset(
        "g",
        TopicPartition("t", 3),
        OffsetCommitValue(
            offset=42,
            leader_epoch=5 if version >= 3 else -1,
            metadata="note",
            commit_timestamp=1_000,
            expire_timestamp=2_000 if version == 1 else -1,
        ),
    )


def group_value(version: int) -> bytes:
    """A group of one member."""

    def words(value: str | None) -> bytes:
        return compact((value or "").encode()) if version >= 4 else text(value)

    def data(value: bytes) -> bytes:
        return compact(value) if version >= 4 else struct.pack(">i", len(value)) + value

    tags = b"\x00" if version >= 4 else b""
    member = words("m") + (words("i") if version >= 3 else b"") + words("c") + words("/h")
    member += struct.pack(">i", 60_000) if version >= 1 else b""
    member += struct.pack(">i", 10_000) + data(b"sub") + data(b"ass") + tags
    head = words("consumer") + struct.pack(">i", 9) + words("range") + words("m")
    head += struct.pack(">q", 1_234) if version >= 2 else b""
    count = b"\x02" if version >= 4 else struct.pack(">i", 1)
    return struct.pack(">h", version) + head + count + member + tags


@pytest.mark.parametrize("version", range(5))
def test_group_metadata_of_every_version(version: int) -> None:
    assert decode(GROUP_KEY, group_value(version)) == StoredGroup(
        "g",
        GroupMetadataValue(
            protocol_type="consumer",
            generation=9,
            protocol="range",
            leader="m",
            current_state_timestamp=1_234 if version >= 2 else -1,
            members=(
                GroupMetadataMember(
                    member_id="m",
                    group_instance_id="i" if version >= 3 else None,
                    client_id="c",
                    client_host="/h",
                    rebalance_timeout=60_000 if version >= 1 else 0,
                    session_timeout=10_000,
                    subscription=b"sub",
                    assignment=b"ass",
                ),
            ),
        ),
    )


def test_entries_that_were_removed() -> None:
    assert decode(offset_key(1), None) == CommittedOffset("g", TopicPartition("t", 3), None)
    assert decode(GROUP_KEY, None) == StoredGroup("g", None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (struct.pack(">h", 3) + b"of a newer kind", b"whatever"),
        (offset_key(1), struct.pack(">h", 99) + b"of a newer version"),
        (GROUP_KEY, struct.pack(">h", 99)),
        (None, b"v"),
        (b"", b"v"),
        (offset_key(1), b""),
        (offset_key(1), struct.pack(">h", 3) + b"short"),
    ],
)
def test_unknown_records_are_kept_unchanged(key: bytes | None, value: bytes) -> None:
    entry = decode(key, value)
    assert isinstance(entry, Unknown)
    assert (entry.key, entry.value) == (key, value)
    assert entry.why


def test_no_bytes_make_it_raise() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(3_000):
        key = bytearray(chance.choice([offset_key(0), offset_key(1), GROUP_KEY]))
        value = bytearray(chance.choice([group_value(chance.randrange(5)), struct.pack(">h", 4) + VALUES[4]]))
        for damaged in (key, value):
            for _ in range(chance.randrange(4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        decode(bytes(key), bytes(value[: chance.randrange(len(value) + 1)]))
