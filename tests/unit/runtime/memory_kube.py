"""A Kubernetes API server in memory, as far as the runtime needs one: versions, conflicts, uids; and faults on demand.

Gaps: no schemas, no field ownership (apply merges by replacing), watches that show nothing, no selectors beyond
equality, no deletion by owner. The suites on a real API server cover those.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable

from fleet_operator.clients.kinds import WHOLE, JsonObject, Kind, View, kind_of
from fleet_operator.clients.kube import KubeClient, KubeConflictError, KubeNotFoundError, Listing, WatchEvent

Address = tuple[str, str, str]


class MemoryKube(KubeClient):
    """`KubeClient` without a server. `before` is called with (verb, kind, name) ahead of each call and may raise."""

    def __init__(self) -> None:
        self.objects: dict[Address, JsonObject] = {}
        self.version = 100
        self.before: Callable[[str, str, str], None] = lambda verb, kind, name: None
        self.writes: list[tuple[str, str, str]] = []

    async def get(self, kind: Kind, namespace: str, name: str) -> JsonObject | None:
        self.before("get", kind.kind, name)
        return copy.deepcopy(self.objects.get((kind.kind, namespace, name)))

    async def list(self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE) -> Listing:
        self.before("list", kind.kind, "")
        wanted = dict(part.split("=", 1) for part in label_selector.split(",") if part)
        found = [
            view.trim(copy.deepcopy(body))
            for (its_kind, its_namespace, _), body in self.objects.items()
            if its_kind == kind.kind
            and namespace in (None, its_namespace)
            and wanted.items() <= body["metadata"].get("labels", {}).items()
        ]
        return Listing(found, str(self.version))

    async def pages(
        self, kind: Kind, namespace: str | None, *, label_selector: str = "", view: View = WHOLE
    ) -> AsyncIterator[Listing]:
        yield await self.list(kind, namespace, label_selector=label_selector, view=view)

    async def watch(
        self, kind: Kind, namespace: str | None, version: str, *, label_selector: str = "", view: View = WHOLE
    ) -> AsyncIterator[WatchEvent]:
        await asyncio.get_running_loop().create_future()
        yield WatchEvent(version, None)

    async def apply(self, body: JsonObject) -> JsonObject:
        self._begin("apply", body)
        self._refuse_another(body)
        stored = self.objects.get(self._address(body))
        if stored is not None and body.keys() == {"apiVersion", "kind", "metadata"}:  # of an object of a user
            body = {**stored, "metadata": _merged(stored["metadata"], body["metadata"])}
        return self._store(body, keep_status=True)

    async def apply_status(self, body: JsonObject) -> JsonObject:
        self._begin("apply_status", body)
        address = self._address(body)
        if address not in self.objects:
            raise KubeNotFoundError(f"{address} not found", status=404)
        self._refuse_another(body)
        return self._store(self.objects[address] | {"status": copy.deepcopy(body["status"])}, keep_status=False)

    async def create(self, body: JsonObject, *, strict: bool = False) -> JsonObject:
        self._begin("create", body)
        if self._address(body) in self.objects:
            raise KubeConflictError("exists", status=409)
        return self._store(body, keep_status=False)

    async def replace(self, body: JsonObject) -> JsonObject:
        self._begin("replace", body)
        stored = self.objects.get(self._address(body))
        if stored is None or stored["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise KubeConflictError("changed", status=409)
        return self._store(body, keep_status=False)

    async def merge(self, body: JsonObject) -> JsonObject:
        self._begin("merge", body)
        stored = self.objects.get(self._address(body))
        if stored is None:
            raise KubeNotFoundError("not found", status=404)
        if stored["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise KubeConflictError("changed", status=409)
        return self._store({**stored, "metadata": _merged(stored["metadata"], body["metadata"])}, keep_status=True)

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, version: str | None = None) -> bool:
        self.before("delete", kind.kind, name)
        stored = self.objects.get((kind.kind, namespace, name))
        if stored is None or stored["metadata"]["uid"] != uid:
            return False
        if version not in (None, stored["metadata"]["resourceVersion"]):
            return False
        self.writes.append(("delete", kind.kind, name))
        del self.objects[kind.kind, namespace, name]
        return True

    def _begin(self, verb: str, body: JsonObject) -> None:
        kind, name = kind_of(body).kind, body["metadata"]["name"]
        self.before(verb, kind, name)
        self.writes.append((verb, kind, name))

    def _refuse_another(self, body: JsonObject) -> None:
        """An apply that names a uid or a version changes that object or none."""
        stored = self.objects.get(self._address(body))
        for key in ("uid", "resourceVersion"):
            wanted = body["metadata"].get(key)
            if wanted is not None and (stored is None or stored["metadata"][key] != wanted):
                raise KubeConflictError(f"{key} mismatch", status=409)

    def _address(self, body: JsonObject) -> Address:
        return kind_of(body).kind, body["metadata"]["namespace"], body["metadata"]["name"]

    def _store(self, body: JsonObject, *, keep_status: bool) -> JsonObject:
        self.version += 1
        address = self._address(body)
        known = self.objects.get(address)
        stored = copy.deepcopy(body)
        stored["metadata"] = copy.deepcopy(stored["metadata"])
        stored["metadata"]["uid"] = known["metadata"]["uid"] if known else f"uid-{self.version}"
        stored["metadata"]["resourceVersion"] = str(self.version)
        if keep_status and known and "status" in known:
            stored["status"] = known["status"]
        self.objects[address] = stored
        return copy.deepcopy(stored)


def _merged(stored: JsonObject, patch: JsonObject) -> JsonObject:
    """A JSON merge patch (RFC 7386) of an object: None removes a field."""
    merged = {key: value for key, value in stored.items() if patch.get(key, value) is not None}
    for key, value in patch.items():
        if isinstance(value, dict):
            merged[key] = _merged(merged.get(key) or {}, value)
        elif value is not None:
            merged[key] = value
    return merged
