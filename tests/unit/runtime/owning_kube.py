"""The API server in memory with owners of fields, as far as an apply that leaves a field out depends on them.

Fields are owned where they are no objects; a list belongs to one manager as a whole. There are no subresources.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from fleet_operator.clients.kinds import JsonObject
from fleet_operator.clients.kube import FIELD_MANAGER
from tests.unit.runtime.memory_kube import MemoryKube

Path = tuple[str, ...]
UNOWNED = {("apiVersion",), ("kind",)}
IDENTITY = ("name", "namespace", "uid", "resourceVersion", "managedFields", "creationTimestamp", "generation")


class OwningKube(MemoryKube):
    """A POST makes an entry "Update". An apply removes what its entry has and it leaves out, unless another has it."""

    async def create(self, body: JsonObject, *, strict: bool = False) -> JsonObject:
        recorded = {**body, "metadata": {**body["metadata"], "managedFields": [_entry("Update", set(_leaves(body)))]}}
        return await super().create(recorded, strict=strict)

    async def apply(self, body: JsonObject) -> JsonObject:
        stored = self.objects.get(self._address(body))
        entries = list(stored["metadata"].get("managedFields", [])) if stored is not None else []
        meant = set(_leaves(body))
        applied = [each for each in entries if each["operation"] == "Apply" and each["manager"] == FIELD_MANAGER]
        others = [each for each in entries if each not in applied]
        merged = copy.deepcopy(stored) if stored is not None else {}
        held = {path for each in others for path in _paths(each["fieldsV1"])}
        for path in {path for each in applied for path in _paths(each["fieldsV1"])} - meant - held:
            _remove(merged, path)
        _put(merged, body)
        merged["metadata"]["managedFields"] = [*others, _entry("Apply", meant)]
        return await super().apply(merged)


def _entry(operation: str, paths: set[Path]) -> JsonObject:
    fields: JsonObject = {}
    for path in sorted(paths):
        inner = fields
        for name in path:
            inner = inner.setdefault(f"f:{name}", {})
    return {"manager": FIELD_MANAGER, "operation": operation, "apiVersion": "v1", "fieldsV1": fields}


def _leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(value, dict):
        for key, each in value.items():
            if path != ("metadata",) or key not in IDENTITY:
                yield from _leaves(each, (*path, key))
    elif path not in UNOWNED:
        yield path


def _paths(fields: JsonObject, path: Path = ()) -> Iterator[Path]:
    for key, below in fields.items():
        inner = (*path, key.removeprefix("f:"))
        yield from _paths(below, inner) if below else [inner]


def _remove(body: JsonObject, path: Path) -> None:
    for name in path[:-1]:
        body = body.get(name, {})
    body.pop(path[-1], None)


def _put(stored: JsonObject, body: JsonObject) -> None:
    for key, value in body.items():
        if isinstance(value, dict):
            _put(stored.setdefault(key, {}), value)
        else:
            stored[key] = value
