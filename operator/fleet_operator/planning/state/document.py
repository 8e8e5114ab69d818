"""States as JSON documents, with their version. Pure.

A state is a frozen dataclass whose fields are its parts, each a frozen dataclass. Fields at their default are left out.
Fields that this version does not know stay as they were read: a newer operator may have written them, and may come
back after a rollback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from fleet_operator.api.v1alpha1 import conditions
from fleet_operator.planning.problem import Problem

VERSION: Final = 1
"""Version of the documents. It is raised when an older operator would misread what a newer one has written."""
VERSION_KEY: Final = "version"

T = TypeVar("T")


class UnreadableStateError(Exception):
    """A document that is not of this operator or an older one; nothing may be decided without it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(conditions.STATE_UNREADABLE, message)


def read_state(model: type[T], document: Mapping[str, Any], name: str) -> T:
    """The state in a document; an empty document gives an empty state. `name` is that of its object, for messages.

    Raises UnreadableStateError for a document of a newer version, and for one that somebody has edited.
    """
    version = document.get(VERSION_KEY, VERSION)
    if not isinstance(version, int) or version > VERSION:
        raise UnreadableStateError(
            f"OperatorState {name} has version {version}, and this operator reads versions up to {VERSION}: run the "
            "operator that wrote it, or a newer one"
        )
    try:
        found: T = _adapter(model).validate_python(dict(document))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UnreadableStateError(
            f"OperatorState {name} cannot be read: {where}: {first['msg']}. Restore it, or delete it: then the "
            "operator takes what runs as it is"
        ) from error
    return found


def write_state(state: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a state. `before` is the document that it was read from, for the fields that are not ours."""
    dumped: dict[str, Any] = _adapter(type(state)).dump_python(state, mode="json", exclude_defaults=True)
    return {**_with_unknown(state, dumped, before), VERSION_KEY: VERSION}


def _with_unknown(state: Any, dumped: dict[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a document with those of the former one that the dataclass does not have, in its parts as well."""
    known = {field.name for field in fields(state)}
    merged = {key: value for key, value in before.items() if key not in known} | dumped
    for name in known:
        part, former = getattr(state, name), before.get(name)
        if is_dataclass(part) and isinstance(former, Mapping):
            kept = _with_unknown(part, dumped.get(name) or {}, former)
            if kept:
                merged[name] = kept
    return merged


_ADAPTERS: Final = dict[Any, TypeAdapter[Any]]()


def _adapter(model: Any) -> TypeAdapter[Any]:
    if model not in _ADAPTERS:
        _ADAPTERS[model] = TypeAdapter(model)
    return _ADAPTERS[model]
