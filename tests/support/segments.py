"""Damage to batches in a broker's log file, as disks, networks and faulty programs cause it.

The format of a batch (magic 2): base offset, length, leader epoch, magic, CRC-32C of all that follows, attributes
(codec in the lowest three bits), last offset delta, ….
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

from tests.support.kafka import KafkaBroker

HEAD = 12
MAGIC, CRC, ATTRIBUTES, LAST_OFFSET_DELTA, RECORDS = 16, 17, 21, 23, 61

Damage = Callable[[bytearray], None]


def damage(broker: KafkaBroker, topic: str, partition: int, offset: int, change: Damage) -> Callable[[], None]:
    """Change the batch that begins at `offset` in place; returns a function that restores it."""
    path = next(broker.directory.rglob(f"{topic}-{partition}/{0:020}.log"))
    log = path.read_bytes()
    place = _place(log, offset)
    whole = log[place : place + _size(log, place)]
    batch = bytearray(whole)
    change(batch)
    assert len(batch) == len(whole), "the damage changed the batch's length"
    _write(path, place, batch)
    return lambda: _write(path, place, whole)


def _write(path: Path, place: int, content: bytes | bytearray) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def _size(log: bytes, place: int) -> int:
    return HEAD + int(struct.unpack_from(">i", log, place + 8)[0])


def _place(log: bytes, offset: int) -> int:
    place = 0
    while place < len(log):
        if struct.unpack_from(">q", log, place)[0] == offset:
            return place
        place += _size(log, place)
    raise AssertionError(f"no batch begins at offset {offset}")


def flip_bit(batch: bytearray) -> None:
    """Change a bit of the last record: its CRC is wrong."""
    batch[-2] ^= 1


def spoil_records(batch: bytearray) -> None:
    """Overwrite the compressed records, with a CRC that is right."""
    batch[RECORDS:] = bytes(len(batch) - RECORDS)
    sign(batch)


def unknown_codec(batch: bytearray) -> None:
    """Name a codec that does not exist, with a CRC that is right."""
    batch[ATTRIBUTES + 1] |= 7
    sign(batch)


def unknown_magic(batch: bytearray) -> None:
    batch[MAGIC] = 9


def negative_length(batch: bytearray) -> None:
    struct.pack_into(">i", batch, 8, -5)


def excessive_length(batch: bytearray) -> None:
    """Let the batch's length exceed its file: for the broker the file then ends before it."""
    struct.pack_into(">i", batch, 8, 1 << 20)


def sign(batch: bytearray) -> None:
    """Give a changed batch the correct CRC."""
    struct.pack_into(">I", batch, CRC, crc32c(batch[ATTRIBUTES:]))


def crc32c(data: bytes | bytearray) -> int:
    """The checksum of a batch (Castagnoli)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _table()
