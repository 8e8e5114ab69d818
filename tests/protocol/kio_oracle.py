"""kio, an independent codec generated from Kafka's schemas: our messages in its classes, and its bytes."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import re
import types
import typing
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from fleet_consumer.wire.message import Message

Converted = Any


def kio_class(cls: type[Message], version: int) -> type[Any]:
    """kio's class for one of our top-level classes."""
    part = next((part for part in ("Request", "Response") if cls.__name__.endswith(part)), "")
    api = re.sub(r"(?<=.)(?=[A-Z])", "_", cls.__name__.removesuffix(part)).lower()
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{part.lower() or 'data'}")
    found: type[Any] = getattr(module, cls.__name__)
    return found


def to_kio(ours: Any, target: type[Any]) -> Converted:
    """The same message in kio's class: durations become timedeltas, error codes an enumeration."""
    hints = typing.get_type_hints(target)
    return target(**{field.name: _convert(ours, field, hints[field.name]) for field in dataclasses.fields(target)})


def kio_encode(message: Converted) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def kio_decode(target: type[Any], data: bytes) -> Converted:
    message, size = entity_reader(target)(data, 0)
    assert size == len(data)
    return message


def _convert(ours: Any, field: dataclasses.Field[Any], hint: Any) -> Any:
    kafka_type = field.metadata.get("kafka_type")
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return datetime.timedelta(milliseconds=getattr(ours, f"{field.name}_ms"))
    value = getattr(ours, field.name)
    if value is None:
        return None
    if kafka_type == "error_code":
        return ErrorCode(value)
    if isinstance(value, UUID):
        return value if value.int else None
    nested = _element_class(hint)
    return tuple(to_kio(item, nested) for item in value) if nested is not None else value


def _element_class(hint: Any) -> type[Any] | None:
    """X of `tuple[X, ...]` or of `tuple[X, ...] | None`, if it is a structure."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if typing.get_origin(option) is tuple and dataclasses.is_dataclass(typing.get_args(option)[0]):
            element: type[Any] = typing.get_args(option)[0]
            return element
    return None
