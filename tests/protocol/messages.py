"""All our message classes, and random valid messages of each."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

import fleet_consumer.wire as wire
from fleet_consumer.wire.errors import ErrorCode
from fleet_consumer.wire.message import Message, Request
from fleet_consumer.wire.schema import FieldSpec, Kind, fields_of

INTEGER_BITS = {"b": 8, "h": 16, "i": 32, "q": 64}
DURATION_MS_MAX = 10**12
"""One of the oracles keeps 64-bit durations in a timedelta, which ends long before the integer does."""


def _requests() -> list[type[Request[Any]]]:
    found: dict[int, type[Request[Any]]] = {}
    for module in pkgutil.walk_packages(wire.__path__, "fleet_consumer.wire."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Request) and value is not Request:
                found[value.API_KEY] = value
    return [found[key] for key in sorted(found)]


REQUESTS = _requests()


def versions_of(cls: type[Message]) -> range:
    return range(cls.MIN_VERSION, cls.MAX_VERSION + 1)


MESSAGES: list[tuple[type[Message], int]] = [
    (cls, version) for request in REQUESTS for cls in (request, request.RESPONSE) for version in versions_of(request)
]
MESSAGE_IDS = [f"{cls.__name__}-{version}" for cls, version in MESSAGES]


def messages(cls: type[Any], version: int) -> st.SearchStrategy[Any]:
    """Valid messages of one class and version: every field that the version has takes every kind of value."""
    return st.builds(
        cls,
        **{name: _values(name, spec, version) for name, spec, _ in fields_of(cls) if spec.exists_in(version)},
    )


def _values(name: str, spec: FieldSpec, version: int) -> st.SearchStrategy[Any]:
    if name.endswith("error_code"):
        return st.sampled_from([code.value for code in ErrorCode])
    if name in ("session_lifetime_ms", "retention_time_ms"):
        return st.integers(0, DURATION_MS_MAX)
    values = _kind_values(spec.kind, version)
    return st.none() | values if spec.nullable_in(version) else values


def _kind_values(kind: Kind | type, version: int) -> st.SearchStrategy[Any]:
    if not isinstance(kind, Kind):
        return messages(kind, version)
    if kind.name == "string":
        return st.text(max_size=12)
    if kind.name == "bytes":
        return st.binary(max_size=40)
    if kind.name == "uuid":
        return st.builds(UUID, int=st.integers(0, 2**128 - 1))
    if kind.code == "?":
        return st.booleans()
    if kind.name == "number":
        bits = INTEGER_BITS[kind.code]
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    assert kind.item is not None
    return st.lists(_kind_values(kind.item, version), max_size=4).map(tuple)
