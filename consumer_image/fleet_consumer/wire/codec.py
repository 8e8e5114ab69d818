"""Readers and writers of declared messages, compiled once per class and version.

Adjacent number fields share one `struct` call, which gives most of the speed. Unknown tagged fields are skipped, so
that responses of newer brokers can be read (KIP-482); any other trailing bytes are an error.
"""

import dataclasses
import struct
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any
from uuid import UUID

from fleet_consumer.wire import primitives
from fleet_consumer.wire.errors import MalformedMessage, UnencodableMessage
from fleet_consumer.wire.primitives import Reader, Writer
from fleet_consumer.wire.schema import FieldSpec, Kind, fields_of

ReadStep = Callable[[bytes, int, list[Any]], int]
"""Reads some fields at a position, appends their values and returns the next position."""

WriteStep = Callable[[bytearray, Any], None]
"""Appends some fields of a structure."""


def decode(cls: Any, version: int, flexible: bool, data: bytes, units: int) -> tuple[Any, int]:
    """Read one structure from the start of `data`. Returns the structure and the next position. `units` limits the
    number of elements of all its arrays together (see `primitives.allowance`). Raises only MalformedMessage."""
    try:
        with primitives.allowance(units):
            return structure_reader(cls, version, flexible)(data, 0)
    except MalformedMessage as error:
        raise MalformedMessage(f"{cls.__name__} version {version}: {error}") from None
    except (IndexError, struct.error) as error:
        raise MalformedMessage(f"{cls.__name__} version {version} ends early, after {len(data)} bytes") from error
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"{cls.__name__} version {version} has a string that is not UTF-8: {error}") from error


def encode(message: Any, version: int, flexible: bool) -> bytes:
    """Encode one structure. Raises UnencodableMessage if this version cannot carry it."""
    out = bytearray()
    cls: Any = type(message)
    try:
        structure_writer(cls, version, flexible)(out, message)
    except UnencodableMessage as error:
        raise UnencodableMessage(f"{type(message).__name__} version {version}: {error}") from None
    except (struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise UnencodableMessage(f"{type(message).__name__} version {version}: {error}") from error
    return bytes(out)


@cache
def structure_reader(cls: Any, version: int, flexible: bool) -> Reader:
    steps, names = _read_steps(cls, version, flexible)
    tags = {
        spec.tag: (name, _reader(spec.kind, flexible, spec.nullable_in(version), version))
        for name, spec, _ in fields_of(cls)
        if spec.tag is not None and spec.exists_in(version)
    }
    # Slots are set directly, because the initializer of a frozen dataclass takes three times as long.
    stores = {name: getattr(cls, name).__set__ for name, _, _ in fields_of(cls)}
    read_stores = [stores[name] for name in names]
    defaults = [(stores[name], default) for name, _, default in fields_of(cls) if name not in names]

    def read(data: bytes, pos: int) -> tuple[Any, int]:
        values: list[Any] = []
        for step in steps:
            pos = step(data, pos, values)
        made = object.__new__(cls)
        for store, value in zip(read_stores, values, strict=True):
            store(made, value)
        for store, default in defaults:
            store(made, default)
        if not flexible:
            return made, pos
        if data[pos] == 0:
            return made, pos + 1
        tagged: dict[str, Any] = {}
        pos = primitives.read_tags(data, pos, tags, tagged)
        for name, value in tagged.items():
            stores[name](made, value)
        return made, pos

    return read


@cache
def structure_writer(cls: Any, version: int, flexible: bool) -> Writer:
    steps: list[WriteStep] = []
    numbers: list[tuple[str, str]] = []
    tags: list[tuple[int, str, Any, Writer]] = []
    for name, spec, default in fields_of(cls):
        if not spec.exists_in(version):
            if not spec.ignorable:
                steps.append(_refuse_step(name, default, spec))
        elif spec.tag is not None:
            tags.append((spec.tag, name, default, _writer(spec.kind, flexible, spec.nullable_in(version), version)))
        elif spec.kind.name == "number":
            numbers.append((name, spec.kind.code))
        else:
            _flush_numbers(numbers, steps)
            steps.append(_field_write_step(name, _writer(spec.kind, flexible, spec.nullable_in(version), version)))
    _flush_numbers(numbers, steps)
    if flexible:
        steps.append(_tags_write_step(sorted(tags, key=lambda entry: entry[0])))

    def write(out: bytearray, message: Any) -> None:
        for step in steps:
            step(out, message)

    return write


def _read_steps(cls: type, version: int, flexible: bool) -> tuple[list[ReadStep], list[str]]:
    steps: list[ReadStep] = []
    names: list[str] = []
    codes = ""
    for name, spec, _ in fields_of(cls):
        if not spec.exists_in(version) or spec.tag is not None:
            continue
        names.append(name)
        if spec.kind.name == "number":
            codes += spec.kind.code
            continue
        if codes:
            steps.append(_numbers_read_step(codes))
            codes = ""
        steps.append(_field_read_step(_reader(spec.kind, flexible, spec.nullable_in(version), version)))
    if codes:
        steps.append(_numbers_read_step(codes))
    return steps, names


def _numbers_read_step(codes: str) -> ReadStep:
    layout = struct.Struct(">" + codes)
    unpack, size = layout.unpack_from, layout.size

    def step(data: bytes, pos: int, values: list[Any]) -> int:
        values.extend(unpack(data, pos))
        return pos + size

    return step


def _field_read_step(read: Reader) -> ReadStep:
    def step(data: bytes, pos: int, values: list[Any]) -> int:
        value, pos = read(data, pos)
        values.append(value)
        return pos

    return step


def _flush_numbers(numbers: list[tuple[str, str]], steps: list[WriteStep]) -> None:
    if numbers:
        steps.append(_numbers_write_step([name for name, _ in numbers], "".join(code for _, code in numbers)))
        numbers.clear()


def _numbers_write_step(names: list[str], codes: str) -> WriteStep:
    pack = struct.Struct(">" + codes).pack
    get = attrgetter(*names)

    def single(out: bytearray, message: Any) -> None:
        out += pack(get(message))

    def several(out: bytearray, message: Any) -> None:
        out += pack(*get(message))

    return single if len(names) == 1 else several


def _field_write_step(name: str, write: Writer) -> WriteStep:
    get = attrgetter(name)

    def step(out: bytearray, message: Any) -> None:
        try:
            write(out, get(message))
        except UnencodableMessage as error:
            raise UnencodableMessage(f"{name}: {error}") from None

    return step


def _refuse_step(name: str, default: Any, spec: FieldSpec) -> WriteStep:
    """Return a step that refuses a value which this version cannot carry. Dropping the value would change the meaning:
    for example, a static member would become a dynamic member."""
    if default is dataclasses.MISSING:
        raise TypeError(f"field {name} is not in every version, so it needs a default")
    get = attrgetter(name)
    until = "" if spec.until is None else f" to {spec.until}"

    def step(_: bytearray, message: Any) -> None:
        if get(message) != default:
            raise UnencodableMessage(f"{name} exists only in versions from {spec.since}{until}")

    return step


def _tags_write_step(tags: list[tuple[int, str, Any, Writer]]) -> WriteStep:
    if not tags:
        return lambda out, _: out.append(0)

    def step(out: bytearray, message: Any) -> None:
        present = [entry for entry in tags if getattr(message, entry[1]) != entry[2]]
        primitives.write_uvarint(out, len(present))
        for tag, name, _, write in present:
            body = bytearray()
            write(body, getattr(message, name))
            primitives.write_uvarint(out, tag)
            primitives.write_uvarint(out, len(body))
            out += body

    return step


def _reader(kind: Kind | type, flexible: bool, nullable: bool, version: int) -> Reader:
    if not isinstance(kind, Kind):
        return structure_reader(kind, version, flexible)
    if kind.name == "uuid":
        return _read_uuid
    if kind.name == "number":
        return _number_reader(kind.code)
    read_length = primitives.read_length_compact if flexible else primitives.read_length_int32
    if kind.name == "string":
        read_length = primitives.read_length_compact if flexible else primitives.read_length_int16
        read_body: primitives.BodyReader = primitives.read_string
    elif kind.name == "bytes":
        read_body = primitives.read_bytes
    elif isinstance(kind.item, Kind) and kind.item.name == "number":
        read_body = primitives.number_array_reader(kind.item.code)
    else:
        assert kind.item is not None, "only arrays remain"
        read_body = primitives.array_reader(_reader(kind.item, flexible, False, version))
    return primitives.prefixed_reader(read_length, nullable, read_body)


def _writer(kind: Kind | type, flexible: bool, nullable: bool, version: int) -> Writer:
    if not isinstance(kind, Kind):
        return structure_writer(kind, version, flexible)
    if kind.name == "uuid":
        return _write_uuid
    if kind.name == "number":
        return _number_writer(kind.code)
    write_length = primitives.write_length_compact if flexible else primitives.write_length_int32
    if kind.name == "string":
        write_length = primitives.write_length_compact if flexible else primitives.write_length_int16
        write_body: primitives.BodyWriter = primitives.write_string
    elif kind.name == "bytes":
        write_body = primitives.write_bytes
    elif isinstance(kind.item, Kind) and kind.item.name == "number":
        write_body = primitives.number_array_writer(kind.item.code)
    else:
        assert kind.item is not None, "only arrays remain"
        write_body = primitives.array_writer(_writer(kind.item, flexible, False, version))
    return primitives.prefixed_writer(write_length, nullable, write_body)


def _number_reader(code: str) -> Reader:
    layout = struct.Struct(">" + code)
    return lambda data, pos: (layout.unpack_from(data, pos)[0], pos + layout.size)


def _number_writer(code: str) -> Writer:
    layout = struct.Struct(">" + code)

    def write(out: bytearray, value: Any) -> None:
        out += layout.pack(value)

    return write


def _read_uuid(data: bytes, pos: int) -> tuple[UUID, int]:
    end = primitives.span(data, pos, 16)
    return UUID(bytes=data[pos:end]), end


def _write_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes
