"""Kafka's variable-length primitives, in the old and in the flexible encoding (KIP-482).

Readers take `(data, position)` and return `(value, new position)`; writers append to a bytearray. A reader raises
MalformedMessage, or IndexError or struct.error at the end of the data, which `codec` turns into MalformedMessage;
no reader allocates more than the data it was given could fill.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from fleet_consumer.wire.errors import MalformedMessage, UnencodableMessage

Reader = Callable[[bytes, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]
BodyReader = Callable[[bytes, int, int], tuple[Any, int]]
"""Reads what stands behind its length, which is the last argument."""
LengthWriter = Callable[[bytearray, int], None]
BodyWriter = Callable[[bytearray, Any, LengthWriter], None]

ARRAY_ELEMENTS_MAX: Final = 1_000_000
"""Brokers since Kafka 4.4 refuse longer arrays; a million partitions in one topic is far beyond any cluster."""

TAGGED_FIELDS_MAX: Final = 10_000
"""Brokers since Kafka 4.4 refuse more tagged fields in one structure."""

STRUCTURE_COST: Final = 4
"""The cost of an array element that is not a number, in units of its message's allowance."""

STRING_BYTES_MAX: Final = 0x7FFF
"""The old encoding has int16 lengths; Kafka kept that limit in the flexible encoding."""

VARINT_BYTES_MAX: Final = 5
"""An unsigned 32-bit number takes at most five groups of seven bits."""

# What the message that is being read may still make of elements. Three bytes can be a structure of seventy in memory.
_allowance: Final[ContextVar[list[int]]] = ContextVar("allowance")

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


@contextmanager
def allowance(units: int) -> Iterator[None]:
    """Limit the array elements read inside to `units`: numbers count once, others `STRUCTURE_COST` times."""
    token = _allowance.set([units])
    try:
        yield
    finally:
        _allowance.reset(token)


def read_uvarint(data: bytes, pos: int) -> tuple[int, int]:
    """Read an unsigned varint: little end first, seven bits a byte."""
    byte = data[pos]
    if byte < 0x80:
        return byte, pos + 1
    value = byte & 0x7F
    for index in range(1, VARINT_BYTES_MAX):
        byte = data[pos + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value > 0xFFFF_FFFF:
                raise MalformedMessage(f"variable-length number {value} at byte {pos} exceeds 32 bits")
            return value, pos + index + 1
    raise MalformedMessage(f"variable-length number at byte {pos} is longer than {VARINT_BYTES_MAX} bytes")


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_length_int16(data: bytes, pos: int) -> tuple[int, int]:
    """Read the length of a string in the old encoding; -1 means null."""
    return _INT16.unpack_from(data, pos)[0], pos + 2


def read_length_int32(data: bytes, pos: int) -> tuple[int, int]:
    """Read the length of bytes or an array in the old encoding; -1 means null."""
    return _INT32.unpack_from(data, pos)[0], pos + 4


def read_length_compact(data: bytes, pos: int) -> tuple[int, int]:
    """Read a length in the flexible encoding (length + 1, 0 for null); returns -1 for null."""
    byte = data[pos]
    if byte < 0x80:  # nearly always
        return byte - 1, pos + 1
    value, pos = read_uvarint(data, pos)
    return value - 1, pos


def write_length_int16(out: bytearray, length: int) -> None:
    out += _INT16.pack(length)


def write_length_int32(out: bytearray, length: int) -> None:
    out += _INT32.pack(length)


def write_length_compact(out: bytearray, length: int) -> None:
    write_uvarint(out, length + 1)


def span(data: bytes, pos: int, length: int) -> int:
    """The end of `length` bytes at `pos`. Raises MalformedMessage if the data is shorter."""
    end = pos + length
    if length < 0 or end > len(data):
        raise MalformedMessage(f"length {length} at byte {pos}, but {len(data) - pos} bytes remain")
    return end


def read_tags(data: bytes, pos: int, known: dict[int, tuple[str, Reader]], found: dict[str, Any]) -> int:
    """Read a tagged section: fields in `known` are stored in `found` by name, others skipped; returns its end."""
    count, pos = read_uvarint(data, pos)
    if count > TAGGED_FIELDS_MAX:
        raise MalformedMessage(f"{count} tagged fields, at most {TAGGED_FIELDS_MAX} are allowed")
    for _ in range(count):
        tag, pos = read_uvarint(data, pos)
        size, pos = read_uvarint(data, pos)
        end = span(data, pos, size)
        if tag in known:
            name, read = known[tag]
            found[name], stop = read(data, pos)
            if stop != end:
                raise MalformedMessage(f"tagged field {name} takes {stop - pos} bytes, but {size} were announced")
        pos = end
    return pos


def prefixed_reader(read_length: Reader, nullable: bool, read_body: BodyReader) -> Reader:
    """A reader of what stands behind its length; null is refused unless `nullable`."""

    def read(data: bytes, pos: int) -> tuple[Any, int]:
        length, pos = read_length(data, pos)
        if length == -1 and nullable:
            return None, pos
        return read_body(data, pos, length)

    return read


def read_string(data: bytes, pos: int, length: int) -> tuple[str, int]:
    if length > STRING_BYTES_MAX:
        raise MalformedMessage(f"string of {length} bytes at byte {pos}, at most {STRING_BYTES_MAX} are allowed")
    end = span(data, pos, length)
    return str(data[pos:end], "utf-8"), end


def read_bytes(data: bytes, pos: int, length: int) -> tuple[bytes, int]:
    end = span(data, pos, length)
    return data[pos:end], end


def array_reader(read_item: Reader) -> BodyReader:
    """A reader of arrays into tuples."""

    def read(data: bytes, pos: int, count: int) -> tuple[tuple[Any, ...], int]:
        check_count(data, pos, count, STRUCTURE_COST)
        items = []
        for _ in range(count):
            item, pos = read_item(data, pos)
            items.append(item)
        return tuple(items), pos

    return read


def number_array_reader(code: str) -> BodyReader:
    """`array_reader` for numbers of one struct `code`, read in one go: a million partition numbers in milliseconds."""
    width = struct.calcsize(f">{code}")

    def read(data: bytes, pos: int, count: int) -> tuple[tuple[Any, ...], int]:
        check_count(data, pos, count, 1)
        end = span(data, pos, count * width)
        return struct.unpack_from(f">{count}{code}", data, pos), end

    return read


def check_count(data: bytes, pos: int, count: int, cost: int) -> None:
    """Raise MalformedMessage for an array beyond Kafka's limit, the remaining data or its message's allowance."""
    if count < 0 or count > ARRAY_ELEMENTS_MAX or count > len(data) - pos:
        raise MalformedMessage(f"array of {count} elements at byte {pos}, but {len(data) - pos} bytes remain")
    remaining = _allowance.get()
    remaining[0] -= count * cost
    if remaining[0] < 0:
        raise MalformedMessage(f"array of {count} elements at byte {pos} exceeds the limit of elements of its message")


def prefixed_writer(write_length: LengthWriter, nullable: bool, write_body: BodyWriter) -> Writer:
    """A writer of what stands behind its length; None is refused unless `nullable`."""

    def write(out: bytearray, value: Any) -> None:
        if value is not None:
            write_body(out, value, write_length)
        elif nullable:
            write_length(out, -1)
        else:
            raise UnencodableMessage("None in a field that is not nullable in this version")

    return write


def write_string(out: bytearray, value: str, write_length: LengthWriter) -> None:
    encoded = value.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise UnencodableMessage(f"string of {len(encoded)} bytes, at most {STRING_BYTES_MAX} fit")
    write_bytes(out, encoded, write_length)


def write_bytes(out: bytearray, value: bytes, write_length: LengthWriter) -> None:
    write_length(out, len(value))
    out += value


def array_writer(write_item: Writer) -> BodyWriter:
    def write(out: bytearray, value: Any, write_length: LengthWriter) -> None:
        write_length(out, _writable_count(value))
        for item in value:
            write_item(out, item)

    return write


def number_array_writer(code: str) -> BodyWriter:
    """`array_writer` for numbers of one struct `code`, written in one go."""

    def write(out: bytearray, value: Any, write_length: LengthWriter) -> None:
        count = _writable_count(value)
        write_length(out, count)
        out += struct.pack(f">{count}{code}", *value)

    return write


def _writable_count(value: Any) -> int:
    count = len(value)
    if count > ARRAY_ELEMENTS_MAX:
        raise UnencodableMessage(f"array of {count} elements, at most {ARRAY_ELEMENTS_MAX} are allowed")
    return count
