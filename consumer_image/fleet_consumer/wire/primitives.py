"""Kafka's variable-length primitives, in the old and in the flexible encoding (KIP-482).

Readers map `(data, position)` to `(value, next position)`; writers append to a bytearray. A reader raises
MalformedMessage or, if the data ends early, IndexError or struct.error, which `codec` converts to MalformedMessage. No
reader allocates memory for more elements than its data can contain.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from fleet_consumer.wire.errors import MalformedMessage, UnencodableMessage

Reader = Callable[[bytes, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]
BodyReader = Callable[[bytes, int, int], tuple[Any, int]]
"""Reads a value of known length from `(data, position, length)`."""
LengthWriter = Callable[[bytearray, int], None]
BodyWriter = Callable[[bytearray, Any, LengthWriter], None]

ARRAY_ELEMENTS_MAX: Final = 1_000_000
"""Maximum number of elements in an array, as in brokers since Kafka 4.4; far more than partitions in any topic."""

TAGGED_FIELDS_MAX: Final = 10_000
"""Maximum number of tagged fields in one structure, as in brokers since Kafka 4.4."""

STRUCTURE_COST: Final = 4
"""Cost of an array element other than a number, in units of the message's `allowance`."""

STRING_BYTES_MAX: Final = 0x7FFF
"""Maximum length of a string in bytes. The old encoding has int16 lengths, and Kafka kept this limit in the flexible
encoding."""

VARINT_BYTES_MAX: Final = 5
"""Maximum length of a varint in bytes: an unsigned 32-bit number needs at most five groups of seven bits."""

# The remaining units for array elements of the current message (`allowance`). The limit is needed because three bytes
# of a message can become a structure of seventy bytes in memory.
_allowance: Final[ContextVar[list[int]]] = ContextVar("allowance")

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


@contextmanager
def allowance(units: int) -> Iterator[None]:
    """Within this context, all array elements that are read may cost at most `units`. A number costs one unit, any
    other element `STRUCTURE_COST` units."""
    token = _allowance.set([units])
    try:
        yield
    finally:
        _allowance.reset(token)


def read_uvarint(data: bytes, pos: int) -> tuple[int, int]:
    """Read an unsigned varint: seven bits per byte, low bits first."""
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
    """Return the end position of `length` bytes that begin at `pos`. Raises MalformedMessage if the data is shorter."""
    end = pos + length
    if length < 0 or end > len(data):
        raise MalformedMessage(f"length {length} at byte {pos}, but {len(data) - pos} bytes remain")
    return end


def read_tags(data: bytes, pos: int, known: dict[int, tuple[str, Reader]], found: dict[str, Any]) -> int:
    """Read a tagged section, and return its end position. Fields that `known` lists are stored in `found`, keyed by
    name; all other fields are skipped."""
    count, pos = read_uvarint(data, pos)
    if count > TAGGED_FIELDS_MAX:
        raise MalformedMessage(f"{count} tagged fields, but at most {TAGGED_FIELDS_MAX} are allowed")
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
    """Return a reader that reads a length and then a value of this length. Null is refused unless `nullable`."""

    def read(data: bytes, pos: int) -> tuple[Any, int]:
        length, pos = read_length(data, pos)
        if length == -1 and nullable:
            return None, pos
        return read_body(data, pos, length)

    return read


def read_string(data: bytes, pos: int, length: int) -> tuple[str, int]:
    if length > STRING_BYTES_MAX:
        raise MalformedMessage(f"string of {length} bytes at byte {pos}, above the limit of {STRING_BYTES_MAX}")
    end = span(data, pos, length)
    return str(data[pos:end], "utf-8"), end


def read_bytes(data: bytes, pos: int, length: int) -> tuple[bytes, int]:
    end = span(data, pos, length)
    return data[pos:end], end


def array_reader(read_item: Reader) -> BodyReader:
    def read(data: bytes, pos: int, count: int) -> tuple[tuple[Any, ...], int]:
        check_count(data, pos, count, STRUCTURE_COST)
        items = []
        for _ in range(count):
            item, pos = read_item(data, pos)
            items.append(item)
        return tuple(items), pos

    return read


def number_array_reader(code: str) -> BodyReader:
    """Return an `array_reader` for numbers with this struct `code`. One call reads all numbers: a million in
    milliseconds."""
    width = struct.calcsize(f">{code}")

    def read(data: bytes, pos: int, count: int) -> tuple[tuple[Any, ...], int]:
        check_count(data, pos, count, 1)
        end = span(data, pos, count * width)
        return struct.unpack_from(f">{count}{code}", data, pos), end

    return read


def check_count(data: bytes, pos: int, count: int, cost: int) -> None:
    """Raise MalformedMessage if an array exceeds Kafka's limit, the remaining data, or the allowance of its message."""
    if count < 0 or count > ARRAY_ELEMENTS_MAX or count > len(data) - pos:
        raise MalformedMessage(f"array of {count} elements at byte {pos}, but {len(data) - pos} bytes remain")
    remaining = _allowance.get()
    remaining[0] -= count * cost
    if remaining[0] < 0:
        raise MalformedMessage(f"array of {count} elements at byte {pos} exceeds its message's limit of elements")


def prefixed_writer(write_length: LengthWriter, nullable: bool, write_body: BodyWriter) -> Writer:
    """Return a writer that writes the length of a value and then the value. None is refused unless `nullable`."""

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
        raise UnencodableMessage(f"string of {len(encoded)} bytes, but at most {STRING_BYTES_MAX} fit")
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
    def write(out: bytearray, value: Any, write_length: LengthWriter) -> None:
        count = _writable_count(value)
        write_length(out, count)
        out += struct.pack(f">{count}{code}", *value)

    return write


def _writable_count(value: Any) -> int:
    count = len(value)
    if count > ARRAY_ELEMENTS_MAX:
        raise UnencodableMessage(f"array of {count} elements, but at most {ARRAY_ELEMENTS_MAX} are allowed")
    return count
