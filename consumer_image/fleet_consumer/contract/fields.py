"""Settings files declared as classes: each field declares its reader, and `parse` makes an instance from a section.

A field's name in the file is the camel-case form of its name in the class, unless `name` is given. Fields are read in
the order of their declaration. A field that is not declared by a function of this module is not part of the file.
"""

import dataclasses
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final, TypeVar, dataclass_transform

from fleet_consumer.contract.section import Section, SettingsInvalid, whole

T = TypeVar("T")
Reader = Callable[[Section, str], Any]
"""Removes a field from a section, by its name in the file, and returns the checked value. Raises SettingsInvalid."""

READER: Final = "reader"
NAME: Final = "name"


def read_by(
    reader: Reader,
    *,
    name: str | None = None,
    null: bool = False,
    later: Any = dataclasses.MISSING,
    default: Any = dataclasses.MISSING,
) -> Any:
    """Declare a field that `reader` reads. With `null`, the file may contain null for this field, which is read as
    None.

    `later` is the value if the field is absent, as in files of earlier versions. `default` is used only for instances
    that are created without a file.
    """

    def read(section: Section, field: str) -> Any:
        if later is not dataclasses.MISSING and not section.has(field):
            return later
        return None if null and section.take_null(field) else reader(section, field)

    return dataclasses.field(default=default, metadata={READER: read, NAME: name})


# The functions below declare fields. They also accept the keyword arguments of `read_by`.


def text(pattern: str | None = None, **rules: Any) -> Any:
    return read_by(lambda section, name: section.text(name, pattern=pattern), **rules)


def strings(least: int = 0, **rules: Any) -> Any:
    return read_by(lambda section, name: section.strings(name, least=least), **rules)


def integer(least: int = 0, most: int | None = None, **rules: Any) -> Any:
    return read_by(lambda section, name: section.integer(name, least, most), **rules)


def boolean(**rules: Any) -> Any:
    return read_by(Section.boolean, **rules)


def choice(*allowed: str, **rules: Any) -> Any:
    return read_by(lambda section, name: section.choice(name, *allowed), **rules)


def one_of(kind: type[StrEnum], **rules: Any) -> Any:
    return read_by(lambda section, name: kind(section.choice(name, *kind)), **rules)


def pattern(**rules: Any) -> Any:
    return read_by(Section.pattern, **rules)


def nested(made_by: type | Callable[[Section], Any], **rules: Any) -> Any:
    """Declare a nested object: an instance of a declared class, or the result of a function that reads the section."""
    make = (lambda section: parse(made_by, section)) if isinstance(made_by, type) else made_by
    return read_by(lambda section, name: section.nested(name, make), **rules)


def listed(made: type, **rules: Any) -> Any:
    """Declare a field that is a list of objects of a declared class."""

    def read(section: Section, name: str) -> tuple[Any, ...]:
        found, path = section.pop(name), section.at(name)
        if not isinstance(found, list):
            raise SettingsInvalid(path, "must be a list")
        return tuple(whole(each, path, lambda entry: parse(made, entry)) for each in found)

    return read_by(read, **rules)


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(read_by, text, strings, integer, boolean, choice, one_of, pattern, nested, listed),
)
def settings(cls: type[T]) -> type[T]:
    """Turn a class with declared fields into a frozen, slotted, keyword-only dataclass."""
    make: Callable[[type[T]], type[T]] = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    return make(cls)


def names_of(cls: type) -> dict[str, str]:
    """Return the declared fields of a class: a map from names in the file to names in the class."""
    return {name: field for name, field, _ in _declared(cls)}


def parse(cls: type[T], section: Section, **given: Any) -> T:
    """Make an instance from the fields of a section; `given` has the values of fields that are not in the file. The
    caller must call `section.end`. Raises SettingsInvalid for the first invalid field."""
    return cls(**given, **{field: read(section, name) for name, field, read in _declared(cls)})


def parse_file(cls: type[T], document: object, file: str, version: int) -> T:
    """Parse the content of a file, which must have this version and no unknown fields. Raises SettingsInvalid."""
    section = Section(document, file)
    section.integer("version", version, version)
    made = parse(cls, section)
    section.end()
    return made


def rendered(value: Any) -> Any:
    """Convert declared settings to a document that `parse` can read."""
    if isinstance(value, tuple):
        return [rendered(each) for each in value]
    if not dataclasses.is_dataclass(value):
        return value
    return {name: rendered(getattr(value, field)) for name, field in names_of(type(value)).items()}


def by_partition(
    section: Section, name: str, what: str, form: str, valid: Callable[[object], bool]
) -> Iterator[tuple[int, Any]]:
    """Yield the entries of a map whose keys are partitions. Raises SettingsInvalid for an entry with a value for which
    `valid` returns False. In the message, `what` names the values, and `form` describes a valid value."""
    found, path = section.pop(name), section.at(name)
    if not isinstance(found, dict):
        raise SettingsInvalid(path, f"must map partitions to {what}")
    for partition, value in found.items():
        if not (partition.isascii() and partition.isdigit() and valid(value)):
            raise SettingsInvalid(path, f"has {partition!r}: {value!r}; write a partition and {form}")
        yield int(partition), value


def _declared(cls: Any) -> Iterator[tuple[str, str, Reader]]:
    """Yield the declared fields: name in the file, name in the class, reader."""
    for field in dataclasses.fields(cls):
        if READER in field.metadata:
            first, *others = field.name.split("_")
            yield (
                field.metadata[NAME] or first + "".join(map(str.capitalize, others)),
                field.name,
                field.metadata[READER],
            )
