"""Declarations of Kafka messages: frozen dataclasses whose fields give type, versions and null rules.

A declaration follows Kafka's message schema (clients/src/main/resources/common/message): the same field order, names in
snake case, and the same version ranges, defaults, tags and "ignorable" flags. `codec` compiles it into readers and
writers. A field that is missing in some versions needs a default. The field gets this value when a message of such a
version is read.
"""

import dataclasses
from functools import partial
from typing import Any, Final, dataclass_transform
from uuid import UUID

METADATA_KEY: Final = "wire"
ZERO_UUID: Final = UUID(int=0)
"""Kafka's value for "no topic id"."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A wire type: "number" (`code` is its struct letter), "string", "bytes", "uuid", or "array" of `item`."""

    name: str
    code: str = ""
    item: "Kind | type | None" = None


INT8: Final = Kind("number", "b")
INT16: Final = Kind("number", "h")
INT32: Final = Kind("number", "i")
INT64: Final = Kind("number", "q")
BOOLEAN: Final = Kind("number", "?")
STRING: Final = Kind("string")
BYTES: Final = Kind("bytes")
UUID_KIND: Final = Kind("uuid")


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    """The rules of one field.

    - The field exists in versions `since` to `until` (None: the last version).
    - The field may be null from version `nullable_since` on (None: never).
    - A field with a `tag` is in the tagged section, but only if its value differs from its default.
    - When a version without the field is written, an `ignorable` field is omitted silently. Any other field must then
      have its default value.
    """

    kind: Kind
    since: int = 0
    until: int | None = None
    nullable_since: int | None = None
    tag: int | None = None
    ignorable: bool = False

    def exists_in(self, version: int) -> bool:
        return version >= self.since and (self.until is None or version <= self.until)

    def nullable_in(self, version: int) -> bool:
        return self.nullable_since is not None and version >= self.nullable_since


def _field(kind: Kind, default: Any = dataclasses.MISSING, **rules: Any) -> Any:
    return dataclasses.field(default=default, metadata={METADATA_KEY: FieldSpec(kind, **rules)})


# Field functions; their parameters are `default` and the rules of FieldSpec.
int8: Final = partial(_field, INT8)
int16: Final = partial(_field, INT16)
int32: Final = partial(_field, INT32)
int64: Final = partial(_field, INT64)
boolean: Final = partial(_field, BOOLEAN)
"""One byte; any value except 0 is true."""
string: Final = partial(_field, STRING)
"""UTF-8, at most 32,767 bytes."""
blob: Final = partial(_field, BYTES)
uuid: Final = partial(_field, UUID_KIND)
"""A topic id; `ZERO_UUID` means none."""


def array(item: Kind | type, **rules: Any) -> Any:
    """A tuple of elements of one `Kind`, or of one `Structure`."""
    return _field(Kind("array", item=item), **rules)


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(int8, int16, int32, int64, boolean, string, blob, uuid, array),
)
class _StructureType(type):
    def __new__(metacls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        cls = super().__new__(metacls, name, bases, namespace, **options)
        # `dataclass` creates a class with slots a second time, which calls this method again.
        return cls if "__slots__" in namespace else dataclasses.dataclass(frozen=True, slots=True, kw_only=True)(cls)


class Structure(metaclass=_StructureType):
    """A frozen, slotted, keyword-only dataclass of declared fields."""

    __slots__ = ()


def fields_of(cls: type) -> list[tuple[str, FieldSpec, Any]]:
    """Return the wire fields of a structure in order: name, rules, default (`dataclasses.MISSING` if it has none)."""
    return [
        (field.name, field.metadata[METADATA_KEY], field.default)
        for field in dataclasses.fields(cls)
        if METADATA_KEY in field.metadata
    ]
