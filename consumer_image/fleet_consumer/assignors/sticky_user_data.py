"""What the sticky pair carries in its members' subscriptions, byte for byte as Kafka's Java client writes it.

`sticky` is eager: its members have given everything up when they join, so what they held travels as user data
(`StickyAssignorUserData` version 1: partitions by topic, then the generation; version 0 lacks the generation).
`cooperative-sticky` needs its generation only, for members whose subscriptions are too old to have a field for it.
Bytes of others never raise: a member that cannot be understood is one that held nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from fleet_consumer.assignors.claims import Claim

UNKNOWN_GENERATION: Final = -1
_INT32: Final = struct.Struct(">i")
_TWO_INT32: Final = struct.Struct(">ii")
_INT16: Final = struct.Struct(">h")
NOTHING: Final = Claim({}, UNKNOWN_GENERATION)


def encode_sticky(owned: Mapping[str, Sequence[int]], generation: int) -> bytes:
    """Version 1 of `StickyAssignorUserData`."""
    parts = [_INT32.pack(len(owned))]
    for topic, numbers in owned.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers))
    parts.append(_INT32.pack(generation))
    return b"".join(parts)


def decode_sticky(data: bytes | None) -> Claim:
    """Read version 1, or 0, whose generation is unknown; NOTHING when the bytes are neither."""
    if not data:
        return NOTHING
    try:
        owned, end = _read_owned(data)
        generation = _INT32.unpack_from(data, end)[0] if len(data) >= end + _INT32.size else UNKNOWN_GENERATION
    except (struct.error, UnicodeDecodeError, ValueError):
        return NOTHING
    return Claim(owned, generation)


def _read_owned(data: bytes) -> tuple[dict[str, Sequence[int]], int]:
    """Partitions by topic, and where they end. Lengths are checked against the data before anything is made.

    A leader reads a million of these entries, most of them with one partition: hence one `unpack` for a length and the
    first number together (what follows the last entry without numbers is the generation, or nothing).
    """
    length_of_name, two_ints, size = _INT16.unpack_from, _TWO_INT32.unpack_from, len(data)
    owned: dict[str, Sequence[int]] = {}
    count, at = _INT32.unpack_from(data)[0], _INT32.size
    if count < 0 or count > size:
        raise ValueError(f"{count} topics in {size} bytes")
    for _ in range(count):
        name_end = at + 2 + length_of_name(data, at)[0]
        if name_end < at + 2:
            raise ValueError("a name of negative length")
        topic = data[at + 2 : name_end].decode()
        if name_end + 8 <= size:
            length, first = two_ints(data, name_end)
        else:
            length, first = _INT32.unpack_from(data, name_end)[0], 0
        at = name_end + 4 + 4 * length
        if length < 0 or at > size:
            raise ValueError(f"{length} partitions in {size} bytes")
        numbers = (first,) if length == 1 else struct.unpack_from(f">{length}i", data, name_end + 4)
        owned[topic] = (*owned[topic], *numbers) if topic in owned else numbers
    return owned, at


def encode_generation(generation: int) -> bytes:
    """The user data of Java's `CooperativeStickyAssignor`."""
    return _INT32.pack(generation)


def decode_generation(data: bytes | None) -> int:
    """The generation, or -1 when there is none to read."""
    if data is None or len(data) < _INT32.size:
        return UNKNOWN_GENERATION
    generation: int = _INT32.unpack_from(data)[0]
    return generation
