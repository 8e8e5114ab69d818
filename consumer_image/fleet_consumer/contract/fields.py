"""Settings files declared as classes: each field says what it reads, and `parse` makes the class of a section.

A field has its own name in camel case in the file, unless `name` gives another. Fields are read in their order. One
that is declared in no such way is no part of the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final, TypeVar, dataclass_transform

from fleet_consumer.contract.section import Section, SettingsInvalid, whole

T = TypeVar("T")
Reader = Callable[[Section, str], Any]
"""Takes a field from a section, by its name in the file. Raises SettingsInvalid."""

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
    """A field that `reader` reads; with `null` it may be null, and is None then. `later` is its value in files of an
    earlier version, which lack it; `default` is that of the class alone."""

    def read(section: Section, field: str) -> Any:
        if later is not dataclasses.MISSING and not section.has(field):
            return later
        return None if null and section.take_null(field) else reader(section, field)

    return dataclasses.field(default=default, metadata={READER: read, NAME: name})


# Field functions: they take the rules of `read_by`, too.


def text(pattern: str | None = None, **rules: Any) -> Any:
    """A non-empty string."""
    return read_by(lambda section, name: section.text(name, pattern=pattern), **rules)


def texts(least: int = 0, **rules: Any) -> Any:
    """A list of non-empty strings."""
    return read_by(lambda section, name: section.texts(name, least=least), **rules)


def integer(least: int = 0, most: int | None = None, **rules: Any) -> Any:
    return read_by(lambda section, name: section.integer(name, least, most), **rules)


def boolean(**rules: Any) -> Any:
    return read_by(Section.boolean, **rules)


def choice(*allowed: str, **rules: Any) -> Any:
    return read_by(lambda section, name: section.choice(name, *allowed), **rules)


def one_of(kind: type[StrEnum], **rules: Any) -> Any:
    """A member of an enum, by its word."""
    return read_by(lambda section, name: kind(section.choice(name, *kind)), **rules)


def pattern(**rules: Any) -> Any:
    """A regular expression."""
    return read_by(Section.pattern, **rules)


def nested(made_by: type | Callable[[Section], Any], **rules: Any) -> Any:
    """An object of its own: of a declared class, or what a function makes of the section."""
    make = (lambda section: parse(made_by, section)) if isinstance(made_by, type) else made_by
    return read_by(lambda section, name: section.read(name, make), **rules)


def listed(made: type, **rules: Any) -> Any:
    """A list of objects of a declared class."""

    def read(section: Section, name: str) -> tuple[Any, ...]:
        found, path = section.take(name), section.at(name)
        if not isinstance(found, list):
            raise SettingsInvalid(path, "must be a list")
        return tuple(whole(each, path, lambda entry: parse(made, entry)) for each in found)

    return read_by(read, **rules)


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(read_by, text, texts, integer, boolean, choice, one_of, pattern, nested, listed),
)
def settings(cls: type[T]) -> type[T]:
    """Make a class with fields declared as above a frozen, slotted, keyword-only dataclass."""
    make: Callable[[type[T]], type[T]] = dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    return make(cls)


def names_of(cls: type) -> dict[str, str]:
    """The declared fields of a class, by their names in the file."""
    return {name: field for name, field, _ in _declared(cls)}


def parse(cls: type[T], section: Section, **given: Any) -> T:
    """Read the fields of a section; the caller ends it. `given` are those that are no part of the file.

    Raises SettingsInvalid for the first bad field found.
    """
    return cls(**given, **{field: read(section, name) for name, field, read in _declared(cls)})


def parse_file(cls: type[T], document: object, file: str, version: int) -> T:
    """Read the document of a file of one version, in which nothing else may stand. Raises as `parse`."""
    section = Section(document, file)
    section.integer("version", version, version)
    made = parse(cls, section)
    section.end()
    return made


def rendered(value: Any) -> Any:
    """Declared settings as the document that `parse` reads."""
    if isinstance(value, tuple):
        return [rendered(each) for each in value]
    if not dataclasses.is_dataclass(value):
        return value
    return {name: rendered(getattr(value, field)) for name, field in names_of(type(value)).items()}


def by_partition(
    section: Section, name: str, what: str, form: str, valid: Callable[[object], bool]
) -> Iterator[tuple[int, Any]]:
    """The entries of a map from partitions to `what`, each `valid` and of this `form`."""
    found, path = section.take(name), section.at(name)
    if not isinstance(found, dict):
        raise SettingsInvalid(path, f"must map partitions to {what}")
    for partition, value in found.items():
        if not (partition.isascii() and partition.isdigit() and valid(value)):
            raise SettingsInvalid(path, f"has {partition!r}: {value!r}; write a partition and {form}")
        yield int(partition), value


def _declared(cls: Any) -> Iterator[tuple[str, str, Reader]]:
    """The declared fields: name in the file, name in the class, reader."""
    for field in dataclasses.fields(cls):
        if READER in field.metadata:
            first, *others = field.name.split("_")
            yield (
                field.metadata[NAME] or first + "".join(map(str.capitalize, others)),
                field.name,
                field.metadata[READER],
            )
