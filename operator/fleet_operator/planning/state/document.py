"""States as versioned JSON documents. Pure.

A state is a frozen dataclass whose fields are its sections, and each section is a frozen dataclass. Fields with their
default value are left out. Fields that this version of the operator does not know are kept. A newer version may have
written them before a rollback, and may run again later.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.problem import Problem

VERSION: Final = 1
"""Version of the documents. It increases when an older operator would misread a newer document."""
VERSION_KEY: Final = "version"

T = TypeVar("T")


class UnreadableStateError(Exception):
    """The document is from a newer version, or was edited and is invalid. No decision may be made without its
    content."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(conditions.STATE_UNREADABLE, message)


def read_state(model: type[T], document: Mapping[str, Any], name: str) -> T:
    """Parse a document; an empty document gives an empty state. `name`: name of the OperatorState, for messages. Raises
    UnreadableStateError if the document has a newer version or invalid values."""
    version = document.get(VERSION_KEY, VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise UnreadableStateError(
            f"OperatorState {name} has version {version}, but this operator reads only versions up to {VERSION}: run "
            "the version of the operator that wrote it, or a newer version"
        )
    kind: Any = model  # mypy does not accept a type as a Hashable argument
    try:
        found: T = _adapter(kind).validate_python(dict(document))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UnreadableStateError(
            f"OperatorState {name} cannot be read: {where}: {first['msg']}. Restore it, or delete it: the operator "
            "then continues with what is running"
        ) from error
    return found


def write_state(state: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """Build the document of a state. Unknown fields are copied from `before`, the document that was read."""
    kind: Any = type(state)
    dumped: dict[str, Any] = _adapter(kind).dump_python(state, mode="json", exclude_defaults=True)
    return {**_with_unknown(state, dumped, before), VERSION_KEY: VERSION}


def _with_unknown(state: Any, dumped: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Copy to `dumped` the fields of `before` that the dataclass does not have, including fields in nested sections."""
    known = {field.name for field in fields(state)}
    merged = {key: value for key, value in before.items() if key not in known} | dumped
    for name in known:
        part, former = getattr(state, name), before.get(name)
        if is_dataclass(part) and isinstance(former, Mapping):
            kept = _with_unknown(part, dumped.get(name) or {}, former)
            if kept:
                merged[name] = kept
    return merged


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)
